// Implicit GEMM on the tensor cores of sm_80 and later, for any problem of operands of one type T.
//
// Tiles go to shared memory by asynchronous copies, `stages` of them in flight, from there by ldmatrix to registers, and
// the sums go back through shared memory, so that results are stored in rows.
#pragma once

#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "device/convert.cuh"
#include "device/product.cuh"
#include "device/ptx.cuh"
#include "device/shared_tile.cuh"
#include "device/step_table.cuh"
#include "device/tile_copy.cuh"
#include "device/warp_mma.cuh"
#include "kernels/mma.h"
#include "launch.h"

namespace jaxconv {

template <typename T, MmaTile kTile, MmaAccess kAccess>
using MmaSrcTile = SharedTile<T, kTile.rows, kTile.depth, kAccess != MmaAccess::kLinesLines>;
template <typename T, MmaTile kTile, MmaAccess kAccess>
using MmaRhsTile = SharedTile<T, kTile.cols, kTile.depth, kAccess == MmaAccess::kStepsSteps>;

// Shared memory. The sums, in the end, take the place of the stages.
template <typename SrcTile, typename RhsTile, MmaTile kTile>
struct MmaShared {
  static constexpr int kSumPitch = kTile.cols + 8;  // rows begin 8 banks apart: pairs of sums meet no bank twice

  struct Stage {
    char src[SrcTile::kBytes];
    char rhs[RhsTile::kBytes];
  };
  union alignas(128) {
    Stage stages[kTile.stages];
    float sums[kTile.rows][kSumPitch];
  };
  PointTable<kTile.rows> rows;
  PointTable<kTile.depth> steps[2];  // of the tile that is being copied, and of the next
};

// Stores rows of sums: eight neighbours a thread where they are contiguous, else one.
template <int kNeighbours, int kCols, int kThreads, int kRows, int kPitch>
__device__ __forceinline__ void StoreRows(const float (&sums)[kRows][kPitch], const PointTable<kRows>& rows,
                                          const ProductParams& p, int64_t first_col) {
  constexpr int kAcross = kCols / kNeighbours;
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kAcross; i += kThreads) {
    const int row = i / kAcross, col = i % kAcross * kNeighbours;
    if (rows[row].partner < 0 || first_col + col >= p.cols) continue;
    Pack<float, kNeighbours> pack;
#pragma unroll
    for (int v = 0; v < kNeighbours; ++v) pack.v[v] = sums[row][col + v];
    StoreNarrowed(pack, p.out, rows[row].partner + (first_col + col) * p.out_col_stride, p.out_type);
  }
}

