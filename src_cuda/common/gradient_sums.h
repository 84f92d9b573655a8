// Sums of a wgrad's gradient over positions, for each output channel: what a bias's gradient is. Kernels that have them
// leave rows of sums where the workspace begins. Whoever asked for them adds the rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/family.h"
#include "common/product.h"

namespace jaxconv {

// The call with what is behind the rows as its workspace.
inline ConvCall BehindGradientSums(const ConvCall& given, int64_t rows) {
  ConvCall call = given.With(given.problem);
  call.workspace = static_cast<char*>(given.workspace) + GradientSumBytes(given.problem, rows);
  return call;
}

// Adds up the gradient in place of a kernel that does not run: the first row has the sums, the others zeros.
cudaError_t EnqueueGradientSums(const ConvCall& call, int64_t rows, cudaStream_t stream);

}  // namespace jaxconv
