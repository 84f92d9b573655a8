// Stores the sums of kernels on CUDA cores to device memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
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
// element where it begins. `residual`: of the four if they are contiguous.
template <typename Acc, bool kToBytes, typename Epilogue>
__device__ __forceinline__ void StoreFour(const Pack<Acc, 4>& four, const Pack<typename Epilogue::Number, 4>& residual,
                                          const typename Epilogue::OfChannel* of, int64_t row, int64_t col,
                                          const ResultCols& cols, const Epilogue& epilogue) {
  if (cols.quads) {
    if (col >= cols.count) return;
    constexpr bool kAtOnce = !Epilogue::kIsNone;
    StoreNarrowed<kToBytes, kAtOnce>(epilogue(of, four, col, residual), cols.base, row + col, cols.type);
  } else {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      if (col + v >= cols.count) continue;
      const int64_t element = row + (col + v) * cols.stride;
      const Pack<Acc, 1> sum{four.v[v]};
      StoreNarrowed<kToBytes>(epilogue(of + v, sum, col + v, epilogue.Residual(element)), cols.base, element,
                              cols.type);
    }
  }
}

// An epilogue is long. Code for each row would take minutes to compile: so the sums go through local memory, which a
// loop can index. The loop loads what the next row needs before it ends a row.
template <typename Acc, bool kToBytes, typename Sums, typename Epilogue>
__device__ __forceinline__ void StoreEnded(const Sums& sums, const Point* rows, const ResultCols& cols,
                                           const typename Epilogue::OfChannel* of, const Epilogue& epilogue) {
  constexpr int kFours = Sums::kCols / 4;
  Pack<Acc, 4> copy[Sums::kRows + 1][kFours];
#pragma unroll
  for (int i = 0; i < Sums::kRows; ++i) {
#pragma unroll
    for (int j = 0; j < kFours; ++j) copy[i][j] = sums.Sums(i, 4 * j);
  }
  const bool has_residual = cols.quads && epilogue.HasResidual();
  int64_t next_row;
  Pack<Acc, 4> next[kFours];
  RawResidual<typename Epilogue::Number, 4> residuals[kFours];
  const auto load = [&](int i) {
    next_row = i < Sums::kRows ? rows[sums.Row(i)].partner : -1;
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      next[j] = copy[i][j];
      const int64_t col = cols.first + sums.Col(4 * j);
      if (has_residual && next_row >= 0 && col < cols.count) epilogue.Load(residuals[j], next_row + col);
    }
  };
  load(0);
#pragma unroll 1
  for (int i = 0; i < Sums::kRows; ++i) {
    const int64_t row = next_row;
    Pack<Acc, 4> fours[kFours];
    Pack<typename Epilogue::Number, 4> numbers[kFours];
#pragma unroll
    for (int j = 0; j < kFours; ++j) fours[j] = next[j], numbers[j] = epilogue.Widen(residuals[j]);
    load(i + 1);
    if (row < 0) continue;
#pragma unroll
    for (int j = 0; j < kFours; ++j) {
      StoreFour<Acc, kToBytes>(fours[j], numbers[j], of + 4 * j, row, cols.first + sums.Col(4 * j), cols, epilogue);
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
  if constexpr (Epilogue::kIsNone) {
#pragma unroll
    for (int i = 0; i < Sums::kRows; ++i) {
      const int64_t row = rows[sums.Row(i)].partner;
      if (row < 0) continue;
#pragma unroll
      for (int j = 0; j < Sums::kCols; j += 4) {
        StoreFour<Acc, kToBytes>(sums.Sums(i, j), {}, of + j, row, cols.first + sums.Col(j), cols, epilogue);
      }
    }
  } else {
    StoreEnded<Acc, kToBytes>(sums, rows, cols, of, epilogue);
  }
}

}  // namespace jaxconv
