// The tiles of weight gradients, as clusters share them out.
#pragma once

#include <cstdint>

#include "common/fast_division.h"
#include "common/types.h"
#include "conv_problem.h"
#include "wgmma/config.h"
#include "wgmma/params.cuh"
#include "wgmma/wgrad_scheduler.cuh"

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

// This CTA's slice of those that its cluster adds: a power of two of them.
template <WgmmaTile kTile>
__device__ __forceinline__ int32_t WgradPart(const WgmmaParams& p) {
  return static_cast<int32_t>(blockIdx.x / kTile.cluster()) & (p.wgrad_parts - 1);
}

// Finds a tile's class, and its first unit in the class, from its first unit in all classes. False: there is no such
// tile, because the host rounds up the tiles of each class. If there is one class, the table is not read: a thread
// block would wait.
template <bool kHasOne, int32_t kOfCluster>
__device__ __forceinline__ bool FindWgradClass(const WgmmaParams& p, int32_t unit, WgradWorkTile* tile,
                                               int32_t* residue) {
  tile->first_unit = unit, tile->end_unit = p.class_units, tile->first_tap = 0;
  *residue = 0;
#pragma unroll
  for (int32_t& phase : tile->phase) phase = 0;
  if (kHasOne || p.class_units > 0) return true;
  int32_t units = p.classes[0].tap_count * p.k_blocks;
  while (tile->first_unit >= units) {
    tile->first_unit -= CeilDiv(units, kOfCluster) * kOfCluster;
    if (++*residue >= p.problem.class_count) return false;
    units = p.classes[*residue].tap_count * p.k_blocks;
  }
  const ResidueClass& of = p.classes[*residue];
  tile->end_unit = units, tile->first_tap = of.first_tap;
#pragma unroll
  for (int d = 0; d < kSpatial; ++d) tile->phase[d] = of.phase[d];
  return true;
}

// Finds a cluster's tile. False: there is none. Tiles that run at the same time have the same positions, as far as
// possible. Neighbours read different parts of the operand that most tiles share out: L2 gives more then.
template <WgmmaTile kTile>
__device__ __forceinline__ bool FindWgradTile(const WgmmaParams& p, uint32_t index, WgradWorkTile* tile) {
  constexpr int kUnits = kTile.rows / WgradUnit(kTile), kOfCluster = kUnits * kTile.row_blocks;
  const auto rank = static_cast<int32_t>(blockIdx.x % kTile.cluster());
  int32_t inner, outer, residue;
  const int32_t along =
      FastDivmod<int32_t>(p.inner_clusters, p.inner_cluster_reciprocal).Divide(static_cast<int32_t>(index), &inner);
  tile->slice = FastDivmod<int32_t>(p.outer_clusters, p.outer_cluster_reciprocal).Divide(along, &outer);
  const int32_t row_cluster = p.cols_inside ? outer : inner, col_cluster = p.cols_inside ? inner : outer;
  if (!FindWgradClass<kTile.halo, kOfCluster>(p, row_cluster * kOfCluster, tile, &residue)) return false;
  if constexpr (kTile.row_blocks > 1) tile->first_unit += rank * kUnits;
  tile->first_col = (col_cluster * kTile.col_blocks + (kTile.col_blocks > 1 ? rank : 0)) * kTile.cols;
  const auto step_of = [&](int32_t slice) {  // slice * steps / split, in 32 bits
    int32_t rest;
    const int32_t left = FastDivmod<int32_t>(p.split, p.split_reciprocal).Divide(slice * p.steps_left, &rest);
    return residue < p.live_classes ? slice * p.slice_steps + left : 0;
  };
  const int32_t slice = tile->slice * p.wgrad_parts + WgradPart<kTile>(p);
  tile->first_step = step_of(slice), tile->end_step = step_of(slice + 1);
  return true;
}

struct StepRange {
  int32_t begin, end;
};

// The steps of a tile that a cluster takes if it leaves others out: those with positions from which a tap of the
// cluster may see a pixel. In each image these positions follow each other. The blocks of a cluster take the same
// steps, as each copies for all.
template <WgmmaTile kTile, int kPositions>
class SeenSteps {
 public:
  __device__ __forceinline__ SeenSteps(const WgmmaParams& p, const WgradWorkTile& tile)
      : image_(p.image_positions), by_image_(p.image_positions, p.image_reciprocal) {
    constexpr int32_t kUnits = kTile.rows / WgradUnit(kTile);
    const int32_t first = tile.first_unit - (kTile.row_blocks > 1 ? blockIdx.x % kTile.cluster() * kUnits : 0);
    const int32_t last = min(first + kUnits * kTile.row_blocks, tile.end_unit) - 1;
    const int32_t shift = ShiftOf(p, tile, first), of_last = ShiftOf(p, tile, last);
    first_ = RowsOf(p, -max(shift, of_last)) * p.row_positions;
    end_ = min(RowsOf(p, p.outer_size - min(shift, of_last)), p.counts[kSpatial + 2 - p.rank]) * p.row_positions;
  }

  // The first ones from a step on that follow each other: those of an image. None: there are no more before `end`.
  __device__ __forceinline__ StepRange From(int32_t step, int32_t end) const {
    if (first_ >= end_) return {end, end};
    int32_t at;
    int32_t image = by_image_.Divide(step * kPositions, &at);
    if (at >= end_) ++image;
    return {min(end, max(step, FirstStep(image))), min(end, EndStep(image))};
  }

