// What thread blocks read first, on its way to L2 while they begin.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "conv_problem.h"

namespace jaxconv {

// Fetches taps, of which the filter's and the first source pixels' addresses depend, and the filter to L2 while the
// class is read: the way to memory is as long as a small layer takes for some steps. All thread blocks share out the
// filter. By so many threads of each.
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
