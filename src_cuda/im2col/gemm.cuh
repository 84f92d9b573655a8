// Multiplies the column matrix (in a wgrad its transpose) by the other operand, on CUDA cores. Each thread computes a
// two-dimensional tile of results.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/points.cuh"
#include "common/step_table.cuh"
#include "common/store_sums.cuh"
#include "common/tile_loader.cuh"
#include "im2col/columns.cuh"
#include "im2col/config.h"

namespace jaxconv {

struct GemmParams {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  Columns columns;
  const void* rhs;
  void* out;  // the result, or the sums in the workspace
  DType rhs_type;
  DType out_type;
  uint32_t row_tiles;
  uint32_t col_tiles;
  int64_t rhs_col_stride;
  int64_t rhs_group_stride;
  int64_t out_col_stride;
  int64_t out_group_stride;
  int64_t out_elements;  // elements of one slice
  int32_t split;
  bool accumulate;  // add to the sums in `out`
  Epilogue epilogue;
};

template <typename Acc, Tile kTile>
struct alignas(16) GemmTiles {
  Acc columns[kTile.block_k][PaddedPitch(kTile.block_m)];
  Acc rhs[kTile.block_k][PaddedPitch(kTile.block_n)];
  Point rows[kTile.block_m];
  Point steps[2 * kTile.threads()];
};

// The results of a thread: adjacent rows and columns.
template <typename Acc, Tile kTile>
class ThreadTile {
 public:
  static constexpr int kRows = kTile.thread_m;
  static constexpr int kCols = kTile.thread_n;

  __device__ int Row(int i) const { return threadIdx.x / (kTile.block_n / kCols) * kRows + i; }
  __device__ int Col(int j) const { return threadIdx.x % (kTile.block_n / kCols) * kCols + j; }

  __device__ __forceinline__ void Multiply(const Acc* a, const Acc* b) {
    Pack<Acc, 4> rows[kRows / 4], cols[kCols / 4];
#pragma unroll
    for (int i = 0; i < kRows; i += 4) rows[i / 4] = *reinterpret_cast<const Pack<Acc, 4>*>(a + Row(i));
#pragma unroll
    for (int j = 0; j < kCols; j += 4) cols[j / 4] = *reinterpret_cast<const Pack<Acc, 4>*>(b + Col(j));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) sum_[i][j / 4].v[j % 4] += rows[i / 4].v[i % 4] * cols[j / 4].v[j % 4];
    }
  }

  // The sums of row i at columns j to j + 3.
  __device__ Pack<Acc, 4>& Sums(int i, int j) { return sum_[i][j / 4]; }
  __device__ const Pack<Acc, 4>& Sums(int i, int j) const { return sum_[i][j / 4]; }

  // Starts from the sums of earlier chunks.
  __device__ void Load(const Acc* from, const Point* rows, int64_t first_col, int64_t cols, int64_t col_stride) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = rows[Row(i)].partner;
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        const int64_t col = first_col + Col(j);
        if (row >= 0 && col < cols) sum_[i][j / 4].v[j % 4] = from[row + col * col_stride];
      }
    }
  }

 private:
  Pack<Acc, 4> sum_[kRows][kCols / 4] = {};
};

// Fills a tile in shared memory with element(mn, k). Neighbouring threads take neighbours along K if kKMajor, else
// along MN.
template <bool kKMajor, int kThreads, typename Acc, int kBlockK, int kPitch, typename F>
__device__ __forceinline__ void FillTile(Acc (&tile)[kBlockK][kPitch], F&& element) {
  constexpr int kMn = kPitch - PaddedPitch(0);
#pragma unroll
  for (int i = threadIdx.x; i < kMn * kBlockK; i += kThreads) {
    const int mn = kKMajor ? i / kBlockK : i % kMn;
    const int k = kKMajor ? i % kBlockK : i / kMn;
    tile[k][mn] = element(mn, k);
  }
}

template <typename Acc>
__device__ __forceinline__ Acc LoadWidened(const void* base, int64_t index, DType type) {
  RawPack<Acc, 1> raw;
  raw.Load(base, index, type);
  return raw.Widen(type).v[0];
}

