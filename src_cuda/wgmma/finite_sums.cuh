// Sums of tf32 that are not finite, computed again on CUDA cores.
//
// TMA rounds operands to tf32, and a finite number near float32's largest to an infinity. Here such numbers become the
// largest of tf32. This is slow, and rare: infinities and NaNs in the operands come here too, and a NaN ends a sum.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_hopper.cuh"
#include "wgmma/config.h"
#include "wgmma/epilogue.cuh"
#include "wgmma/halo.cuh"
#include "wgmma/params.cuh"
#include "wgmma/tile_order.cuh"
#include "wgmma/wgrad_operands.cuh"
#include "wgmma/wgrad_tiles.cuh"

namespace jaxconv {

// Whether TMA rounds a kernel's operands: 16-bit types it copies, and float32 in parts is finite.
template <typename T, WgmmaTile kTile>
inline constexpr bool kRoundsToInfinity = sizeof(T) == 4 && !kTile.bf16x6;

// A thread's sums, in memory: registers have no index.
template <typename Sums>
struct SumsInMemory {
  static constexpr int kCount = sizeof(Sums) / sizeof(float);

  static __device__ __forceinline__ bool AreFinite(const Sums& sums) {
    float zeros[4] = {};  // several, as each addition waits for the one before
#pragma unroll
    for (int i = 0; i < kCount; ++i) zeros[i % 4] += reinterpret_cast<const float*>(&sums)[i] * 0;
    return zeros[0] + zeros[1] + zeros[2] + zeros[3] == 0;
  }

  __device__ __forceinline__ explicit SumsInMemory(const Sums& sums) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) all[i] = reinterpret_cast<const float*>(&sums)[i];
  }

  float all[kCount];
};

// Replaces those of a thread's sums that are not finite by sum(i), for the i-th one.
template <typename Sums, typename F>
__device__ __forceinline__ void ReplaceInfinite(Sums& sums, F&& sum) {
  using InMemory = SumsInMemory<Sums>;
  if (InMemory::AreFinite(sums)) return;
  InMemory copy(sums);
#pragma unroll 1
  for (int i = 0; i < InMemory::kCount; ++i) {
    if (!isfinite(copy.all[i])) copy.all[i] = sum(i);
  }
#pragma unroll
  for (int i = 0; i < InMemory::kCount; ++i) reinterpret_cast<float*>(&sums)[i] = copy.all[i];
}

// The operands of a product in device memory.
class FiniteOperands {
 public:
  __device__ __forceinline__ explicit FiniteOperands(const WgmmaParams& p)
      : problem_(p.problem), src_(static_cast<const float*>(p.src)), rhs_(static_cast<const float*>(p.rhs)) {}

  // Whether a position of a residue class exists.
  __device__ __forceinline__ bool IsResult(const ptx::PixelCoord& at, const int32_t (&phase)[kSpatial]) const {
    const ptx::PixelCoord dst = InPixels(at, problem_.period, phase);
    return at.image < problem_.batch && dst.d < problem_.dst_size[0] && dst.h < problem_.dst_size[1] &&
           dst.w < problem_.dst_size[2];
  }

  // Elements from the source's origin to the pixel that a position sees by a tap; less than 0: there is none.
  __device__ __forceinline__ int64_t SourceAt(const ptx::PixelCoord& at, const int32_t (&shift)[kSpatial]) const {
    const ptx::PixelCoord src = InPixels(at, problem_.step, shift);
    const bool is_there = Has(src.d, 0) && Has(src.h, 1) && Has(src.w, 2);
    return is_there ? Offset(problem_.src, src) : -1;
  }

  // Elements from the origin of the results, or of their gradient, to a position.
  __device__ __forceinline__ int64_t ResultAt(const ptx::PixelCoord& at, const int32_t (&phase)[kSpatial]) const {
    return Offset(problem_.dst, InPixels(at, problem_.period, phase));
  }

  __device__ __forceinline__ void MultiplyAdd(float& sum, int64_t src, int64_t rhs) const {
    sum = fmaf(__uint_as_float(ptx::RoundToFiniteTf32(src_[src])), __uint_as_float(ptx::RoundToFiniteTf32(rhs_[rhs])),
               sum);
  }

