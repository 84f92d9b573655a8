// The epilogue's arithmetic on a warpgroup's sums, in registers.
#pragma once

#include <cfloat>
#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "wgmma/params.cuh"
#include "wgmma/residual.cuh"

namespace jaxconv {

// The next three give an operand's numbers, scale or bias, for a lane's columns. Pair(n) is for the two neighbours that
// are n columns behind the lane's first one.
//
// One number for all columns.
struct NumberForAll {
  float number;

  __device__ __forceinline__ float2 Pair(int32_t) const { return {number, number}; }
};

// A number for each column, which are all channels. `at`: of the lane's first.
struct NumberForEach {
  const float* at;

  __device__ __forceinline__ float2 Pair(int32_t apart) const {
    return __ldg(reinterpret_cast<const float2*>(at + apart));
  }
};

// Either, of columns up to an end. Where there is no number, there is the one that changes nothing.
class NumberIfThere {
 public:
  __device__ __forceinline__ NumberIfThere(const PerChannel& operand, int32_t col, int32_t end_col, float without) {
    const auto* const data = static_cast<const float*>(operand.data);
    for_all_ = without;
    if (data != nullptr && operand.stride == 0) for_all_ = __ldg(data);
    cols_ = operand.stride == 0 ? 0 : end_col - col;
    at_ = data + col;
  }

  // Of two neighbouring columns. Channels are whole 16-byte vectors, so both are channels, or none. Without branches,
  // so that the compiler keeps many loads in flight.
  __device__ __forceinline__ float2 Pair(int32_t apart) const {
    float2 pair;
    asm("{ .reg .pred p; setp.lt.s32 p, %3, %4; mov.f32 %0, %5; mov.f32 %1, %5; @p ld.global.nc.v2.f32 {%0, %1}, [%2]; "
        "}"
        : "=&f"(pair.x), "=&f"(pair.y)
        : "l"(at_ + apart), "r"(apart), "r"(cols_), "f"(for_all_));
    return pair;
  }
  // Of one column.
  __device__ __forceinline__ float One(int32_t apart) const {
    float number;
    asm("{ .reg .pred p; setp.lt.s32 p, %2, %3; mov.f32 %0, %4; @p ld.global.nc.f32 %0, [%1]; }"
        : "=&f"(number)
        : "l"(at_ + apart), "r"(apart), "r"(cols_), "f"(for_all_));
    return number;
  }

 private:
  const float* at_;
  int32_t cols_;
  float for_all_;
};

// A lane's columns of a warpgroup's sums: the first one, and the end of those that are channels.
template <WgmmaTile kTile>
struct LaneCols {
  int32_t col, end;
  bool are_all_channels;

  // Of so many columns from one on, up to an end.
  __device__ __forceinline__ LaneCols(const WgmmaParams& p, int32_t first_col, int32_t end_col, int cols) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    col = first_col + (kTile.swap_ab ? warp * 16 + lane / 4 : lane % 4 * 2);
    end = min(end_col, p.out_channels);
    are_all_channels = first_col + cols <= end;
  }

  // Calls f(numbers) with an operand's. Usual ones have code of their own, which is half as long.
  template <typename F>
  __device__ __forceinline__ void WithNumbers(const PerChannel& operand, float without, const F& f) const {
    if (!are_all_channels) return f(NumberIfThere(operand, col, end, without));
    const auto* const data = static_cast<const float*>(operand.data);
    if (operand.stride != 0) return f(NumberForEach{data + col});
    f(NumberForAll{data != nullptr ? __ldg(data) : without});
  }
};

// scale * sum + bias, of columns from one on, up to an end. There may be more columns than channels: they are not
// stored.
template <WgmmaTile kTile, typename Sum, int kBlocks, int kFragments>
__device__ __forceinline__ void ScaleAndAddBias(const WgmmaParams& p, int32_t first_col, int32_t end_col,
                                                Sum (&sums)[kBlocks][kFragments][4]) {
  const PerChannel &scale = p.epilogue.scale, &bias = p.epilogue.bias;
  if constexpr (std::is_integral_v<Sum>) {
#pragma unroll
    for (int i = 0; i < kBlocks * kFragments * 4; ++i) {
      ptx::ConvertInPlace(sums[i / (kFragments * 4)][i / 4 % kFragments][i % 4]);
    }
  }
  const auto end = [](Sum& sum, float scale, float bias) { SetResult(sum, fmaf(ResultIn(sum), scale, bias)); };
  if constexpr (kTile.swap_ab) {
    const LaneCols<kTile> cols(p, first_col, end_col, kBlocks * 64);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int32_t col = cols.col + block * 64;
      const NumberIfThere scales(scale, col, cols.end, 1), biases(bias, col, cols.end, 0);
      const float scale_of[] = {scales.One(0), scales.One(8)}, bias_of[] = {biases.One(0), biases.One(8)};
#pragma unroll
      for (int i = 0; i < kFragments * 4; ++i) end(sums[block][i / 4][i % 4], scale_of[i / 2 % 2], bias_of[i / 2 % 2]);
    }
  } else {
    const LaneCols<kTile> cols(p, first_col, end_col, kFragments * 8);
    const auto end_all = [&](const auto& scales, const auto& biases) {
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        const float2 scale_of = scales.Pair(j * 8), bias_of = biases.Pair(j * 8);
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) {
          end(sums[i / 4][j][i % 4], i % 2 ? scale_of.y : scale_of.x, i % 2 ? bias_of.y : bias_of.x);
        }
      }
    };
    if (!cols.are_all_channels) {
      return end_all(NumberIfThere(scale, cols.col, cols.end, 1), NumberIfThere(bias, cols.col, cols.end, 0));
    }
    cols.WithNumbers(scale, 1, [&](const auto& scales) {
      cols.WithNumbers(bias, 0, [&](const auto& biases) { end_all(scales, biases); });
    });
  }
}

