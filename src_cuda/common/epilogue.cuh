// From a thread's sums to the result in device memory.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/points.cuh"

namespace jaxconv {

// Columns of one group's result.
struct ResultCols {
  void* base;
  DType type;
  int64_t first;
  int64_t count;
  int64_t stride;
  bool quads;  // four neighbours are contiguous, aligned, and all there or all absent
};

template <typename Acc, typename Warp>
__device__ __forceinline__ void StoreSums(const Warp& sums, const Point* rows, const ResultCols& cols) {
#pragma unroll
  for (int i = 0; i < Warp::kRows; ++i) {
    const int64_t row = rows[sums.Row(i)].partner;
    if (row < 0) continue;
#pragma unroll
    for (int j = 0; j < Warp::kCols; j += 4) {
      const Pack<Acc, 4>& four = sums.Sums(i, j);
      const int64_t col = cols.first + sums.Col(j);
      if (cols.quads) {
        if (col < cols.count) StoreNarrowed(four, cols.base, row + col, cols.type);
      } else {
#pragma unroll
        for (int v = 0; v < 4; ++v) {
          if (col + v >= cols.count) continue;
          StoreNarrowed(Pack<Acc, 1>{four.v[v]}, cols.base, row + (col + v) * cols.stride, cols.type);
        }
      }
    }
  }
}

}  // namespace jaxconv
