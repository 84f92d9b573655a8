// How many CTAs run on a GPU at the same time. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace jaxconv {

inline constexpr int64_t kBlockBytes = 1024;  // shared memory that the system reserves for each CTA

// The CTAs that run on an SM at the same time, limited by its shared memory and by `most`, the limit of its registers.
// At least one.
inline int64_t CtasPerSm(int64_t multiprocessor_bytes, int64_t shared_bytes, int64_t most) {
  return std::clamp<int64_t>(multiprocessor_bytes / (shared_bytes + kBlockBytes), 1, most);
}

// The number of persistent CTAs for each of `others` independent sets of `tiles` tiles: together they fill the GPU,
// which runs `held` CTAs at the same time.
inline int64_t PersistentCtas(int64_t held, int64_t others, int64_t tiles) {
  return std::clamp<int64_t>(held / others, 1, std::max<int64_t>(1, tiles));
}

}  // namespace jaxconv
