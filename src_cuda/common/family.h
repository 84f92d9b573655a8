// What a kernel family offers to the FFI handlers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "common/reason.h"
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
  const void* bias;  // of a conv: a number for each output channel of all groups, in the type of the sums; or null
  void* result;
  void* workspace;
  CallSlot* slot;  // of a conv, by which kernels find what they keep from launch to launch
};

// The checks are made on the host before each launch and enqueue nothing.
template <typename Settings>
struct KernelFamily {
  Reason (*unsupported_reason)(const ConvProblem&, Pass, const Settings&);
  // Of a call that is supported.
  size_t (*workspace_bytes)(const ConvProblem&, Pass, const Settings&);
  // Of a thread block.
  size_t (*shared_bytes)(const ConvProblem&, Pass, const Settings&);
  // Enqueues a call that is supported, with enough workspace and shared memory. Allocates nothing, waits for nothing.
  cudaError_t (*launch)(const ConvCall&, const Settings&, cudaStream_t);
};

// Where a call's first kernel stores: with split-K the slices, which a second kernel adds.
inline void* StoredData(const ConvCall& call, int64_t split) { return split > 1 ? call.workspace : call.result; }

}  // namespace jaxconv
