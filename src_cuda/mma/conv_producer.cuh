// Copies tiles of a conv to shared memory asynchronously, in 16-byte vectors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "mma/block.cuh"
#include "mma/tap_masks.cuh"
#include "mma/tile_copy.cuh"

namespace jaxconv {

// The steps of a 16-byte vector are channels of one tap. A thread keeps the offsets and the masks of its rows in
// registers.
template <typename T, MmaTile kTile, typename SrcTile, typename RhsTile, bool kMerged>
class ConvProducer {
  static constexpr int kVector = kTraits<T>.vector();
  static constexpr int kRowVectors = kTile.depth / kVector;  // of a row along the steps
  using SrcPattern = CopyPattern<SrcTile, kTile.threads(), kVector>;
  using RhsPattern = CopyPattern<RhsTile, kTile.threads(), kVector, !RhsTile::kKMajor>;
  // A thread's vectors of the filter are of the same steps. If it lies along the columns they are of consecutive ones,
  // so many of the steps of a vector of the source.
  static constexpr int kRhsCount = RhsTile::kKMajor ? RhsPattern::kCount : std::min(kVector, RhsPattern::kCount);
  static constexpr int kRhsVectors = RhsPattern::kCount / kRhsCount;
  static_assert(SrcTile::kKMajor && SrcPattern::kFast == kRowVectors,
                "a thread copies vectors of one offset in the rows");
  static_assert(kRowVectors < kMaskTaps, "a tile's taps have two masks at most");

  struct alignas(16) Steps {  // of a vector
    const char* src;          // of the group; the positions' offsets are added
    const char* rhs;          // likewise the columns'
    int32_t tap;              // of the class, or -1: no steps
  };

 public:
  struct Shared {
    Steps steps[kTile.step_stages()][kRowVectors];
    int32_t from[kTile.rows];        // vectors from the source's origin to the rows' positions
    uint32_t inside[2][kTile.rows];  // of the rows: a mask and the next one
  };

  using Index = int32_t;  // of rows and steps

  __device__ ConvProducer(const Block<kTile.rows, Index>& block, Shared& shared)
      : block_(block), shared_(shared), filled_(MaskOf(block.range.begin) + 2) {}

  // Prepares a row, before the first barrier: its first two masks.
  __device__ __forceinline__ void AddRow(int row, const Point& point) {
    shared_.from[row] = static_cast<int32_t>(point.src / kVectorBytes);
    const int mask = MaskOf(block_.range.begin);
    FillMask(mask, row, point);
    if ((mask + 1) * kMaskTaps < block_.points.residue.tap_count) FillMask(mask + 1, row, point);
  }

  // Before the barrier after which the first tile is copied.
  __device__ __forceinline__ void Begin(const NTile& n_tile) {
    const ProductParams& p = block_.params;
    const int column_bytes = static_cast<int>(p.rhs_col_stride * sizeof(T));
    group_ = n_tile.group;
    if constexpr (RhsTile::kKMajor) {  // merged classes' columns are equally far apart, too
      const int64_t col = n_tile.first_col + RhsPattern::First();
      rhs_stride_ = RhsPattern::kStride * column_bytes;
      rhs_from_ = static_cast<int32_t>(col) * column_bytes;
      columns_ = static_cast<int>(min(p.cols - col, int64_t{kTile.cols}));
    } else {
      // A column that does not exist is one that does: nobody stores its sums.
      const int64_t col = n_tile.first_col + RhsPattern::Fast();
      rhs_stride_ = static_cast<int32_t>(p.problem.filter.in * sizeof(T));
      rhs_from_ = (col < p.cols ? ColumnBytes(col, column_bytes) : 0) + RhsPattern::First() % kVector * rhs_stride_;
    }
    if (filled_ > MaskOf(block_.range.begin) + 2) {  // the N tile before needed further masks
      filled_ = MaskOf(block_.range.begin) + 2;
      for (int row = threadIdx.x; row < kTile.rows; row += kTile.threads()) AddRow(row, block_.rows[row]);
      mask_ = -1;
    }
  }

  // Prepares the steps of the first tiles, before the barrier after which these are copied.
  template <int kTiles>
  __device__ __forceinline__ void PrepareFirst() {
    static_assert(kTiles * kRowVectors <= kTile.threads() && kTiles <= kTile.step_stages());
    if (threadIdx.x >= kTiles * kRowVectors) return;
    Seek(static_cast<int>(threadIdx.x) * kVector);
    StoreSteps(threadIdx.x / kRowVectors);
  }

  // After that barrier. The next tile to be prepared is given.
  __device__ __forceinline__ void Start(int tile) {
#pragma unroll
    for (int i = 0; i < SrcPattern::kCount; ++i) from_[i] = shared_.from[SrcPattern::Slow(i)];
    if (threadIdx.x < kRowVectors) Seek(tile * kTile.depth + static_cast<int>(threadIdx.x) * kVector);
  }

  // Prepares the steps of the next tile, before the barrier after which it is copied.
  __device__ __forceinline__ void Prepare(int tile) {
    if (threadIdx.x < kRowVectors) {
      StoreSteps(tile);
      Advance();
    }
    if (filled_ * kMaskTaps < block_.points.residue.tap_count) FillMasks(tile);
  }

