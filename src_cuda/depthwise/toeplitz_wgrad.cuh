// The depthwise family's wgrad on tensor cores: what a warp multiplies. M are the source pixels that a strip reads, N
// its outputs, K strips. A tap's sum is on a diagonal.
//
// A bias's gradient is the sum of the output's. Where the window leaves the last source pixel free, ones in its place
// give that sum, without registers or multiplications of its own: in the row of the window that all outputs see.
#pragma once

#include <cstdint>

#include "depthwise/diagonals.cuh"
#include "depthwise/rows.cuh"

namespace jaxconv {

// A warp's sums for each slot of its channels, and the gradient's rows that a source row is multiplied with.
template <typename T, DepthwiseTile kTile>
class ToeplitzFilterSums {
  static_assert(kTile.IsFor(TypeOf<T>()) && kTraits<T>.bytes == 2, "PairOf takes elements of 16 bits from words");
  static constexpr int kChannels = kTile.channels;

 public:
  __device__ __forceinline__ explicit ToeplitzFilterSums(const DepthwiseParams& p) {
    const DepthwiseWarp warp(p, kTile);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t strip = warp.set * kMultiplied + i * 4 + lane % 4;
      from_[i] = {p, StripPixel(p, strip) + lane / 4, warp.part};
      gradient_from_[i] = {p, StripResult<kTile>(p, strip) + lane / 4, warp.part};
    }
    has_ones_ = kTile.may_sum_gradient() && p.gradient_sums != nullptr && HasLastPixel();
  }

  // Before a tile's first step: no row of the gradient has been read.
  __device__ __forceinline__ void Begin(int32_t) {
#pragma unroll
    for (int i = 0; i < kTile.lags * kChannels * 2; ++i) (&gradients_[0][0][0])[i] = 0;
  }

  // Adds what a step's source rows give with its row of the gradient and those of the steps before. kTurn: the step's
  // number modulo the lags.
  template <int kTurn>
  __device__ __forceinline__ void Multiply(const DepthwiseParams& p, int32_t, uint32_t stage, bool has_source) {
    PixelPart<kChannels> gradient[4];
    ReadGradient(p, stage + kTile.sources() * p.offsets.row, gradient);
    PairGradient(gradient, gradients_[kTurn]);
    if (!has_source) return;
#pragma unroll
    for (int a = 0; a < kTile.sources(); ++a) {
#pragma unroll
      for (int block = 0; block < kTile.blocks; ++block) {
        PixelPart<kChannels> source[4][2];
        ReadSource(p, stage + a * p.offsets.row, block, source);
        uint32_t rows[kChannels][4];
        PairSource(source, a == 0 && block == kTile.blocks - 1, rows);
        MultiplyRows<kTurn>(rows, a, block);
      }
    }
  }

  // What a step multiplies: a lane's pixels of the gradient's row, or zeros, and of a source row, if it exists.
  struct Pixels {
    PixelPart<kChannels> gradient[4];
    PixelPart<kChannels> source[4][2];
  };

  __device__ __forceinline__ Pixels First(const DepthwiseParams& p, uint32_t stage, bool has_source,
                                          bool has_gradient) const {
    Pixels pixels;
    if (has_gradient) {
      ReadGradient(p, stage + kTile.sources() * p.offsets.row, pixels.gradient);
    } else {
#pragma unroll
      for (auto& part : pixels.gradient) part = {};
    }
    if (has_source) ReadSource(p, stage, 0, pixels.source);
    return pixels;
  }

  // The same for pixels that have been read. While it multiplies them, `read` may read another step's.
  template <int kTurn, typename Read>
  __device__ __forceinline__ void Multiply(const Pixels& pixels, bool has_source, Read&& read) {
    PairGradient(pixels.gradient, gradients_[kTurn]);
    uint32_t rows[kChannels][4];
    if (has_source) PairSource(pixels.source, true, rows);
    read();
    if (has_source) MultiplyRows<kTurn>(rows, 0, 0);
  }

