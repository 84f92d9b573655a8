// Another family's kernel, for a call that the planned family's kernels cannot run: arrays are not aligned, TMA has no
// maps of them, or the GPU lacks an instruction. Families include this, and never each other.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/family.h"
#include "conv_problem.h"
#include "reason.h"

namespace jaxconv {

// What a call needs of it.
struct StandIn {
  int64_t split;  // slices of K whose sums the call's workspace holds
  // The most columns (N) of a tile on tensor cores. 0: CUDA cores multiply, which take all types.
  int tensor_core_cols = 0;
};

// As the functions of KernelFamily.
Reason UnsupportedStandIn(const ConvProblem& p, Pass pass, const StandIn& needed);
size_t SharedBytesOfStandIn(const ConvProblem& p, Pass pass, const StandIn& needed);
cudaError_t LaunchStandIn(const ConvCall& call, const StandIn& needed, cudaStream_t stream);

}  // namespace jaxconv
