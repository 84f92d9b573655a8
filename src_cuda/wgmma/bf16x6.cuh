// float32 on tensor cores that multiply bfloat16: each number is the sum of three, and a product that of six products.
//
// With x = x1 + x2 + x3, each part the rest rounded to 8 bits, x * w is x1 w1 + x1 w2 + x2 w1 + x2 w2 + x1 w3 + x3 w1
// but for 2^-24 of it, mostly less than 2^-26 (Henry, Tang and Heinecke, "Leveraging the bfloat16 artificial
// intelligence datatype for higher-precision computations", ARITH 2019). Tensor cores truncate when they add. So the
// sums of a step of K begin at zero and are added to the others by CUDA cores, which round. The third part of the other
// operand is larger by what truncation takes on average.
//
// The source is float32 in shared memory. A warpgroup splits it in registers, so that nothing more is read. The other
// operand, which all warpgroups read, is split by a kernel before: into arrays, one behind the other.
//
// Infinities and NaNs have no rest, and a rest of zero times infinity would be NaN. So they are in x1 alone, and where
// x1 meets a rest it is `finite`: the same without them.
#pragma once

#include <cuda_bf16.h>

#include <cfloat>
#include <cstdint>
#include <iterator>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "common/ptx_hopper.cuh"
#include "common/shared_tile.cuh"
#include "common/warpgroup_mma.cuh"
#include "wgmma/config.h"

namespace jaxconv {

// The parts of an operand: of the source in this order, of the other operand its arrays.
enum BF16Part { kFirst, kSecond, kThird, kFinite };
static_assert(kFinite + 1 == kBF16Parts, "the host knows how many arrays there are");

// The products of parts, the smallest ones first: sums then lose least.
struct BF16Product {
  BF16Part source, other;
};
constexpr BF16Product ProductOf(int i) {
  constexpr BF16Product kProducts[] = {{kThird, kFinite},  {kFinite, kThird},  {kSecond, kSecond},
                                       {kSecond, kFinite}, {kFinite, kSecond}, {kFirst, kFirst}};
  static_assert(std::size(kProducts) == kBF16x6Products, "planning knows how many there are");
  return kProducts[i];
}

// How much larger the third part makes a number, as a fraction of it. Truncation takes so much of a step's sum: the
// last two multiplications of a step are those of the largest parts. Each cuts off half a unit in the last place on
// average, the first one of half of the sum, the second one of all of it.
inline constexpr float kTruncated = 0x1.fcp-25f;
static_assert(kTruncated < 0x1p-24f, "a number is raised by less than a unit in its last place");

// A number's power of two.
__device__ __forceinline__ float PowerOf(float x) { return __uint_as_float(__float_as_uint(x) & 0x7f800000); }

// The third part of x, a bfloat16, larger by what makes up for truncation. x times one stays exact: x is raised by less
// than a unit in its last place, and the part is rounded against the sign of x. Where the smaller parts have the other
// sign, tensor cores cut them off two bits behind the last place of the first part, so what is left of the unit counts.
__device__ __forceinline__ float RaisedThird(float x, float first, float second, float third) {
  if (third == 0) return third;
  const float unit = PowerOf(x) * 0x1p-23f, cut_off = PowerOf(first) * 0x1p-25f, by = fabsf(kTruncated * x);
  const bool is_opposite = signbit(second + third) != signbit(x);
  const float raised = third + copysignf(is_opposite ? fminf(by, unit - cut_off) : by, x);
  const uint32_t bits = __float_as_uint(raised), last_bits = signbit(raised) != signbit(x) ? 0xffff : 0;
  return __uint_as_float((bits + last_bits) & 0xffff0000);
}

// Two neighbours' parts, in a word each. kMakesUp: for what truncation takes. Only numbers with a third part do, so
// sums of integers of 16 bits stay exact.
template <bool kMakesUp = false>
__device__ __forceinline__ void SplitPair(float one, float two, uint32_t (&parts)[kBF16Parts]) {
  constexpr float kMost = 0x1.fep127f;  // the largest bfloat16: what is greater is not rounded to infinity
  const auto clamp = [](float x) { return fminf(fmaxf(x, -kMost), kMost); };
  const bool is_finite[] = {fabsf(one) <= FLT_MAX, fabsf(two) <= FLT_MAX};
  float rest[] = {is_finite[0] ? one : 0, is_finite[1] ? two : 0};
  const uint32_t finite = RoundPair<__nv_bfloat16>(clamp(rest[0]), clamp(rest[1]));
  rest[0] -= FirstOfBF16(finite), rest[1] -= SecondOfBF16(finite);
  const uint32_t second = RoundPair<__nv_bfloat16>(rest[0], rest[1]);
  rest[0] -= FirstOfBF16(second), rest[1] -= SecondOfBF16(second);
  if constexpr (kMakesUp) {
    rest[0] = RaisedThird(one, FirstOfBF16(finite), FirstOfBF16(second), rest[0]);
    rest[1] = RaisedThird(two, SecondOfBF16(finite), SecondOfBF16(second), rest[1]);
  }
  parts[kFirst] =
      RoundPair<__nv_bfloat16>(is_finite[0] ? FirstOfBF16(finite) : one, is_finite[1] ? SecondOfBF16(finite) : two);
  parts[kSecond] = second;
  parts[kThird] = RoundPair<__nv_bfloat16>(rest[0], rest[1]);
  parts[kFinite] = finite;
}

// Operand A of wgmma, 64 rows by 16 of K, in parts. A lane has pairs of neighbours along K: with g = lane / 4 and
// t = lane % 4, the rows g and g + 8 of its warp's 16 at K = 2 t, then at 2 t + 8.
struct BF16Source {
  uint32_t words[kBF16Parts][4];

