// The compiled kernels of the wgmma family. They take long to compile: each type has a file.
#pragma once

#include <cstdint>

#include "wgmma/params.cuh"

namespace jaxconv {

using WgmmaKernelPtr = void (*)(WgmmaParams);

// For conv. `k_major`: the filter's source channels are neighbours in memory, not its output channels.
template <typename T>
WgmmaKernelPtr FindWgmma(int64_t tile, bool k_major, bool has_epilogue);

// For wgrad. The tile takes it.
template <typename T>
WgmmaKernelPtr FindWgrad(int64_t tile);

}  // namespace jaxconv
