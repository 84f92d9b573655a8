// Copies tiles of a conv to shared memory asynchronously, in pieces.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "mma/block.cuh"
#include "mma/piece_copy.cuh"
#include "mma/tile_copy.cuh"

namespace jaxconv {

// Steps come in runs of channels of one tap, a run for each piece of a tile's row; a thread keeps its rows' places and
// masks in registers.
template <typename T, MmaTile kTile, typename SrcTile, typename RhsTile, bool kMerged>
class ConvFeed {
  static constexpr int kRun = kTraits<T>.vector();
  static constexpr int kRuns = kTile.depth / kRun;
  using SrcPattern = CopyPattern<SrcTile, kTile.threads(), kRun>;
  using RhsPattern = CopyPattern<RhsTile, kTile.threads(), kRun, !RhsTile::kAlongSteps>;
  // A thread's pieces of the filter are of consecutive steps if it lies along the columns: of so many runs.
  static constexpr int kRhsRuns = !RhsTile::kAlongSteps && RhsPattern::kCount > kRun ? RhsPattern::kCount / kRun : 1;
  static_assert(SrcTile::kAlongSteps && SrcPattern::kFast == kRuns, "a thread copies pieces of one run of a tile");
  static_assert(kRuns < kWindow, "a tile's taps are in two windows at most");

  struct alignas(16) Run {
    const char* src;  // of the unit's group: what positions' places are added to
    const char* rhs;  // and columns'
    int32_t tap;      // of the class, or -1: no steps
  };

 public:
  struct Shared {
    Run runs[kTile.ring()][kRuns];
    int32_t from[kTile.rows];        // pieces from the source's origin to the rows' positions
    uint32_t inside[2][kTile.rows];  // masks of the rows, for a window and the one after
  };

  using Index = int32_t;  // of rows and steps

  __device__ ConvFeed(const Block<kTile.rows, Index>& block, Shared& shared)
      : block_(block), shared_(shared), filled_(WindowOf(block.range.begin) + 2) {}

  // Prepares a row, before the first barrier: the first two windows.
  __device__ __forceinline__ void AddRow(int row, const Point& point) {
    shared_.from[row] = static_cast<int32_t>(point.src / kPieceBytes);
    const int window = WindowOf(block_.range.begin);
    FillMask(window, row, point);
    if ((window + 1) * kWindow < block_.points.residue.tap_count) FillMask(window + 1, row, point);
  }

  // Before the barrier after which the first tile is copied.
  __device__ __forceinline__ void Begin(const Unit& unit) {
    const ProductParams& p = block_.params;
    const int column_bytes = static_cast<int>(p.rhs_col_stride * sizeof(T));
    group_ = unit.group;
    if constexpr (RhsTile::kAlongSteps) {  // merged classes' columns are equally far apart, too
      const int64_t col = unit.first_col + RhsPattern::First();
      rhs_stride_ = RhsPattern::kStride * column_bytes;
      rhs_from_ = static_cast<int32_t>(col) * column_bytes;
      columns_ = static_cast<int>(min(p.cols - col, int64_t{kTile.cols}));
    } else {
      // A column that does not exist is one that does: nobody stores its sums.
      const int64_t col = unit.first_col + RhsPattern::Fast();
      rhs_stride_ = static_cast<int32_t>(p.problem.filter.in * sizeof(T));
      rhs_from_ = (col < p.cols ? ColumnBytes(col, column_bytes) : 0) + RhsPattern::First() % kRun * rhs_stride_;
    }
    if (filled_ > WindowOf(block_.range.begin) + 2) {  // a unit before has gone through more windows
      filled_ = WindowOf(block_.range.begin) + 2;
      for (int row = threadIdx.x; row < kTile.rows; row += kTile.threads()) AddRow(row, block_.rows[row]);
      window_ = -1;
    }
  }

  // Prepares the steps of the first tiles, before the barrier after which these are copied.
  template <int kTiles>
  __device__ __forceinline__ void PrepareFirst() {
    static_assert(kTiles * kRuns <= kTile.threads() && kTiles <= kTile.ring());
    if (threadIdx.x >= kTiles * kRuns) return;
    SeekRun(static_cast<int>(threadIdx.x) * kRun);
    StoreRun(threadIdx.x / kRuns);
  }

  // After that barrier. The next tile to be prepared is given.
  __device__ __forceinline__ void Start(int tile) {
#pragma unroll
    for (int i = 0; i < SrcPattern::kCount; ++i) from_[i] = shared_.from[SrcPattern::Slow(i)];
    if (threadIdx.x < kRuns) SeekRun(tile * kTile.depth + static_cast<int>(threadIdx.x) * kRun);
  }

  // Prepares the steps of the next tile, before the barrier after which it is copied.
  __device__ __forceinline__ void Prepare(int tile) {
    if (threadIdx.x < kRuns) {
      StoreRun(tile);
      AdvanceRun();
    }
    if (filled_ * kWindow < block_.points.residue.tap_count) FillMasks(tile);
  }

  // Copies one of `parts` parts of a tile; the first comes first.
  template <typename Stage>
  __device__ __forceinline__ void Copy(int tile, Stage& stage, int part, int parts) {
    if (part == 0) ReadRuns(tile);
    CopyPieces<SrcPattern, SrcTile>(
        ptx::SharedAddress(stage.src) + SrcPattern::Origin(), part, parts,
        [&](int i) { return ptx::AddProduct(src_, from_[i], kPieceBytes); },
        [&](int i) { return (inside_[i] & tap_bit_) != 0; });
    const uint32_t rhs = ptx::SharedAddress(stage.rhs) + RhsPattern::Origin();
    if constexpr (RhsTile::kAlongSteps) {
      CopyPieces<RhsPattern, RhsTile>(
          rhs, part, parts, [&](int i) { return ptx::AddProduct(rhs_run_[0], rhs_stride_, i); },
          [&](int i) { return i * RhsPattern::kStride < rhs_limit_[0]; });
    } else {
      CopyPieces<RhsPattern, RhsTile>(
          rhs, part, parts, [&](int i) { return ptx::AddProduct(rhs_run_[i / kRun], rhs_stride_, i % kRun); },
          [&](int i) { return rhs_limit_[i / kRun] > 0; });
    }
  }