 private:
  __device__ __forceinline__ bool Has(int32_t at, int d) const {
    return static_cast<uint32_t>(at) < static_cast<uint32_t>(problem_.src_size[d]);
  }
  static __device__ __forceinline__ int64_t Offset(const TensorStrides& s, const ptx::PixelCoord& at) {
    return at.image * s.batch + at.d * s.spatial[0] + at.h * s.spatial[1] + at.w * s.spatial[2];
  }

  const ConvProblem& problem_;
  const float* src_;
  const float* rhs_;
};

// Of a conv's tile, in a consumer warpgroup. `halo_taps`: with halo tiles, the taps in their order.
template <WgmmaTile kTile>
class FiniteConvSums {
 public:
  __device__ __forceinline__ FiniteConvSums(const WgmmaParams& p, const HaloTap* halo_taps)
      : params_(p), operands_(p), rows_(p), halo_taps_(halo_taps) {}

  // Whether sums are finite: of all threads that store results together.
  template <typename Sums>
  static __device__ __forceinline__ bool AreFinite(const Sums& sums) {
    const bool are_finite = SumsInMemory<Sums>::AreFinite(sums);
    if constexpr (kTile.swap_ab) return ptx::AllOfWarpgroup(are_finite);
    return __all_sync(0xffffffff, are_finite);
  }

  // Replaces sums. `row` and `col` are the warpgroup's first.
  template <int kBlocks, int kAcross>
  __device__ __forceinline__ void Replace(float (&sums)[kBlocks][kAcross][4], const WgmmaWorkTile& tile, int32_t row,
                                          int32_t col) const {
    ReplaceInfinite(sums, [&](int i) { return SumOf(tile, CoordOf<kAcross>(i, row, col)); });
  }

  // Stores all results from registers: replaced sums would cost the tiles that are finite registers, too.
  template <bool kHasEpilogue, int kBlocks, int kAcross>
  __device__ __forceinline__ void Store(const float (&sums)[kBlocks][kAcross][4], const WgmmaWorkTile& tile,
                                        int32_t row, int32_t col) const {
    const SumsInMemory copy(sums);
    float* const out = static_cast<float*>(params_.out) + tile.slice * params_.slice_elements;
#pragma unroll 1
    for (int i = 0; i < copy.kCount; ++i) {
      const ResultCoord coord = CoordOf<kAcross>(i, row, col);
      if (!IsResult(tile, coord)) continue;
      const float sum = isfinite(copy.all[i]) ? copy.all[i] : SumOf(tile, coord);
      const int64_t at = operands_.ResultAt(rows_.At(coord.row), Phase(tile)) + coord.col;
      if constexpr (kHasEpilogue) {
        out[at] = ResultOf<float>(params_, sum, coord.col, at);
      } else {
        out[at] = sum;
      }
    }
  }