// kPieces: both operands may be copied in pieces of 16 bytes.
template <typename T, int kTileIndex, MmaAccess kAccess, bool kPieces>
__global__ void __launch_bounds__(kMmaTiles[kTileIndex].threads(), kMmaTiles[kTileIndex].blocks)
    MmaKernel(const __grid_constant__ ProductParams p) {
  constexpr MmaTile kTile = kMmaTiles[kTileIndex];
  constexpr int kThreads = kTile.threads();
  using SrcTile = MmaSrcTile<T, kTile, kAccess>;
  using RhsTile = MmaRhsTile<T, kTile, kAccess>;
  using Shared = MmaShared<SrcTile, RhsTile, kTile>;
  static_assert(kTile.operand_bytes() == sizeof(T), "a row along the steps is 128 bytes");
  static_assert(kTile.depth <= kThreads, "a thread works out one step of a tile");
  extern __shared__ char raw_shared[];
  Shared& shared = *reinterpret_cast<Shared*>(raw_shared);

  const Work work = Work::OfBlock(p, kTile.rows);
  if (work.residue == nullptr) return;
  const ClassPoints points = work.Points(p, kAccess == MmaAccess::kLinesLines);
  work.FillRows<kTile.rows, kThreads, sizeof(T)>(p, points, shared.rows);
  const StepRange range = StepRange{0, points.steps()}.Slice(work.slice, p.split, kTile.depth);
  const int tiles = range.Tiles(kTile.depth);

  // The point of this thread's step of a tile, in bytes, which the whole block needs one tile later.
  const auto step_of = [&](int tile) {
    const int64_t step = range.begin + static_cast<int64_t>(tile) * kTile.depth + threadIdx.x;
    const bool exists = step < range.end;
    Point point = points.Step(exists ? step : range.begin);  // no branch: it is among the tensor cores' instructions
    point.src *= sizeof(T);
    point.partner *= sizeof(T);
    return exists ? point : Nowhere();
  };
  const auto store_step = [&](int tile, const Point& point) {
    if (threadIdx.x < kTile.depth) shared.steps[tile % 2][threadIdx.x] = point;
  };

  constexpr int kUnit = kPieces ? 16 / sizeof(T) : 1;
  using SrcPattern = CopyPattern<SrcTile, kThreads, kUnit>;
  using RhsPattern = CopyPattern<RhsTile, kThreads, kUnit>;
  const char* src = static_cast<const char*>(p.src);
  const char* rhs = static_cast<const char*>(p.rhs) + work.group * p.rhs_group_stride * sizeof(T);
  const int64_t first_col = static_cast<int64_t>(work.col_tile) * kTile.cols;
  const int64_t column_bytes = p.rhs_col_stride * sizeof(T);
  const int64_t my_col = first_col + RhsPattern::Fast();
  const int64_t my_column = my_col < p.cols ? my_col * column_bytes : INT64_MIN / 2;

  // What finds the elements of a tile that this thread copies.
  const auto in_src = [&](int tile) {
    auto& steps = shared.steps[tile % 2];
    if constexpr (SrcTile::kAlongSteps) {
      return SourceFinder<PointTable<kTile.rows>>{steps[SrcPattern::Fast()], shared.rows, p.src_size};
    } else {
      return SourceFinder<PointTable<kTile.depth>>{shared.rows[SrcPattern::Fast()], steps, p.src_size};
    }
  };
  const auto in_rhs = [&](int tile) {
    auto& steps = shared.steps[tile % 2];
    if constexpr (RhsTile::kAlongSteps) {
      const int64_t partner = steps[RhsPattern::Fast()].partner;
      const int columns = static_cast<int>(min(p.cols - first_col, int64_t{kTile.cols}));
      return StepFinder{partner < 0 ? partner : partner + first_col * column_bytes, column_bytes, columns};
    } else {
      return ColumnFinder<PointTable<kTile.depth>>{my_column, steps};
    }
  };
  constexpr int kParts = 4;  // of a tile's copies, one before each multiplication
  const auto copy = [&](int tile, int part, const auto& find_src, const auto& find_rhs) {
    typename Shared::Stage& stage = shared.stages[tile % kTile.stages];
    if constexpr (kPieces) {
      CopyPieces<SrcTile, kThreads>(src, ptx::SharedAddress(stage.src), part, kParts, find_src);
      CopyPieces<RhsTile, kThreads>(rhs, ptx::SharedAddress(stage.rhs), part, kParts, find_rhs);
    } else if (part == 0) {
      CopyElements<T, SrcTile, kThreads>(src, stage.src, find_src);
      CopyElements<T, RhsTile, kThreads>(rhs, stage.rhs, find_rhs);
    }
  };

  constexpr int kAhead = kTile.stages - 1;
  store_step(0, tiles > 0 ? step_of(0) : Nowhere());
  for (int tile = 0; tile < kAhead; ++tile) {
    __syncthreads();
    const auto find_src = in_src(tile);
    const auto find_rhs = in_rhs(tile);
#pragma unroll
    for (int part = 0; part < kParts; ++part) copy(tile, part, find_src, find_rhs);
    ptx::CommitCopies();
    store_step(tile + 1, tiles > 0 ? step_of(tile + 1) : Nowhere());
  }

  constexpr int kWarpsAcross = kTile.cols / kTile.warp_cols;
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / kWarpsAcross * kTile.warp_rows, warp_col = warp % kWarpsAcross * kTile.warp_cols;
  WarpMma<T, SrcTile, RhsTile, kTile.warp_rows, kTile.warp_cols> sums(warp_row, warp_col);
  static_assert(sums.kSteps == kParts);
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    ptx::WaitForCopies<kAhead - 1>();
    __syncthreads();
    const int next = tile + kAhead;
    const auto find_src = in_src(next);
    const auto find_rhs = in_rhs(next);
    const Point after = step_of(next + 1);
    typename Shared::Stage& stage = shared.stages[tile % kTile.stages];
    sums.Multiply(ptx::SharedAddress(stage.src), ptx::SharedAddress(stage.rhs),
                  [&](int k) { copy(next, k, find_src, find_rhs); });
    ptx::CommitCopies();
    store_step(next + 1, after);
  }

  ptx::WaitForCopies<0>();
  __syncthreads();
  sums.Store(&shared.sums[warp_row][warp_col], Shared::kSumPitch);
  __syncthreads();
  if (p.out_vectors) {
    StoreRows<8, kTile.cols, kThreads>(shared.sums, shared.rows, p, first_col);
  } else {
    StoreRows<1, kTile.cols, kThreads>(shared.sums, shared.rows, p, first_col);
  }
}

// The compiled kernels for operands of type T, those whose tiles are made for it.
template <typename T, MmaAccess kAccess, size_t... kTileIndex>
CompiledMma FindTile(int tile, std::index_sequence<kTileIndex...>) {
  constexpr auto compiled = []<int kIndex>(std::integral_constant<int, kIndex>) -> CompiledMma {
    constexpr MmaTile kTile = kMmaTiles[kIndex];
    if constexpr (kTile.operand_bytes() != sizeof(T)) {
      return {};
    } else {
      return {MmaKernel<T, kIndex, kAccess, true>, MmaKernel<T, kIndex, kAccess, false>,
              sizeof(MmaShared<MmaSrcTile<T, kTile, kAccess>, MmaRhsTile<T, kTile, kAccess>, kTile>)};
    }
  };
  const CompiledMma tiles[] = {compiled(std::integral_constant<int, kTileIndex>())...};
  return tiles[tile];
}

template <typename T>
CompiledMma FindMma(int tile, MmaAccess access) {
  constexpr auto tiles = std::make_index_sequence<std::size(kMmaTiles)>();
  switch (access) {
    case MmaAccess::kStepsLines: return FindTile<T, MmaAccess::kStepsLines>(tile, tiles);
    case MmaAccess::kStepsSteps: return FindTile<T, MmaAccess::kStepsSteps>(tile, tiles);
    case MmaAccess::kLinesLines: return FindTile<T, MmaAccess::kLinesLines>(tile, tiles);
  }
  return {};
}

}  // namespace jaxconv
