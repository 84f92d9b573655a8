// The depthwise family on CUDA cores, for float32: a lane has a channel, and a strip of eight outputs.
#pragma once

#include <cstdint>

#include "depthwise/rows.cuh"

namespace jaxconv {

// A lane's taps: of its channel, for each slot and each phase of columns.
template <typename T, DepthwiseTile kTile>
class LaneTaps {
 public:
  // A table in shared memory of the taps' offsets in the filter, or -1: slots, in them phases and columns. All threads
  // clear it, wait, fill it and wait.
  static __device__ __forceinline__ void ClearTable(const DepthwiseParams& p, char* table) {
    for (int32_t i = threadIdx.x; i < p.window_parts * kTaps; i += kDepthwiseThreads) {
      reinterpret_cast<int32_t*>(table)[i] = -1;
    }
  }

  static __device__ __forceinline__ void FillTable(const DepthwiseParams& p, char* to) {
    int32_t* table = reinterpret_cast<int32_t*>(to);
    for (int32_t c = 0; c < p.problem.class_count; ++c) {
      const ResidueClass residue = p.classes[c];
      if (residue.count[1] == 0 || residue.count[2] == 0) continue;  // taps that no position sees
      for (int32_t t = threadIdx.x; t < residue.tap_count; t += kDepthwiseThreads) {
        const Tap tap = p.taps[residue.first_tap + t];
        const TapCoord coord(p, kTile, tap, residue);
        const int32_t slot = coord.window_part * kTile.slots() + coord.slot;
        table[(slot * kTile.period + residue.phase[2]) * kTile.width + coord.pixel] = tap.filter_delta;
      }
    }
  }

  // Reads those of a window part from the filter, where neighbouring lanes' taps are neighbours.
  __device__ __forceinline__ void Read(const DepthwiseParams& p, const char* from, int32_t window_part) {
    const int32_t* table = reinterpret_cast<const int32_t*>(from) + window_part * kTaps;
    const int32_t channel = min(FirstChannel(p) + DepthwiseLane(p, kTile).channel, p.all_channels - 1);
    const T* filter = static_cast<const T*>(p.rhs) + channel * p.problem.filter.group;
#pragma unroll
    for (int i = 0; i < kTaps; ++i) taps_[i] = table[i] < 0 ? T(0) : filter[table[i]];
  }

  __device__ __forceinline__ T At(int slot, int phase, int col) const {
    return taps_[(slot * kTile.period + phase) * kTile.width + col];
  }

 private:
  static constexpr int kTaps = kTile.slots() * kTile.period * kTile.width;

  T taps_[kTaps];
};

// Where a lane reads a source row, and reads or writes a row of the destination: the offset of its first pixel, in
// bytes.
template <typename T, DepthwiseTile kTile>
struct LaneOffsets {
  static_assert(kTile.IsFor(TypeOf<T>()) && sizeof(T) == sizeof(float), "an element is a word");

  uint32_t src;
  uint32_t dst;
  uint32_t pixel;  // bytes from one to the next

  __device__ __forceinline__ explicit LaneOffsets(const DepthwiseParams& p) : pixel(p.channels * sizeof(T)) {
    const DepthwiseLane lane(p, kTile);
    src = (StripPixel(p, lane.number) * p.channels + lane.channel) * sizeof(T);
    dst = (lane.number * kStripCols * p.channels + lane.channel) * sizeof(T);
  }

  template <int kCount>
  __device__ __forceinline__ void Load(uint32_t from, float (&to)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = __uint_as_float(ptx::LoadWord(from + i * pixel));
  }
};

// A lane's sums of the rows that are still to receive a source row.
template <typename T, DepthwiseTile kTile>
class LaneSums {
 public:
  // What a row's sums begin with.
  struct Begins {
    T of[kStripCols];
  };
  struct Pixels {
    T of[kTile.pixels()];
  };

  __device__ __forceinline__ explicit LaneSums(const DepthwiseParams& p) : offsets_(p) {}

