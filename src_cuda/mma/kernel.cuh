// Implicit GEMM on tensor cores, for any problem of operands of one type T.
//
// A feed copies tiles of the operands to shared memory, `stages` of them in a ring, the sums multiply them from there:
// by ldmatrix and mma.sync on sm_80 and later, or by wgmma on Hopper. In the end the sums go through shared memory, so
// that results are stored in rows.
#pragma once

#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/family.h"
#include "common/product.cuh"
#include "common/ptx.cuh"
#include "common/ptx_hopper.cuh"
#include "common/shared_tile.cuh"
#include "common/step_table.cuh"
#include "common/warpgroup_mma.cuh"
#include "mma/block.cuh"
#include "mma/config.h"
#include "mma/conv_feed.cuh"
#include "mma/element_feed.cuh"
#include "mma/kernels.h"
#include "mma/warp_mma.cuh"
#include "mma/wgrad_feed.cuh"

namespace jaxconv {

// Elements from one row of results in shared memory to the next: rows begin 4 or 8 banks apart, so that a warp, which
// stores pairs from eight rows at once, meets no bank more often than it must.
constexpr int ResultPitch(int cols) { return cols + 8; }

// What a kernel is made of. kPieces: both operands may be copied in pieces of 16 bytes. kMerged: columns are those of
// all residue classes.
template <typename T, MmaTile kTile, MmaAccess kAccess, bool kPieces, bool kMerged>
struct MmaParts {
  using SrcTile = SharedTile<T, kTile.rows, kTile.depth, kAccess != MmaAccess::kLinesLines>;
  using RhsTile = SharedTile<T, kTile.cols, kTile.depth, kAccess == MmaAccess::kStepsSteps>;

  static constexpr auto feed() {
    if constexpr (!kPieces) {
      return std::type_identity<ElementFeed<T, kTile, SrcTile, RhsTile>>();
    } else if constexpr (kAccess == MmaAccess::kLinesLines) {
      return std::type_identity<WgradFeed<T, kTile, SrcTile, RhsTile>>();
    } else {
      return std::type_identity<ConvFeed<T, kTile, SrcTile, RhsTile, kMerged>>();
    }
  }
  using Feed = typename decltype(feed())::type;

  static constexpr auto sums() {
    if constexpr (kTile.wgmma) {
      return std::type_identity<WarpgroupMma<T, SrcTile, RhsTile, kTile.warp_rows, kTile.warp_cols>>();
    } else {
      return std::type_identity<WarpMma<T, SrcTile, RhsTile, kTile.warp_rows, kTile.warp_cols, kTile.passes>>();
    }
  }
  using Sums = typename decltype(sums())::type;

