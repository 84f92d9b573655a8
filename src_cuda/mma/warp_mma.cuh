// A warp's share of a block's product on tensor cores.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "common/shared_tile.cuh"
#include "common/store_pairs.cuh"

namespace jaxconv {

// kRows x kCols sums of operands of type T. float is multiplied as tf32, of 11 bits: in one pass, or in three, after
// each number was cut into a large and a small one. What is lost of a product then is the product of the small ones, of
// at most 2^-22, and their roundings, 2^-22 each. An infinity less itself is none: three passes make NaN of it.
template <typename T, typename SrcTile, typename RhsTile, int kRows, int kCols, int kPasses>
class WarpMma {
 public:
  __device__ WarpMma(int first_row, int first_col) : src_(first_row), rhs_(first_col) {}

  static constexpr int kSteps = SrcTile::kBlockK / Fragments<SrcTile, T, false>::kSteps;  // multiplications of a tile

  template <int kPending>
  __device__ __forceinline__ void Reuse() const {}  // a tile has been multiplied when Multiply returns
  __device__ __forceinline__ void Finish() const {}

  // Whether operands are rounded, which makes infinities of the largest numbers.
  static constexpr bool kRounds = std::is_same_v<T, float>;

  // Whether each row and each column has a finite sum. An operand that is not finite makes all sums of its row or its
  // column so, also of its products with zeros. Where the sum of these overflows, the answer is no as well.
  __device__ __forceinline__ bool AreFinite() const {
    if constexpr (!kRounds) return true;
    float all = 0, others = 0;
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) all += sum_[i][0][0], others += sum_[i][0][2];
#pragma unroll
    for (int j = 0; j < 2 * kColBlocks; ++j) all += sum_[0][j][0], others += sum_[0][j][1];
    return isfinite(all + others);
  }

  // Adds a tile's product, of operands that are rounded to finite numbers if kFinite. One step's fragments are read
  // while another's are multiplied; between(k) is done before the k-th multiplication, so that its instructions are
  // issued while the tensor cores are busy.
  template <bool kFinite, typename F>
  __device__ __forceinline__ void Multiply(uint32_t src, uint32_t rhs, F&& between) {
    Read<kFinite>(0, src, rhs, 0);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      between(k);
      if (k + 1 < kSteps) Read<kFinite>((k + 1) % 2, src, rhs, k + 1);
      if constexpr (kPasses == 3) {
        MultiplyFragments(a_[k % 2], b_small_[k % 2]);
        MultiplyFragments(a_small_[k % 2], b_[k % 2]);
      }
      MultiplyFragments(a_[k % 2], b_[k % 2]);
    }
  }

  // Stores the sums, rounded, into rows of `pitch` elements.
  template <typename Out>
  __device__ __forceinline__ void Store(Out* first, int pitch) const {
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      StorePairs(sum_[i], first + i * 16 * pitch, pitch, Fragments<SrcTile, T, false>::Mn);
    }
  }

 private:
  static constexpr int kRowBlocks = kRows / 16;
  static constexpr int kColBlocks = kCols / 16;
  static_assert(kRows % 16 == 0 && kCols % 16 == 0);
  static_assert(Fragments<SrcTile, T, false>::kSteps == kTraits<T>.mma_depth, "fragments are of one multiplication");
  static_assert(kTraits<T>.bytes > 1 || (SrcTile::kKMajor && RhsTile::kKMajor),
                "ldmatrix transposes elements of 16 bits, and words are of 32");

  static_assert(kPasses == 1 || (kPasses == 3 && kRounds), "passes are of numbers that are rounded");
  static constexpr bool kSmall = kPasses == 3;

  template <bool kFinite>
  __device__ __forceinline__ void Read(int set, uint32_t src, uint32_t rhs, int k) {
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
      src_.Load(a_[set][i], src, i, k);
      Round<kFinite>(a_[set][i], a_small_[kSmall ? set : 0][i]);
    }
#pragma unroll
    for (int j = 0; j < kColBlocks; ++j) {
      rhs_.Load(b_[set][j], rhs, j, k);
      Round<kFinite>(b_[set][j], b_small_[kSmall ? set : 0][j]);
    }
  }

  // Rounds to what tensor cores multiply; with three passes what that takes away is `small`.
  template <bool kFinite>
  static __device__ __forceinline__ void Round(uint32_t (&words)[4], uint32_t (&small)[4]) {
    if constexpr (kRounds) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float x = __uint_as_float(words[i]);
        words[i] = kFinite ? ptx::RoundToFiniteTf32(x) : ptx::RoundToTf32(x);
        if constexpr (kPasses == 3) small[i] = ptx::RoundToTf32(x - __uint_as_float(words[i]));
      }
    }
  }

  __device__ __forceinline__ void MultiplyFragments(const uint32_t (&a)[kRowBlocks][4],
                                                    const uint32_t (&b)[kColBlocks][4]) {
#pragma unroll
    for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < kColBlocks; ++j) {
        ptx::MultiplyAdd<T>(sum_[i][2 * j], a[i], b[j][0], b[j][1]);
        ptx::MultiplyAdd<T>(sum_[i][2 * j + 1], a[i], b[j][2], b[j][3]);
      }
    }
  }

  Fragments<SrcTile, T, false> src_;
  Fragments<RhsTile, T, true> rhs_;
  uint32_t a_[2][kRowBlocks][4];
  uint32_t b_[2][kColBlocks][4];
  uint32_t a_small_[kSmall ? 2 : 1][kRowBlocks][4];  // unused but for three passes
  uint32_t b_small_[kSmall ? 2 : 1][kColBlocks][4];
  SumOf<T> sum_[kRowBlocks][2 * kColBlocks][4] = {};
};

}  // namespace jaxconv
