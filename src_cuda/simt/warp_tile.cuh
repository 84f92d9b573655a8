// A thread's share of a block's product, and the outer products that sum it up.
//
// A warp is 8 by 4 threads. Lanes that differ in bit 0 read the same rows and lanes that differ in bit 1 the same
// columns, which lets the hardware serve a 16-byte read of a whole warp in two passes. A thread's rows and columns come
// in fours, a warp's width apart, so that a warp's reads are contiguous.
#pragma once

#include "common/convert.cuh"
#include "common/family.h"
#include "simt/config.h"

namespace jaxconv {

template <typename Acc, Tile kTile>
class WarpTile {
 public:
  static constexpr int kRows = kTile.thread_rows;
  static constexpr int kCols = kTile.thread_cols;

  __device__ WarpTile() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    row_ = warp / kWarpsAcross * (kLaneRows * kRows) + lane / 2 % kLaneRows * 4;
    col_ = warp % kWarpsAcross * (kLaneCols * kCols) + (lane / 16 * 2 + lane % 2) * 4;
  }

  // The place in the block's tile of this thread's i-th row or column.
  __device__ int Row(int i) const { return row_ + i / 4 * (kLaneRows * 4) + i % 4; }
  __device__ int Col(int j) const { return col_ + j / 4 * (kLaneCols * 4) + j % 4; }

  // Reads one step's operands. There are two sets, so that one is read while the other is multiplied.
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
  static constexpr int kWarpsAcross = kTile.cols / (kLaneCols * kCols);
  static_assert(kTile.rows % (kLaneRows * kRows) == 0 && kTile.cols % (kLaneCols * kCols) == 0);

  int row_;
  int col_;
  Pack<Acc, 4> a_[2][kRows / 4];
  Pack<Acc, 4> b_[2][kCols / 4];
  Pack<Acc, 4> sum_[kRows][kCols / 4] = {};
};

}  // namespace jaxconv
