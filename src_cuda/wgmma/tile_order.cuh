// The tiles that the clusters of the wgmma family compute, and their order.
#pragma once

#include <cstdint>

#include "common/ptx_cluster.cuh"
#include "wgmma/cluster.cuh"
#include "wgmma/params.cuh"

namespace jaxconv {

// Steps of K: a tap and BLOCK_K channels each. There is at least one: behind the steps of all taps is one of zeros.
struct WgmmaSteps {
  int32_t taps;  // of the class
  int32_t first;
  int32_t end;
};

// A tile of one residue class's product, over one slice of its K.
struct alignas(16) WgmmaWorkTile {
  int32_t residue;  // the class's row in the table
  int32_t first_tap;
  int32_t first_row;
  int32_t first_col;
  int32_t slice;
  WgmmaSteps steps;
};

// Fills in a class's taps. It does not read the table if there is one class.
__device__ __forceinline__ void FindTaps(const WgmmaParams& p, WgmmaWorkTile* tile) {
  tile->first_tap = 0, tile->steps.taps = p.class_taps;
  if (p.class_taps == 0) {
    const ResidueClass& residue = p.classes[tile->residue];
    tile->first_tap = residue.first_tap, tile->steps.taps = residue.tap_count;
  }
}

// Fills in the steps of a slice, of taps from one to another.
__device__ __forceinline__ void FindSteps(const WgmmaParams& p, int32_t first_tap, int32_t end_tap,
                                          WgmmaWorkTile* tile) {
  const int32_t first = first_tap * p.k_blocks, end = end_tap * p.k_blocks, zeros = tile->steps.taps * p.k_blocks;
  int32_t size = end - first;
  if (p.split > 1) {
    int32_t rest;
    size = FastDivmod<int32_t>(p.split, p.split_reciprocal).Divide(size + p.split - 1, &rest);
  }
  WgmmaSteps& steps = tile->steps;
  steps.first = min(first + tile->slice * size, end);
  steps.end = min(steps.first + size, end);
  if (steps.first == steps.end) steps.first = zeros, steps.end = zeros + 1;
}

// The one tile of a cluster that splits K, for the slice of this block.
template <WgmmaTile kTile>
__device__ __forceinline__ WgmmaWorkTile TileOfCluster(const WgmmaParams& p) {
  WgmmaWorkTile tile;
  tile.residue = static_cast<int32_t>(blockIdx.z);
  tile.first_row = static_cast<int32_t>(ptx::ClusterIndex() * kTile.rows);
  tile.first_col = static_cast<int32_t>(blockIdx.y * kTile.cols);
  tile.slice = static_cast<int32_t>(ptx::RankInCluster());
  FindTaps(p, &tile);
  FindSteps(p, 0, tile.steps.taps, &tile);
  return tile;
}

// Tiles are in rounds. A round is a tile of one class for each cluster: neighbouring columns of the same rows at the
// same time. The next rounds are the other classes' for the same rows, which read the same pixels, and whose results
// are neighbours. The tiles behind the last whole round come class by class. Those of many taps are first, so that
// short tiles fill the end.
template <WgmmaTile kTile>
class WgmmaTileOrder {
 public:
  __device__ WgmmaTileOrder(const WgmmaParams& p, const int32_t (&order)[kMostWgmmaClasses])
      : params_(p), order_(order) {}

  // Sorts the classes by their taps, if there are several. To be called by a warp. It may read them behind __syncwarp.
  static __device__ void FillOrder(const WgmmaParams& p, int32_t (&order)[kMostWgmmaClasses]) {
    if (p.live_classes == 1) return;
    const int32_t c = threadIdx.x % 32, taps = c < p.live_classes ? p.classes[c].tap_count : -1;
    int32_t rank = 0;
#pragma unroll
    for (int32_t other = 0; other < kMostWgmmaClasses; ++other) {
      const int32_t of_other = __shfl_sync(0xffffffff, taps, other);
      rank += of_other > taps || (of_other == taps && other < c);
    }
    if (c < p.live_classes) order[rank] = c;
  }

