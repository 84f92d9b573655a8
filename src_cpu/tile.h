// The register tile that matrix products sweep over packed blocks, in the type of the sums.
#pragma once

#include <cstdint>

#include "simd.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// The register tile is kTileRows x up to two vectors: as many accumulators as there are registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#elif defined(__AVX2__)
constexpr int kTileRows = 6;
#elif defined(__aarch64__)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif

// Columns of a packed block, at most. The distance between its rows is fixed, so that a tile's rows are one pointer and
// constant displacements, and an odd number of cache lines, so that they fall into different cache sets.
template <typename T>
constexpr int64_t kDepth = 2048 / sizeof(T);
template <typename T>
constexpr int64_t kRowStride = kDepth<T> + 192 / sizeof(T);

template <typename T>
using TileFunction = void(int64_t depth, const T* a, const T* b, T* c, int64_t c_stride, bool accumulate);

// c[r][k] (+)= sum over p of a(r, p) * b[p][k]; a(r, p) is a[r][p], or a[p][r] if transposed.
template <typename T, int vectors, int lanes, bool transposed>
void Tile(int64_t depth, const T* __restrict a, const T* __restrict b, T* __restrict c, int64_t c_stride,
          bool accumulate) {
  using V = Vector<T, lanes>;
  constexpr int kColumns = vectors * lanes;
  V sums[kTileRows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
      sums[r][v] = accumulate ? LoadVector<T, lanes>(c + r * c_stride + v * lanes) : V{};

  for (int64_t p = 0; p < depth; ++p) {
    V right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = LoadVector<T, lanes>(b + p * kColumns + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const T left = transposed ? a[p * kRowStride<T> + r] : a[r * kRowStride<T> + p];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) StoreVector(sums[r][v], c + r * c_stride + v * lanes);
}

template <typename T>
struct TileShape {
  int64_t columns;
  TileFunction<T>* run;
};

// The tile for so many columns: a narrower one where the wider one would compute more padding.
template <typename T, bool transposed>
TileShape<T> ChooseTile(int64_t columns) {
  constexpr int kShort = kShortLanes<T>, kLong = kLanes<T>;
  if (columns <= kShort) return {kShort, Tile<T, 1, kShort, transposed>};
  if (RoundUp(columns, kLong) < RoundUp(columns, 2 * kLong)) return {kLong, Tile<T, 1, kLong, transposed>};
  return {2 * kLong, Tile<T, 2, kLong, transposed>};
}

// Where a block's sums lie: elements from one row to the next, and from one panel of columns to the next.
template <typename T>
struct Sums {
  T* data;
  int64_t row;
  int64_t panel;
};

// Sweeps the tile over a block of sums.
template <typename T>
void Sweep(const TileShape<T>& tile, int64_t depth, const T* a, int64_t a_stride, int64_t tiles, const T* b,
           int64_t b_stride, int64_t panels, const Sums<T>& c, bool accumulate) {
  for (int64_t j = 0; j < panels; ++j)
    for (int64_t i = 0; i < tiles; ++i)
      tile.run(depth, a + i * a_stride, b + j * b_stride, c.data + j * c.panel + i * kTileRows * c.row, c.row,
               accumulate);
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
