// The register tile that matrix products sweep over packed blocks of words.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/chain.h"
#include "common/simd.h"
#include "gemm/arithmetic.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int kTileM = kRegisters.tile_m;

// A row of a packed block holds so many elements at most. Rows are a fixed distance apart: so a tile's rows are one
// pointer and constant displacements. The distance is an odd number of cache lines: so rows fall into different cache
// sets.
template <typename T>
constexpr int64_t kBlockK = 2048 / sizeof(T);
template <typename T>
constexpr int64_t kRowStride = kBlockK<T> + 192 / sizeof(T);

// A word, also one that was packed as several numbers.
template <typename T>
T LoadWord(const T* from) {
  T word;
  std::memcpy(&word, from, sizeof(word));
  return word;
}

template <typename T>
using TileFunction = void(int64_t k, const T* a, const T* b, T* c, int64_t c_stride, bool accumulate);

// c[m][n] (+)= sum over k of a(m, k) * b[k][n], as one chain; a(m, k) is a[m][k], or a[k][m] if it is MN-major. k
// counts words.
template <typename A, int vectors, int lanes, bool mn_major>
void Tile(int64_t k, const typename A::Sum* __restrict a, const typename A::Sum* __restrict b,
          typename A::Sum* __restrict c, int64_t c_stride, bool accumulate) {
  using T = typename A::Sum;
  using V = Vector<T, lanes>;
  constexpr int kTileN = vectors * lanes;
  V sums[kTileM][vectors];
#pragma GCC unroll 16
  for (int m = 0; m < kTileM; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      sums[m][v] = V{};
      if constexpr (kIsBiased<A>) sums[m][v] = LoadVector<T, lanes>(b + v * lanes);
    }
  if constexpr (kIsBiased<A>) b += kTileN;

  for (int64_t i = 0; i < k; ++i) {
    V right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = LoadVector<T, lanes>(b + i * kTileN + v * lanes);
#pragma GCC unroll 16
    for (int m = 0; m < kTileM; ++m) {
      const T left = LoadWord(a + (mn_major ? i * kRowStride<T> + m : m * kRowStride<T> + i));
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[m][v] = A::MultiplyAdd(sums[m][v], left, right[v]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kTileM; ++m)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      T* to = c + m * c_stride + v * lanes;
      if (accumulate) sums[m][v] += LoadVector<T, lanes>(to);
      StoreVector(sums[m][v], to);
    }
}

template <typename T>
struct TileShape {
  int64_t n;
  int64_t k_stride;  // of a: from a word of K to the next
  TileFunction<T>* run;
};

// The tile for N: a narrower one where the wider one would compute more padding.
template <typename A, bool mn_major>
TileShape<typename A::Sum> ChooseTile(int64_t n) {
  using T = typename A::Sum;
  constexpr int kShort = kShortLanes<T>, kLong = kLanes<T>;
  constexpr int64_t kStride = mn_major ? kRowStride<T> : 1;
  static_assert(!kIsBiased<A> || std::is_integral_v<T>, "a bias is added once: sums of integers are one chain");
  if (n <= kShort) return {kShort, kStride, Tile<A, 1, kShort, mn_major>};
  if (RoundUp(n, kLong) < RoundUp(n, 2 * kLong)) return {kLong, kStride, Tile<A, 1, kLong, mn_major>};
  return {2 * kLong, kStride, Tile<A, 2, kLong, mn_major>};
}

// Where a block's sums lie: elements from one row to the next, and from one panel to the next.
template <typename T>
struct Sums {
  T* data;
  int64_t row;
  int64_t panel;
};

// Sweeps the tile over a block of sums, once for each chain of K.
template <typename T>
void Sweep(const TileShape<T>& tile, int64_t k, const T* a, int64_t a_stride, int64_t tiles, const T* b,
           int64_t b_stride, int64_t panels, const Sums<T>& c, bool accumulate) {
  const int64_t chain = ChainLength<T>(k);
  for (int64_t j = 0; j < panels; ++j)
    for (int64_t i = 0; i < tiles; ++i) {
      T* const sums = c.data + j * c.panel + i * kTileM * c.row;
      int64_t first = 0;
      do {  // once even with nothing to sum
        tile.run(Min(chain, k - first), a + i * a_stride + first * tile.k_stride, b + j * b_stride + first * tile.n,
                 sums, c.row, accumulate || first > 0);
      } while ((first += chain) < k);
    }
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
