// The sums of a wgrad's gradient over positions, for each column: what a bias's gradient is.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "mma/config.h"

namespace jaxconv {

// The sums of a tile's columns, which threads add up from shared memory beside the multiplications. A thread has two
// columns, and every kParts-th step.
template <typename T, MmaTile kTile, typename RhsTile>
class MmaGradientSums {
  static constexpr int kAcross = kTile.cols / 2, kParts = kTile.threads() / kAcross;
  static_assert(!RhsTile::kKMajor && sizeof(T) == 2, "two columns of a step are a word");
  static_assert(kTile.threads() % kAcross == 0, "a thread keeps its columns");

 public:
  // Adds a tile of steps. Those behind the last are zeros.
  __device__ __forceinline__ void Add(uint32_t tile) {
#pragma unroll 4
    for (int step = Part(); step < kTile.depth; step += kParts) {
      const uint32_t pair = ptx::LoadWord(tile + RhsTile::Offset(Col(), step));
      sums_[0] += FirstOf<T>(pair), sums_[1] += SecondOf<T>(pair);
    }
  }

  // Stores the sums of `cols` columns. By all threads, which add their parts through shared memory.
  __device__ __forceinline__ void Store(char* shared, float* to, int64_t cols) const {
    auto& parts = *reinterpret_cast<float (*)[kParts][kTile.cols]>(shared);
    parts[Part()][Col()] = sums_[0], parts[Part()][Col() + 1] = sums_[1];
    __syncthreads();
    if (const int col = threadIdx.x; col < kTile.cols && col < cols) {
      float sum = parts[0][col];
#pragma unroll
      for (int part = 1; part < kParts; ++part) sum += parts[part][col];
      to[col] = sum;
    }
    __syncthreads();
  }
  static_assert(kTile.cols <= kTile.threads(), "each column has a thread");
  static constexpr int kBytes = kParts * kTile.cols * static_cast<int>(sizeof(float));

 private:
  static __device__ __forceinline__ int Col() { return threadIdx.x % kAcross * 2; }
  static __device__ __forceinline__ int Part() { return threadIdx.x / kAcross; }

  float sums_[2] = {};
};

// Of kernels that have none.
struct NoGradientSums {
  __device__ __forceinline__ void Add(uint32_t) {}
  __device__ __forceinline__ void Store(char*, float*, int64_t) const {}
  static constexpr int kBytes = 0;
};

}  // namespace jaxconv
