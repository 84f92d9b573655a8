// Implicit GEMM on tensor cores, for any problem of operands of one type T.
//
// A producer copies tiles of the operands to a pipeline of stages in shared memory, and the sums multiply them from
// there: by ldmatrix and mma.sync on sm_80 and later, or by wgmma on Hopper. All threads of a block produce and
// consume. In the end the sums go through shared memory, so that results are stored in rows.
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
#include "mma/conv_producer.cuh"
#include "mma/element_producer.cuh"
#include "mma/gradient_sums.cuh"
#include "mma/kernels.h"
#include "mma/warp_mma.cuh"
#include "mma/wgrad_producer.cuh"

namespace jaxconv {

// Elements from one row of results in shared memory to the next: rows begin 4 or 8 banks apart, so that a warp, which
// stores pairs from eight rows at once, meets no bank more often than it must.
constexpr int ResultPitch(int cols) { return cols + 8; }

// What a kernel is made of.
template <typename T, MmaVariant kOf>
struct MmaParts {
  static constexpr MmaVariant kVariant = kOf;
  static constexpr MmaTile kTile = kMmaTiles[kOf.tile];

  using Operand = T;
  using Sum = SumOf<T>;
  using SrcTile = SharedTile<T, kTile.rows, kTile.depth, !kOf.wgrad()>;
  using RhsTile = SharedTile<T, kTile.cols, kTile.depth, kOf.access == MmaAccess::kStepsSteps>;
  using VectorProducer = std::conditional_t<kOf.wgrad(), WgradProducer<T, kTile, SrcTile, RhsTile>,
                                            ConvProducer<T, kTile, SrcTile, RhsTile, kOf.merged>>;
  using Producer = std::conditional_t<kOf.vectors, VectorProducer, ElementProducer<T, kTile, SrcTile, RhsTile>>;
  using Sums = std::conditional_t<kTile.wgmma, WarpgroupMma<T, SrcTile, RhsTile, kTile.warp_rows, kTile.warp_cols>,
                                  WarpMma<T, SrcTile, RhsTile, kTile.warp_rows, kTile.warp_cols, kTile.passes>>;

  using GradientSums =
      std::conditional_t<kOf.wgrad() && kTraits<T>.bytes == 2, MmaGradientSums<T, kTile, RhsTile>, NoGradientSums>;

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
    typename Producer::Shared producer;
  };
  static_assert(GradientSums::kBytes <= sizeof(Shared::results), "sums of the gradient are there before results");
  static_assert(sizeof(Shared) <= kTile.shared_bytes(), "planning knows how much shared memory a thread block has");
  static_assert(SrcTile::kBytes % 1024 == 0 && RhsTile::kBytes % 1024 == 0, "each tile begins a turn of its swizzle");
  static_assert(kTile.IsOf(TypeOf<T>()), "a row along the steps is 128 bytes");
  static_assert(kTraits<T>.sums == TypeOf<SumOf<T>>(), "accumulators have their type");
  static_assert(kTile.depth <= kTile.threads(), "a thread works out one step of a tile");
  static_assert(!kTile.wgmma || (kTile.warp_cols == kTile.cols && kTile.warp_rows % 64 == 0),
                "a matrix of wgmma begins with a turn of the swizzle");
  static_assert(!kTile.wgmma || kTraits<T>.bytes == 2, "wgmma reads operands along the lines if they have 16 bits");
};

// The type of results in shared memory: of sums, if an epilogue follows.
template <typename Parts, typename Out>
using StoredInShared = std::conditional_t<Parts::kVariant.has_epilogue, typename Parts::Sum, Out>;

// Elements from a group's first result to that of a column. Results of integers may have channels in blocks.
template <typename Parts>
__device__ __forceinline__ int64_t ResultOffset(const MmaParams& p, int64_t col) {
  if constexpr (Parts::kVariant.merged) {
    return MergedCol::Of(p, col).result;
  } else {
    return std::is_same_v<typename Parts::Sum, int32_t> ? ChannelOffset(p.problem.dst, col) : col * p.out_col_stride;
  }
}

