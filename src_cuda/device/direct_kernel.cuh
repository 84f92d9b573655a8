// The direct family's kernels for operands of a type: one for each tile and pass.
#pragma once

#include <iterator>
#include <utility>

#include "device/direct_gather.cuh"
#include "device/direct_reduce.cuh"
#include "kernels/direct.h"

namespace jaxconv {

// Tiles that differ in a reduce alone have the same kernel for a gather.
constexpr int FirstForGather(int tile) {
  const DirectTile& t = kDirectTiles[tile];
  for (int i = 0; i < tile; ++i) {
    const DirectTile& other = kDirectTiles[i];
    if (other.set == t.set && other.sets == t.sets && other.positions == t.positions &&
        other.warps == t.warps) {
      return i;
    }
  }
  return tile;
}

template <typename T>
DirectKernel FindDirect(int tile, Pass pass) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    const DirectKernel gathers[] = {DirectGather<T, FirstForGather(kIndex)>...};
    const DirectKernel reduces[] = {DirectReduce<T, kIndex>...};
    return (pass == Pass::kGather ? gathers : reduces)[tile];
  }(std::make_index_sequence<std::size(kDirectTiles)>());
}

}  // namespace jaxconv