  // Before a tile whose first steps are skipped: the sums of the tile before belong to no row.
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kTile.period * kTile.lags * kStripCols; ++i) (&sums_[0][0][0])[i] = 0;
  }

  __device__ __forceinline__ Pixels First(const DepthwiseParams&, uint32_t stage) const {
    Pixels pixels;
    offsets_.Load(stage + offsets_.src, pixels.of);
    return pixels;
  }

  // Adds what a step's source rows give. A row begins with zeros, or with what `begins` has.
  __device__ __forceinline__ void Multiply(const DepthwiseParams& p, const LaneTaps<T, kTile>& taps, uint32_t stage,
                                           Pixels pixels, const Begins& begins = {}) {
#pragma unroll
    for (int a = 0; a < kTile.sources(); ++a) {
      if (a > 0) pixels = First(p, stage + a * p.offsets.row);
#pragma unroll
      for (int b = 0; b < kTile.period; ++b) {
#pragma unroll
        for (int lag = kTile.lags - 1; lag >= 0; --lag) {
#pragma unroll
          for (int col = 0; col < kStripCols; ++col) {
            T sum = a > 0 ? sums_[b][lag][col] : lag > 0 ? sums_[b][lag - 1][col] : begins.of[col];
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

  // The same for a step without a source row.
  __device__ __forceinline__ void MoveOn(const Begins& begins = {}) {
#pragma unroll
    for (int b = 0; b < kTile.period; ++b) {
#pragma unroll
      for (int col = 0; col < kStripCols; ++col) {
#pragma unroll
        for (int lag = kTile.lags - 1; lag > 0; --lag) sums_[b][lag][col] = sums_[b][lag - 1][col];
        sums_[b][0][col] = begins.of[col];
      }
    }
  }

  // Moves a row's sums from one window part to the next: this lane's, of all lanes' in `sums`.
  static __device__ __forceinline__ void LoadSums(const char* sums, int32_t row, Begins& to) {
#pragma unroll
    for (int i = 0; i < kStripCols; i += 4) {
      const auto four = *reinterpret_cast<const Pack<T, 4>*>(sums + SumsOffset(row, i / 4));
#pragma unroll
      for (int j = 0; j < 4; ++j) to.of[i + j] = four.v[j];
    }
  }

  __device__ __forceinline__ void StoreSums(char* sums, int32_t row) const {
    const T(&last)[kStripCols] = sums_[0][kTile.lags - 1];
#pragma unroll
    for (int i = 0; i < kStripCols; i += 4) {
      *reinterpret_cast<Pack<T, 4>*>(sums + SumsOffset(row, i / 4)) = {last[i], last[i + 1], last[i + 2], last[i + 3]};
    }
  }

  // Stores the results of complete rows into shared memory. A residual waits there, in the place of the results.
  template <typename Epilogue>
  __device__ __forceinline__ void Store(const DepthwiseParams& p, const Epilogue& epilogue, char* to) const {
    constexpr int kCount = kTile.period * kStripCols;
    const auto address = [&](int i) {
      const int phase = i / kStripCols, col = i % kStripCols;
      return reinterpret_cast<T*>(to + phase * p.offsets.result_row + offsets_.dst + col * offsets_.pixel);
    };
    T sums[1][kCount], results[1][kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[0][i] = sums_[i / kStripCols][kTile.lags - 1][i % kStripCols];
    epilogue(sums, results, [&](int i) { return Pack<float, 1>{*address(i)}; });
#pragma unroll
    for (int i = 0; i < kCount; ++i) *address(i) = results[0][i];
  }

 private:
  static __device__ __forceinline__ int32_t SumsOffset(int32_t row, int four) {
    return ((row * (kStripCols / 4) + four) * kDepthwiseThreads + threadIdx.x) * 16;
  }

  LaneOffsets<T, kTile> offsets_;
  T sums_[kTile.period][kTile.lags][kStripCols];
};

// A lane's sums for each tap of its channel, and the gradient's rows that a source row is multiplied with.
template <typename T, DepthwiseTile kTile>
class LaneFilterSums {
 public:
  __device__ __forceinline__ explicit LaneFilterSums(const DepthwiseParams& p) : offsets_(p) {}

  // Before the first step of a tile of `rows` rows, none of the gradient's has been read.
  __device__ __forceinline__ void Begin(int32_t rows) {
    rows_ = rows;
#pragma unroll
    for (int i = 0; i < kKept * kStripCols; ++i) (&gradients_[0][0])[i] = 0;
  }

  // Adds what a step's source rows give with its row of the gradient and those of the steps before. kTurn: the step's
  // number modulo kTurns.
  template <int kTurn>
  __device__ __forceinline__ void Multiply(const DepthwiseParams& p, int32_t step, uint32_t stage, bool has_source) {
    if constexpr (kTurn == 0) {
#pragma unroll
      for (int i = kKept - 1; i >= kTurns; --i) {
#pragma unroll
        for (int col = 0; col < kStripCols; ++col) gradients_[i][col] = gradients_[i - kTurns][col];
      }
    }
    constexpr int kFirst = kTurns - 1 - kTurn;  // where the step's row is
    offsets_.Load(stage + kTile.sources() * p.offsets.row + offsets_.dst, gradients_[kFirst]);
    if (!has_source) return;
#pragma unroll
    for (int a = 0; a < kTile.sources(); ++a) {
      T pixels[kTile.pixels()];
      offsets_.Load(stage + a * p.offsets.row + offsets_.src, pixels);
#pragma unroll
      for (int lag = 0; lag < kTile.lags; ++lag) {
        // Most source rows of a small image are near an edge. Beyond it the gradient has no rows.
        if (static_cast<uint32_t>(step - lag) >= static_cast<uint32_t>(rows_)) continue;
#pragma unroll
        for (int i = 0; i < kTile.width; ++i) {
#pragma unroll
          for (int col = 0; col < kStripCols; ++col) {
            sums_[a * kTile.lags + lag][i] += pixels[col * kTile.step + i] * gradients_[kFirst + lag][col];
          }
        }
      }
    }
  }

  // Leaves the sums in shared memory, for all threads.
  __device__ __forceinline__ void Leave(const DepthwiseParams&, float* shared) const {
#pragma unroll
    for (int i = 0; i < kTile.slots() * kTile.width; ++i) {
      shared[i * kDepthwiseThreads + threadIdx.x] = sums_[i / kTile.width][i % kTile.width];
    }
  }

  // Stores the taps that `find` finds into a slice: the sums of all lanes of a channel.
  template <typename Find>
  static __device__ __forceinline__ void Store(const DepthwiseParams& p, int32_t slice, const float* shared,
                                               Find&& find) {
    const int32_t lanes = kDepthwiseThreads >> p.log_channels;
    StoreTaps<kTile>(p, slice, lanes, find, [&](int32_t lane, int32_t from, int32_t channel) {
      return shared[from * kDepthwiseThreads + (lane << p.log_channels) + channel];
    });
  }

  static constexpr int kTurns = 2;  // steps after which the gradient's rows move on from register to register

 private:
  static constexpr int kKept = kTile.lags + kTurns - 1;

  LaneOffsets<T, kTile> offsets_;
  int32_t rows_;
  T gradients_[kKept][kStripCols];  // the last of these steps' first
  T sums_[kTile.slots()][kTile.width] = {};
};

}  // namespace jaxconv
