// Stores the sums of kernels on CUDA cores to device memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/points.cuh"

namespace jaxconv {

// The columns (N) of the result of one group.
struct ResultCols {
  void* base;
  DType type;
  int64_t first;
  int64_t count;
  int64_t stride;
  bool quads;  // groups of four columns are contiguous and aligned, and all inside or all outside
};

// Ends the sums of four neighbouring columns of a row, with their channels' numbers, and stores them. `row`: the
// element where it begins.
template <typename Acc, bool kToBytes, typename Epilogue>
__device__ __forceinline__ void StoreFour(const Pack<Acc, 4>& four, const typename Epilogue::OfChannel* of, int64_t row,
                                          int64_t col, const ResultCols& cols, const Epilogue& epilogue) {
  using Result = typename Epilogue::Result;
  if (cols.quads) {
    if (col >= cols.count) return;
    Pack<Result, 4> results;
#pragma unroll
    for (int v = 0; v < 4; ++v) results.v[v] = epilogue(of[v], four.v[v], col + v, row + col + v);
    StoreNarrowed<kToBytes>(results, cols.base, row + col, cols.type);
  } else {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      if (col + v >= cols.count) continue;
      const int64_t element = row + (col + v) * cols.stride;
      const Pack<Result, 1> result{epilogue(of[v], four.v[v], col + v, element)};
      StoreNarrowed<kToBytes>(result, cols.base, element, cols.type);
    }
  }
}

// Applies the epilogue to a thread's sums and stores them. The channels of the epilogue are the columns of the group.
// kToBytes: see StoreNarrowed.
template <typename Acc, bool kToBytes, typename Sums, typename Epilogue>
__device__ __forceinline__ void StoreSums(const Sums& sums, const Point* rows, const ResultCols& cols,
                                          const Epilogue& epilogue) {
  typename Epilogue::OfChannel of[Sums::kCols];
#pragma unroll
  for (int j = 0; j < Sums::kCols; ++j) {
    const int64_t col = cols.first + sums.Col(j);
    of[j] = epilogue.Of(min(col, cols.count - 1));
  }
  const auto store_row = [&](int i, const auto& sums_of) {
    const int64_t row = rows[sums.Row(i)].partner;
    if (row < 0) return;
#pragma unroll
    for (int j = 0; j < Sums::kCols; j += 4) {
      StoreFour<Acc, kToBytes>(sums_of(i, j), of + j, row, cols.first + sums.Col(j), cols, epilogue);
    }
  };
  if constexpr (Epilogue::kIsNone) {
#pragma unroll
    for (int i = 0; i < Sums::kRows; ++i) store_row(i, [&](int i, int j) { return sums.Sums(i, j); });
  } else {
    // An epilogue is long. Code for each row would take minutes to compile: so the sums go through local memory, which
    // a loop can index.
    Pack<Acc, 4> copy[Sums::kRows][Sums::kCols / 4];
#pragma unroll
    for (int i = 0; i < Sums::kRows; ++i) {
#pragma unroll
      for (int j = 0; j < Sums::kCols; j += 4) copy[i][j / 4] = sums.Sums(i, j);
    }
#pragma unroll 1
    for (int i = 0; i < Sums::kRows; ++i) store_row(i, [&](int i, int j) { return copy[i][j / 4]; });
  }
}

}  // namespace jaxconv