 private:
  // From a unit's first column to another one.
  __device__ __forceinline__ int32_t ColumnBytes(int64_t col, int column_bytes) const {
    if constexpr (!kMerged) return static_cast<int32_t>(col) * column_bytes;
    return static_cast<int32_t>(MergedCol::Of(block_.params, col).filter * sizeof(T));
  }

  // To the run that begins so many steps after the block's first.
  __device__ __forceinline__ void SeekRun(int steps) {
    tap_ = block_.points.TapOf(block_.range.begin + steps, &channel_);
    steps_left_ = static_cast<int>(block_.range.end - block_.range.begin) - steps;
    taps_of_tile_ = block_.points.TapOf(kTile.depth, &channels_of_tile_);
    LoadTap();
  }

  // To the same run of the next tile.
  __device__ __forceinline__ void AdvanceRun() {
    const int channels = static_cast<int>(block_.params.problem.in_channels);
    steps_left_ -= kTile.depth;
    tap_ += taps_of_tile_;
    channel_ += channels_of_tile_;
    if (channel_ >= channels) channel_ -= channels, ++tap_;
    LoadTap();
  }

  // Loads what is stored a tile later.
  __device__ __forceinline__ void LoadTap() {
    if (steps_left_ <= 0) return;
    const Tap& tap = block_.points.taps[block_.points.residue.first_tap + tap_];
    src_delta_ = tap.src_delta;
    filter_delta_ = tap.filter_delta;
  }

  __device__ __forceinline__ void StoreRun(int tile) const {
    const ProductParams& p = block_.params;
    const int64_t src = group_ * p.problem.src.group + src_delta_ + channel_;
    const int64_t rhs = group_ * p.rhs_group_stride + filter_delta_ + channel_ * p.problem.filter.in;
    shared_.runs[tile % kTile.ring()][threadIdx.x % kRuns] = {static_cast<const char*>(p.src) + src * sizeof(T),
                                                              static_cast<const char*>(p.rhs) + rhs * sizeof(T),
                                                              steps_left_ > 0 ? tap_ : -1};
  }

  __device__ __forceinline__ int WindowOf(int64_t step) const {
    int channel;
    return block_.points.TapOf(step, &channel) / kWindow;
  }

  __device__ __forceinline__ void FillMask(int window, int row, const Point& point) const {
    const ResidueClass& residue = block_.points.residue;
    shared_.inside[window % 2][row] = TapsInsideOfRow(point.at[0], point.at[1], point.at[2],
                                                      block_.points.taps + residue.first_tap + window * kWindow,
                                                      residue.tap_count - window * kWindow, block_.params.src_size);
  }

  // Those of the window that a tile is the first to reach, if it is. The tile before is not in the last but one.
  __device__ __forceinline__ void FillMasks(int tile) {
    const int64_t end = block_.range.begin + (tile + int64_t{1}) * kTile.depth;
    if (filled_ > WindowOf(min(end, block_.range.end) - 1)) return;
    for (int row = threadIdx.x; row < kTile.rows; row += kTile.threads()) FillMask(filled_, row, block_.rows[row]);
    ++filled_;
  }

  // Reads what this thread's pieces of a tile share.
  __device__ __forceinline__ void ReadRuns(int tile) {
    const Run(&runs)[kRuns] = shared_.runs[tile % kTile.ring()];
    const Run& run = runs[SrcPattern::Fast() / kRun];
    if (run.tap >= 0 && run.tap / kWindow != window_) {
      window_ = run.tap / kWindow;
#pragma unroll
      for (int i = 0; i < SrcPattern::kCount; ++i) inside_[i] = shared_.inside[window_ % 2][SrcPattern::Slow(i)];
    }
    src_ = run.src;
    tap_bit_ = run.tap < 0 ? 0 : 1u << run.tap % kWindow;
#pragma unroll
    for (int j = 0; j < kRhsRuns; ++j) {
      const Run& own = RhsTile::kAlongSteps ? run : runs[RhsPattern::First() / kRun + j];
      rhs_run_[j] = own.rhs + rhs_from_;
      rhs_limit_[j] = own.tap < 0 ? 0 : RhsTile::kAlongSteps ? columns_ : 1;
    }
  }

  const Block<kTile.rows, Index>& block_;
  Shared& shared_;
  int filled_;  // the first window of which the masks are not there yet

  // Of the first threads: a run of the tile that is prepared next.
  int tap_;
  int channel_;
  int steps_left_;
  int src_delta_ = 0;
  int filter_delta_ = 0;
  int taps_of_tile_;
  int channels_of_tile_;

  int32_t from_[SrcPattern::kCount];
  uint32_t inside_[SrcPattern::kCount] = {};
  int window_ = -1;  // that of inside_
  uint32_t group_;
  int32_t rhs_from_;    // bytes from a run's place to the thread's first piece
  int32_t rhs_stride_;  // and from one to the next
  int columns_;         // that exist from the thread's first one on

  // Of the tile that is being copied.
  const char* src_;
  uint32_t tap_bit_;
  const char* rhs_run_[kRhsRuns];
  int rhs_limit_[kRhsRuns];  // pieces at and beyond it do not exist
};

}  // namespace jaxconv
