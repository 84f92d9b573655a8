// The depthwise family on CUDA cores, for float32: a lane has a channel, and a strip of eight outputs.
#pragma once

#include <cstdint>

#include "device/depthwise_rows.cuh"

namespace jaxconv {

// A lane's taps: of its channel, for each slot and each phase of columns.
template <typename T, DepthwiseTile kTile>
class LaneTaps {
 public:
  // A table of the taps in shared memory: channels of columns of phases of slots. By all threads, between barriers.
  static __device__ __forceinline__ void FillTable(const DepthwiseParams& p, T* table) {
    for (int32_t i = threadIdx.x; i < kTaps * p.channels; i += kDepthwiseThreads) table[i] = 0;
    __syncthreads();
    const DepthwiseLane lane(p);
    const int32_t channel = min(FirstChannel(p) + lane.channel, p.all_channels - 1);
    const T* filter = static_cast<const T*>(p.rhs) + channel * p.problem.filter.group;
    for (int32_t c = 0; c < p.problem.class_count; ++c) {
      const ResidueClass residue = p.classes[c];
      if (residue.count[1] == 0 || residue.count[2] == 0) continue;  // taps that no position sees
#pragma unroll 8  // loads in flight
      for (int32_t t = lane.number; t < residue.tap_count; t += lane.all) {
        const Tap tap = p.taps[residue.first_tap + t];
        const BandPlace place(p, kTile, tap, residue);
        const int32_t at = (place.slot * kTile.period + residue.phase[2]) * kTile.width + place.pixel;
        table[at * p.channels + lane.channel] = filter[tap.filter_delta];
      }
    }
  }

  __device__ __forceinline__ void Read(const DepthwiseParams& p, const T* table, int32_t) {
    const DepthwiseLane lane(p);
#pragma unroll
    for (int i = 0; i < kTaps; ++i) taps_[i] = table[i * p.channels + lane.channel];
  }

  __device__ __forceinline__ T At(int slot, int phase, int col) const {
    return taps_[(slot * kTile.period + phase) * kTile.width + col];
  }

 private:
  static constexpr int kTaps = kTile.slots() * kTile.period * kTile.width;

  T taps_[kTaps];
};

// Where a lane reads a source row, and reads or writes a row of the destination: bytes to its first pixel.
template <typename T>
struct LanePlaces {
  uint32_t src;
  uint32_t dst;
  uint32_t pixel;  // bytes from one to the next

  __device__ __forceinline__ explicit LanePlaces(const DepthwiseParams& p) : pixel(p.channels * sizeof(T)) {
    const DepthwiseLane lane(p);
    src = (StripPixel(p, lane.number) * p.channels + lane.channel) * sizeof(T);
    dst = (lane.number * kStripCols * p.channels + lane.channel) * sizeof(T);
  }

  template <int kCount>
  __device__ __forceinline__ void Load(uint32_t from, float (&to)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = __uint_as_float(ptx::LoadWord(from + i * pixel));
  }
};

// A lane's sums: of the rows that are still to receive a source row.
template <typename T, DepthwiseTile kTile>
class LaneSums {
 public:
  struct Pixels {
    T of[kTile.pixels()];
  };

  __device__ __forceinline__ explicit LaneSums(const DepthwiseParams& p) : places_(p) {}

  // Before a tile whose first steps are left out: what the tile before has left is no row's.
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kTile.period * kTile.lags * kStripCols; ++i) (&sums_[0][0][0])[i] = 0;
  }

  __device__ __forceinline__ Pixels First(const DepthwiseParams&, uint32_t stage) const {
    Pixels pixels;
    places_.Load(stage + places_.src, pixels.of);
    return pixels;
  }

  __device__ __forceinline__ void Multiply(const DepthwiseParams& p, const LaneTaps<T, kTile>& taps, uint32_t stage,
                                           Pixels pixels) {
#pragma unroll
    for (int a = 0; a < kTile.step; ++a) {
      if (a > 0) pixels = First(p, stage + a * p.places.row);
#pragma unroll
      for (int b = 0; b < kTile.period; ++b) {
#pragma unroll
        for (int lag = kTile.lags - 1; lag >= 0; --lag) {
#pragma unroll
          for (int col = 0; col < kStripCols; ++col) {
            T sum = a > 0 ? sums_[b][lag][col] : lag > 0 ? sums_[b][lag - 1][col] : T(0);
#pragma unroll
            for (int i = 0; i < kTile.width; ++i) {
              const int pixel = col / kTile.period * kTile.step + i;
              sum += pixels.of[pixel] * taps.At((a + b) * kTile.lags + lag, col % kTile.period, i);
            }
            sums_[b][lag][col] = sum;
          }
        }
      }
    }
  }

  // The same of a step whose source row is not there.
  __device__ __forceinline__ void MoveOn() {
#pragma unroll
    for (int b = 0; b < kTile.period; ++b) {
#pragma unroll
      for (int col = 0; col < kStripCols; ++col) {
#pragma unroll
        for (int lag = kTile.lags - 1; lag > 0; --lag) sums_[b][lag][col] = sums_[b][lag - 1][col];
        sums_[b][0][col] = 0;
      }
    }
  }

  // Stores the rows that have received all into shared memory.
  __device__ __forceinline__ void Store(const DepthwiseParams& p, char* to) const {
#pragma unroll
    for (int i = 0; i < kTile.period * kStripCols; ++i) {
      const int phase = i / kStripCols, col = i % kStripCols;
      char* at = to + phase * p.places.result_row + places_.dst + col * places_.pixel;
      *reinterpret_cast<T*>(at) = sums_[phase][kTile.lags - 1][col];
    }
  }

 private:
  LanePlaces<T> places_;
  T sums_[kTile.period][kTile.lags][kStripCols];
};

