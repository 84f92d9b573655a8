// Runs calls whose operands are less aligned than a family's kernels need.
#pragma once

#include <cuda_runtime_api.h>

#include "common/family.h"

namespace jaxconv {

// Enqueues a kernel of simt. It loads and stores single elements, and its split-K slices have the same size.
cudaError_t LaunchUnaligned(const ConvCall& call, int64_t split, cudaStream_t stream);

}  // namespace jaxconv
