// Vectors and number formats, for the kernels.
//
// This header is compiled once for each instruction set, so everything is in an anonymous namespace: only what has
// internal linkage is safe from the linker, which would keep one copy for all. For the same reason kernels use no
// standard containers or algorithms.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "common/registers.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

#if defined(__AVX512F__)
constexpr Registers kRegisters = kAvx512;
#elif defined(__AVX2__)
constexpr Registers kRegisters = kAvx2;
#elif defined(__aarch64__)
constexpr Registers kRegisters = kNeon;
#else
constexpr Registers kRegisters = kBaseline;
#endif

template <typename T, int lanes>
struct VectorOf {
  typedef T Type __attribute__((vector_size(lanes * sizeof(T))));
};
template <typename T>
struct VectorOf<T, 1> {
  using Type = T;
};

template <typename T>
constexpr int kLanes = kRegisters.vector_bytes / sizeof(T);
template <typename T>
constexpr int kShortLanes = kShortVectorBytes / sizeof(T);

template <typename T, int lanes = kLanes<T>>
using Vector = typename VectorOf<T, lanes>::Type;

template <typename T>
constexpr T Min(T a, T b) {
  return a < b ? a : b;
}

template <typename T>
constexpr T Max(T a, T b) {
  return a > b ? a : b;
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

// ---- Number formats ------------------------------------------------------------------------------------------------

struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};
struct E4M3 {
  uint8_t bits;
};
struct E5M2 {
  uint8_t bits;
};
// An int8 number plus 128, which is never negative.
struct Biased8 {
  uint8_t bits;
};

template <typename T>
constexpr T kZero = T{};
template <>
constexpr Biased8 kZero<Biased8> = {0x80};

template <typename S>
constexpr bool kIsHalf = std::is_same_v<S, BF16> || std::is_same_v<S, F16>;
template <typename S>
constexpr bool kIsFloat8 = std::is_same_v<S, E4M3> || std::is_same_v<S, E5M2>;

template <int lanes>
struct VectorOf<Biased8, lanes> : VectorOf<uint8_t, lanes> {};
template <>
struct VectorOf<Biased8, 1> {
  using Type = Biased8;
};

template <typename To, typename From>
To BitCast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

// The conversions below take one number or a vector of them (F of float, U of uint32_t). They never meet a subnormal
// float32, which XLA's threads flush to zero.

template <typename F, typename U>
F FromBF16(U half) {
  return BitCast<F>(half << 16);
}

template <typename U, typename F>
U ToBF16(F value) {
  const U bits = BitCast<U>(value);
  const U rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const U quiet_nan = (bits >> 16) | 0x40u;
  return (bits & 0x7fffffffu) > 0x7f800000u ? quiet_nan : rounded;
}

template <typename F, typename U>
F FromF16(U half) {
  const U magnitude = (half & 0x7fffu) << 13;
  const U normal = magnitude + (112u << 23);
  const U special = magnitude + (224u << 23);
  const U subnormal = BitCast<U>(BitCast<F>(magnitude + (113u << 23)) - 0x1p-14f);
  const U bits = magnitude < (1u << 23) ? subnormal : magnitude >= (31u << 23) ? special : normal;
  return BitCast<F>(bits | ((half & 0x8000u) << 16));
}

template <typename U, typename F>
U ToF16(F value) {
  const U bits = BitCast<U>(value);
  const U magnitude = bits & 0x7fffffffu;
  const U normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const U quiet_nan = ((magnitude >> 13) & 0x3ffu) | 0x7e00u;
  const U infinity = (magnitude & 0u) | 0x7c00u;
  const U subnormal = BitCast<U>(BitCast<F>(magnitude) + 0.5f) - (126u << 23);  // the addition rounds
  const U special = magnitude > (255u << 23) ? quiet_nan : infinity;
  const U half = magnitude < (113u << 23) ? subnormal : magnitude >= (143u << 23) ? special : normal;
  return half | ((bits >> 16) & 0x8000u);
}

// Of a float8 type: the bias of its exponent, the bits of its mantissa, and its largest number's.
template <typename S>
constexpr uint32_t kBias = std::is_same_v<S, E4M3> ? 7 : 15;
template <typename S>
constexpr uint32_t kMantissa = std::is_same_v<S, E4M3> ? 3 : 2;
template <typename S>
constexpr uint8_t kLargestBits = std::is_same_v<S, E4M3> ? 0x7e : 0x7b;