// Rows whose residuals are loaded at once.
inline constexpr int kRowsAtOnce = 4;

// Stores rows of results, kVector of each row at once. With an epilogue, that is applied here.
template <typename Parts, int kVector, typename Out>
__device__ __forceinline__ void StoreRows(const StoredInShared<Parts, Out>* results,
                                          const PointTable<Parts::kTile.rows>& rows, const MmaParams& p,
                                          const NTile& n_tile, int64_t slice_offset) {
  constexpr MmaTile kTile = Parts::kTile;
  constexpr bool kHasEpilogue = Parts::kVariant.has_epilogue;
  constexpr int kAcross = kTile.cols / kVector, kDown = kTile.threads() / kAcross;
  static_assert(kTile.threads() % kAcross == 0 && kTile.rows % kDown == 0, "a thread keeps its columns");
  const int first_row = threadIdx.x / kAcross, col = threadIdx.x % kAcross * kVector;
  if (n_tile.first_col + col >= p.cols) return;
  const int64_t offset = n_tile.group * p.out_group_stride + ResultOffset<Parts>(p, n_tile.first_col + col);
  Out* const out = static_cast<Out*>(p.out) + slice_offset + offset;
  const auto to_of = [&](int i) -> int64_t { return rows[first_row + i * kDown].partner; };
  const auto pack_of = [&](int i) {
    return *reinterpret_cast<const Pack<StoredInShared<Parts, Out>, kVector>*>(
        results + (first_row + i * kDown) * ResultPitch(kTile.cols) + col);
  };
  const auto store = [&](int64_t to, const Pack<Out, kVector>& pack) {
    *reinterpret_cast<Pack<Out, kVector>*>(out + to) = pack;
  };
  constexpr int kRows = kTile.rows / kDown, kAtOnce = kRows < kRowsAtOnce ? kRows : kRowsAtOnce;
  if constexpr (kHasEpilogue) {
    static_assert(kRows % kAtOnce == 0, "all are loaded");
    int64_t channel = n_tile.first_col + col;
    if constexpr (Parts::kVariant.merged) channel %= p.class_cols;
    const EpilogueOfChannels<typename Parts::Sum, Out, kVector> epilogue(
        p.epilogue, n_tile.group * p.problem.out_channels + channel);
#pragma unroll 1
    for (int first = 0; first < kRows; first += kAtOnce) {
      int64_t to[kAtOnce];
      Pack<Out, kVector> residuals[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        to[i] = to_of(first + i);
        if (to[i] >= 0) residuals[i] = epilogue.Residual(offset + to[i]);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (to[i] >= 0) store(to[i], epilogue(pack_of(first + i), residuals[i]));
      }
    }
  } else {
#pragma unroll 4
    for (int i = 0; i < kRows; ++i) {
      const int64_t to = to_of(i);
      if (to >= 0) store(to, pack_of(i));
    }
  }
}

