// What runs a call whose operands do not begin where a family's kernels need it.
#pragma once

#include <cuda_runtime_api.h>

#include "common/family.h"

namespace jaxconv {

// Enqueues a kernel of simt, which loads and stores single elements, and has slices of the same size.
cudaError_t LaunchUnaligned(const ConvCall& call, int64_t split, cudaStream_t stream);

}  // namespace jaxconv
