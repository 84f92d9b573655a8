// What a kernel family offers to the FFI handlers.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "common/plan.h"
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
  void* scratch;
  CallSlot* slot;  // of a conv, by which kernels find what they keep from launch to launch
};

// One .cu file. The checks are made on the host before each launch and enqueue nothing.
struct KernelFamily {
  // Why a call cannot run, or null.
  const char* (*why_not)(const ConvProblem&, Pass, const Plan&);
  // Scratch that a call that can run needs.
  size_t (*scratch_bytes)(const ConvProblem&, Pass, const Plan&);
  // Shared memory of its thread blocks.
  size_t (*shared_bytes)(const ConvProblem&, Pass, const Plan&);
  // Enqueues a call that can run, with enough scratch and shared memory. Allocates nothing, waits for nothing.
  cudaError_t (*launch)(const ConvCall&, const Plan&, cudaStream_t);
};

// Where a call's first kernel stores.
inline void* StoredData(const ConvCall& call, const Plan& plan) { return plan.split > 1 ? call.scratch : call.result; }

}  // namespace jaxconv
