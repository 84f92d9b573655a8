// How the threads of a block share out the copy of an operand's tile.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"

namespace jaxconv {

// The contiguous axis is the fast one. There a thread keeps its coordinate, kVector elements at a time. Along the slow
// axis threads alternate, or each has consecutive coordinates if kConsecutive.
template <typename Tile, int kThreads, int kVector, bool kConsecutive = false>
struct CopyPattern {
  static constexpr int kFast = (Tile::kKMajor ? Tile::kBlockK : Tile::kMn) / kVector;
  static constexpr int kCount = kFast * Tile::kRows / kThreads;
  static constexpr int kStride = kConsecutive ? 1 : kThreads / kFast;
  static_assert(kThreads % kFast == 0, "a thread keeps its coordinate along the fast axis");
  static_assert(kCount * kThreads == kFast * Tile::kRows, "threads copy equally much");
  static_assert((kStride & (kStride - 1)) == 0 && (kCount & (kCount - 1)) == 0, "Tile::Advance counts in bits");

  static __device__ int Fast() { return threadIdx.x % kFast * kVector; }
  static __device__ int First() { return threadIdx.x / kFast * (kConsecutive ? kCount : 1); }
  static __device__ int Slow(int i) { return First() + i * kStride; }
  // Whether the thread's i-th copy is in one of so many parts of all.
  static __device__ bool IsIn(int i, int part, int parts) { return i * parts / kCount == part; }

  // The shared-memory offset of the first element. Tile::Advance leads to the others.
  static __device__ int Origin() {
    return Tile::kKMajor ? Tile::Offset(First(), Fast()) : Tile::Offset(Fast(), First());
  }
};

// Copies one of `parts` parts of a tile; from(i) is the address of the thread's i-th vector. It is zeros unless
// is_valid(i).
template <typename Pattern, typename Tile, typename From, typename IsValid>
__device__ __forceinline__ void CopyVectors(uint32_t to, int part, int parts, const From& from,
                                            const IsValid& is_valid) {
#pragma unroll
  for (int i = 0; i < Pattern::kCount; ++i) {
    if (!Pattern::IsIn(i, part, parts)) continue;
    ptx::CopyAsync(Tile::Advance(to, i * Pattern::kStride), from(i), is_valid(i));
  }
}

}  // namespace jaxconv