// Multiplies all tiles of the block's steps, and calls beside(tile) of each tile of the columns. kFinite: no operand is
// rounded to an infinity.
template <typename Parts, bool kFinite, typename Beside>
__device__ __forceinline__ void MultiplyTiles(typename Parts::Producer& producer, typename Parts::Sums& sums,
                                              typename Parts::Shared& shared, int tiles, Beside&& beside) {
  using Sums = typename Parts::Sums;
  constexpr MmaTile kTile = Parts::kTile;
  constexpr int kAhead = kTile.ahead();
  static_assert(kAhead > 0 && kAhead < kTile.step_stages());
  producer.template PrepareFirst<kAhead + 1>();
  __syncthreads();
  producer.Start(kAhead + 1);
#pragma unroll 1
  for (int tile = 0; tile < kAhead; ++tile) {
#pragma unroll
    for (int k = 0; k < Sums::kSteps; ++k) producer.Copy(tile, shared.stages[tile], k, Sums::kSteps);
    ptx::CommitCopies();
  }
  int from = 0, to = kAhead;  // stages
#pragma unroll 1
  for (int tile = 0; tile < tiles; ++tile) {
    ptx::WaitForCopies<kAhead - 1>();
    sums.template Reuse<kTile.pending()>();
    __syncthreads();
    const int next = tile + kAhead;
    auto &stage = shared.stages[from], &next_stage = shared.stages[to];
    sums.template Multiply<kFinite>(ptx::SharedAddress(stage.src), ptx::SharedAddress(stage.rhs),
                                    [&](int k) { producer.Copy(next, next_stage, k, Sums::kSteps); });
    ptx::CommitCopies();
    beside(ptx::SharedAddress(stage.rhs));
    producer.Prepare(next + 1);
    from = from + 1 < kTile.stages ? from + 1 : 0;
    to = to + 1 < kTile.stages ? to + 1 : 0;
  }
  ptx::WaitForCopies<0>();
  sums.Finish();
}

// Computes the results of an N tile. A slice's begin at an offset, and its sums of the gradient at `gradient_sums`:
// null for none. Returns whether the sums that this thread looks at are finite.
template <typename Parts, bool kFinite>
__device__ __forceinline__ bool ComputeNTile(typename Parts::Producer& producer, typename Parts::Shared& shared,
                                             const MmaParams& p, const NTile& n_tile, int tiles, int64_t slice_offset,
                                             float* gradient_sums) {
  constexpr MmaTile kTile = Parts::kTile;
  constexpr int kTeam = kTile.wgmma ? 128 : 32;  // threads that multiply together
  constexpr int kTeamsAcross = kTile.cols / kTile.warp_cols;
  const int team = __shfl_sync(0xffffffff, threadIdx.x / kTeam, 0);  // for the compiler: the same in all of a warp
  const int row = team / kTeamsAcross * kTile.warp_rows, col = team % kTeamsAcross * kTile.warp_cols;
  typename Parts::Sums sums(row, col);
  producer.Begin(n_tile);
  typename Parts::GradientSums of_gradient;
  MultiplyTiles<Parts, kFinite>(producer, sums, shared, tiles, [&](uint32_t tile_of_columns) {
    if (gradient_sums != nullptr) of_gradient.Add(tile_of_columns);
  });
  const bool are_finite = kFinite || sums.AreFinite();
  __syncthreads();
  if (gradient_sums != nullptr) {
    of_gradient.Store(shared.results, gradient_sums + n_tile.group * p.cols + n_tile.first_col,
                      p.cols - n_tile.first_col);
  }
  WithResultType<typename Parts::Operand, Parts::kVariant.has_epilogue>(p.out_type, [&](auto type) {
    using Out = decltype(type);
    constexpr int kPitch = ResultPitch(kTile.cols);
    auto* results = reinterpret_cast<StoredInShared<Parts, Out>*>(shared.results);
    sums.Store(results + row * kPitch + col, kPitch);
    __syncthreads();
    if (p.out_vectors) {
      StoreRows<Parts, kTraits<Out>.vector(), Out>(results, shared.rows, p, n_tile, slice_offset);
    } else {
      StoreRows<Parts, 1, Out>(results, shared.rows, p, n_tile, slice_offset);
    }
  });
  return are_finite;
}

