// Conversion between the element types in memory and the accumulator type (the type of the sums), with vector loads.
//
// If the operands of a call have different types, their types are run-time values, so that one kernel serves many
// combinations. This costs a uniform branch for each load, which is little compared with the arithmetic. If the type is
// a compile-time constant, the compiler removes the branches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "common/ptx.cuh"
#include "conv_problem.h"
#include "operand_traits.h"

namespace jaxconv {

template <typename T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T v[N];
};

// The type in which tensor cores add products of type T.
template <typename T>
using SumOf = std::conditional_t<std::is_same_v<T, int8_t>, int32_t, float>;

// A result in its type: to nearest even. int8 and float8 saturate. In int8, NaN is 0.
template <typename T, typename Sum>
__device__ __forceinline__ T RoundTo(Sum result) {
  if constexpr (std::is_same_v<T, int8_t> && std::is_same_v<Sum, float>) {
    return static_cast<T>(max(-128, min(127, __float2int_rn(result))));
  }
  return static_cast<T>(result);
}

// Two sums, rounded to 16 or 8 bits each and packed.
template <typename T>
using PairBits = std::conditional_t<sizeof(T) == 1, uint16_t, uint32_t>;
template <typename T>
__device__ __forceinline__ PairBits<T> RoundPair(float first, float second) {
  const Pack<T, 2> pair{RoundTo<T>(first), RoundTo<T>(second)};
  return *reinterpret_cast<const PairBits<T>*>(&pair);
}

// The numbers of two bfloat16 in a register, the first in its low half: one instruction each.
__device__ __forceinline__ float FirstOfBF16(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float SecondOfBF16(uint32_t pair) { return __uint_as_float(pair & 0xffff0000); }

// The same of a type of 16 bits.
template <typename T>
__device__ __forceinline__ float FirstOf(uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return FirstOfBF16(pair);
  return __low2float(reinterpret_cast<const __half2&>(pair));
}
template <typename T>
__device__ __forceinline__ float SecondOf(uint32_t pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return SecondOfBF16(pair);
  return __high2float(reinterpret_cast<const __half2&>(pair));
}

// The bits of a number of 32 bits, and a number of these bits.
__device__ __forceinline__ uint32_t BitsOf(float number) { return __float_as_uint(number); }
__device__ __forceinline__ uint32_t BitsOf(int32_t number) { return static_cast<uint32_t>(number); }
template <typename T>
__device__ __forceinline__ T FromBits(uint32_t bits) {
  if constexpr (std::is_same_v<T, float>) return __uint_as_float(bits);
  return static_cast<T>(bits);
}

// The DType of an element type.
template <typename T>
constexpr DType TypeOf() {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return DType::kBF16;
  } else if constexpr (std::is_same_v<T, __half>) {
    return DType::kF16;
  } else if constexpr (std::is_same_v<T, int8_t>) {
    return DType::kS8;
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3>) {
    return DType::kE4M3;
  } else if constexpr (std::is_same_v<T, __nv_fp8_e5m2>) {
    return DType::kE5M2;
  } else if constexpr (std::is_same_v<T, float>) {
    return DType::kF32;
  } else if constexpr (std::is_same_v<T, double>) {
    return DType::kF64;
  } else {
    static_assert(std::is_same_v<T, int32_t>, "no DType stands for this type");
    return DType::kS32;
  }
}

template <typename T>
inline constexpr OperandTraits kTraits = TraitsOf(TypeOf<T>());

template <typename T>
inline constexpr bool kIsFloat8 = IsFloat8(TypeOf<T>());

// Calls f(T{}) for the T that `type` names. T is Acc or a type that is accumulated in Acc; float8, and int8 beside
// float32, only if kFloat8 and kInt8, as few kernels have them.
template <typename Acc, bool kFloat8 = false, bool kInt8 = std::is_same_v<Acc, int32_t>, typename F>
__device__ __forceinline__ void WithType(DType type, F&& f) {
  if constexpr (kInt8) {
    if (type == DType::kS8) return f(int8_t{});
  }
  if constexpr (kFloat8) {
    if (type == DType::kE4M3) return f(__nv_fp8_e4m3{});
    if (type == DType::kE5M2) return f(__nv_fp8_e5m2{});
  }
  if constexpr (std::is_same_v<Acc, float>) {
    if (type == DType::kBF16) return f(__nv_bfloat16{});
    if (type == DType::kF16) return f(__half{});
  } else if constexpr (std::is_same_v<Acc, double>) {
    if (type == DType::kF32) return f(float{});
  }
  f(Acc{});
}

// Calls f(Out{}) with the type of results: the operands' type, T, or that of sums. An epilogue rounds sums of int8 to
// int8, or to a float of up to 32 bits; in kernels with kToInt8 other sums to int8, too. The rules of families refuse
// other types, see UnsupportedOperands.
template <typename T, bool kHasEpilogue, bool kToInt8 = false, typename F>
__device__ __forceinline__ void WithResultType(DType type, F&& f) {
  if constexpr (std::is_same_v<T, int8_t> && kHasEpilogue) {
    WithType<float, false, true>(type, f);
  } else {
    if constexpr (kToInt8 && kHasEpilogue) {
      if (type == DType::kS8) return f(int8_t{});
    }
    if constexpr (kTraits<T>.bytes == 2) {
      if (type != DType::kF32) return f(T{});
    }
    f(SumOf<T>{});
  }
}