  // How many there are, of those from one to another. To be called by a warp: a lane counts those of an image that the
  // image before it does not have.
  __device__ __forceinline__ int32_t Count(int32_t begin, int32_t end) const {
    if (begin == end || first_ >= end_) return 0;
    int32_t rest, count = 0;
    const int32_t last = by_image_.Divide(end * kPositions - 1, &rest), lane = threadIdx.x % 32;
#pragma unroll 1
    for (int32_t i = by_image_.Divide(begin * kPositions, &rest) + lane; i <= last; i += 32) {
      const int32_t before = i == 0 ? 0 : EndStep(i - 1);
      count += max(0, min(end, EndStep(i)) - max(max(begin, before), FirstStep(i)));
    }
    return __reduce_add_sync(0xffffffff, count);
  }

 private:
  static __device__ __forceinline__ int32_t ShiftOf(const WgmmaParams& p, const WgradWorkTile& tile, int32_t unit) {
    int32_t k_block;
    const int32_t tap = FastDivmod<int32_t>(p.k_blocks, p.k_block_reciprocal).Divide(unit, &k_block);
    return p.taps[tile.first_tap + tap].shift[kSpatial + 2 - p.rank];
  }
  // Positions of a column whose pixels are among the first ones.
  static __device__ __forceinline__ int32_t RowsOf(const WgmmaParams& p, int32_t pixels) {
    int32_t rest;
    return FastDivmod<int32_t>(p.outer_step, p.outer_step_reciprocal).Divide(max(0, pixels) + p.outer_step - 1, &rest);
  }
  __device__ __forceinline__ int32_t FirstStep(int32_t image) const { return (image * image_ + first_) / kPositions; }
  __device__ __forceinline__ int32_t EndStep(int32_t image) const {
    return (image * image_ + end_ - 1) / kPositions + 1;
  }

  int32_t image_;  // positions of an image
  FastDivmod<int32_t> by_image_;
  int32_t first_, end_;  // those of them that see pixels
};

// The steps of a tile that its cluster takes.
template <WgmmaTile kTile, int kPositions>
struct WgradTileSteps {
  // Calls work(begin, end) for those that follow each other. Where none are left out, the code is as short as without.
  template <typename F>
  static __device__ __forceinline__ void ForEachRange(const WgmmaParams& p, const WgradWorkTile& tile, F&& work) {
    if (kTile.halo || !p.leaves_out) return work(tile.first_step, tile.end_step);
    if (tile.first_step == tile.end_step) return;
    const SeenSteps<kTile, kPositions> seen(p, tile);
#pragma unroll 1
    for (StepRange range{tile.first_step, tile.first_step};;) {
      range = seen.From(range.end, tile.end_step);
      if (range.begin == range.end) return;
      work(range.begin, range.end);
    }
  }

  // To be called by a warp.
  static __device__ __forceinline__ int32_t Count(const WgmmaParams& p, const WgradWorkTile& tile) {
    if (kTile.halo || !p.leaves_out) return tile.end_step - tile.first_step;
    return SeenSteps<kTile, kPositions>(p, tile).Count(tile.first_step, tile.end_step);
  }
};

// Calls work(tile) for each of this cluster's tiles. To be called by a warp of consumers, which have no registers for a
// tile that waits: they would spill hundreds of bytes.
template <bool kIsDynamic, WgmmaTile kTile, typename F>
__device__ __forceinline__ void ForEachWgradTile(const WgmmaParams& p, WgradNextTile<kTile>& next_tile, F&& work) {
  WgradTileScheduler<kIsDynamic, kTile, WgradReader::kConsumerWarp> scheduler(p, next_tile);
  WgradWorkTile tile;
#pragma unroll 1
  for (uint32_t i = scheduler.First(); i < p.tiles; i = scheduler.Next(i)) {
    if (FindWgradTile<kTile>(p, i, &tile)) work(tile);
  }
}

// The same for producers, which find the first tile before they wait for anything.
template <bool kIsDynamic, WgmmaTile kTile>
class WgradTiles {
 public:
  __device__ __forceinline__ explicit WgradTiles(const WgmmaParams& p)
      : params_(p), is_tile_(FindWgradTile<kTile>(p, WgradCluster<kTile>(p).index, &tile_)) {}

  // Calls copy(tile), and then wait(). The cluster asks for its next tile between them, while its sums are added.
  template <WgradReader kReader, typename Copy, typename Wait>
  __device__ __forceinline__ void ForEach(WgradNextTile<kTile>& next_tile, Copy&& copy, Wait&& wait) {
    WgradTileScheduler<kIsDynamic, kTile, kReader> scheduler(params_, next_tile);
    for (uint32_t i = scheduler.First();;) {
      if (is_tile_) copy(tile_);
      i = scheduler.Next(i);
      if (is_tile_) wait();
      if (i >= params_.tiles) return;
      is_tile_ = FindWgradTile<kTile>(params_, i, &tile_);
    }
  }

 private:
  const WgmmaParams& params_;
  WgradWorkTile tile_;
  bool is_tile_;
};

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
    int32_t k_block;
    const int32_t tap = FastDivmod<int32_t>(p.k_blocks, p.k_block_reciprocal).Divide(block, &k_block);
    return {block < tile.end_unit ? tile.first_tap + tap : -1, k_block * kBlockRows};
  }
}

}  // namespace jaxconv