template <typename T, int kTileIndex, MmaAccess kAccess, bool kVectors, bool kMerged, bool kHasEpilogue>
__global__ void __launch_bounds__(kMmaTiles[kTileIndex].threads(), kMmaTiles[kTileIndex].ctas_per_sm)
    MmaKernel(const __grid_constant__ MmaParams p) {
  constexpr MmaVariant kVariant{kTileIndex, kAccess, kVectors, kMerged, kHasEpilogue};
  constexpr MmaTile kTile = kMmaTiles[kTileIndex];
  if constexpr (kTile.wgmma && !ptx::kIsHopper) {
    __trap();  // the host chooses another tile
    return;
  }
  using Parts = MmaParts<T, kVariant>;
  using Producer = typename Parts::Producer;
  extern __shared__ __align__(1024) char raw_shared[];
  typename Parts::Shared& shared = *reinterpret_cast<typename Parts::Shared*>(raw_shared);
  if (ptx::SharedAddress(raw_shared) % alignof(typename Parts::Shared) != 0) __trap();

  // Blocks that run at the same time read the same rows, then neighbouring rows.
  const uint32_t ctas_of_rows = (p.n_tiles + p.n_tiles_per_cta - 1) / p.n_tiles_per_cta;
  const uint32_t first_n_tile = blockIdx.x % ctas_of_rows * p.n_tiles_per_cta, row_block = blockIdx.x / ctas_of_rows;
  const uint32_t slice = row_block / p.row_tiles;
  if constexpr (kVariant.merged) CheckMerged<Parts::RhsTile::kKMajor>(p);
  uint32_t row_tile = row_block % p.row_tiles;
  const ResidueClass* residue = FindClass(p.problem, p.classes, kVariant.wgrad(), kTile.rows, &row_tile);
  if (residue == nullptr) return;
  const ClassPointsOf<typename Producer::Index> points{p.problem, p.taps, *residue, kVariant.wgrad()};
  const StepRange range = StepRange{0, points.steps()}.Slice(slice, p.split, kTile.depth);
  const Block<kTile.rows, typename Producer::Index> block{p, points, shared.rows, range, row_tile};
  Producer producer(block, shared.producer);
  for (int i = threadIdx.x; i < kTile.rows; i += kTile.threads()) {
    const int64_t row = static_cast<int64_t>(row_tile) * kTile.rows + i;
    Point point = row < points.rows() ? points.Row(row) : OutOfBounds();
    point.src *= sizeof(T);
    shared.rows[i] = point;
    producer.AddRow(i, point);
  }
  const uint32_t last_n_tile = min(first_n_tile + p.n_tiles_per_cta, p.n_tiles);
  // All row tiles read the same gradient.
  const bool sums_gradient = p.gradient_sums != nullptr && row_tile == 0;
  float* const gradient_sums = sums_gradient ? p.gradient_sums + slice * p.problem.groups * p.cols : nullptr;
  const auto compute_n_tiles = [&]<bool kFinite>(std::bool_constant<kFinite>) {
    bool are_finite = true;
#pragma unroll 1
    for (uint32_t n_tile = first_n_tile; n_tile < last_n_tile; ++n_tile) {
      are_finite &= ComputeNTile<Parts, kFinite>(producer, shared, p,
                                                 {n_tile / p.col_tiles, int64_t{n_tile % p.col_tiles} * kTile.cols},
                                                 range.Tiles(kTile.depth), slice * p.out_elements, gradient_sums);
    }
    return are_finite;
  };
  const bool are_finite = compute_n_tiles(std::false_type());
  if constexpr (Parts::Sums::kRounds) {
    // Rounding to finite numbers takes longer. A block does it only where sums are not finite.
    if (__syncthreads_or(!are_finite)) compute_n_tiles(std::true_type());
  }
}

template <typename T, MmaVariant kOf>
constexpr MmaKernelOfType Compiled() {
  if constexpr (kOf.IsFor(TypeOf<T>())) {
    return {MmaKernel<T, kOf.tile, kOf.access, kOf.vectors, kOf.merged, kOf.has_epilogue>,
            sizeof(typename MmaParts<T, kOf>::Shared)};
  } else {
    return {};
  }
}

template <typename T>
MmaKernelOfType FindMma(const MmaVariant& variant) {
  return [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    static constexpr MmaKernelOfType kKernels[] = {Compiled<T, MmaVariant::At(kIndex)>()...};
    return kKernels[variant.index()];
  }(std::make_integer_sequence<int, MmaVariant::kCount>());
}

}  // namespace jaxconv
