// How the threads of a block share out the copy of an operand's tile.
#pragma once

namespace jaxconv {

// A thread's place along the axis that is contiguous, the fast one, stays, kUnit elements at a time. Along the other,
// the slow one, the threads' places are adjacent, or, if kConsecutive, each thread's own.
template <typename Tile, int kThreads, int kUnit, bool kConsecutive = false>
struct CopyPattern {
  static constexpr int kFast = (Tile::kAlongSteps ? Tile::kDepth : Tile::kLines) / kUnit;
  static constexpr int kCount = kFast * Tile::kRows / kThreads;
  static constexpr int kStride = kConsecutive ? 1 : kThreads / kFast;
  static_assert(kThreads % kFast == 0, "a thread keeps its place along the fast axis");
  static_assert(kCount * kThreads == kFast * Tile::kRows, "threads copy equally much");
  static_assert((kStride & (kStride - 1)) == 0 && (kCount & (kCount - 1)) == 0, "Tile::Further counts in bits");

  static __device__ int Fast() { return threadIdx.x % kFast * kUnit; }
  static __device__ int First() { return threadIdx.x / kFast * (kConsecutive ? kCount : 1); }
  static __device__ int Slow(int i) { return First() + i * kStride; }
  // Whether the thread's i-th copy is in one of so many parts of all.
  static __device__ bool IsIn(int i, int part, int parts) { return i * parts / kCount == part; }

  // The place in shared memory of the first element; Tile::Further leads to the others.
  static __device__ int Origin() {
    return Tile::kAlongSteps ? Tile::Offset(First(), Fast()) : Tile::Offset(Fast(), First());
  }
};

}  // namespace jaxconv
