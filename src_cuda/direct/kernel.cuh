// The direct family's kernels for operands of a type: one for each tile and pass.
#pragma once

#include <iterator>
#include <utility>

#include "direct/conv.cuh"
#include "direct/kernels.h"
#include "direct/taps_in_n.cuh"
#include "direct/wgrad.cuh"

namespace jaxconv {

// Tiles that differ in what a pass does not use share its kernel.
constexpr int FirstForConv(int tile) {
  const DirectTile& t = kDirectTiles[tile];
  for (int i = 0; i < tile; ++i) {
    const DirectTile& other = kDirectTiles[i];
    if (other.set == t.set && other.sets == t.sets && other.positions == t.positions && other.warps == t.warps &&
        other.row_stream == t.row_stream && other.packed == t.packed && other.taps_in_n == t.taps_in_n &&
        other.operands == t.operands && (!t.taps_in_n || other.vectors == t.vectors)) {
      return i;
    }
  }
  return tile;
}

constexpr int FirstForWgrad(int tile) {
  const DirectTile& t = kDirectTiles[tile];
  for (int i = 0; i < tile; ++i) {
    const DirectTile& other = kDirectTiles[i];
    if (other.set == t.set && other.filter_rows == t.filter_rows && (other.packed > 0) == (t.packed > 0)) return i;
  }
  return tile;
}

// Null if the tile is for other types.
template <typename T, bool kHasEpilogue, int kTileIndex, bool kOdd>
constexpr DirectKernel ConvOf() {
  if constexpr (!kDirectTiles[kTileIndex].IsFor(TypeOf<T>())) {
    return nullptr;
  } else if constexpr (kDirectTiles[kTileIndex].taps_in_n) {
    return DirectTapsInN<T, kHasEpilogue, kTileIndex>;
  } else {
    return DirectConv<T, kHasEpilogue, kTileIndex, kOdd>;
  }
}

template <typename T, int kTileIndex, bool kOdd>
constexpr DirectKernel WgradOf() {
  if constexpr (!kDirectTiles[kTileIndex].has_wgrad() || !kDirectTiles[kTileIndex].IsFor(TypeOf<T>())) {
    return nullptr;
  } else {
    return DirectWgrad<T, kTileIndex, kOdd>;
  }
}

// Only tiles of packed K have kernels for odd positions.
template <typename T, bool kOdd>
DirectKernel FindDirect(int64_t tile, Pass pass, bool has_epilogue) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    constexpr auto is_odd = [](int index) { return kOdd && kDirectTiles[index].packed > 0; };
    const DirectKernel convs[] = {ConvOf<T, false, FirstForConv(kIndex), is_odd(kIndex)>()...};
    const DirectKernel with_epilogue[] = {ConvOf<T, true, FirstForConv(kIndex), is_odd(kIndex)>()...};
    const DirectKernel wgrads[] = {WgradOf<T, FirstForWgrad(kIndex), is_odd(kIndex)>()...};
    return (pass == Pass::kWgrad ? wgrads : has_epilogue ? with_epilogue : convs)[tile];
  }(std::make_index_sequence<std::size(kDirectTiles)>());
}

template <typename T>
DirectKernel FindDirect(int64_t tile, Pass pass, bool has_epilogue, bool is_odd) {
  return is_odd ? FindDirect<T, true>(tile, pass, has_epilogue) : FindDirect<T, false>(tile, pass, has_epilogue);
}

}  // namespace jaxconv
