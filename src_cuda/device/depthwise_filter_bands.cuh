// The depthwise family's reduce on tensor cores: what a warp multiplies. Rows are the source pixels that a strip reads,
// columns its outputs, steps strips: what a tap is to receive is on a diagonal of the sums.
#pragma once

#include <cstdint>

#include "device/depthwise_rows.cuh"

namespace jaxconv {

// A warp's sums for each slot of its channels, and the gradient's rows that a source row is multiplied with.
template <typename T, DepthwiseTile kTile>
class FilterBandSums {
  static constexpr int kChannels = kTile.channels;

 public:
  __device__ __forceinline__ explicit FilterBandSums(const DepthwiseParams& p) {
    const DepthwiseWarp warp(p, kTile);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t strip = warp.set * kMultiplied + i * 4 + lane % 4;
      from_[i] = {p, StripPixel(p, strip) + lane / 4, warp.part};
      gradient_from_[i] = {p, strip * kStripCols + lane / 4, warp.part};
    }
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
    ReadGradient(p, stage + kTile.sources() * p.places.row, gradients_[kTurn]);
    if (!has_source) return;
#pragma unroll
    for (int a = 0; a < kTile.sources(); ++a) {
#pragma unroll
      for (int block = 0; block < kTile.blocks; ++block) {
        uint32_t rows[kChannels][4];
        Read(p, stage + a * p.places.row, block, rows);
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
#pragma unroll
          for (int lag = 0; lag < kTile.lags; ++lag) {
            const uint32_t(&gradient)[2] = gradients_[(kTurn - lag + kTile.lags) % kTile.lags][c];
            ptx::MultiplyAdd<T>(sums_[c][a * kTile.lags + lag][block], rows[c], gradient[0], gradient[1]);
          }
        }
      }
    }
  }

  // Adds the diagonals, and stores a piece's taps into the slice of this warp's set. By way of `exchange`.
  __device__ __forceinline__ void Store(const DepthwiseParams& p, int32_t piece, int32_t worker,
                                        float* exchange) const {
    const DepthwiseWarp warp(p, kTile);
    if (warp.channel >= p.all_channels) return;
    const int64_t first_to = (static_cast<int64_t>(worker) * p.sets + warp.set) * p.out_elements;
    exchange += Multiplier(kTile) / 32 * kExchange;
    const ResidueClass residue = p.classes[0];
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < kTile.slots() * kTile.blocks * 2; ++i) {
        const float* from = &sums_[c][i / 2 / kTile.blocks][i / 2 % kTile.blocks][i % 2 * 2];
        const int32_t to = c * kOfChannel + (i * 8 + lane / 4) * kStripCols + lane % 4 * 2;
        *reinterpret_cast<Pack<float, 2>*>(exchange + to) = {from[0], from[1]};
      }
    }
    __syncwarp();
    for (int32_t t = lane; t < p.problem.tap_count; t += 32) {
      const Tap tap = p.taps[t];
      const bool is_seen = t < residue.tap_count;  // by some position
      const BandPlace place(p, kTile, tap, residue);
      if (piece != (is_seen ? place.piece : 0)) continue;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        float sum = 0;
        if (is_seen) {
#pragma unroll
          for (int col = 0; col < kStripCols; ++col) {
            const int32_t pixel = place.pixel + col * static_cast<int32_t>(p.problem.step[2]);
            sum += exchange[c * kOfChannel + (place.slot * kPixels + pixel) * kStripCols + col];
          }
        }
        StoreNarrowed(Pack<float, 1>{sum}, p.out,
                      first_to + tap.filter_delta + (warp.channel + c) * p.problem.filter.group, p.out_type);
      }
    }
  }

  static constexpr int kTurns = kTile.lags;  // steps after which the gradient's rows are in the same registers again
  static constexpr int kPixels = kMultiplied * kTile.blocks;
  static constexpr int kOfChannel = kTile.slots() * kPixels * kStripCols;  // floats
  static constexpr int kExchange = kOfChannel * kChannels;                 // of a warp

 private:
  __device__ __forceinline__ void Read(const DepthwiseParams& p, uint32_t row, int block,
                                       uint32_t (&rows)[kChannels][4]) const {
    PixelPart<kChannels> pixels[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) pixels[i][j].Load(row + from_[i].At(p, block * 2 + j, 0));
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) rows[c][i] = PairOf(pixels[i / 2 * 2][i % 2], pixels[i / 2 * 2 + 1][i % 2], c);
    }
  }

  __device__ __forceinline__ void ReadGradient(const DepthwiseParams& p, uint32_t row,
                                               uint32_t (&gradient)[kChannels][2]) const {
    PixelPart<kChannels> pixels[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pixels[i].Load(row + gradient_from_[i].At(p, 0, 0));
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < 2; ++i) gradient[c][i] = PairOf(pixels[i * 2], pixels[i * 2 + 1], c);
    }
  }

  PixelPlaces<kTile, kTile.blocks * 2, 1> from_[4];
  PixelPlaces<kTile, 1, 1> gradient_from_[4];
  uint32_t gradients_[kTile.lags][kChannels][2];
  float sums_[kChannels][kTile.slots()][kTile.blocks][4] = {};
};

}  // namespace jaxconv
