// Sums of a wgrad's gradient over positions, for each output channel: what a bias's gradient is. Kernels that have them
// leave rows of sums where the workspace begins. Whoever asked for them adds the rows.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/family.h"
#include "common/product.h"
#include "common/stand_in.h"

namespace jaxconv {

// The call with what is behind the rows as its workspace.
inline ConvCall BehindGradientSums(const ConvCall& given, int64_t rows) {
  ConvCall call = given.With(given.problem);
  call.workspace = static_cast<char*>(given.workspace) + GradientSumBytes(given.problem, rows);
  return call;
}

// Where a kernel leaves the rows: null, if there are none.
inline float* GradientSumsOf(const ConvCall& given, int64_t rows) {
  return rows > 0 ? static_cast<float*>(given.workspace) : nullptr;
}

// Adds up the gradient in place of a kernel that does not run: the first row has the sums, the others zeros.
cudaError_t EnqueueGradientSums(const ConvCall& given, int64_t rows, cudaStream_t stream);

// Another family's kernel for the call, and one that adds up the gradient, if there are rows.
inline cudaError_t LaunchSummingStandIn(const ConvCall& given, int64_t rows, const StandIn& needed,
                                        cudaStream_t stream) {
  if (const cudaError_t status = EnqueueGradientSums(given, rows, stream)) return status;
  return LaunchStandIn(BehindGradientSums(given, rows), needed, stream);
}

}  // namespace jaxconv
