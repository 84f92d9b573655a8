// The depthwise family's wgrad on tensor cores for images of at most eight columns: what a warp multiplies.
//
// Of sixteen pixels that a strip of eight outputs reads, most would be zeros in a row of such an image. Here eight rows
// of M are the pixels of a source row, and eight those of the next one. Zeros around the images are neither read nor
// copied: the end leaves out sums with pixels and outputs that do not exist. In images of at most seven columns the
// last pixel is free for ones, which sum the gradient: see toeplitz_wgrad.cuh.
#pragma once

#include <cstdint>

#include "depthwise/diagonals.cuh"
#include "depthwise/rows.cuh"

namespace jaxconv {

// A warp's sums of its channels, and the pairs of source rows that the gradient's next two rows are multiplied with.
template <typename T, DepthwiseTile kTile>
class RowPairSums {
  static_assert(kTile.IsFor(TypeOf<T>()) && kTraits<T>.bytes == 2, "PairOf takes elements of 16 bits from words");
  static constexpr int kChannels = kTile.channels;
  static constexpr int kPairs = kTile.pairs();
  static_assert(2 * kPairs == kTile.lags + 1, "the last of a gradient row's pairs has one row of the window, not two");
  static_assert(kTile.box_rows() == 2, "a step has a pair of source rows");
  static_assert(kMultiplied == 16 && MostChannelBytes(kTile) == kBoxPixelBytes, "a warp has four images of each lane");

 public:
  static constexpr int kTurns = kPairs;  // steps after which a pair of source rows takes the place of another

  // Of a lane: a column's pixels, of four images.
  struct Row {
    PixelPart<kChannels> of[4];
  };

  // Lanes of a column have neighbouring images: they then read from other banks, if rows have an odd number of pixels.
  __device__ __forceinline__ explicit RowPairSums(const DepthwiseParams& p) {
    const int lane = threadIdx.x % 32;
    const int32_t col = min(lane / 4, p.src_width - 1);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      from_[i] = {p, (lane % 4 * 4 + i) * p.src_width + col, DepthwiseWarp(p, kTile).part};
    }
    const int32_t pixel = lane / 4, output = lane % 4 * 2, diagonal = DiagonalOfLane(p);
    const auto has = [&](int i) {
      const bool is_tap = diagonal - i >= 0 && diagonal - i < kTapCols;
      return is_tap && pixel < p.problem.src_size[2] && output + i < p.problem.dst_size[2];
    };
    has_ = has(0) | has(1) << 1;
    ptx::Keep(has_);
    has_ones_ = p.gradient_sums != nullptr && HasLastPixel();
  }

  // Before a tile's first step: no pair has been kept.
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kPairs * kChannels * 4; ++i) (&pairs_[0][0][0])[i] = 0;
  }

  // A row of a stage, of the source or the gradient. Zeros, if it does not exist.
  __device__ __forceinline__ Row Read(const DepthwiseParams& p, uint32_t row) const {
    Row pixels;
#pragma unroll
    for (int i = 0; i < 4; ++i) pixels.of[i].Load(row + from_[i].At(p, 0, 0));
    return pixels;
  }
  __device__ __forceinline__ Row Read(const DepthwiseParams& p, uint32_t row, bool is_there) const {
    return is_there ? Read(p, row) : Row{};
  }

  // Keeps a step's pair of source rows. kTurn is the step's number from the gradient's first, modulo kTurns.
  template <int kTurn>
  __device__ __forceinline__ void Keep(const Row (&rows)[2]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Row& row = rows[i % 2];
        const uint32_t pair = PairOf(row.of[i / 2 * 2], row.of[i / 2 * 2 + 1], c);
        pairs_[kTurn][c][i] = i % 2 == 1 && has_ones_ ? RoundPair<T>(1, 1) : pair;
      }
    }
  }

  // Adds what a row of the gradient gives, the first or the second of a step, with the pairs that have been kept.
  template <int kTurn, int kRow>
  __device__ __forceinline__ void Multiply(const Row& gradient) {
    uint32_t words[kChannels][2];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) words[c][i] = PairOf(gradient.of[i * 2], gradient.of[i * 2 + 1], c);
    }
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        ptx::MultiplyAdd<T>(sums_[kRow][pair][c], pairs_[(kTurn + 1 + pair) % kPairs][c], words[c][0], words[c][1]);
      }
    }
  }

  // A lane's part of a channel's sum of the gradient: that of the newest pair's second row, which each row of the
  // gradient is multiplied with.
  __device__ __forceinline__ float GradientSum(const DepthwiseParams& p, int channel) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool is_there = threadIdx.x % 4 * 2 + i < p.problem.dst_size[2];
      if (is_there) sum += sums_[0][kPairs - 1][channel][2 + i] + sums_[1][kPairs - 1][channel][2 + i];
    }
    return sum;
  }

  // Adds up the sums of each tap. A lane gets those of one channel and one column of the window.
  __device__ __forceinline__ void AddTaps(float (&added)[kTile.lags]) const {
    AddAllDiagonals(added, [&](int lag, float (&first)[4], float (&second)[4]) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        // One of the two gradient rows goes with the first source row of a pair, the other with the second.
        const float (&even)[4] = sums_[lag % 2][(lag + 1) / 2][c];
        const float (&odd)[4] = sums_[(lag + 1) % 2][lag / 2][c];
        first[c] = has_ & 1 ? even[0] + odd[2] : 0;
        second[c] = has_ & 2 ? even[1] + odd[3] : 0;
      }
    });
  }
  // The column of the window that a lane's first sum is of.
  static __device__ __forceinline__ int DiagonalOfLane(const DepthwiseParams& p) {
    return FirstDiagonal() - p.first_col;
  }

 private:
  PixelOffsets<kTile, 1, 1> from_[4];
  bool has_ones_;  // whether a lane has ones in the place of the last pixel
  int32_t has_;    // whether a lane's sums of even columns are of the window, and of odd ones
  uint32_t pairs_[kPairs][kChannels][4];
  float sums_[2][kPairs][kChannels][4] = {};
};

}  // namespace jaxconv
