// The compiled kernels of the wgmma family. They take long to compile: each type has a file.
#pragma once

#include <cstdint>

#include "wgmma/config.h"
#include "wgmma/params.cuh"

namespace jaxconv {

using WgmmaKernelPtr = void (*)(WgmmaParams);

// For conv. `k_major`: the filter's source channels are neighbours in memory, not its output channels.
template <typename T, bool kBF16x6>
WgmmaKernelPtr FindWgmma(int64_t tile, bool k_major, WgmmaEpilogueKind epilogue_kind);

// For wgrad. The tile takes it.
template <typename T, bool kBF16x6>
WgmmaKernelPtr FindWgrad(int64_t tile);

// Enqueues a kernel that splits an operand into arrays of BF16Part, one behind the other. There are whole 16-byte
// vectors of elements, which begin at multiples of 16 bytes.
cudaError_t EnqueueBF16Parts(const float* operand, int64_t elements, void* parts, cudaStream_t stream);

}  // namespace jaxconv
