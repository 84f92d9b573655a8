// The tiles of weight gradients, as clusters share them out.
#pragma once

#include <cstdint>

#include "common/types.h"
#include "conv_problem.h"
#include "wgmma/config.h"
#include "wgmma/params.cuh"

namespace jaxconv {

// A tile of one residue class's product, over one slice of its steps. Its rows are units of WgradUnit(tile) rows: 64
// channels of a tap, or with halo tiles of three taps.
struct WgradWorkTile {
  int32_t first_unit;  // this thread block's, and the end of the class's
  int32_t end_unit;
  int32_t first_tap;  // of the class
  int32_t first_col;
  int32_t slice;  // that the cluster stores
  int32_t first_step;
  int32_t end_step;
  int32_t phase[kSpatial];
};

// Units of rows of a residue class.
template <WgmmaTile kTile>
__device__ __forceinline__ int32_t WgradUnitsOf(const WgmmaParams& p, const ResidueClass& of) {
  if constexpr (!kTile.halo) return of.tap_count * p.k_blocks;
  return of.tap_count / p.taps_w * CeilDiv(p.taps_w, kHaloWgradTaps) * p.k_blocks;
}

// Finds a cluster's tile. Tiles that run at the same time have the same positions, as far as possible. False behind the
// last class: the host counts a class's tiles from above.
template <WgmmaTile kTile>
__device__ __forceinline__ bool FindWgradTile(const WgmmaParams& p, uint32_t index, WgradWorkTile* tile) {
  constexpr int kUnits = kTile.rows / WgradUnit(kTile), kOfCluster = kUnits * kTile.row_blocks;
  const auto rank = static_cast<int32_t>(blockIdx.x % kTile.cluster());
  const auto part = static_cast<int32_t>(blockIdx.x / kTile.cluster() % p.wgrad_parts);
  int32_t unit = static_cast<int32_t>(index % p.row_clusters) * kOfCluster;
  index /= p.row_clusters;
  const auto first_col = static_cast<int32_t>(index % p.col_clusters * (kTile.cols * kTile.col_blocks));
  tile->slice = static_cast<int32_t>(index / p.col_clusters);
  int32_t residue = 0, units = WgradUnitsOf<kTile>(p, p.classes[0]);
  while (unit >= units) {
    unit -= CeilDiv(units, kOfCluster) * kOfCluster;
    if (++residue >= p.problem.class_count) return false;
    units = WgradUnitsOf<kTile>(p, p.classes[residue]);
  }
  const ResidueClass& of = p.classes[residue];
  tile->first_unit = unit + (kTile.row_blocks > 1 ? rank * kUnits : 0);
  tile->end_unit = units;
  tile->first_tap = of.first_tap;
  tile->first_col = first_col + (kTile.col_blocks > 1 ? rank * kTile.cols : 0);
  const bool has_positions = residue < p.live_classes;
  const auto step_of = [&](int64_t slice) {
    return has_positions ? static_cast<int32_t>(slice * p.wgrad_steps / p.split) : 0;
  };
  const int32_t slice = tile->slice * p.wgrad_parts + part;
  tile->first_step = step_of(slice), tile->end_step = step_of(slice + 1);
#pragma unroll
  for (int d = 0; d < kSpatial; ++d) tile->phase[d] = of.phase[d];
  return true;
}

// Calls work(tile) for each of this cluster's tiles.
template <WgmmaTile kTile, typename F>
__device__ __forceinline__ void ForEachWgradTile(const WgmmaParams& p, F&& work) {
  const uint32_t ctas = kTile.cluster() * p.wgrad_parts, clusters = gridDim.x / ctas;
  WgradWorkTile tile;
#pragma unroll 1
  for (uint32_t i = blockIdx.x / ctas; i < p.tiles; i += clusters) {
    if (FindWgradTile<kTile>(p, i, &tile)) work(tile);
  }
}

// 64 rows of a product: channels of a tap.
struct WgradRows {
  int32_t tap;  // in the table; less than 0: no tap
  int32_t channel;
};

// A group of taps of one row of a window, with 64 channels, that read one halo tile.
struct HaloTaps {
  int32_t first;  // in the table
  int32_t count;  // kHaloWgradTaps, or fewer at the end of the row
  int32_t plane;  // depth of the window and block of channels: which halo tile
  int32_t channel;
};

__device__ __forceinline__ HaloTaps HaloTapsOf(const WgmmaParams& p, const WgradWorkTile& tile, int32_t unit) {
  const int32_t groups = CeilDiv(p.taps_w, kHaloWgradTaps), of_plane = groups * p.taps_h;
  unit = min(unit, tile.end_unit - 1);
  const int32_t plane = unit / of_plane, row = unit % of_plane / groups, first = unit % groups * kHaloWgradTaps;
  const int32_t tap = (plane / p.k_blocks * p.taps_h + row) * p.taps_w + first;
  return {tile.first_tap + tap, min(kHaloWgradTaps, p.taps_w - first), plane, plane % p.k_blocks * kBlockRows};
}

// The rows that are the tile's `block`-th 64.
template <WgmmaTile kTile>
__device__ __forceinline__ WgradRows WgradRowsOf(const WgmmaParams& p, const WgradWorkTile& tile, int32_t block) {
  if constexpr (kTile.halo) {
    const int32_t unit = tile.first_unit + block / kHaloWgradTaps, tap = block % kHaloWgradTaps;
    const HaloTaps taps = HaloTapsOf(p, tile, unit);
    return {unit < tile.end_unit && tap < taps.count ? taps.first + tap : -1, taps.channel};
  } else {
    block += tile.first_unit;
    return {block < tile.end_unit ? tile.first_tap + block / p.k_blocks : -1, block % p.k_blocks * kBlockRows};
  }
}

}  // namespace jaxconv
