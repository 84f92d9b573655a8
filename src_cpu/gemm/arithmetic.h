// How the products of a matrix product are computed, and what operands are packed as for that.
//
// Packed operands are made of words, which are as large as a sum. A word holds kDepth numbers that are neighbours along
// K. One step multiplies a word of the left operand by a vector of words of the right one, and adds up the products.
#pragma once

#include <cstdint>

#include "common/simd.h"
#include "common/storage.h"
#include "conv_problem.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// Numbers are packed in the type of the sums, one to a word.
template <typename T>
struct OneByOne {
  using Sum = T;
  using Left = T;
  using Right = T;
  static constexpr int kDepth = 1;

  template <typename V>
  static V MultiplyAdd(V sum, T left, V right) {
    return sum + left * right;
  }
};

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)

// vpdpbusd multiplies four unsigned numbers by four signed ones.
struct Int8Products {
  using Sum = uint32_t;
  using Left = Biased8;
  using Right = int8_t;
  static constexpr int kDepth = 4;

  template <typename V>
  static V MultiplyAdd(V sum, uint32_t left, V right) {
    if constexpr (sizeof(V) == 64) return (V)_mm512_dpbusd_epi32((__m512i)sum, _mm512_set1_epi32(left), (__m512i)right);
    else if constexpr (sizeof(V) == 32)
      return (V)_mm256_dpbusd_epi32((__m256i)sum, _mm256_set1_epi32(left), (__m256i)right);
    else return (V)_mm_dpbusd_epi32((__m128i)sum, _mm_set1_epi32(left), (__m128i)right);
  }
};

#elif defined(__SSE2__)

// pmaddwd multiplies two numbers of 16 bits by two others. The sum of both products of int8 fits 32 bits.
struct Int8Products {
  using Sum = uint32_t;
  using Left = int16_t;
  using Right = int16_t;
  static constexpr int kDepth = 2;

  template <typename V>
  static V MultiplyAdd(V sum, uint32_t left, V right) {
    if constexpr (sizeof(V) == 64) return sum + (V)_mm512_madd_epi16(_mm512_set1_epi32(left), (__m512i)right);
    else if constexpr (sizeof(V) == 32) return sum + (V)_mm256_madd_epi16(_mm256_set1_epi32(left), (__m256i)right);
    else return sum + (V)_mm_madd_epi16(_mm_set1_epi32(left), (__m128i)right);
  }
};

#else

using Int8Products = OneByOne<uint32_t>;

#endif

// Whether the left numbers are too large by a constant. Then a row before each panel of the right operand is what this
// adds to the sums, negated.
template <typename A>
constexpr bool kIsBiased = std::is_same_v<typename A::Left, Biased8>;

// Calls f(A{}) with the arithmetic of a product of operands of these types. Where vpdpbusd is, kernels are for int8
// alone: dispatch.cc takes others from the instruction set that lacks it.
template <typename F>
void WithArithmetic(const ConvProblem& p, DType left, DType right, const F& f) {
  if constexpr (kIsBiased<Int8Products>) return f(Int8Products{});
  else if (left == DType::kS8 && right == DType::kS8) return f(Int8Products{});
  else WithSums(p, [&](auto t) { f(OneByOne<decltype(t)>{}); });
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