  // Copies one of `parts` parts of a tile; the first comes first.
  template <typename Stage>
  __device__ __forceinline__ void Copy(int tile, Stage& stage, int part, int parts) {
    if (part == 0) ReadSteps(tile);
    CopyVectors<SrcPattern, SrcTile>(
        ptx::SharedAddress(stage.src) + SrcPattern::Origin(), part, parts,
        [&](int i) { return ptx::AddProduct(src_, from_[i], kVectorBytes); },
        [&](int i) { return (inside_[i] & tap_bit_) != 0; });
    const uint32_t rhs = ptx::SharedAddress(stage.rhs) + RhsPattern::Origin();
    CopyVectors<RhsPattern, RhsTile>(
        rhs, part, parts, [&](int i) { return ptx::AddProduct(rhs_steps_[i / kRhsCount], rhs_stride_, i % kRhsCount); },
        [&](int i) { return (RhsTile::kKMajor ? i * RhsPattern::kStride : 0) < rhs_limit_[i / kRhsCount]; });
  }

 private:
  // From the group's first column to another one.
  __device__ __forceinline__ int32_t ColumnBytes(int64_t col, int column_bytes) const {
    if constexpr (!kMerged) return static_cast<int32_t>(col) * column_bytes;
    return static_cast<int32_t>(MergedCol::Of(block_.params, col).filter * sizeof(T));
  }

  // To the vector that begins so many steps after the block's first.
  __device__ __forceinline__ void Seek(int steps) {
    tap_ = block_.points.TapOf(block_.range.begin + steps, &channel_);
    steps_left_ = static_cast<int>(block_.range.end - block_.range.begin) - steps;
    taps_of_tile_ = block_.points.TapOf(kTile.depth, &channels_of_tile_);
    LoadTap();
  }

  // To the same vector of the next tile.
  __device__ __forceinline__ void Advance() {
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

  __device__ __forceinline__ void StoreSteps(int tile) const {
    const ProductParams& p = block_.params;
    const int64_t src = group_ * p.problem.src.group + src_delta_ + channel_;
    const int64_t rhs = group_ * p.rhs_group_stride + filter_delta_ + channel_ * p.problem.filter.in;
    shared_.steps[tile % kTile.step_stages()][threadIdx.x % kRowVectors] = {
        static_cast<const char*>(p.src) + src * sizeof(T), static_cast<const char*>(p.rhs) + rhs * sizeof(T),
        steps_left_ > 0 ? tap_ : -1};
  }

  __device__ __forceinline__ int MaskOf(int64_t step) const { return block_.TapOf(step) / kMaskTaps; }

  __device__ __forceinline__ void FillMask(int mask, int row, const Point& point) const {
    const ResidueClass& residue = block_.points.residue;
    shared_.inside[mask % 2][row] = TapsInsideOfRow(point.at[0], point.at[1], point.at[2],
                                                    block_.points.taps + residue.first_tap + mask * kMaskTaps,
                                                    residue.tap_count - mask * kMaskTaps, block_.params.src_size);
  }

  // Fills the masks that a tile is the first to need. The tile before does not need those that they replace.
  __device__ __forceinline__ void FillMasks(int tile) {
    const int64_t end = block_.range.begin + (tile + int64_t{1}) * kTile.depth;
    if (filled_ > MaskOf(min(end, block_.range.end) - 1)) return;
    for (int row = threadIdx.x; row < kTile.rows; row += kTile.threads()) FillMask(filled_, row, block_.rows[row]);
    ++filled_;
  }

  // Reads what this thread's vectors of a tile share.
  __device__ __forceinline__ void ReadSteps(int tile) {
    const Steps(&steps)[kRowVectors] = shared_.steps[tile % kTile.step_stages()];
    const Steps& own = steps[SrcPattern::Fast() / kVector];
    if (own.tap >= 0 && own.tap / kMaskTaps != mask_) {
      mask_ = own.tap / kMaskTaps;
#pragma unroll
      for (int i = 0; i < SrcPattern::kCount; ++i) inside_[i] = shared_.inside[mask_ % 2][SrcPattern::Slow(i)];
    }
    src_ = own.src;
    tap_bit_ = own.tap < 0 ? 0 : 1u << own.tap % kMaskTaps;
#pragma unroll
    for (int j = 0; j < kRhsVectors; ++j) {
      const Steps& of_rhs = RhsTile::kKMajor ? own : steps[RhsPattern::First() / kVector + j];
      rhs_steps_[j] = of_rhs.rhs + rhs_from_;
      rhs_limit_[j] = of_rhs.tap < 0 ? 0 : RhsTile::kKMajor ? columns_ : 1;
    }
  }

  const Block<kTile.rows, Index>& block_;
  Shared& shared_;
  int filled_;  // the first mask that is not there yet

  // Of the first threads: a vector of the tile that is prepared next.
  int tap_;
  int channel_;
  int steps_left_;
  int src_delta_ = 0;
  int filter_delta_ = 0;
  int taps_of_tile_;
  int channels_of_tile_;

  int32_t from_[SrcPattern::kCount];
  uint32_t inside_[SrcPattern::kCount] = {};
  int mask_ = -1;  // which one inside_ is
  uint32_t group_;
  int32_t rhs_from_;    // bytes from Steps::rhs to the thread's first vector
  int32_t rhs_stride_;  // and from one to the next
  int columns_;         // that exist from the thread's first one on

  // Of the tile that is being copied.
  const char* src_;
  uint32_t tap_bit_;
  const char* rhs_steps_[kRhsVectors];
  int rhs_limit_[kRhsVectors];  // vectors at and beyond it do not exist
};

}  // namespace jaxconv