// The bits of a float16 whose sign, exponent and mantissa are those of a number of 8 bits, which is sign-extended. E5M2
// has the same exponent. That of E4M3 is one bit shorter.
template <typename S, typename H>
H HalfBits(H number) {
  if constexpr (std::is_same_v<S, E5M2>) return number << 8;
  else return (number << 7) & 0xbfff;
}

// What such a float16 stands for. In E4M3 it is 2^-8 of that; 480 is NaN there, and nothing is infinite.
template <typename S, typename U, typename F>
F FromHalfBits(F half) {
  if constexpr (std::is_same_v<S, E5M2>) {
    return half;
  } else {
    const U bits = BitCast<U>(half * 256.0f);
    return BitCast<F>((bits & 0x7fffffffu) == BitCast<uint32_t>(480.0f) ? bits | 0x7fc00000u : bits);
  }
}

// To a float8 number's bits. Beyond the largest it is infinite, or NaN if there is no infinity, as XLA converts.
template <typename S, typename U, typename F>
U ToFloat8(F value) {
  constexpr uint32_t kDropped = 23 - kMantissa<S>, kLeast = (127 - kBias<S>) << 23;
  constexpr uint32_t kBeyond = kLargestBits<S> + 1;
  constexpr float kRounds = std::is_same_v<S, E4M3> ? 0x1p14f : 0x1p7f;  // its last bit is the least subnormal number
  const U bits = BitCast<U>(value);
  const U magnitude = bits & 0x7fffffffu;
  const U normal = (magnitude - kLeast + ((1u << (kDropped - 1)) - 1) + ((magnitude >> kDropped) & 1u)) >> kDropped;
  const U subnormal = BitCast<U>(BitCast<F>(magnitude) + kRounds) - BitCast<uint32_t>(kRounds);  // the addition rounds
  const U finite = magnitude < kLeast + (1u << 23) ? subnormal : normal;
  const U beyond = (magnitude & 0u) | kBeyond;
  const U nan = (magnitude & 0u) | 0x7fu;
  const U byte = magnitude > 0x7f800000u ? nan : finite > kBeyond ? beyond : finite;
  return byte | ((bits >> 24) & 0x80u);
}

// One number from its storage format to the type that it is packed as, mostly that of the sums (float, double or
// uint32_t), and back.
template <typename T, typename S>
T Load(S value) {
  if constexpr (std::is_same_v<T, Biased8>) {
    return {static_cast<uint8_t>(value ^ 0x80)};
  } else if constexpr (kIsHalf<S>) {
    const uint32_t bits = value.bits;
    if constexpr (std::is_same_v<S, BF16>) return static_cast<T>(FromBF16<float>(bits));
    else return static_cast<T>(FromF16<float>(bits));
  } else if constexpr (kIsFloat8<S>) {
    const auto bits = static_cast<uint16_t>(static_cast<int8_t>(value.bits));
    const float half = FromF16<float>(uint32_t{static_cast<uint16_t>(HalfBits<S>(bits))});
    return static_cast<T>(FromHalfBits<S, uint32_t>(half));
  } else {
    return static_cast<T>(value);
  }
}

// To nearest even, at most 127 and at least -128. NaN becomes 0.
template <typename T>
int8_t ToInt8(T value) {
  constexpr T kWhole = sizeof(T) == 4 ? 0x1.8p23 : 0x1.8p52;  // beyond it numbers are whole: adding it rounds
  value = value == value ? value : T{0};
  value = value < -128 ? T{-128} : value;
  value = value > 127 ? T{127} : value;
  return static_cast<int8_t>(value + kWhole - kWhole);
}

template <typename S, typename T>
S Store(T value) {
  if constexpr (std::is_same_v<S, BF16>) return {static_cast<uint16_t>(ToBF16<uint32_t>(static_cast<float>(value)))};
  else if constexpr (std::is_same_v<S, F16>) return {static_cast<uint16_t>(ToF16<uint32_t>(static_cast<float>(value)))};
  else if constexpr (kIsFloat8<S>) return {static_cast<uint8_t>(ToFloat8<S, uint32_t>(static_cast<float>(value)))};
  else if constexpr (std::is_same_v<S, int8_t> && std::is_floating_point_v<T>) return ToInt8(value);
  else return static_cast<S>(value);
}

