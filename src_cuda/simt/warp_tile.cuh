// The results of a thread, which it accumulates as outer products.
//
// A warp is 8 x 4 threads. Lanes that differ in bit 0 read the same rows (M), and lanes that differ in bit 1 the same
// columns (N). Then shared memory serves a 16-byte read of the whole warp in two passes. A thread has groups of four
// rows and columns. The groups of a thread are as far apart as all threads of the warp cover, so that the reads of a
// warp are contiguous.
#pragma once

#include "common/convert.cuh"
#include "simt/config.h"

namespace jaxconv {

template <typename Acc, Tile kTile>
class WarpTile {
 public:
  static constexpr int kRows = kTile.thread_m;
  static constexpr int kCols = kTile.thread_n;

  __device__ WarpTile() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    row_ = warp / kWarpsAcross * (kLaneRows * kRows) + lane / 2 % kLaneRows * 4;
    col_ = warp % kWarpsAcross * (kLaneCols * kCols) + (lane / 16 * 2 + lane % 2) * 4;
  }

  // This thread's i-th row or column in the CTA's tile.
  __device__ int Row(int i) const { return row_ + i / 4 * (kLaneRows * 4) + i % 4; }
  __device__ int Col(int j) const { return col_ + j / 4 * (kLaneCols * 4) + j % 4; }

  // Reads the operands of one step of K. There are two sets of registers: one is loaded while the other is multiplied.
  __device__ __forceinline__ void Read(int set, const Acc* a, const Acc* b) {
#pragma unroll
    for (int i = 0; i < kRows; i += 4) a_[set][i / 4] = *reinterpret_cast<const Pack<Acc, 4>*>(a + Row(i));
#pragma unroll
    for (int j = 0; j < kCols; j += 4) b_[set][j / 4] = *reinterpret_cast<const Pack<Acc, 4>*>(b + Col(j));
  }

  __device__ __forceinline__ void Multiply(int set) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        sum_[i][j / 4].v[j % 4] += a_[set][i / 4].v[i % 4] * b_[set][j / 4].v[j % 4];
      }
    }
  }

  // The sums of row i at columns j to j + 3.
  __device__ const Pack<Acc, 4>& Sums(int i, int j) const { return sum_[i][j / 4]; }

 private:
  static constexpr int kLaneRows = 8;
  static constexpr int kLaneCols = 4;
  static constexpr int kWarpsAcross = kTile.block_n / (kLaneCols * kCols);
  static_assert(kTile.block_m % (kLaneRows * kRows) == 0 && kTile.block_n % (kLaneCols * kCols) == 0);

  int row_;
  int col_;
  Pack<Acc, 4> a_[2][kRows / 4];
  Pack<Acc, 4> b_[2][kCols / 4];
  Pack<Acc, 4> sum_[kRows][kCols / 4] = {};
};

}  // namespace jaxconv
