// The kernel families, and whether a device can run them.
#pragma once

#include <cuda_runtime_api.h>

#include <tuple>

#include "common/family.h"
#include "depthwise/settings.h"
#include "direct/settings.h"
#include "im2col/settings.h"
#include "mma/settings.h"
#include "simt/settings.h"
#include "wgmma/settings.h"

namespace jaxconv {

extern const KernelFamily<SimtSettings> kSimt;
extern const KernelFamily<Im2colSettings> kIm2col;
extern const KernelFamily<MmaSettings> kMma;
extern const KernelFamily<DirectSettings> kDirect;
extern const KernelFamily<DepthwiseSettings> kDepthwise;
extern const KernelFamily<WgmmaSettings> kWgmma;

// Settings of mma without wgmma, so that every device can run them. The tile has at most `most_cols` columns (N).
MmaSettings MmaWithoutWgmma(DType type, int most_cols, int64_t split);

// Loads an empty kernel on the current device, to see whether the kernels of this build can run there.
cudaError_t LoadProbe();

inline constexpr std::tuple kFamilies{&kSimt, &kIm2col, &kMma, &kDirect, &kDepthwise, &kWgmma};

}  // namespace jaxconv