// Byte j of word i becomes byte i of word j.
__device__ __forceinline__ void TransposeBytes(uint32_t (&words)[4]) {
  const uint32_t low[] = {__byte_perm(words[0], words[1], 0x5140), __byte_perm(words[2], words[3], 0x5140)};
  const uint32_t high[] = {__byte_perm(words[0], words[1], 0x7362), __byte_perm(words[2], words[3], 0x7362)};
  words[0] = __byte_perm(low[0], low[1], 0x5410), words[1] = __byte_perm(low[0], low[1], 0x7632);
  words[2] = __byte_perm(high[0], high[1], 0x5410), words[3] = __byte_perm(high[0], high[1], 0x7632);
}

// Element i of 32-bit words that hold elements of type T.
template <typename T>
__device__ __forceinline__ T ElementOf(const uint32_t* words, int i) {
  if constexpr (std::is_same_v<T, double>) return __hiloint2double(words[2 * i + 1], words[2 * i]);
  if constexpr (std::is_same_v<T, float>) return __uint_as_float(words[i]);
  if constexpr (std::is_same_v<T, int32_t>) return static_cast<int32_t>(words[i]);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __ushort_as_bfloat16(words[i / 2] >> i % 2 * 16);
  if constexpr (std::is_same_v<T, __half>) return __ushort_as_half(words[i / 2] >> i % 2 * 16);
  if constexpr (std::is_same_v<T, int8_t>) return static_cast<int8_t>(words[i / 4] >> i % 4 * 8);
  if constexpr (kIsFloat8<T>) {
    T element;
    element.__x = static_cast<__nv_fp8_storage_t>(words[i / 4] >> i % 4 * 8);
    return element;
  }
}

// N elements of any type that widens to Acc, as loaded. They are converted only when they are stored to shared memory:
// a conversion waits for the load, and the loads should stay in flight. They are kept as 32-bit words, because the
// compiler would split other registers into bytes right after the load, and wait for it.
template <typename Acc, int N, bool kFloat8 = false, bool kInt8 = std::is_same_v<Acc, int32_t>>
struct RawPack {
  static constexpr int kWords = N * sizeof(Acc) / 4;

  uint32_t words[kWords];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = 0;
  }

  __device__ __forceinline__ void Load(const void* base, int64_t index, DType type) {
    WithType<Acc, kFloat8, kInt8>(type, [&](auto t) {
      using T = decltype(t);
      const T* from = static_cast<const T*>(base) + index;
      if constexpr (N * sizeof(T) == 1) {
        words[0] = *reinterpret_cast<const uint8_t*>(from);
      } else if constexpr (N * sizeof(T) == 2) {
        words[0] = *reinterpret_cast<const uint16_t*>(from);
      } else {
        constexpr int kLoaded = N * sizeof(T) / 4;
        const auto pack = *reinterpret_cast<const Pack<uint32_t, kLoaded>*>(from);
#pragma unroll
        for (int i = 0; i < kLoaded; ++i) words[i] = pack.v[i];
      }
    });
  }

  __device__ __forceinline__ Pack<Acc, N> Widen(DType type) const {
    Pack<Acc, N> wide;
    WithType<Acc, kFloat8, kInt8>(type, [&](auto t) {
#pragma unroll
      for (int i = 0; i < N; ++i) wide.v[i] = static_cast<Acc>(ElementOf<decltype(t)>(words, i));
    });
    return wide;
  }
};

// Rounds N results to `type` and stores them. kToBytes: they are an epilogue's, and may be int8 or float8. kAtOnce: by
// one store, which takes neighbouring registers. The sums of a main loop may not be in such.
template <bool kToBytes = false, bool kAtOnce = false, typename Acc, int N>
__device__ __forceinline__ void StoreNarrowed(const Pack<Acc, N>& results, void* base, int64_t index, DType type) {
  const auto store = [&](auto t) {
    using T = decltype(t);
    Pack<T, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) pack.v[i] = RoundTo<T>(results.v[i]);
    T* const to = static_cast<T*>(base) + index;
    if constexpr (kAtOnce && sizeof(pack) % 4 == 0) {
      ptx::StoreWords(to, *reinterpret_cast<const uint32_t (*)[sizeof(pack) / 4]>(&pack));
    } else {
      *reinterpret_cast<Pack<T, N>*>(to) = pack;
    }
  };
  constexpr bool kBytes = kToBytes && std::is_same_v<Acc, float>;
  WithType<Acc, kBytes, kBytes || std::is_same_v<Acc, int32_t>>(type, store);
}

}  // namespace jaxconv
