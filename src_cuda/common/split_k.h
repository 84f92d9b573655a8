// Split-K: adding the slices, which the first kernel of a call has left in the workspace.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/family.h"

namespace jaxconv {

// Enqueues the last kernel of a call that keeps its sums in the workspace: adds the slices in a fixed order.
cudaError_t AddSlices(const ConvCall& call, int64_t split, cudaStream_t stream);

}  // namespace jaxconv