// int8 as int32. GCC 12 converts it one by one, in two steps only half as well.
template <int lanes>
Vector<int32_t, lanes> LoadInt8(const int8_t* from) {
  const auto numbers = BitCast<Vector<int8_t, lanes>>(*reinterpret_cast<const int8_t (*)[lanes]>(from));
#ifdef __AVX512F__
  if constexpr (lanes == 16) return (Vector<int32_t, 16>)_mm512_maskz_cvtepi8_epi32(0xffff, (__m128i)numbers);
#endif
#ifdef __AVX2__
  if constexpr (lanes == 8)
    return (Vector<int32_t, 8>)_mm256_cvtepi8_epi32(_mm_cvtsi64_si128(BitCast<int64_t>(numbers)));
#endif
  return __builtin_convertvector(__builtin_convertvector(numbers, Vector<int16_t, lanes>), Vector<int32_t, lanes>);
}

// Numbers of float16, as their bits. GCC 12 warns of an intrinsic that has no mask.
template <int lanes>
Vector<float, lanes> FromHalves(Vector<uint16_t, lanes> bits) {
#ifdef __AVX512F__
  if constexpr (lanes == 16) return (Vector<float, 16>)_mm512_maskz_cvtph_ps(0xffff, (__m256i)bits);
#endif
#ifdef __F16C__
  if constexpr (lanes == 8) return (Vector<float, 8>)_mm256_cvtph_ps((__m128i)bits);
#endif
  return FromF16<Vector<float, lanes>>(__builtin_convertvector(bits, Vector<uint32_t, lanes>));
}

template <int lanes, typename S>
Vector<float, lanes> LoadFloat8(const S* from) {
  using U = Vector<uint32_t, lanes>;
  const auto numbers = BitCast<Vector<int8_t, lanes>>(*reinterpret_cast<const int8_t (*)[lanes]>(from));
  const auto bits = (Vector<uint16_t, lanes>)__builtin_convertvector(numbers, Vector<int16_t, lanes>);
  return FromHalfBits<S, U>(FromHalves<lanes>(HalfBits<S>(bits)));
}

template <typename T, int lanes = kLanes<T>, typename S>
Vector<T, lanes> LoadVector(const S* from) {
  using To = Vector<T, lanes>;
  if constexpr (lanes == 1) {
    return Load<T>(*from);
  } else if constexpr (std::is_same_v<T, Biased8>) {
    return BitCast<To>(*reinterpret_cast<const S(*)[lanes]>(from)) ^ kZero<Biased8>.bits;
  } else if constexpr (kIsHalf<S>) {
    using F = Vector<float, lanes>;
    const auto bits = BitCast<Vector<uint16_t, lanes>>(*reinterpret_cast<const uint16_t (*)[lanes]>(from));
    if constexpr (std::is_same_v<S, F16>) return __builtin_convertvector(FromHalves<lanes>(bits), To);
    else return __builtin_convertvector(FromBF16<F>(__builtin_convertvector(bits, Vector<uint32_t, lanes>)), To);
  } else if constexpr (kIsFloat8<S>) {
    return __builtin_convertvector(LoadFloat8<lanes>(from), To);
  } else if constexpr (std::is_same_v<S, int8_t> && sizeof(T) == sizeof(int32_t)) {
    return __builtin_convertvector(LoadInt8<lanes>(from), To);
  } else {
    return __builtin_convertvector(BitCast<Vector<S, lanes>>(*reinterpret_cast<const S(*)[lanes]>(from)), To);
  }
}

template <typename V, typename T>
void StoreVector(const V& vector, T* to) {
  std::memcpy(to, &vector, sizeof(vector));
}

// Converts n adjacent numbers, in vectors of `lanes`: the last one overlaps its neighbour instead of leaving a rest.
template <int lanes, typename T, typename S>
void Convert(const S* from, int64_t n, T* to) {
  if (n >= lanes) {
    for (int64_t i = 0; i <= n - lanes; i += lanes) StoreVector(LoadVector<T, lanes>(from + i), to + i);
    if (n % lanes) StoreVector(LoadVector<T, lanes>(from + n - lanes), to + n - lanes);
  } else if constexpr (lanes > 1) {
    Convert<lanes / 2>(from, n, to);
  }
}

template <typename T, typename S>
void Convert(const S* from, int64_t n, T* to) {
  Convert<kLanes<T>>(from, n, to);
}

template <typename T>
void Zero(int64_t n, T* to) {
  std::memset(to, std::is_same_v<T, Biased8> ? kZero<Biased8>.bits : 0, n * sizeof(T));
}

// Adds the n sums of each split, `stride` elements from one split to the next, to those of the first, in order.
template <typename T>
void AddSplits(int64_t n, int64_t splits, int64_t stride, T* sums) {
  for (int64_t split = 1; split < splits; ++split)
    for (int64_t i = 0; i < n; ++i) sums[i] += sums[split * stride + i];
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
