// The residual of a warpgroup's sums, which the epilogue adds.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "operand_traits.h"
#include "wgmma/params.cuh"
#include "wgmma/stores.cuh"

namespace jaxconv {

// Brings a tile's residual to L2, by one of several threads: of so many rows, and of columns from one on.
// offset_of(row) is the row's in the result; less than 0: there is none. T: of operands.
template <typename T, typename F>
__device__ __forceinline__ void PrefetchResidual(const WgmmaParams& p, int thread, int threads, int rows,
                                                 int32_t first_col, int cols, const F& offset_of) {
  const DType type = p.epilogue.residual_type;  // the table of traits is the host's
  const int bytes = type == DType::kF32                           ? kTraits<float>.bytes
                    : type == DType::kBF16 || type == DType::kF16 ? kTraits<__half>.bytes
                                                                  : 1;
  const int32_t end_col = min(first_col + cols, p.out_channels);
  const bool has_blocks = std::is_same_v<T, int8_t> && p.problem.dst.block != 0;
  const int32_t at_once = has_blocks ? kBlockChannels : ptx::kLineBytes / bytes;
#pragma unroll 1
  for (int row = thread; row < rows; row += threads) {
    const int64_t offset = offset_of(row);
    if (offset < 0) continue;
    const char* const line = static_cast<const char*>(p.epilogue.residual) + offset * bytes;
    for (int32_t col = first_col; col < end_col; col += at_once) ptx::Prefetch(line + ColOffset<T>(p, col) * bytes);
  }
}

// Loads without branches: bits, or zeros if they are not there.
__device__ __forceinline__ uint32_t LoadWordIf(bool is_there, const void* at) {
  uint32_t word;
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
      : "=r"(word)
      : "l"(at), "r"(static_cast<uint32_t>(is_there)));
  return word;
}
__device__ __forceinline__ uint16_t LoadHalfIf(bool is_there, const void* at) {
  uint16_t half;
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b16 %0, 0; @p ld.global.nc.b16 %0, [%1]; }"
      : "=h"(half)
      : "l"(at), "r"(static_cast<uint32_t>(is_there)));
  return half;
}

// The residual of type T, or of float32.
template <typename T>
class Residual {
 public:
  __device__ __forceinline__ explicit Residual(const Epilogue& epilogue)
      : data_(static_cast<const char*>(epilogue.residual)), is_wide_(epilogue.residual_type == DType::kF32) {}

  // Elements `at` and `at + 1`, or zeros.
  __device__ __forceinline__ float2 Pair(bool is_there, int64_t at) const {
    const char* const from = data_ + at * (is_wide_ ? sizeof(float) : sizeof(T));
    const uint32_t first = LoadWordIf(is_there, from), second = LoadWordIf(is_there && is_wide_, from + 4);
    if constexpr (sizeof(T) == 2) {
      const auto& halves = reinterpret_cast<const Pack<T, 2>&>(first);
      return {is_wide_ ? __uint_as_float(first) : static_cast<float>(halves.v[0]),
              is_wide_ ? __uint_as_float(second) : static_cast<float>(halves.v[1])};
    } else {
      return {__uint_as_float(first), __uint_as_float(second)};
    }
  }

  // Element `at`, or zero.
  __device__ __forceinline__ float One(bool is_there, int64_t at) const {
    const float wide = __uint_as_float(LoadWordIf(is_there && is_wide_, data_ + at * kTraits<float>.bytes));
    if constexpr (sizeof(T) == 4) return wide;
    const uint16_t half = LoadHalfIf(is_there && !is_wide_, data_ + at * sizeof(T));
    return is_wide_ ? wide : static_cast<float>(reinterpret_cast<const T&>(half));
  }

 private:
  const char* data_;
  bool is_wide_;
};

// The residual of int8 operands, of any type of results.
template <>
class Residual<int8_t> {
 public:
  __device__ __forceinline__ explicit Residual(const Epilogue& epilogue)
      : data_(static_cast<const char*>(epilogue.residual)), type_(epilogue.residual_type) {}

  __device__ __forceinline__ float2 Pair(bool is_there, int64_t at) const {
    const bool is_bytes = type_ == DType::kS8, is_wide = type_ == DType::kF32;
    const char* const from = data_ + at * (is_wide ? kTraits<float>.bytes : kTraits<__half>.bytes);
    const uint32_t bytes = LoadHalfIf(is_there && is_bytes, data_ + at);
    const uint32_t first = LoadWordIf(is_there && !is_bytes, from), second = LoadWordIf(is_there && is_wide, from + 4);
    if (is_bytes) {
      return {static_cast<float>(static_cast<int8_t>(bytes)), static_cast<float>(static_cast<int8_t>(bytes >> 8))};
    }
    if (is_wide) return {__uint_as_float(first), __uint_as_float(second)};
    if (type_ == DType::kBF16) return {FirstOfBF16(first), SecondOfBF16(first)};
    return __half22float2(reinterpret_cast<const __half2&>(first));
  }

 private:
  const char* data_;
  DType type_;
};

// Adds the residual to a warpgroup's sums of columns up to an end, row by row.
template <typename T, WgmmaTile kTile, typename Sum, int kBlocks, int kAcross, typename F>
__device__ __forceinline__ void AddResidual(const WgmmaParams& p, int32_t first_col, int32_t end_col,
                                            Sum (&sums)[kBlocks][kAcross][4], const F& offset_of) {
  constexpr bool kSwaps = kTile.swap_ab;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int32_t cols = end_col - first_col;
  const ResidualAdder<float> add_residual(p.epilogue);
  const Residual<T> residual(p.epilogue);
  const auto add = [&](Sum& sum, float one) { SetResult(sum, add_residual(ResultIn(sum), one)); };
#pragma unroll
  for (int i = 0; i < (kSwaps ? 2 * kAcross : 2 * kBlocks); ++i) {  // rows of a lane
    const int64_t offset = offset_of(i);
    if constexpr (kSwaps) {
#pragma unroll
      for (int j = 0; j < 2 * kBlocks; ++j) {
        const int32_t col = j / 2 * 64 + warp * 16 + j % 2 * 8 + lane / 4;
        add(sums[j / 2][i / 2][j % 2 * 2 + i % 2], residual.One(offset >= 0 && col < cols, offset + first_col + col));
      }
    } else {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const int32_t col = j * 8 + lane % 4 * 2;
        const int64_t at = std::is_integral_v<T> ? offset + ColOffset<T>(p, first_col + col) : offset + first_col + col;
        const float2 pair = residual.Pair(offset >= 0 && col < cols, at);
        add(sums[i / 2][j][i % 2 * 2], pair.x);
        add(sums[i / 2][j][i % 2 * 2 + 1], pair.y);
      }
    }
  }
}

// Element i of words of type T as a float. A byte's conversion takes as long as eight other instructions: so it becomes
// the last byte of 2^23 + 128 + the byte, which is a float.
template <typename T>
__device__ __forceinline__ float FloatOf(const uint32_t* words, int i) {
  if constexpr (std::is_same_v<T, int8_t>) {
    constexpr uint32_t kExponent = 0x4b000000;  // of 2^23
    const uint32_t number = __byte_perm(words[i / 4] ^ 0x80808080, kExponent, 0x7540 + i % 4);
    return __uint_as_float(number) - (8388608.f + 128);
  } else {
    return static_cast<float>(ElementOf<T>(words, i));
  }
}

}  // namespace jaxconv
