// Results of the direct family's conv on their way to memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "common/store_pairs.cuh"
#include "direct/params.cuh"

namespace jaxconv {

// Whether a tile's kernels also have results of int8 from operands of type T, which is none of one byte.
template <typename T, DirectTile kTile>
inline constexpr bool kRoundsToInt8 = std::is_same_v<T, __nv_bfloat16> && kTile.rounds_to_int8();

// The first of the lane's two output channels in a block of eight, of those from `first` on. Lanes without channels get
// the last two that exist: they may read the epilogue's operands, and need no branch.
template <typename Sum>
__device__ __forceinline__ int64_t LaneChannel(int32_t first, int block, int32_t count) {
  const int32_t pair = static_cast<int32_t>(threadIdx.x % 4) * 2;
  return min(first + ChannelOfCol<Sum>(block * 8) + ChannelOfCol<Sum>(pair), count - 2);
}

// Four results in their type, at once, as words.
template <typename Out, typename Result>
__device__ __forceinline__ Pack<uint32_t, kTraits<Out>.bytes> RoundFour(const Result (&four)[4]) {
  if constexpr (kTraits<Out>.bytes == 4) {
    static_assert(std::is_same_v<Out, Result>);
    return {BitsOf(four[0]), BitsOf(four[1]), BitsOf(four[2]), BitsOf(four[3])};
  } else if constexpr (kTraits<Out>.bytes == 2) {
    return {RoundPair<Out>(four[0], four[1]), RoundPair<Out>(four[2], four[3])};
  } else {
    return {ptx::PackInt8(four)};
  }
}

// The epilogue of four neighbouring channels, with its numbers in registers, for all of a lane's rows.
template <typename Sum, typename Out>
class EpilogueOfFour {
 public:
  // `channel`: the first one, of all groups.
  __device__ __forceinline__ EpilogueOfFour(const Epilogue& epilogue, int64_t channel) : epilogue_(epilogue) {
    const EpilogueOf<Sum, true> of(epilogue, channel);
#pragma unroll
    for (int k = 0; k < 4; ++k) channels_[k] = of.Of(k), out_scales_[k] = kScalesResults ? of.OutScale(k) : 1;
  }

  // The results of rows of sums. element(row): the first one's of the residual, or less than zero. There are branches
  // instead of what most epilogues do not have.
  template <int kRows, typename F>
  __device__ __forceinline__ void operator()(const Sum (&sums)[kRows][4], float (&results)[kRows][4],
                                             const F& element) const {
    const FloatActivation& activation = epilogue_.of_floats;
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int at = 0; at < kRows * 4; ++at) f(results[at / 4][at % 4], at / 4, at % 4);
    };
    EndSums([&] { each([&](float& z, int row, int k) { z = channels_[k].Scaled(sums[row][k]); }); },
            [&] {
              if (epilogue_.residual != nullptr) AddResidual(results, element);
            },
            [&] {
              if (activation.bends) [[unlikely]] {
                BendAll(epilogue_, reinterpret_cast<float (&)[kRows * 4]>(results));
              }
              if (activation.low > -kInfinity) each([&](float& z, int, int) { z = ptx::MaxOrNan(z, activation.low); });
              if (activation.high < kInfinity) each([&](float& z, int, int) { z = ptx::MinOrNan(z, activation.high); });
            },
            [&] {
              if (kScalesResults) each([&](float& z, int, int k) { z *= out_scales_[k]; });
            });
  }

 private:
  template <int kRows, typename F>
  __device__ __forceinline__ void AddResidual(float (&results)[kRows][4], const F& element) const {
    const ResidualAdder<float> add(epilogue_);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const int64_t at = element(row);
      if (at < 0) continue;
      const auto residual = *reinterpret_cast<const Pack<Out, 4>*>(static_cast<const Out*>(epilogue_.residual) + at);
#pragma unroll
      for (int k = 0; k < 4; ++k) results[row][k] = add(results[row][k], static_cast<float>(residual.v[k]));
    }
  }

  static constexpr bool kScalesResults = std::is_same_v<Out, int8_t>;
  static constexpr float kInfinity = std::numeric_limits<float>::infinity();

  const Epilogue& epilogue_;
  EpilogueOfChannel<Sum> channels_[4];
  float out_scales_[4];
};

template <typename Sum, int kRows, int kBlocks>
__device__ __forceinline__ void ClearSums(Sum (&sums)[kRows][kBlocks][4]) {
#pragma unroll
  for (auto& blocks : sums) {
#pragma unroll
    for (auto& four : blocks) four[0] = four[1] = four[2] = four[3] = 0;
  }
}

