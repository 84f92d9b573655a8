// The depthwise family's wgrad by TMA: the end, where lanes add up the sums of each tap.
//
// A warp has sums of pixels by eight outputs, for each channel and each row of the window. A tap's sums are on a
// diagonal. Stored to shared memory and added by a thread for each tap, they would take as long as half of a small
// layer's steps. But of eight columns of the window each lane has two sums in the same registers, whichever taps they
// belong to. Other lanes have the sums to add to them.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "depthwise/rows.cuh"

namespace jaxconv {

inline constexpr uint32_t kWholeWarp = 0xffffffff;

// Finds the offset in the filter of each tap, by its row and column of the window, or -1 if there is none. By a warp.
// Some position sees every tap, as neither rows nor columns are strided.
template <DepthwiseTile kTile>
__device__ __forceinline__ void FindTaps(const DepthwiseParams& p, int32_t* taps) {
  static_assert(kTile.step == 1 && kTile.period == 1, "rows are not strided");
  const int32_t lane = threadIdx.x % 32;
  for (int32_t i = lane; i < kTile.lags * kTapCols; i += 32) taps[i] = -1;
  __syncwarp();
  bool fits = true;
  for (int32_t t = lane; t < p.problem.tap_count; t += 32) {
    const StoredTap tap(p, kTile, 0, t);
    const int32_t row = tap.from / kTile.pixels(), col = tap.from % kTile.pixels();
    const bool is_inside = tap.from >= 0 && row < kTile.lags && col < kTapCols;
    if (is_inside) taps[row * kTapCols + col] = tap.to;
    fits &= is_inside;
  }
  // Another planner's plan may not fit. All lanes decide: after a trap of one lane, the compiler would take nothing for
  // uniform.
  if (!__all_sync(kWholeWarp, fits)) __trap();
}

// A lane's diagonal. In a multiplication's sums the lane has row g and columns 2 t and 2 t + 1, and the same of row g +
// 8. g - 2 t is the number of the diagonal of the first.
__device__ __forceinline__ int FirstDiagonal() {
  const int lane = threadIdx.x % 32;
  return lane / 4 - lane % 4 * 2;
}

// Adds up a channel's diagonal. There are as many channels as lanes in a row. Of each channel a lane has in `first`
// what is on its diagonal, modulo eight, and in `second` what is on the one before. Its result is of channel t.
__device__ __forceinline__ float AddDiagonals(const float (&first)[4], const float (&second)[4]) {
  const int lane = threadIdx.x % 32;
  const bool is_odd = lane & 1, is_high = lane & 2;
  float sums[4], halves[2];
#pragma unroll
  for (int c = 0; c < 4; ++c) sums[c] = first[c] + __shfl_sync(kWholeWarp, second[c], lane + 4);
  // Then it adds the columns of a lane whose row is two further on, or two before; then those of four.
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float sent = is_odd ? sums[2 * i] : sums[2 * i + 1];
    halves[i] = (is_odd ? sums[2 * i + 1] : sums[2 * i]) + __shfl_sync(kWholeWarp, sent, is_odd ? lane - 9 : lane + 9);
  }
  const float sent = is_high ? halves[0] : halves[1];
  return (is_high ? halves[1] : halves[0]) + __shfl_sync(kWholeWarp, sent, is_high ? lane - 18 : lane + 18);
}

// Where a lane's taps of a slice go to: of its channel, and of the column of the window of its diagonal. The lane works
// it out before the first step and keeps it: in the end the kernel's parameters would have to come from memory again.
template <DepthwiseTile kTile>
class StoredTaps {
  static_assert(kTile.channels == 4, "each lane of a row has a channel");
  static_assert(kTapCols == kStripCols, "each row of lanes has a column of the window");
  static_assert(MostChannelBytes(kTile) == kBoxPixelBytes, "no two warps have the same channels");

 public:
  __device__ __forceinline__ StoredTaps(const DepthwiseParams& p, int32_t slice, const char* shared, int diagonal)
      : type_(static_cast<int32_t>(p.out_type)) {
    const int32_t channel = DepthwiseWarp(p, kTile).channel + threadIdx.x % 4;
    const int64_t first = slice * p.out_elements + channel * p.problem.filter.group;
    const int element_bytes = p.out_type == DType::kF32 ? kTraits<float>.bytes : kTraits<__half>.bytes;
    to_ = static_cast<const char*>(p.out) + first * element_bytes;
    taps_ = static_cast<int32_t>(ptx::SharedAddress(shared)) + p.offsets.taps + (diagonal & kTapCols - 1) * 4;
    if (channel >= p.all_channels) type_ = kNone;
    ptx::Keep(to_), ptx::Keep(taps_), ptx::Keep(type_);
  }

  // Stores a lane's sums of its channel and column, for each row of the window.
  __device__ __forceinline__ void Store(const float (&sums)[kTile.lags]) const {
    if (type_ == kNone) return;
    WithType<float>(static_cast<DType>(type_), [&](auto t) {
      auto* const out = reinterpret_cast<decltype(t)*>(const_cast<char*>(to_));
#pragma unroll
      for (int lag = 0; lag < kTile.lags; ++lag) {
        const auto tap = static_cast<int32_t>(ptx::LoadWord(taps_ + lag * kTapCols * 4));
        if (tap >= 0) out[tap] = static_cast<decltype(t)>(sums[lag]);
      }
    });
  }

 private:
  static constexpr int32_t kNone = -1;  // of a channel that is not there

  const char* to_;
  int32_t taps_;
  int32_t type_;
};

// Whether a lane has the last of eight source pixels.
__device__ __forceinline__ bool HasLastPixel() { return threadIdx.x % 32 / 4 == kStripCols - 1; }

// Stores a worker's sums of the gradient, of a warp's channels; part_of(channel) gives a lane's part. Lanes of the last
// pixel share them.
template <DepthwiseTile kTile, typename PartOf>
__device__ __forceinline__ void StoreGradientSums(const DepthwiseParams& p, int32_t worker, PartOf&& part_of) {
  if (p.gradient_sums == nullptr) return;
  const int32_t first = DepthwiseWarp(p, kTile).channel;
  float* const of_worker = p.gradient_sums + static_cast<int64_t>(worker) * p.all_channels;
#pragma unroll
  for (int c = 0; c < kTile.channels; ++c) {
    float sum = part_of(c);
    for (const int apart : {1, 2}) sum += __shfl_xor_sync(kWholeWarp, sum, apart);
    if (HasLastPixel() && threadIdx.x % 4 == 0 && first + c < p.all_channels) of_worker[first + c] = sum;
  }
}

// Adds up the diagonals of a warp's sums, of each row of the window; parts_of(lag, first, second) gives what
// AddDiagonals takes.
template <int kLags, typename PartsOf>
__device__ __forceinline__ void AddAllDiagonals(float (&sums)[kLags], PartsOf&& parts_of) {
#pragma unroll
  for (int lag = 0; lag < kLags; ++lag) {
    float first[4], second[4];
    parts_of(lag, first, second);
    sums[lag] = AddDiagonals(first, second);
  }
}

}  // namespace jaxconv