  // Shared memory. The results, in the end, take the place of the stages.
  struct Shared {
    struct Stage {
      char src[SrcTile::kBytes];
      char rhs[RhsTile::kBytes];
    };
    union alignas(1024) {  // swizzles are of addresses: of rows of 128 bytes, eight in turn
      Stage stages[kTile.stages];
      char results[kTile.rows * ResultPitch(kTile.cols) * sizeof(float)];
    };
    PointTable<kTile.rows> rows;
    typename Feed::Shared feed;
  };
  static_assert(sizeof(Shared) <= kTile.shared_bytes(), "planning knows how much shared memory a thread block has");
  static_assert(SrcTile::kBytes % 1024 == 0 && RhsTile::kBytes % 1024 == 0, "each tile begins a turn of its swizzle");
  static_assert(kTile.IsOf(TypeOf<T>()), "a row along the steps is 128 bytes");
  static_assert(kTraits<T>.sums == DType::kF32, "accumulators are float32");
  static_assert(kTile.depth <= kTile.threads(), "a thread works out one step of a tile");
  static_assert(!kTile.wgmma || (kTile.warp_cols == kTile.cols && kTile.warp_rows % 64 == 0),
                "a matrix of wgmma begins with a turn of the swizzle");
  static_assert(!kTile.wgmma || kTraits<T>.bytes == 2, "wgmma reads operands along the lines if they have 16 bits");
};

// Stores rows of results, kVector of each row at once.
template <int kVector, MmaTile kTile, bool kMerged, typename Out>
__device__ __forceinline__ void StoreRows(const Out* results, const PointTable<kTile.rows>& rows, const MmaParams& p,
                                          const Unit& unit, int64_t slice_offset) {
  constexpr int kAcross = kTile.cols / kVector, kDown = kTile.threads() / kAcross;
  static_assert(kTile.threads() % kAcross == 0 && kTile.rows % kDown == 0, "a thread keeps its columns");
  const int first_row = threadIdx.x / kAcross, col = threadIdx.x % kAcross * kVector;
  if (unit.first_col + col >= p.cols) return;
  Out* out = static_cast<Out*>(p.out) + slice_offset + unit.group * p.out_group_stride;
  if constexpr (kMerged) {
    out += MergedCol::Of(p, unit.first_col + col).result;
  } else {
    out += (unit.first_col + col) * p.out_col_stride;
  }
#pragma unroll 4
  for (int i = 0; i < kTile.rows / kDown; ++i) {
    const int row = first_row + i * kDown;
    const int64_t to = rows[row].partner;
    const auto pack = *reinterpret_cast<const Pack<Out, kVector>*>(results + row * ResultPitch(kTile.cols) + col);
    if (to >= 0) *reinterpret_cast<Pack<Out, kVector>*>(out + to) = pack;
  }
}

// Ends a unit's sums, which are those of columns from a warp's first one on, with the epilogue. A column past the last
// takes that one's channel: its results are stored nowhere.
template <MmaTile kTile, bool kMerged, typename Sums>
__device__ __forceinline__ void EndSums(Sums& sums, const MmaParams& p, const Unit& unit, int warp_col) {
  const int64_t first = unit.first_col + warp_col;
  const int last = static_cast<int>(min(p.cols - first, int64_t{kTile.cols})) - 1;
  const EpilogueOf<float, true> epilogue(p.epilogue, unit.group * p.problem.out_channels + (kMerged ? 0 : first));
  const Divider<int32_t> by_class(kMerged ? p.class_cols : 1);
  sums.ForEach([&](float& sum, int col) {
    int32_t channel = min(col, last);
    if constexpr (kMerged) by_class.Divide(static_cast<int32_t>(first) + channel, &channel);
    sum = epilogue(sum, channel);
  });
}

// Multiplies all tiles of the block's steps. kFinite: no operand is rounded to an infinity.
template <MmaTile kTile, bool kFinite, typename Feed, typename Sums, typename Stage>
__device__ __forceinline__ void MultiplyTiles(Feed& feed, Sums& sums, Stage (&stages)[kTile.stages], int tiles) {
  constexpr int kAhead = kTile.ahead();
  static_assert(kAhead > 0 && kAhead < kTile.ring());
  feed.template PrepareFirst<kAhead + 1>();
  __syncthreads();
  feed.Start(kAhead + 1);
#pragma unroll 1
  for (int tile = 0; tile < kAhead; ++tile) {
#pragma unroll
    for (int k = 0; k < Sums::kSteps; ++k) feed.Copy(tile, stages[tile], k, Sums::kSteps);
    ptx::CommitCopies();
  }
  int from = 0, to = kAhead;  // stages
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    ptx::WaitForCopies<kAhead - 1>();
    sums.template Reuse<kTile.pending()>();
    __syncthreads();
    const int next = tile + kAhead;
    Stage& next_stage = stages[to];
    sums.template Multiply<kFinite>(ptx::SharedAddress(stages[from].src), ptx::SharedAddress(stages[from].rhs),
                                    [&](int k) { feed.Copy(next, next_stage, k, Sums::kSteps); });
    ptx::CommitCopies();
    feed.Prepare(next + 1);
    from = from + 1 < kTile.stages ? from + 1 : 0;
    to = to + 1 < kTile.stages ? to + 1 : 0;
  }
  ptx::WaitForCopies<0>();
  sums.Finish();
}