// Scale and bias of a lane's pair of output channels, in registers.
template <typename Sum>
struct PairScales {
  EpilogueOfChannel<Sum> channels[2];

  __device__ __forceinline__ void Load(const EpilogueOf<Sum, true>& epilogue, int64_t channel) {
    channels[0] = epilogue.Of(channel), channels[1] = epilogue.Of(channel + 1);
  }
  // scale * sum + bias. Sums may be in the results' place.
  __device__ __forceinline__ void Scale(const Sum (&sums)[4], float (&results)[4]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k) results[k] = channels[k % 2].Scaled(sums[k]);
  }
};

// The same of sums whose output channels begin with one, and end before `end_channel`. The numbers of a channel are
// loaded once.
template <typename Sum, int kPositions, int kBlocks>
__device__ __forceinline__ void ScaleSums(const EpilogueOf<Sum, true>& epilogue, int32_t first_channel,
                                          int32_t end_channel, const Sum (&sums)[kPositions][kBlocks][4],
                                          float (&results)[kPositions][kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    PairScales<Sum> pair;
    pair.Load(epilogue, LaneChannel<Sum>(first_channel, j, end_channel));
#pragma unroll
    for (int i = 0; i < kPositions; ++i) pair.Scale(sums[i][j], results[i][j]);
  }
}

// out_scale * result, the same way.
template <typename Sum, int kPositions, int kBlocks>
__device__ __forceinline__ void ScaleResults(const EpilogueOf<Sum, true>& epilogue, int32_t first_channel,
                                             int32_t end_channel, float (&results)[kPositions][kBlocks][4]) {
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
    const int64_t channel = LaneChannel<Sum>(first_channel, j, end_channel);
    const float pair[] = {epilogue.OutScale(channel), epilogue.OutScale(channel + 1)};
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) results[i][j][k] *= pair[k % 2];
    }
  }
}

// Rows of a warp's results: 16 positions, kBlocks times eight output channels. They pass through shared memory: then
// neighbours in memory are stored at once, in 16-byte vectors, or eight of int8. kFours: columns are in the order of
// ChannelOfCol.
template <typename Out, int kBlocks, bool kFours>
struct ResultRows {
  static constexpr int kCols = kBlocks * 8, kVector = std::min<int>(kTraits<Out>.vector(), kColBlock);
  static constexpr int kAcross = kCols / kVector;
  static_assert(kCols % kVector == 0, "a row of results is whole vectors");
  static constexpr int kVectors = (16 * kAcross + 31) / 32;  // of a lane
  static constexpr int kPitch = kCols + kVector;             // elements: rows begin in different banks
  static constexpr int kElements = 16 * kPitch;

  // The coordinates of one of the lane's vectors. Lanes without one have another's row.
  static __device__ __forceinline__ int Row(int v) {
    return min(static_cast<int>(threadIdx.x % 32 + v * 32) / kAcross, 15);
  }
  static __device__ __forceinline__ int Col(int v) { return (threadIdx.x % 32 + v * 32) % kAcross * kVector; }

  // The sums, or results of type Result in their place.
  template <typename Result, typename Sum>
  static __device__ __forceinline__ void Write(const Sum (&sum)[kBlocks][4], Out* results) {
    if constexpr (kFours) {
      static_assert(kBlocks % 2 == 0 && kPitch % 4 == 0);
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int j = 0; j < kBlocks; j += 2) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Result four[] = {
              FromBits<Result>(BitsOf(sum[j][2 * half])), FromBits<Result>(BitsOf(sum[j][2 * half + 1])),
              FromBits<Result>(BitsOf(sum[j + 1][2 * half])), FromBits<Result>(BitsOf(sum[j + 1][2 * half + 1]))};
          Out* to = results + (half * 8 + lane / 4) * kPitch + j * 8 + lane % 4 * 4;
          const auto words = RoundFour<Out>(four);
          *reinterpret_cast<decltype(RoundFour<Out>(four))*>(to) = words;
        }
      }
    } else {
      StorePairs(sum, results, kPitch, [](int half, int g) { return half * 8 + g; });
    }
  }

  // `row`: the first channel of the vector's row in memory.
  static __device__ __forceinline__ void Store(const Out* results, int v, bool is_there, Out* row) {
    if (static_cast<int>(threadIdx.x % 32) + v * 32 >= 16 * kAcross || !is_there) return;
    *reinterpret_cast<Pack<Out, kVector>*>(row + Col(v)) =
        *reinterpret_cast<const Pack<Out, kVector>*>(results + Row(v) * kPitch + Col(v));
  }
};

}  // namespace jaxconv
