// How many thread blocks a GPU holds. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace jaxconv {

inline constexpr int64_t kBlockBytes = 1024;  // of shared memory, that a thread block takes besides its own

// Thread blocks that a multiprocessor with so much shared memory holds, whose registers hold `most`. At least one.
inline int64_t CtasPerSm(int64_t multiprocessor_bytes, int64_t shared_bytes, int64_t most) {
  return std::clamp<int64_t>(multiprocessor_bytes / (shared_bytes + kBlockBytes), 1, most);
}

// Thread blocks that share out `tiles`, which each of `others` has: as many as a GPU holds at once.
inline int64_t Sharers(int64_t held, int64_t others, int64_t tiles) {
  return std::clamp<int64_t>(held / others, 1, std::max<int64_t>(1, tiles));
}

}  // namespace jaxconv