// Computes a unit's results, of which the slice's begin at an offset. Returns whether the sums that this thread looks
// at are finite.
template <typename Parts, MmaTile kTile, bool kMerged, bool kHasEpilogue, bool kFinite>
__device__ __forceinline__ bool ComputeUnit(typename Parts::Feed& feed, typename Parts::Shared& shared,
                                            const MmaParams& p, const Unit& unit, int tiles, int64_t slice_offset) {
  constexpr int kTeam = kTile.wgmma ? 128 : 32;  // threads that multiply together
  constexpr int kTeamsAcross = kTile.cols / kTile.warp_cols;
  const int team = __shfl_sync(0xffffffff, threadIdx.x / kTeam, 0);  // for the compiler: the same in all of a warp
  const int row = team / kTeamsAcross * kTile.warp_rows, col = team % kTeamsAcross * kTile.warp_cols;
  typename Parts::Sums sums(row, col);
  feed.Begin(unit);
  MultiplyTiles<kTile, kFinite>(feed, sums, shared.stages, tiles);
  const bool are_finite = kFinite || sums.AreFinite();
  if constexpr (kHasEpilogue) EndSums<kTile, kMerged>(sums, p, unit, col);
  __syncthreads();
  WithType<float>(p.out_type, [&](auto type) {
    using Out = decltype(type);
    constexpr int kPitch = ResultPitch(kTile.cols);
    Out* results = reinterpret_cast<Out*>(shared.results);
    sums.Store(results + row * kPitch + col, kPitch);
    __syncthreads();
    if (p.out_vectors) {
      StoreRows<kTraits<Out>.vector(), kTile, kMerged>(results, shared.rows, p, unit, slice_offset);
    } else {
      StoreRows<1, kTile, kMerged>(results, shared.rows, p, unit, slice_offset);
    }
  });
  return are_finite;
}

template <typename T, int kTileIndex, MmaAccess kAccess, bool kPieces, bool kMerged, bool kHasEpilogue>
__global__ void __launch_bounds__(kMmaTiles[kTileIndex].threads(), kMmaTiles[kTileIndex].blocks)
    MmaKernel(const __grid_constant__ MmaParams p) {
  constexpr MmaTile kTile = kMmaTiles[kTileIndex];
  if constexpr (kTile.wgmma && !ptx::kIsHopper) {
    __trap();  // the host chooses another tile
    return;
  }
  using Parts = MmaParts<T, kTile, kAccess, kPieces, kMerged>;
  using Feed = typename Parts::Feed;
  constexpr bool kWgrad = kAccess == MmaAccess::kLinesLines;
  extern __shared__ __align__(1024) char raw_shared[];
  typename Parts::Shared& shared = *reinterpret_cast<typename Parts::Shared*>(raw_shared);
  if (ptx::SharedAddress(raw_shared) % alignof(typename Parts::Shared) != 0) __trap();

  // Blocks that run at the same time read the same rows, then neighbouring rows.
  const uint32_t blocks_of_rows = (p.units + p.block_units - 1) / p.block_units;
  const uint32_t first_unit = blockIdx.x % blocks_of_rows * p.block_units, row_block = blockIdx.x / blocks_of_rows;
  const uint32_t slice = row_block / p.row_tiles;
  if constexpr (kMerged) CheckMerged<Parts::RhsTile::kAlongSteps>(p);
  uint32_t row_tile = row_block % p.row_tiles;
  const ResidueClass* residue = FindClass(p.problem, p.classes, kWgrad, kTile.rows, &row_tile);
  if (residue == nullptr) return;
  const ClassPointsOf<typename Feed::Index> points{p.problem, p.taps, *residue, kWgrad};
  const StepRange range = StepRange{0, points.steps()}.Slice(slice, p.split, kTile.depth);
  const Block<kTile.rows, typename Feed::Index> block{p, points, shared.rows, range, row_tile};
  Feed feed(block, shared.feed);
  for (int i = threadIdx.x; i < kTile.rows; i += kTile.threads()) {
    const int64_t row = static_cast<int64_t>(row_tile) * kTile.rows + i;
    Point point = row < points.rows() ? points.Row(row) : Nowhere();
    point.src *= sizeof(T);
    shared.rows[i] = point;
    feed.AddRow(i, point);
  }
  const uint32_t last_unit = min(first_unit + p.block_units, p.units);
  const auto compute_units = [&]<bool kFinite>(std::bool_constant<kFinite>) {
    bool are_finite = true;
#pragma unroll 1
    for (uint32_t unit = first_unit; unit < last_unit; ++unit) {
      are_finite &= ComputeUnit<Parts, kTile, kMerged, kHasEpilogue, kFinite>(
          feed, shared, p, {unit / p.col_tiles, int64_t{unit % p.col_tiles} * kTile.cols}, range.Tiles(kTile.depth),
          slice * p.out_elements);
    }
    return are_finite;
  };
  const bool are_finite = compute_units(std::false_type());
  if constexpr (Parts::Sums::kRounds) {
    // Rounding to finite numbers takes longer. So a block does it only where it may have been missed.
    if (__syncthreads_or(!are_finite)) compute_units(std::true_type());
  }
}