 private:
  struct ResultCoord {
    int32_t row, col;
  };
  // Of a thread's i-th sum.
  template <int kAcross>
  static __device__ __forceinline__ ResultCoord CoordOf(int i, int32_t row, int32_t col) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int32_t along = i / 4 / kAcross * 64 + warp * 16 + i % 4 / 2 * 8 + lane / 4;
    const int32_t across = i / 4 % kAcross * 8 + lane % 4 * 2 + i % 2;
    return {row + (kTile.swap_ab ? across : along), col + (kTile.swap_ab ? along : across)};
  }

  __device__ __forceinline__ const int32_t (&Phase(const WgmmaWorkTile& tile) const)[kSpatial] {
    return params_.classes[tile.residue].phase;
  }
  __device__ __forceinline__ bool IsResult(const WgmmaWorkTile& tile, const ResultCoord& coord) const {
    return coord.col < params_.problem.out_channels && operands_.IsResult(rows_.At(coord.row), Phase(tile));
  }

  struct FilterTap {
    int64_t filter;  // elements from the filter's origin
    int32_t shift[kSpatial];
  };

  __device__ __forceinline__ float SumOf(const WgmmaWorkTile& tile, const ResultCoord& coord) const {
    float sum = 0;
    if (!IsResult(tile, coord)) return sum;
    const ConvProblem& q = params_.problem;
    const ptx::PixelCoord at = rows_.At(coord.row);
    const GroupColumn of(params_, coord.col);
    const int64_t group_src = of.group * q.src.group, group_rhs = of.group * q.filter.group + of.col * q.filter.out;
#pragma unroll 1
    for (int32_t step = tile.steps.first; step < min(tile.steps.end, tile.steps.taps * params_.k_blocks); ++step) {
      const int32_t k_block = kTile.halo ? step / tile.steps.taps : step % params_.k_blocks;
      const FilterTap tap = TapOf(tile, kTile.halo ? step % tile.steps.taps : step / params_.k_blocks);
      const int64_t src = operands_.SourceAt(at, tap.shift), rhs = tap.filter + group_rhs;
      const int32_t first = k_block * params_.block_k;
      const int32_t end = min(first + params_.block_k, static_cast<int32_t>(q.in_channels));
#pragma unroll 1
      for (int32_t c = first; c < end && src >= 0; ++c) {
        operands_.MultiplyAdd(sum, src + group_src + c * q.src.channel, rhs + c * q.filter.in);
        if (isnan(sum)) return sum;
      }
    }
    return sum;
  }

  // A tap of the tile's class, in the order of steps.
  __device__ __forceinline__ FilterTap TapOf(const WgmmaWorkTile& tile, int32_t index) const {
    if constexpr (kTile.halo) {
      const HaloTap tap = halo_taps_[index];
      const auto row_step = static_cast<int32_t>(params_.problem.step[1]);
      const auto col_step = static_cast<int32_t>(params_.problem.step[2]);
      return {int64_t{tap.filter} * params_.tap_stride,
              {HaloPlane::Depth(tap.plane),
               params_.corner[1] + HaloPlane::Row(tap.plane) + tap.pixel / params_.halo_cols * row_step,
               params_.corner[2] + HaloPlane::Col(tap.plane) + tap.pixel % params_.halo_cols * col_step}};
    } else {
      const Tap tap = params_.taps[tile.first_tap + index];
      return {tap.filter_delta, {tap.shift[0], tap.shift[1], tap.shift[2]}};
    }
  }

  const WgmmaParams& params_;
  FiniteOperands operands_;
  RowPositions<kTile> rows_;
  const HaloTap* halo_taps_;
};

// Of a weight gradient's tile, in a consumer warpgroup: from its `first_block`-th 64 rows on.
template <WgmmaTile kTile, int kBlocks, int kAcross>
__device__ __forceinline__ void ReplaceInfiniteWgrad(float (&sums)[kBlocks][1][kAcross][4], const WgmmaParams& p,
                                                     const WgradWorkTile& tile, int first_block) {
  static_assert(!kTile.swap_ab, "rows are blocks of 64 channels of a tap");
  constexpr int kPositions = WgradPositions(kTile, sizeof(float));
  const FiniteOperands operands(p);
  const RowPositions<kTile> positions(p);
  ReplaceInfinite(sums, [&](int i) {
    const WgradRows rows = WgradRowsOf<kTile>(p, tile, first_block + i / 4 / kAcross);
    const int32_t channel = rows.channel + WgradRegisters::ChannelOf(i % 4 / 2);
    const int32_t col = tile.first_col + i / 4 % kAcross * 8 + threadIdx.x % 4 * 2 + i % 2;
    float sum = 0;
    if (rows.tap < 0 || channel >= p.problem.in_channels || col >= p.problem.out_channels) return sum;
    const Tap tap = p.taps[rows.tap];
    const int64_t from_pixel = GroupColumn(p, col).group * p.problem.src.group + channel * p.problem.src.channel;
#pragma unroll 1
    for (int32_t position = tile.first_step * kPositions; position < tile.end_step * kPositions; ++position) {
      const ptx::PixelCoord at = positions.At(position);
      if (!operands.IsResult(at, tile.phase)) continue;
      const int64_t src = operands.SourceAt(at, tap.shift);
      if (src < 0) continue;
      operands.MultiplyAdd(sum, src + from_pixel, operands.ResultAt(at, tile.phase) + col * p.problem.dst.channel);
      if (isnan(sum)) break;
    }
    return sum;
  });
}

}  // namespace jaxconv
