// Results of the direct family's conv on their way to memory.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/store_pairs.cuh"

namespace jaxconv {

// The first of the lane's two output channels in a block of eight. Lanes without channels get the last two that exist:
// they may read the epilogue's operands, and need no branch.
__device__ __forceinline__ int64_t LaneChannel(int32_t first, int32_t count) {
  return min(first + static_cast<int32_t>(threadIdx.x % 4) * 2, count - 2);
}

template <int kRows, int kBlocks>
__device__ __forceinline__ void ClearSums(float (&sums)[kRows][kBlocks][4]) {
#pragma unroll
  for (auto& blocks : sums) {
#pragma unroll
    for (auto& four : blocks) four[0] = four[1] = four[2] = four[3] = 0;
  }
}

// scale * sum + bias, of sums whose output channels begin with one, and end before `end_channel`. The numbers of a
// channel are loaded once.
template <int kPositions, int kBlocks>
__device__ __forceinline__ void ScaleSums(const EpilogueOf<float, true>& epilogue, int32_t first_channel,
                                          int32_t end_channel, float (&sums)[kPositions][kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const int64_t channel = LaneChannel(first_channel + j * 8, end_channel);
    const EpilogueOfChannel<float, true> pair[] = {epilogue.Of(channel), epilogue.Of(channel + 1)};
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) sums[i][j][k] = pair[k % 2].Scaled(sums[i][j][k]);
    }
  }
}

// Rows of a warp's results: 16 positions, kBlocks times eight output channels. They pass through shared memory: then
// neighbours in memory are stored at once, in 16-byte vectors.
template <typename Out, int kBlocks>
struct ResultRows {
  static constexpr int kCols = kBlocks * 8, kVector = kTraits<Out>.vector(), kAcross = kCols / kVector;
  static_assert(kCols % kVector == 0, "a row of results is whole vectors");
  static constexpr int kVectors = (16 * kAcross + 31) / 32;  // of a lane
  static constexpr int kPitch = kCols + kVector;             // elements: rows begin in different banks
  static constexpr int kElements = 16 * kPitch;

  // The place of one of the lane's vectors. Lanes without one have another's row.
  static __device__ __forceinline__ int Row(int v) {
    return min(static_cast<int>(threadIdx.x % 32 + v * 32) / kAcross, 15);
  }
  static __device__ __forceinline__ int Col(int v) { return (threadIdx.x % 32 + v * 32) % kAcross * kVector; }

  static __device__ __forceinline__ void Write(const float (&sum)[kBlocks][4], Out* results) {
    StorePairs(sum, results, kPitch, [](int half, int g) { return half * 8 + g; });
  }

  // `row`: the first channel of the vector's row in memory.
  static __device__ __forceinline__ void Store(const Out* results, int v, bool is_there, Out* row) {
    if (static_cast<int>(threadIdx.x % 32) + v * 32 >= 16 * kAcross || !is_there) return;
    *reinterpret_cast<Pack<Out, kVector>*>(row + Col(v)) =
        *reinterpret_cast<const Pack<Out, kVector>*>(results + Row(v) * kPitch + Col(v));
  }
};

}  // namespace jaxconv
