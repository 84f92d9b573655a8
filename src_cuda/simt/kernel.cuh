// Implicit GEMM on CUDA cores, for any problem. The sums are float32, float64 or int32.
//
// This is the classical design: double-buffered tiles in shared memory, warp tiles, and up to 8 x 8 results for each
// thread. A CTA loads the next tile into registers while it multiplies the current one.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/product.cuh"
#include "common/step_table.cuh"
#include "common/store_sums.cuh"
#include "common/tile_loader.cuh"
#include "simt/config.h"
#include "simt/kernels.h"
#include "simt/warp_tile.cuh"

namespace jaxconv {

template <typename Acc, Tile kTile>
struct alignas(16) SharedTiles {
  Acc src[kTile.stages][kTile.block_k][PaddedPitch(kTile.block_m)];
  Acc rhs[kTile.stages][kTile.block_k][PaddedPitch(kTile.block_n)];
  Point rows[kTile.block_m];
  Point steps[2 * kTile.threads()];
};

// CTAs per SM. With several, one CTA computes while another waits at a barrier or for loads. 512 threads leave 128
// registers for each. float64 needs twice as many registers.
template <typename Acc>
constexpr int MinBlocks(const Tile& tile) {
  return 512 / tile.threads() / (sizeof(Acc) / 4);
}

template <typename Acc, SimtTypes kTypes, bool kHasEpilogue, int kTileIndex, Access kSrcAccess, Access kRhsAccess>
__global__ void __launch_bounds__(kSimtTiles[kTileIndex].threads(), MinBlocks<Acc>(kSimtTiles[kTileIndex]))
    SimtKernel(const __grid_constant__ SimtParams p) {
  constexpr Tile kTile = kSimtTiles[kTileIndex];
  constexpr int kThreads = kTile.threads();
  using Shared = SharedTiles<Acc, kTile>;
  static_assert(sizeof(Shared) == kTile.shared_bytes(sizeof(Acc)), "planning knows a block's shared memory");
  static_assert(sizeof(Shared) <= 48 * 1024, "a block gets no more static shared memory");
  static_assert(kTile.stages == 2, "one stage is multiplied while the next is loaded");
  __shared__ Shared shared;

  const WorkTile work = WorkTile::OfBlock(p, kTile.block_m);
  if (work.residue == nullptr) return;
  const ClassPoints points = work.Points(p, p.wgrad);
  work.FillRows<kTile.block_m, kThreads>(p, points, shared.rows);
  const StepRange range = StepRange{0, points.steps()}.Slice(work.slice, p.split, kTile.block_k);
  const int tiles = range.Tiles(kTile.block_k);
  const StepTable<kThreads, kTile.block_k> steps(shared.steps, points, range);
  steps.Fill(0);
  __syncthreads();

  constexpr bool kMixed = kTypes != SimtTypes::kOfSums, kFloat8 = kTypes == SimtTypes::kFloat8;
  const DType src_type = kMixed ? p.problem.src_type : TypeOf<Acc>();
  const DType rhs_type = kMixed ? p.rhs_type : TypeOf<Acc>();
  const DType out_type = kMixed ? p.out_type : TypeOf<Acc>();
  const int64_t first_col = static_cast<int64_t>(work.col_tile) * kTile.block_n;
  SrcLoader<Acc, TilePattern<kTile.block_m, kTile.block_k, kThreads, kSrcAccess>, kFloat8> src(p.src, src_type,
                                                                                               p.src_size, shared.rows);
  RhsLoader<Acc, TilePattern<kTile.block_n, kTile.block_k, kThreads, kRhsAccess>, kFloat8> rhs(
      p.rhs, rhs_type, work.group * p.rhs_group_stride, first_col, p.cols, p.rhs_col_stride);

  const auto load = [&](int tile) {
    src.Load(steps.Tile(tile));
    rhs.Load(steps.Tile(tile));
  };
  const auto store = [&](int tile) {
    src.Store(shared.src[tile % 2][0]);
    rhs.Store(shared.rhs[tile % 2][0]);
  };
  load(0);
  store(0);
  __syncthreads();

  WarpTile<Acc, kTile> sums;
  sums.Read(0, shared.src[0][0], shared.rhs[0][0]);
#pragma unroll 1
  for (int first = 0; first < tiles; first += steps.kTilesPerHalf) {
    steps.FillAfter(first);
#pragma unroll 1
    for (int tile = first; tile < min(first + steps.kTilesPerHalf, tiles); ++tile) {
#pragma unroll
      for (int k = 0; k < kTile.block_k; ++k) {
        const bool crosses = k + 1 == kTile.block_k;
        if (crosses) {
          store(tile + 1);
          __syncthreads();
        }
        const int buffer = (tile + crosses) % 2, next = (k + 1) % kTile.block_k;
        sums.Read((k + 1) % 2, shared.src[buffer][next], shared.rhs[buffer][next]);
        if (k == 0) load(tile + 1);
        sums.Multiply(k % 2);
      }
    }
  }

  constexpr bool kToBytes = std::is_integral_v<Acc> || kFloat8;
  const EpilogueOf<Acc, kHasEpilogue, kToBytes> epilogue(p.epilogue, work.group * p.cols);
  StoreSums<Acc, kToBytes>(sums, shared.rows, {p.out, out_type, first_col, p.cols, p.out_col_stride, p.out_vectors},
                           epilogue);
}

template <typename Acc, SimtTypes kTypes, bool kHasEpilogue, int kTileIndex, size_t... kAccess>
std::array<SimtKernelPtr, kAccessCount> KernelsOfTile(std::index_sequence<kAccess...>) {
  constexpr bool kFloat8 = kTypes == SimtTypes::kFloat8;
  constexpr bool kOfSums = std::is_same_v<Acc, float> || !kSimtTiles[kTileIndex].only_f32;
  if constexpr (kFloat8 ? kTileIndex != kStandInTile : !kOfSums) {
    return {};
  } else {
    return {SimtKernel<Acc, kTypes, kHasEpilogue, kTileIndex, kAccesses[kAccess].src, kAccesses[kAccess].rhs>...};
  }
}

template <typename Acc, SimtTypes kTypes, bool kHasEpilogue, size_t... kTileIndex>
SimtKernelPtr FindSimt(int64_t tile, int access, std::index_sequence<kTileIndex...>) {
  static const std::array<SimtKernelPtr, kAccessCount> kernels[] = {
      KernelsOfTile<Acc, kTypes, kHasEpilogue, kTileIndex>(std::make_index_sequence<kAccessCount>())...};
  return kernels[tile][access];
}

template <typename Acc, SimtTypes kTypes>
SimtKernelPtr FindSimt(int64_t tile, int access, bool has_epilogue) {
  constexpr auto kTiles = std::make_index_sequence<std::size(kSimtTiles)>();
  return has_epilogue ? FindSimt<Acc, kTypes, true>(tile, access, kTiles)
                      : FindSimt<Acc, kTypes, false>(tile, access, kTiles);
}

template <typename Acc>
SimtKernelPtr FindSimt(int64_t tile, int access, SimtTypes types, bool has_epilogue) {
  if constexpr (std::is_integral_v<Acc>) {  // operands are int8
    return FindSimt<Acc, SimtTypes::kMixed>(tile, access, has_epilogue);
  } else {
    return types == SimtTypes::kOfSums ? FindSimt<Acc, SimtTypes::kOfSums>(tile, access, has_epilogue)
                                       : FindSimt<Acc, SimtTypes::kMixed>(tile, access, has_epilogue);
  }
}

}  // namespace jaxconv
