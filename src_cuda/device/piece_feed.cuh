// Copies tiles to shared memory asynchronously, in pieces of 16 bytes: for operands whose channels are contiguous.
//
// What a piece's address and its validity depend on is worked out beforehand, so that a copy costs one multiplication,
// one test of a bit and the copy itself. A position's window lies inside the source but for some taps: that is a mask,
// of up to 32 taps at a time.
#pragma once

#include <cstdint>

#include "device/block.cuh"
#include "device/ptx.cuh"
#include "device/tile_copy.cuh"

namespace jaxconv {

inline constexpr int kPieceBytes = 16;
inline constexpr int kWindow = 32;  // taps of a mask

// A mask of those taps, up to kWindow, that lie inside the source as seen from a position.
__device__ inline uint32_t TapsInside(const int32_t (&at)[kSpatial], const Tap* taps, int count,
                                      const uint32_t (&size)[kSpatial]) {
  uint32_t inside = 0;
#pragma unroll 4
  for (int t = 0; t < min(count, kWindow); ++t) {
    bool is_inside = true;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) is_inside &= static_cast<uint32_t>(at[d] + taps[t].shift[d]) < size[d];
    inside |= static_cast<uint32_t>(is_inside) << t;
  }
  return inside;
}

// Copies one of `parts` parts of a tile; from(i) is the address of the thread's i-th piece, is_valid(i) whether it
// exists, else it is zeros.
template <typename Pattern, typename Tile, typename From, typename IsValid>
__device__ __forceinline__ void CopyPieces(uint32_t to, int part, int parts, const From& from,
                                           const IsValid& is_valid) {
#pragma unroll
  for (int i = 0; i < Pattern::kCount; ++i) {
    if (i * parts / Pattern::kCount != part || !Pattern::IsActive(i)) continue;
    ptx::CopyAsync(Tile::Further(to, i * Pattern::kStride), from(i), is_valid(i));
  }
}

// Of a gather. Steps come in runs of channels of one tap, a run for each piece of a tile's row; a thread keeps its rows'
// places and masks in registers.
template <typename T, MmaTile kTile, typename SrcTile, typename RhsTile>
class GatherFeed {
  static constexpr int kRun = kPieceBytes / sizeof(T);
  static constexpr int kRuns = kTile.depth / kRun;
  using SrcPattern = CopyPattern<SrcTile, kTile.threads(), kRun>;
  using RhsPattern = CopyPattern<RhsTile, kTile.threads(), kRun, !RhsTile::kAlongSteps>;
  // A thread's pieces of the filter are of consecutive steps if it lies along the columns: of so many runs.
  static constexpr int kRhsRuns =
      !RhsTile::kAlongSteps && RhsPattern::kCount > kRun ? RhsPattern::kCount / kRun : 1;
  static_assert(SrcTile::kAlongSteps && SrcPattern::kFast == kRuns, "a thread copies pieces of one run of a tile");
  static_assert(kRuns < kWindow, "a tile's taps are in two windows at most");

  struct alignas(16) Run {
    int64_t src;      // bytes
    int64_t partner;  // bytes
    int32_t tap;      // of the class, or -1: no steps
  };

 public:
  struct Shared {
    Run runs[2][kRuns];               // of the tile that is being copied, and of the next
    uint32_t inside[2][kTile.rows];  // masks of the rows, for a window and the one after
  };

  // The rows' points must be there.
  __device__ GatherFeed(const Block<kTile.rows>& block, Shared& shared) : block_(block), shared_(shared) {
    const ProductParams& p = block.params;
    const char* rhs = static_cast<const char*>(p.rhs) + block.work.group * p.rhs_group_stride * sizeof(T);
    const int64_t column_bytes = p.rhs_col_stride * sizeof(T);
    if constexpr (RhsTile::kAlongSteps) {
      rhs_ = rhs + (block.first_col + RhsPattern::First()) * column_bytes;
      rhs_stride_ = static_cast<uint32_t>(RhsPattern::kStride * column_bytes);
      columns_ = static_cast<int>(min(p.cols - block.first_col, int64_t{kTile.cols})) - RhsPattern::First();
    } else {
      // A column that does not exist is one that does: nobody stores its sums.
      const int64_t col = block.first_col + RhsPattern::Fast();
      rhs_stride_ = static_cast<uint32_t>(p.problem.filter.in * sizeof(T));
      rhs_ = rhs + (col < p.cols ? col * column_bytes : 0) + RhsPattern::First() % kRun * rhs_stride_;
    }
#pragma unroll
    for (int i = 0; i < SrcPattern::kCount; ++i) {
      from_[i] = static_cast<int32_t>(block.rows[SrcPattern::Slow(i)].src / kPieceBytes);
    }
    filled_ = static_cast<int>(block.range.begin / p.problem.in_channels / kWindow);
  }