  // K-major rows of 128 bytes, swizzled by their addresses: this lane's two rows.
  __device__ __forceinline__ void LoadKMajor(const uint32_t (&rows)[2], int k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t row = rows[i % 2], byte = k * 64 + i / 2 * 32 + threadIdx.x % 4 * 8;
      uint32_t one, two;
      ptx::LoadPair(one, two, row + (byte ^ (row / kSwizzleBytes % 8 * 16)));
      Split(i, __uint_as_float(one), __uint_as_float(two));
    }
  }

  // MN-major: boxes of 32 channels, with a swizzled row for each of 32 positions. The warpgroup's 64 are two boxes.
  __device__ __forceinline__ void LoadMnMajor(uint32_t block, int k) {
    const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, position = k * 16 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int channel = warp * 16 + i % 2 * 8 + g;
      const uint32_t box = block + channel / 32 * (kWgradBlockBytes / 2);
      float pair[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int at = position + i / 2 * 8 + j;
        const uint32_t word = at * kSwizzleBytes + ((channel % 32 / 4 ^ at % 8) * 16) + channel % 4 * 4;
        pair[j] = __uint_as_float(ptx::LoadWord(box + word));
      }
      Split(i, pair[0], pair[1]);
    }
  }

 private:
  __device__ __forceinline__ void Split(int i, float one, float two) {
    uint32_t parts[kBF16Parts];
    SplitPair(one, two, parts);
#pragma unroll
    for (int part = 0; part < kBF16Parts; ++part) words[part][i] = parts[part];
  }
};

// Multiplies kBlocks times 64 rows of the source by a tile of the other operand, and adds the products to `sums`. The
// parts of Tile lie one behind the other, from `other` on.
template <typename Tile, int kCols, int kBlocks, int kDepths>
__device__ __forceinline__ void MultiplyBF16x6(const BF16Source (&source)[kBlocks][kDepths], uint32_t other,
                                               float (&sums)[kBlocks][kCols / 8][4]) {
  using Other = MatrixDescriptor<Tile>;
  const uint64_t first = Other::At(other, 0);
  float of_step[kBlocks][kCols / 8][4];
  ptx::WarpgroupArrive();
#pragma unroll
  for (int p = 0; p < kBF16x6Products; ++p) {
    const BF16Product product = ProductOf(p);
#pragma unroll
    for (int k = 0; k < kDepths; ++k) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        ptx::WarpgroupMultiplyAdd<__nv_bfloat16, kCols, false, !Tile::kKMajor>(
            of_step[i], source[i][k].words[product.source],
            first + product.other * Tile::kBytes / 16 + Other::Advance(0, k), p > 0 || k > 0);
      }
    }
  }
  ptx::WarpgroupCommit();
  ptx::WarpgroupWait<0>();
#pragma unroll
  for (int i = 0; i < kBlocks; ++i) {
#pragma unroll
    for (int j = 0; j < kCols / 8; ++j) {
      ptx::FenceOperand(of_step[i][j]);
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[i][j][v] += of_step[i][j][v];
    }
  }
}

}  // namespace jaxconv
