// Prefetches to L2 what CTAs read first.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "conv_problem.h"

namespace jaxconv {

// Prefetches the taps and the filter to L2 while the residue class is read. The addresses of the filter and of the
// first source pixels depend on the taps, and in a small layer the latency of memory is as long as several steps of K.
// Each CTA prefetches all taps and its share of the filter, with `threads` threads.
template <typename Params>
__device__ __forceinline__ void PrefetchTables(const Params& p, int64_t filter_bytes, uint32_t thread_of_block,
                                               uint32_t threads) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * threads + thread_of_block;
  const auto fetch = [](const void* first, int64_t line, int64_t bytes) {
    if (line * ptx::kLineBytes < bytes) ptx::Prefetch(static_cast<const char*>(first) + line * ptx::kLineBytes);
  };
  fetch(p.taps, thread_of_block, p.problem.tap_count * static_cast<int64_t>(sizeof(Tap)));
  fetch(p.rhs, thread, filter_bytes);
}

template <typename Params>
__device__ __forceinline__ void PrefetchTables(const Params& p, int64_t filter_bytes) {
  PrefetchTables(p, filter_bytes, threadIdx.x, blockDim.x);
}

}  // namespace jaxconv