template <typename Sum, int kCount, typename F>
__device__ __forceinline__ void ForEachSum(Sum (&sums)[kCount], const F& f, int count = kCount) {
#pragma unroll
  for (int i = 0; i < count; ++i) SetResult(sums[i], f(ResultIn(sums[i])));
}

// Bends all sums. Most activations do not, so that the code of the others is apart.
template <typename Sum, int kBlocks, int kFragments>
__device__ __forceinline__ void BendAll(const WgmmaParams& p, Sum (&sums)[kBlocks][kFragments][4]) {
  if (!p.epilogue.of_floats.bends) [[likely]] {
    return;
  }
  auto& all = reinterpret_cast<Sum(&)[kBlocks * kFragments * 4]>(sums);
  WithBend(p.epilogue, [&](const auto& bend) { ForEachSum(all, bend); });
}

// Clips the first so many fragments.
template <typename Sum, int kFragments>
__device__ __forceinline__ void ClipAll(const FloatActivation& activation, Sum (&sums)[kFragments][4],
                                        int count = kFragments) {
  ForEachSum(reinterpret_cast<Sum(&)[kFragments * 4]>(sums), [&](float z) { return Clip(activation, z); }, count * 4);
}

// Results of one byte are scaled before they are rounded.
template <WgmmaTile kTile, typename Sum, int kFragments>
__device__ __forceinline__ void ScaleResults(const WgmmaParams& p, int32_t first_col, int32_t end_col,
                                             Sum (&sums)[kFragments][4]) {
  static_assert(!kTile.swap_ab, "tiles with swap_ab have no results of one byte");
  const LaneCols<kTile> cols(p, first_col, end_col, kFragments * 8);
  cols.WithNumbers(p.epilogue.out_scale, 1, [&](const auto& numbers) {
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      const float2 scales = numbers.Pair(j * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) SetResult(sums[j][i], ResultIn(sums[j][i]) * (i % 2 ? scales.y : scales.x));
    }
  });
}

// One result, whose residual is of type T, also without a call.
template <typename T>
__device__ __forceinline__ float ResultOf(const WgmmaParams& p, float sum, int32_t channel, int64_t element) {
  const EpilogueOf<float, true> epilogue(p.epilogue, 0);
  float z;
  EndSums([&] { z = epilogue.Of(channel).Scaled(sum); },
          [&] {
            if (epilogue.HasResidual()) z = epilogue.Adder()(z, Residual<T>(p.epilogue).One(true, element));
          },
          [&] {
            if (p.epilogue.of_floats.bends) WithBend(p.epilogue, [&](const auto& bend) { z = bend(z); });
            z = Clip(p.epilogue.of_floats, z);
          },
          [] {});  // results of float32 have no scale of their own
  return z;
}

// Four results, rounded to one byte and packed into one register.
template <typename T>
__device__ __forceinline__ uint32_t PackBytes(const float (&four)[4]) {
  if constexpr (std::is_same_v<T, int8_t>) return ptx::PackInt8(four);
  const Pack<T, 4> bytes{RoundTo<T>(four[0]), RoundTo<T>(four[1]), RoundTo<T>(four[2]), RoundTo<T>(four[3])};
  return *reinterpret_cast<const uint32_t*>(&bytes);
}

// Clips four results at once that are rounded to one byte, where one scale is for all. Rounding keeps the order of
// numbers, and ends at the type's largest ones: so bounds beyond these clip nothing, and a bound of zero clears what
// has a sign.
template <typename T>
class ByteClip {
  static constexpr float kLargest = kIsFloat8<T> ? 448 : 127, kLeast = kIsFloat8<T> ? -448 : -128;
  static_assert(std::is_same_v<T, int8_t> || std::is_same_v<T, __nv_fp8_e4m3>, "the largest numbers are theirs");

 public:
  __device__ __forceinline__ ByteClip(const FloatActivation& activation, float scale)
      : is_enough_(scale > 0 && scale <= FLT_MAX && activation.high * scale >= kLargest &&
                   (activation.low == 0 || activation.low * scale <= kLeast)),
        cleared_(activation.low == 0 ? ~0u : 0) {}

  // Else numbers are clipped before they are rounded.
  __device__ __forceinline__ bool is_enough() const { return is_enough_; }
  __device__ __forceinline__ uint32_t operator()(uint32_t four) const {
    return four & ~(ptx::SignsOf(four) & cleared_);
  }

 private:
  bool is_enough_;
  uint32_t cleared_;
};

}  // namespace jaxconv
