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

// Settings of mma that every device can run, of a tile with so many columns at most.
MmaSettings MmaWithoutWgmma(int most_cols, int64_t split);

// Loads a kernel on the current device, and says why it does not load.
cudaError_t LoadProbe();

inline constexpr std::tuple kFamilies{&kSimt, &kIm2col, &kMma, &kDirect, &kDepthwise, &kWgmma};

}  // namespace jaxconv
