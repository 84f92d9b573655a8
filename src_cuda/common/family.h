// What a kernel family offers to the FFI handlers.
#pragma once

#include <cuda_runtime_api.h>

#include "common/rules.h"
#include "conv_epilogue.h"
#include "conv_problem.h"

namespace jaxconv {

class CallSlot;

// A call's operands, all in device memory. `rhs` is the filter of a conv and the destination's gradient of a wgrad.
struct ConvCall {
  const ConvProblem& problem;
  Pass pass;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;
  void* result;
  void* workspace;
  CallSlot* slot;  // finds the state that kernels keep from launch to launch
  Epilogue epilogue;
  NeighbourRows rows;

  // The same call, for a problem that sees the same operands in another way.
  ConvCall With(const ConvProblem& seen) const {
    return {seen, pass, taps, classes, src, rhs, result, workspace, slot, epilogue, rows};
  }
};

// The functions of a family. Its rules, as they are on the current device, are asked on the host before each launch.
template <typename Settings>
struct KernelFamily : Rules<Settings> {
  // Enqueues a supported call that has results, and enough workspace and shared memory. Must not allocate or wait: XLA
  // may be recording a CUDA graph.
  cudaError_t (*launch)(const ConvCall&, const Settings&, cudaStream_t);
};

// Where the first kernel of a call stores: with split-K it stores slices, and a second kernel adds them.
inline void* StoredData(const ConvCall& call, int64_t split) { return split > 1 ? call.workspace : call.result; }

}  // namespace jaxconv
