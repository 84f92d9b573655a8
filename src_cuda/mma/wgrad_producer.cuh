// Copies tiles of a wgrad to shared memory asynchronously, in 16-byte vectors.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "mma/block.cuh"
#include "mma/position_iterator.cuh"
#include "mma/tap_masks.cuh"
#include "mma/tile_copy.cuh"

namespace jaxconv {

// The rows of a 16-byte vector are channels of one tap. A thread copies those rows' vectors of many positions.
template <typename T, MmaTile kTile, typename SrcTile, typename RhsTile>
class WgradProducer {
  static constexpr int kVector = kTraits<T>.vector();
  using SrcPattern = CopyPattern<SrcTile, kTile.threads(), kVector>;
  using RhsPattern = CopyPattern<RhsTile, kTile.threads(), kVector>;
  static_assert(!SrcTile::kKMajor && !RhsTile::kKMajor);
  static_assert(kTile.rows / kVector <= kMaskTaps, "a tile's taps have one mask");

  struct alignas(16) Step {
    int32_t src;      // vectors from the source's origin
    int32_t partner;  // vectors in the destination, or -1: no step
    uint32_t inside;  // a mask of the block's taps
  };

  struct alignas(16) Shift {
    int32_t shift[kSpatial];
  };

 public:
  struct Shared {
    Step steps[kTile.step_stages()][kTile.depth];
    PositionStride stride;
    Shift taps[kMaskTaps];  // the block's
  };

  using Index = int32_t;  // of rows and steps

  __device__ WgradProducer(const Block<kTile.rows, Index>& block, Shared& shared)
      : block_(block), shared_(shared), position_(block.points, block.range.begin + threadIdx.x, kVector) {
    const int64_t first_row = static_cast<int64_t>(block.row_tile) * kTile.rows;
    const int first_tap = block.TapOf(first_row), row = SrcPattern::Fast();
    tap_bit_ = first_row + row < block.points.rows() ? 1u << (block.TapOf(first_row + row) - first_tap) : 0;
    tap_count_ = block.TapOf(min(first_row + kTile.rows, block.points.rows()) - 1) - first_tap + 1;
    if (threadIdx.x < tap_count_) {
      const Tap& tap = block.points.taps[block.points.residue.first_tap + first_tap + threadIdx.x];
      shared.taps[threadIdx.x] = {{tap.shift[0], tap.shift[1], tap.shift[2]}};
    }
    if (threadIdx.x == 0) shared.stride.template Fill<kVector>(block.points, kTile.depth);
    __syncthreads();
  }

  __device__ void AddRow(int row, const Point& point) const {}

  // Before the barrier after which the first tile is copied.
  __device__ __forceinline__ void Begin(const NTile& n_tile) {
    const MmaParams& p = block_.params;
    source_ = static_cast<const char*>(p.src) + n_tile.group * p.problem.src.group * sizeof(T);
    // A column that does not exist is one that does: nobody stores its sums.
    const int64_t col = n_tile.first_col + RhsPattern::Fast();
    rhs_ = static_cast<const char*>(p.rhs) +
           (n_tile.group * p.rhs_group_stride + (col < p.cols ? col * p.rhs_col_stride : 0)) * sizeof(T);
    if (has_moved_) position_ = {block_.points, block_.range.begin + threadIdx.x, kVector};
    has_moved_ = true;
  }

  // Prepares the steps of the first tiles, before the barrier after which these are copied.
  template <int kTiles>
  __device__ __forceinline__ void PrepareFirst() {
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) Prepare(tile);
  }

  // After that barrier.
  __device__ __forceinline__ void Start(int tile) { src_ = source_ + block_.rows[SrcPattern::Fast()].src; }

  // Prepares the steps of the next tile, before the barrier after which it is copied.
  __device__ __forceinline__ void Prepare(int tile) {
    if (threadIdx.x >= kTile.depth) return;
    const int64_t step = block_.range.begin + static_cast<int64_t>(tile) * kTile.depth + threadIdx.x;
    const bool exists = step < block_.range.end;
    const uint32_t inside = TapsInside(position_.at, shared_.taps, exists ? tap_count_ : 0, block_.params.src_size);
    shared_.steps[tile % kTile.step_stages()][threadIdx.x] = {position_.src, exists ? position_.partner : -1, inside};
    position_.Advance(shared_.stride, block_.params.problem.step);
  }

  // Copies one of `parts` parts of a tile.
  template <typename Stage>
  __device__ __forceinline__ void Copy(int tile, Stage& stage, int part, int parts) const {
    const Step(&steps)[kTile.depth] = shared_.steps[tile % kTile.step_stages()];
    Step of_src[SrcPattern::kCount], of_rhs[RhsPattern::kCount];  // read first: copies stay in their order
#pragma unroll
    for (int i = 0; i < SrcPattern::kCount; ++i) {
      if (SrcPattern::IsIn(i, part, parts)) of_src[i] = steps[SrcPattern::Slow(i)];
    }
#pragma unroll
    for (int i = 0; i < RhsPattern::kCount; ++i) {
      if (RhsPattern::IsIn(i, part, parts)) of_rhs[i] = steps[RhsPattern::Slow(i)];
    }
    CopyVectors<SrcPattern, SrcTile>(
        ptx::SharedAddress(stage.src) + SrcPattern::Origin(), part, parts,
        [&](int i) { return ptx::AddProduct(src_, of_src[i].src, kVectorBytes); },
        [&](int i) { return (of_src[i].inside & tap_bit_) != 0; });
    CopyVectors<RhsPattern, RhsTile>(
        ptx::SharedAddress(stage.rhs) + RhsPattern::Origin(), part, parts,
        [&](int i) { return ptx::AddProduct(rhs_, of_rhs[i].partner, kVectorBytes); },
        [&](int i) { return of_rhs[i].partner >= 0; });
  }

 private:
  const Block<kTile.rows, Index>& block_;
  Shared& shared_;
  const char* source_;
  const char* src_;
  const char* rhs_;
  PositionIterator position_;  // of this thread's step in the next tile
  bool has_moved_ = false;
  uint32_t tap_bit_;  // of this thread's rows, 0 if there are none
  int tap_count_;     // of the block
};

}  // namespace jaxconv