  // Works out the steps of a tile: before a barrier, after which it is copied.
  __device__ void Prepare(int tile) {
    const ProductParams& p = block_.params;
    const int64_t first = block_.range.begin + static_cast<int64_t>(tile) * kTile.depth;
    if (threadIdx.x < kRuns) {
      Run run{0, 0, -1};
      if (const int64_t step = first + threadIdx.x * kRun; step < block_.range.end) {
        const Point point = block_.points.Step(step);
        int64_t channel;
        run = {point.src * static_cast<int64_t>(sizeof(T)), point.partner * static_cast<int64_t>(sizeof(T)),
               static_cast<int32_t>(block_.points.by_channels.Divide(step, &channel))};
      }
      shared_.runs[tile % 2][threadIdx.x] = run;
    }
    if (filled_ * kWindow >= block_.points.residue.tap_count) return;
    const int64_t last = min(first + kTile.depth, block_.range.end) - 1;
    int64_t channel;
    const int window = last < 0 ? 0 : static_cast<int>(block_.points.by_channels.Divide(last, &channel)) / kWindow;
    for (; filled_ <= window; ++filled_) FillMasks(filled_);
  }

  // Copies one of `parts` parts of a tile; the first comes first.
  template <typename Stage>
  __device__ __forceinline__ void Copy(int tile, Stage& stage, int part, int parts) {
    if (part == 0) Begin(tile);
    CopyPieces<SrcPattern, SrcTile>(
        ptx::SharedAddress(stage.src) + SrcPattern::Origin(), part, parts,
        [&](int i) { return src_ + static_cast<int64_t>(from_[i]) * kPieceBytes; },
        [&](int i) { return (inside_[i] & tap_bit_) != 0; });
    const uint32_t rhs = ptx::SharedAddress(stage.rhs) + RhsPattern::Origin();
    if constexpr (RhsTile::kAlongSteps) {
      CopyPieces<RhsPattern, RhsTile>(
          rhs, part, parts, [&](int i) { return rhs_run_[0] + static_cast<uint64_t>(rhs_stride_) * i; },
          [&](int i) { return i * RhsPattern::kStride < rhs_limit_[0]; });
    } else {
      CopyPieces<RhsPattern, RhsTile>(
          rhs, part, parts,
          [&](int i) { return rhs_run_[i / kRun] + static_cast<uint64_t>(rhs_stride_) * (i % kRun); },
          [&](int i) { return rhs_limit_[i / kRun] > 0; });
    }
  }

 private:
  __device__ void FillMasks(int window) const {
    const Tap* taps = block_.points.taps + block_.points.residue.first_tap + window * kWindow;
    const int count = block_.points.residue.tap_count - window * kWindow;
    for (int row = threadIdx.x; row < kTile.rows; row += kTile.threads()) {
      shared_.inside[window % 2][row] = TapsInside(block_.rows[row].at, taps, count, block_.params.src_size);
    }
  }

  // Reads what this thread's pieces of a tile share.
  __device__ __forceinline__ void Begin(int tile) {
    const Run(&runs)[kRuns] = shared_.runs[tile % 2];
    const Run& run = runs[SrcPattern::Fast() / kRun];
    if (run.tap >= 0 && run.tap / kWindow != window_) {
      window_ = run.tap / kWindow;
#pragma unroll
      for (int i = 0; i < SrcPattern::kCount; ++i) inside_[i] = shared_.inside[window_ % 2][SrcPattern::Slow(i)];
    }
    src_ = static_cast<const char*>(block_.params.src) + run.src;
    tap_bit_ = run.tap < 0 ? 0 : 1u << run.tap % kWindow;
#pragma unroll
    for (int j = 0; j < kRhsRuns; ++j) {
      const Run& own = RhsTile::kAlongSteps ? run : runs[RhsPattern::First() / kRun + j];
      rhs_run_[j] = rhs_ + own.partner;
      rhs_limit_[j] = own.tap < 0 ? 0 : RhsTile::kAlongSteps ? columns_ : 1;
    }
  }

  const Block<kTile.rows>& block_;
  Shared& shared_;
  int filled_;  // windows of which the masks are there

  int32_t from_[SrcPattern::kCount];  // pieces from the source's origin to the rows' positions
  uint32_t inside_[SrcPattern::kCount] = {};
  int window_ = -1;  // that of inside_
  const char* rhs_;
  uint32_t rhs_stride_;  // bytes between the thread's pieces
  int columns_;

