// The kernel families, and whether a device can run them.
#pragma once

#include <cuda_runtime_api.h>

#include "common/family.h"

namespace jaxconv {

extern const KernelFamily kSimt;
extern const KernelFamily kIm2col;
extern const KernelFamily kMma;
extern const KernelFamily kDirect;
extern const KernelFamily kDepthwise;
extern const KernelFamily kWgmma;

// A plan of mma that every device can run, of a tile with so many columns at most, if there is one.
Plan MmaPlan(int most_cols, int split);

// Loads a kernel on the current device, and says why it does not load.
cudaError_t LoadProbe();

// In the order of FAMILIES["cuda"] in jaxconv/planner/families.py.
inline constexpr const KernelFamily* kFamilies[] = {&kSimt, &kIm2col, &kMma, &kDirect, &kDepthwise, &kWgmma};

}  // namespace jaxconv