template <typename Acc, int kTileIndex, bool kWgrad, bool kHasEpilogue>
__global__ void __launch_bounds__(kIm2colTiles[kTileIndex].threads(),
                                  512 / kIm2colTiles[kTileIndex].threads() / (sizeof(Acc) / 4))
    GemmKernel(const __grid_constant__ GemmParams p) {
  constexpr Tile kTile = kIm2colTiles[kTileIndex];
  constexpr int kThreads = kTile.threads();
  using Shared = GemmTiles<Acc, kTile>;
  static_assert(sizeof(Shared) == kTile.shared_bytes(sizeof(Acc)), "planning knows a block's shared memory");
  static_assert(sizeof(Shared) <= 48 * 1024, "a block gets no more static shared memory");
  static_assert(kTile.stages == 1, "a tile is loaded, then multiplied");
  __shared__ Shared shared;

  uint32_t block = blockIdx.x;
  const uint32_t col_tile = block % p.col_tiles;
  block /= p.col_tiles;
  const uint32_t row_tile = block % p.row_tiles;
  block /= p.row_tiles;
  const uint32_t slice = block % p.split, group = block / p.split;

  // M of a conv is the rows of the column matrix, M of a wgrad is its columns.
  uint32_t class_tile = row_tile + (kWgrad ? 0 : static_cast<uint32_t>(p.columns.first_row / kTile.block_m));
  const ResidueClass* residue = FindClass(p.problem, p.classes, kWgrad, kTile.block_m, &class_tile);
  if (residue == nullptr) return;
  const ClassPoints points{p.problem, p.taps, *residue, kWgrad};
  const int64_t first_row = static_cast<int64_t>(class_tile) * kTile.block_m;

  int64_t class_begin = -p.columns.first_row;  // the workspace's row of the class's first position
  for (const ResidueClass* c = p.classes; kWgrad && c != residue; ++c) {
    const int64_t positions = Positions(p.problem, *c);
    class_begin += (positions + kTile.block_m - 1) / kTile.block_m * kTile.block_m;
  }
  StepRange all{0, points.steps()};
  if (kWgrad) {
    all = {min(max(-class_begin, int64_t{0}), all.end), min(max(p.columns.rows - class_begin, int64_t{0}), all.end)};
  }
  if (p.accumulate && all.begin == all.end) return;
  const StepRange mine = all.Slice(slice, p.split, kTile.block_k);

  for (int i = threadIdx.x; i < kTile.block_m; i += kThreads) {
    Point point = OutOfBounds();
    if (first_row + i < points.rows()) {
      point = points.Row(first_row + i);
      point.partner += group * p.out_group_stride + slice * p.out_elements;
    }
    shared.rows[i] = point;
  }
  const StepTable<kThreads, kTile.block_k> steps(shared.steps, points, mine);
  steps.Fill(0);
  __syncthreads();

  const int64_t first_col = static_cast<int64_t>(col_tile) * kTile.block_n;
  ThreadTile<Acc, kTile> sums;
  if (p.accumulate) {
    sums.Load(static_cast<const Acc*>(p.out), shared.rows, first_col, p.problem.out_channels, p.out_col_stride);
  }

  const DType src_type = p.problem.src_type;
  const int64_t mn_stride = kWgrad ? 1 : p.columns.pitch;
  const int64_t k_stride = kWgrad ? p.columns.pitch : 1;
  const int64_t origin =
      group * p.columns.width +
      (kWgrad ? class_begin * p.columns.pitch + first_row : static_cast<int64_t>(row_tile) * kTile.block_m * mn_stride);
  const int64_t rhs_origin = group * p.rhs_group_stride + first_col * p.rhs_col_stride;
  const int tiles = mine.Tiles(kTile.block_k);
#pragma unroll 1
  for (int first = 0; first < tiles; first += steps.kTilesPerHalf) {
    steps.FillAfter(first);
#pragma unroll 1
    for (int tile = first; tile < min(first + steps.kTilesPerHalf, tiles); ++tile) {
      const int64_t begin = mine.begin + static_cast<int64_t>(tile) * kTile.block_k;
      const Point* partners = steps.Tile(tile);
      FillTile<!kWgrad, kThreads>(shared.columns, [&](int mn, int k) {
        const bool inside = first_row + mn < points.rows() && begin + k < mine.end;
        const int64_t at = origin + mn * mn_stride + (begin + k) * k_stride;
        return inside ? LoadWidened<Acc>(p.columns.data, at, src_type) : Acc{0};
      });
      FillTile<false, kThreads>(shared.rhs, [&](int mn, int k) {
        const bool inside = first_col + mn < p.problem.out_channels && partners[k].partner >= 0;
        const int64_t at = rhs_origin + mn * p.rhs_col_stride + partners[k].partner;
        return inside ? LoadWidened<Acc>(p.rhs, at, p.rhs_type) : Acc{0};
      });
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kTile.block_k; ++k) sums.Multiply(shared.columns[k], shared.rhs[k]);
      __syncthreads();
    }
  }
  const EpilogueOf<Acc, kHasEpilogue> epilogue(p.epilogue, group * p.problem.out_channels);
  StoreSums<Acc, std::is_integral_v<Acc>>(
      sums, shared.rows, {p.out, p.out_type, first_col, p.problem.out_channels, p.out_col_stride, false}, epilogue);
}

using GemmKernelPtr = void (*)(GemmParams);

template <typename Acc, bool kWgrad, bool kHasEpilogue, size_t... kTileIndex>
GemmKernelPtr FindGemm(int64_t tile, std::index_sequence<kTileIndex...>) {
  constexpr auto kernel = []<int kIndex>(std::integral_constant<int, kIndex>) -> GemmKernelPtr {
    if constexpr (kIm2colTiles[kIndex].only_f32 && !std::is_same_v<Acc, float>) {
      return nullptr;
    } else {
      return GemmKernel<Acc, kIndex, kWgrad, kHasEpilogue>;
    }
  };
  const GemmKernelPtr kernels[] = {kernel(std::integral_constant<int, kTileIndex>())...};
  return kernels[tile];
}

}  // namespace jaxconv