  // Of the tile that is being copied.
  const char* src_;
  uint32_t tap_bit_;
  const char* rhs_run_[kRhsRuns];
  int rhs_limit_[kRhsRuns];  // pieces at and beyond it do not exist
};

// Of a reduce. Rows come in runs of channels of one tap; a thread copies pieces of one run, from many positions.
template <typename T, MmaTile kTile, typename SrcTile, typename RhsTile>
class ReduceFeed {
  static constexpr int kRun = kPieceBytes / sizeof(T);
  using SrcPattern = CopyPattern<SrcTile, kTile.threads(), kRun>;
  using RhsPattern = CopyPattern<RhsTile, kTile.threads(), kRun>;
  static_assert(!SrcTile::kAlongSteps && !RhsTile::kAlongSteps);
  static_assert(kTile.rows / kRun <= kWindow, "a tile's taps, which its rows' runs begin, are in one window");

  struct alignas(16) Step {
    int32_t src;      // pieces from the source's origin
    int32_t partner;  // pieces in the destination, or -1: no step
    uint32_t inside;  // a mask of the block's taps
  };

 public:
  struct Shared {
    Step steps[2][kTile.depth];  // of the tile that is being copied, and of the next
  };

  __device__ ReduceFeed(const Block<kTile.rows>& block, Shared& shared) : block_(block), shared_(shared) {
    const ProductParams& p = block.params;
    const int64_t first_row = static_cast<int64_t>(block.work.row_tile) * kTile.rows;
    const int64_t row = first_row + SrcPattern::Fast(), channels = p.problem.in_channels;
    first_tap_ = static_cast<int>(first_row / channels);
    tap_bit_ = row < block.points.rows() ? 1u << (row / channels - first_tap_) : 0;
    last_tap_ = static_cast<int>((min(first_row + kTile.rows, block.points.rows()) - 1) / channels);
    src_ = static_cast<const char*>(p.src) + block.rows[SrcPattern::Fast()].src;
    // A column that does not exist is one that does: nobody stores its sums.
    const int64_t col = block.first_col + RhsPattern::Fast();
    rhs_ = static_cast<const char*>(p.rhs) +
           (block.work.group * p.rhs_group_stride + (col < p.cols ? col * p.rhs_col_stride : 0)) * sizeof(T);
  }

  // Works out the steps of a tile: before a barrier, after which it is copied.
  __device__ void Prepare(int tile) const {
    if (threadIdx.x >= kTile.depth) return;
    const int64_t step = block_.range.begin + static_cast<int64_t>(tile) * kTile.depth + threadIdx.x;
    Step result{0, -1, 0};
    if (step < block_.range.end) {
      const Point point = block_.points.Step(step);
      result = {static_cast<int32_t>(point.src / kRun), static_cast<int32_t>(point.partner / kRun),
                TapsInside(point.at, block_.points.taps + block_.points.residue.first_tap + first_tap_,
                           last_tap_ - first_tap_ + 1, block_.params.src_size)};
    }
    shared_.steps[tile % 2][threadIdx.x] = result;
  }

  // Copies one of `parts` parts of a tile.
  template <typename Stage>
  __device__ __forceinline__ void Copy(int tile, Stage& stage, int part, int parts) const {
    const Step(&steps)[kTile.depth] = shared_.steps[tile % 2];
    CopyPieces<SrcPattern, SrcTile>(
        ptx::SharedAddress(stage.src) + SrcPattern::Origin(), part, parts,
        [&](int i) { return src_ + static_cast<int64_t>(steps[SrcPattern::Slow(i)].src) * kPieceBytes; },
        [&](int i) { return (steps[SrcPattern::Slow(i)].inside & tap_bit_) != 0; });
    CopyPieces<RhsPattern, RhsTile>(
        ptx::SharedAddress(stage.rhs) + RhsPattern::Origin(), part, parts,
        [&](int i) { return rhs_ + static_cast<int64_t>(steps[RhsPattern::Slow(i)].partner) * kPieceBytes; },
        [&](int i) { return steps[RhsPattern::Slow(i)].partner >= 0; });
  }

 private:
  const Block<kTile.rows>& block_;
  Shared& shared_;
  const char* src_;
  const char* rhs_;
  int first_tap_;  // of the class, that the block's rows begin with
  int last_tap_;
  uint32_t tap_bit_;  // of this thread's rows, 0 if there are none
};

}  // namespace jaxconv