// A lane's sums for each tap of its channel, and the gradient's rows that a source row is multiplied with.
template <typename T, DepthwiseTile kTile>
class LaneFilterSums {
 public:
  __device__ __forceinline__ explicit LaneFilterSums(const DepthwiseParams& p) : places_(p) {}

  // Before a tile's first step: no row of the gradient has been read.
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kTile.lags * kStripCols; ++i) (&gradients_[0][0])[i] = 0;
  }

  template <int kTurn>
  __device__ __forceinline__ void Multiply(const DepthwiseParams& p, uint32_t stage, bool has_source) {
#pragma unroll
    for (int lag = kTile.lags - 1; lag > 0; --lag) {
#pragma unroll
      for (int col = 0; col < kStripCols; ++col) gradients_[lag][col] = gradients_[lag - 1][col];
    }
    places_.Load(stage + kTile.step * p.places.row + places_.dst, gradients_[0]);
    if (!has_source) return;
#pragma unroll
    for (int a = 0; a < kTile.step; ++a) {
      T pixels[kTile.pixels()];
      places_.Load(stage + a * p.places.row + places_.src, pixels);
#pragma unroll
      for (int lag = 0; lag < kTile.lags; ++lag) {
#pragma unroll
        for (int i = 0; i < kTile.width; ++i) {
#pragma unroll
          for (int col = 0; col < kStripCols; ++col) {
            sums_[a * kTile.lags + lag][i] += pixels[col * kTile.step + i] * gradients_[lag][col];
          }
        }
      }
    }
  }

  // Adds what the lanes of a channel have, and stores the taps into the worker's slice. By all threads.
  __device__ __forceinline__ void Store(const DepthwiseParams& p, int32_t, int32_t worker, float* exchange) const {
    const DepthwiseLane lane(p);
    const int32_t channel = FirstChannel(p) + lane.channel, count = static_cast<int32_t>(p.problem.tap_count);
    const int64_t first_to = worker * p.out_elements + channel * p.problem.filter.group;
#pragma unroll
    for (int i = 0; i < kTile.slots() * kTile.width; ++i) {
      exchange[i * kDepthwiseThreads + threadIdx.x] = sums_[i / kTile.width][i % kTile.width];
    }
    __syncthreads();
    if (channel >= p.all_channels) return;
    const ResidueClass residue = p.classes[0];
    constexpr int kLoads = 8;  // in flight
    for (int32_t begin = lane.number; begin < count; begin += kLoads * lane.all) {
      Tap taps[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) taps[i] = p.taps[min(begin + i * lane.all, count - 1)];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int32_t t = begin + i * lane.all;
        if (t >= count) break;
        float sum = 0;
        if (t < residue.tap_count) {  // others are seen by no position
          const BandPlace place(p, kTile, taps[i], residue);
          const float* from = exchange + (place.slot * kTile.width + place.pixel) * kDepthwiseThreads + lane.channel;
          for (int32_t other = 0; other < kDepthwiseThreads; other += p.channels) sum += from[other];
        }
        StoreNarrowed(Pack<float, 1>{sum}, p.out, first_to + taps[i].filter_delta, p.out_type);
      }
    }
  }

  static constexpr int kTurns = 1;  // the gradient's rows move on from register to register

 private:
  LanePlaces<T> places_;
  T gradients_[kTile.lags][kStripCols];
  T sums_[kTile.slots()][kTile.width] = {};
};

}  // namespace jaxconv
