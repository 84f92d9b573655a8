// Division by a number that is used often, by multiplication: GPUs have no instruction that divides integers.
//
// | made by         | dividends        | divisors      | a quotient takes                                             |
// |-----------------|------------------|---------------|--------------------------------------------------------------|
// | FastDivisor16Of | 0 <= n < 2^16    | 2 to 2^16 - 1 | a multiplication                                             |
// | FastDivisorOf   | 0 <= n < 2^31    | 2 to 2^31 - 1 | a multiplication and a shift                                 |
// | FastDivmod      | 0 <= n < 2^31,   | from 1        | two multiplications and a comparison, with the rest; kernels |
// |                 | of 64 bits 2^46  |               | may make it of their own numbers                             |
//
// The first two are made by the host, also where there is no CUDA. Kernels that divide by 1 ask for that: see Quotient.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

namespace jaxconv {

// The factor of n that makes n / divisor the upper half of the product.
constexpr uint32_t FastDivisor16Of(int32_t divisor) { return UINT32_MAX / static_cast<uint32_t>(divisor) + 1; }

// The factor of n, and the shift of the product's upper half.
struct FastDivisor {
  uint32_t factor;
  int32_t shift;
};

// Divisors of 1 have none.
constexpr FastDivisor FastDivisorOf(int32_t divisor) {
  if (divisor <= 1) return {};
  const int32_t shift = std::bit_width(static_cast<uint32_t>(divisor - 1)) - 1;
  return {static_cast<uint32_t>(((uint64_t{1} << (32 + shift)) + divisor - 1) / divisor), shift};
}

#ifdef __CUDACC__

// n / divisor, by the divisor's FastDivisor16Of or FastDivisorOf. An inverse that is 0 gives 0: that of one image.
__device__ __forceinline__ int32_t Quotient(int32_t n, uint32_t inverse) {
  return static_cast<int32_t>(__umulhi(n, inverse));
}
__device__ __forceinline__ int32_t Quotient(int32_t n, FastDivisor inverse) {
  return static_cast<int32_t>(__umulhi(n, inverse.factor) >> inverse.shift);
}

// The same where the divisor may be 1.
template <typename Inverse>
__device__ __forceinline__ int32_t Quotient(int32_t n, int32_t divisor, Inverse inverse) {
  return divisor == 1 ? n : Quotient(n, inverse);
}

template <typename Index>
class FastDivmod {
 public:
  FastDivmod() = default;
  __host__ __device__ __forceinline__ explicit FastDivmod(Index divisor)
      : divisor_(divisor), reciprocal_(Reciprocal(max(divisor, Index{1}))) {}

  // For 32 bits. `reciprocal` is (2^32 - 1) / divisor, rounded down.
  __device__ __forceinline__ FastDivmod(Index divisor, uint32_t reciprocal)
      : divisor_(divisor), reciprocal_(reciprocal) {
    static_assert(sizeof(Index) == 4, "a 64-bit reciprocal is longer");
  }

  // What the last constructor takes.
  static __host__ __device__ __forceinline__ uint32_t Reciprocal(int32_t divisor) {
    return UINT32_MAX / static_cast<uint32_t>(divisor);
  }

  // i / divisor and i % divisor. The reciprocal is rounded down, so the first quotient may be too small by one.
  __device__ __forceinline__ Index Divide(Index i, Index* rest) const {
    const Index quotient = static_cast<Index>(UpperHalf(static_cast<Unsigned>(i), reciprocal_));
    *rest = i - quotient * divisor_;
    const bool small = *rest >= divisor_;
    *rest -= small ? divisor_ : 0;
    return quotient + small;
  }

 private:
  using Unsigned = std::make_unsigned_t<Index>;

  static __device__ __forceinline__ uint32_t UpperHalf(uint32_t a, uint32_t b) { return __umulhi(a, b); }
  static __device__ __forceinline__ uint64_t UpperHalf(uint64_t a, uint64_t b) { return __umul64hi(a, b); }

  // The 64 bits after the binary point. The first 50 are right, which is enough for dividends below 2^46. Starts from
  // an estimate in float32; each step of Newton's method in float64 doubles the right bits.
  static __device__ __forceinline__ uint64_t Reciprocal(int64_t divisor) {
    const double d = static_cast<double>(divisor);
    double x = __fdividef(1.0f, static_cast<float>(d));
    x = __fma_rn(x, __fma_rn(-d, x, 1.0), x);
    x = __fma_rn(x, __fma_rn(-d, x, 1.0), x);
    constexpr double kBelowOne = 18446744073709535232.0;  // 2^64 (1 - 2^-50)
    return static_cast<uint64_t>(x * kBelowOne);
  }

  Index divisor_;
  Unsigned reciprocal_;
};

#endif  // __CUDACC__

}  // namespace jaxconv