template <typename T, int kTileIndex, MmaAccess kAccess, bool kHasEpilogue, bool kPieces, bool kMerged>
constexpr MmaKernelOfTile Compiled() {
  return {MmaKernel<T, kTileIndex, kAccess, kPieces, kMerged, kHasEpilogue>,
          sizeof(typename MmaParts<T, kMmaTiles[kTileIndex], kAccess, kPieces, kMerged>::Shared)};
}

// The compiled kernels for operands of type T, those whose tiles are made for it.
template <typename T, MmaAccess kAccess, bool kHasEpilogue, size_t... kTileIndex>
CompiledMma FindTile(int64_t tile, std::index_sequence<kTileIndex...>) {
  constexpr auto compiled = []<int kIndex>(std::integral_constant<int, kIndex>) -> CompiledMma {
    constexpr MmaTile kTile = kMmaTiles[kIndex];
    if constexpr (!kTile.IsOf(TypeOf<T>())) {
      return {};
    } else {
      CompiledMma kernels{Compiled<T, kIndex, kAccess, kHasEpilogue, true, false>(),
                          Compiled<T, kIndex, kAccess, kHasEpilogue, false, false>()};
      if constexpr (kTile.merges() && kAccess != MmaAccess::kLinesLines) {
        kernels.merged = Compiled<T, kIndex, kAccess, kHasEpilogue, true, true>();
      }
      return kernels;
    }
  };
  const CompiledMma tiles[] = {compiled(std::integral_constant<int, kTileIndex>())...};
  return tiles[tile];
}

template <typename T>
CompiledMma FindMma(int64_t tile, MmaAccess access, bool has_epilogue) {
  constexpr auto tiles = std::make_index_sequence<std::size(kMmaTiles)>();
  using enum MmaAccess;
  if (access == kLinesLines) return FindTile<T, kLinesLines, false>(tile, tiles);
  if (access == kStepsLines) {
    return has_epilogue ? FindTile<T, kStepsLines, true>(tile, tiles) : FindTile<T, kStepsLines, false>(tile, tiles);
  }
  return has_epilogue ? FindTile<T, kStepsSteps, true>(tile, tiles) : FindTile<T, kStepsSteps, false>(tile, tiles);
}

}  // namespace jaxconv