  // Leaves the sums in shared memory, for all consumers.
  __device__ __forceinline__ void Leave(const DepthwiseParams& p, float* shared) const {
    const DepthwiseWarp warp(p, kTile);
    float* sums = shared + Left(p, warp.set, warp.part * kChannels);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < kTile.slots() * kTile.blocks * 2; ++i) {
        const float* from = &sums_[c][i / 2 / kTile.blocks][i / 2 % kTile.blocks][i % 2 * 2];
        const int32_t to = c * kOfChannel + (i * 8 + lane / 4) * kStripCols + lane % 4 * 2;
        *reinterpret_cast<Pack<float, 2>*>(sums + to) = {from[0], from[1]};
      }
    }
  }

  // Stores the taps that `find` finds into a slice: the sums of their diagonals, of all sets.
  template <typename Find>
  static __device__ __forceinline__ void Store(const DepthwiseParams& p, int32_t slice, const float* shared,
                                               Find&& find) {
    const int32_t apart = static_cast<int32_t>(p.problem.step[2]) * kStripCols + 1;
    // Half of a warp's lanes begin with the second column. The sums of channels are in banks an even number apart, the
    // columns of a diagonal an odd number.
    const int32_t exchanged = threadIdx.x / 16 % 2 * apart;
    StoreTaps<kTile>(p, slice, p.sets, find, [&](int32_t set, int32_t from, int32_t channel) {
      const float* diagonal = shared + Left(p, set, channel) + from * kStripCols;
      const float *even = diagonal + exchanged, *odd = diagonal - exchanged;
      float sum = 0;
#pragma unroll
      for (int col = 0; col < kStripCols; ++col) sum += (col % 2 ? odd : even)[col * apart];
      return sum;
    });
  }

  // Stores a worker's sums of the gradient: of the last pixel, of all sets.
  static __device__ __forceinline__ void StoreGradientSums(const DepthwiseParams& p, int32_t worker,
                                                           const float* shared) {
    const DepthwiseLane lane(p, kTile);
    const int32_t channel = FirstChannel(p) + lane.channel;
    if (p.gradient_sums == nullptr || lane.number > 0 || channel >= p.all_channels) return;
    const int32_t pixel = p.unseen_rows * kPixels + kPixels - 1;
    float sum = 0;
    for (int32_t set = 0; set < p.sets; ++set) {
      const float* const cols = shared + Left(p, set, lane.channel) + pixel * kStripCols;
#pragma unroll
      for (int col = 0; col < kStripCols; ++col) sum += cols[col];
    }
    p.gradient_sums[static_cast<int64_t>(worker) * p.all_channels + channel] = sum;
  }

  // A lane's part of a channel's sum of the gradient: lanes of the last pixel have two outputs each.
  __device__ __forceinline__ float GradientSum(const DepthwiseParams& p, int channel) const {
    float sum = 0;
#pragma unroll
    for (int lag = 0; lag < kTile.lags; ++lag) {
      const float (&sums)[4] = sums_[channel][lag][kTile.blocks - 1];
      if (lag == p.unseen_rows) sum = sums[2] + sums[3];
    }
    return sum;
  }

  // Adds up the sums of each tap, for a window of at most eight neighbouring columns. A lane gets those of one channel
  // and one column of the window.
  __device__ __forceinline__ void AddTaps(float (&added)[kTile.lags]) const {
    static_assert(kTile.slots() == kTile.lags && kTile.blocks == 1, "a warp has one multiplication's sums of a row");
    const int diagonal = FirstDiagonal();
    AddAllDiagonals(added, [&](int lag, float (&first)[4], float (&second)[4]) {
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        const float (&sums)[4] = sums_[c][lag][0];
        first[c] = diagonal >= 0 ? sums[0] : sums[2];
        second[c] = diagonal >= 1 ? sums[1] : sums[3];
      }
    });
  }
  // The column of the window that a lane's first sum is of.
  static __device__ __forceinline__ int DiagonalOfLane(const DepthwiseParams&) { return FirstDiagonal(); }

  static constexpr int kTurns = kTile.lags;  // steps after which the gradient's rows are in the same registers again
  static constexpr int kPixels = kMultiplied * kTile.blocks;
  // In floats, with a gap: neighbouring channels are in other banks.
  static constexpr int kOfChannel = kTile.slots() * kPixels * kStripCols + kSumsGap;

 private:
  // The offset of a set's sums of a channel: the sums of warps follow each other.
  static __device__ __forceinline__ int32_t Left(const DepthwiseParams& p, int32_t set, int32_t channel) {
    return ((channel / kChannels * p.sets + set) * kChannels + channel % kChannels) * kOfChannel;
  }

  // Adds what a block of pixels of a source row gives with the gradient's rows.
  template <int kTurn>
  __device__ __forceinline__ void MultiplyRows(const uint32_t (&rows)[kChannels][4], int a, int block) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int lag = 0; lag < kTile.lags; ++lag) {
        const uint32_t (&gradient)[2] = gradients_[(kTurn - lag + kTile.lags) % kTile.lags][c];
        ptx::MultiplyAdd<T>(sums_[c][a * kTile.lags + lag][block], rows[c], gradient[0], gradient[1]);
      }
    }
  }

  __device__ __forceinline__ void ReadSource(const DepthwiseParams& p, uint32_t row, int block,
                                             PixelPart<kChannels> (&pixels)[4][2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) pixels[i][j].Load(row + from_[i].At(p, block * 2 + j, 0));
    }
  }

  // has_last: whether the last of a first source row's pixels is one of these.
  __device__ __forceinline__ void PairSource(const PixelPart<kChannels> (&pixels)[4][2], bool has_last,
                                             uint32_t (&rows)[kChannels][4]) const {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint32_t pair = PairOf(pixels[i / 2 * 2][i % 2], pixels[i / 2 * 2 + 1][i % 2], c);
        rows[c][i] = has_last && i % 2 == 1 && has_ones_ ? RoundPair<T>(1, 1) : pair;
      }
    }
  }

  __device__ __forceinline__ void ReadGradient(const DepthwiseParams& p, uint32_t row,
                                               PixelPart<kChannels> (&pixels)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) pixels[i].Load(row + gradient_from_[i].At(p, 0, 0));
  }

  static __device__ __forceinline__ void PairGradient(const PixelPart<kChannels> (&pixels)[4],
                                                      uint32_t (&gradient)[kChannels][2]) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) gradient[c][i] = PairOf(pixels[i * 2], pixels[i * 2 + 1], c);
    }
  }

  bool has_ones_;  // whether a lane has ones in the place of the last pixel
  PixelOffsets<kTile, kTile.blocks * 2, 1> from_[4];
  PixelOffsets<kTile, 1, 1> gradient_from_[4];
  uint32_t gradients_[kTile.lags][kChannels][2];
  float sums_[kChannels][kTile.slots()][kTile.blocks][4] = {};
};

}  // namespace jaxconv