  // The tile of an index, if there are so many.
  __device__ __forceinline__ bool Find(uint32_t index, WgmmaWorkTile* tile) const {
    if (index >= params_.tiles) return false;
    tile->residue = 0;
    if (params_.is_plain) {
      FindCoord(index, tile);
      FindTaps(params_, tile);
      FindSteps(params_, 0, tile->steps.taps, tile);
      return true;
    }
    const uint32_t live = kTile.halo ? 1 : params_.live_classes - params_.empty_classes;  // halo tiles are of one class
    uint32_t rank = 0, rest = index;
    if (live > 1) {  // the class's rank in the order, and the tile's in the class
      const uint32_t clusters = gridDim.x / kTile.cluster(), in_rounds = params_.rounds * clusters;
      const bool in_round = index < in_rounds * live;
      const uint32_t first = in_round ? index / (clusters * live) * clusters : in_rounds;
      const uint32_t each = in_round ? clusters : params_.class_tiles - in_rounds;
      rest -= first * live;
      rank = rest / each, rest = first + rest % each;
    }
    const int32_t first_row = FindCoord(rest, tile);
    if (!kTile.halo && params_.live_classes > 1) tile->residue = order_[rank];
    FindTaps(params_, tile);
    int32_t first = 0, end = tile->steps.taps;
    if (params_.leaves_out) LeaveOutTaps(*tile, first_row, &first, &end);
    FindSteps(params_, first, end, tile);
    return true;
  }

 private:
  static constexpr int kClusterRows = kTile.row_blocks * kTile.rows;

  // Finds where a tile of a class lies. Returns its cluster's first row.
  __device__ __forceinline__ int32_t FindCoord(uint32_t index, WgmmaWorkTile* tile) const {
    const ClusterCoord<kTile> coord;
    int32_t row_cluster, col_cluster;
    const int32_t along = FastDivmod<int32_t>(params_.inner_clusters, params_.inner_cluster_reciprocal)
                              .Divide(static_cast<int32_t>(index), &col_cluster);
    tile->slice =
        FastDivmod<int32_t>(params_.outer_clusters, params_.outer_cluster_reciprocal).Divide(along, &row_cluster);
    if (!params_.is_plain && params_.has_rows) {  // tiles at an image's end are long, and would end last
      row_cluster += params_.rows_first_cluster;
      row_cluster -= row_cluster < params_.outer_clusters ? 0 : params_.outer_clusters;
    }
    tile->first_row = row_cluster * kClusterRows + static_cast<int32_t>(coord.row) * kTile.rows;
    tile->first_col = (col_cluster * kTile.col_blocks + static_cast<int32_t>(coord.col)) * kTile.cols;
    return row_cluster * kClusterRows;
  }

  // Taps are in the order of their rows. From a cluster's positions the first ones, or the last ones, may see no row of
  // the image, or of a neighbour. The blocks of a cluster take the same steps, as each copies for all.
  __device__ __forceinline__ void LeaveOutTaps(const WgmmaWorkTile& tile, int32_t first_row, int32_t* first,
                                               int32_t* end) const {
    const RowPositions<kTile> rows(params_);
    const int32_t dim = kSpatial + 2 - params_.rank, count = params_.counts[0] * params_.counts[1] * params_.counts[2];
    const int32_t end_row = min(first_row + kClusterRows, static_cast<int32_t>(params_.problem.batch) * count);
    const ptx::PixelCoord begin = rows.At(first_row), last = rows.At(end_row - 1);
    if (begin.image != last.image) return;
    const auto step = params_.step[dim];
    const auto image = static_cast<int32_t>(params_.problem.src_size[dim]);
    const int32_t begins = Along(dim, begin) * step, ends = Along(dim, last) * step;
    const auto is_seen = [&](int32_t i) {
      const TapCoord coord(params_, i);
      const bool is_image = coord.rows == TapCoord::kImage;
      const int32_t shift =
          params_.taps[tile.first_tap + coord.tap].shift[dim] + (is_image ? 0 : params_.rows_shift[coord.rows]);
      return ends + shift >= 0 && begins + shift < (is_image ? image : params_.rows_count[coord.rows]);
    };
    while (*first < *end && !is_seen(*first)) ++*first;
    while (*end > *first && !is_seen(*end - 1)) --*end;
  }

  const WgmmaParams& params_;
  const int32_t (&order_)[kMostWgmmaClasses];
};

}  // namespace jaxconv
