// The works of the wgmma family's clusters, and their order.
#pragma once

#include <cstdint>

#include "common/ptx_cluster.cuh"
#include "wgmma/params.cuh"

namespace jaxconv {

// Steps of a reduction, a (tap, chunk of channels) each. There is one at least; behind those of all taps is one of
// zeros.
struct WgmmaSteps {
  int32_t taps;  // of the class
  int32_t first;
  int32_t end;
};

// A tile of one class's product, over one slice of its reduction.
struct alignas(16) WgmmaWork {
  int32_t residue;  // the class's row in the table
  int32_t first_tap;
  int32_t first_row;
  int32_t first_col;
  int32_t slice;
  WgmmaSteps steps;
};

// Of a class's taps, without a look at the table if there is one class.
__device__ __forceinline__ void FindTaps(const WgmmaParams& p, WgmmaWork* work) {
  work->first_tap = 0, work->steps.taps = p.class_taps;
  if (p.class_taps == 0) {
    const ResidueClass& residue = p.classes[work->residue];
    work->first_tap = residue.first_tap, work->steps.taps = residue.tap_count;
  }
}

// Fills in the steps of a slice of some of the taps.
__device__ __forceinline__ void FindSteps(const WgmmaParams& p, int32_t first_tap, int32_t end_tap, WgmmaWork* work) {
  const int32_t first = first_tap * p.chunks, end = end_tap * p.chunks, zeros = work->steps.taps * p.chunks;
  int32_t size = end - first;
  if (p.split > 1) size = static_cast<uint32_t>(size + p.split - 1) / static_cast<uint32_t>(p.split);
  WgmmaSteps& steps = work->steps;
  steps.first = min(first + work->slice * size, end);
  steps.end = min(steps.first + size, end);
  if (steps.first == steps.end) steps.first = zeros, steps.end = zeros + 1;
}

// The one tile of a cluster whose blocks have its slices.
template <WgmmaTile kTile>
__device__ __forceinline__ WgmmaWork WorkOfCluster(const WgmmaParams& p) {
  WgmmaWork work;
  work.residue = static_cast<int32_t>(blockIdx.z);
  work.first_row = static_cast<int32_t>(ptx::ClusterIndex() * kTile.rows);
  work.first_col = static_cast<int32_t>(blockIdx.y * kTile.cols);
  work.slice = static_cast<int32_t>(ptx::RankInCluster());
  FindTaps(p, &work);
  FindSteps(p, 0, work.steps.taps, &work);
  return work;
}

// Works are in rounds: as many as there are clusters are of one class, neighbouring columns of the same rows at the
// same time; the next ones are those of the other classes for the same rows, which read the same pixels, and whose
// results are neighbours. What is left at the end, of fewer works than clusters, comes class by class, those of many
// taps first, so that short works fill the end.
template <WgmmaTile kTile>
class WgmmaScheduler {
 public:
  __device__ WgmmaScheduler(const WgmmaParams& p, const int32_t (&order)[kMostWgmmaClasses])
      : params_(p), order_(order) {}

  // To be called by a warp, which may read the order behind __syncwarp: the classes by their taps, if there are
  // several.
  static __device__ void FillOrder(const WgmmaParams& p, int32_t (&order)[kMostWgmmaClasses]) {
    const int32_t c = threadIdx.x % 32;
    if (p.live_classes == 1 || c >= p.live_classes) return;
    int32_t place = 0;
    for (int32_t other = 0; other < p.live_classes; ++other) {
      const int32_t more = p.classes[other].tap_count - p.classes[c].tap_count;
      place += more > 0 || (more == 0 && other < c);
    }
    order[place] = c;
  }

  // Finds the work of an index, if there are so many.
  __device__ __forceinline__ bool Find(uint32_t index, WgmmaWork* work) const {
    if (index >= params_.works) return false;
    const uint32_t live = kTile.boxed ? 1 : params_.live_classes - params_.empty_classes;  // boxes are of one class
    uint32_t place = 0, rest = index;
    if (live > 1) {  // the class's place in the order, and the work's in the class
      const uint32_t clusters = gridDim.x / kTile.cluster(), in_rounds = params_.rounds * clusters;
      const bool in_round = index < in_rounds * live;
      const uint32_t first = in_round ? index / (clusters * live) * clusters : in_rounds;
      const uint32_t each = in_round ? clusters : params_.class_works - in_rounds;
      rest -= first * live;
      place = rest / each, rest = first + rest % each;
    }
    const int32_t rank = blockIdx.x % kTile.cluster();
    int32_t row_cluster, col_cluster;
    const int32_t along = Divider<int32_t>(params_.col_clusters, params_.col_cluster_reciprocal)
                              .Divide(static_cast<int32_t>(rest), &col_cluster);
    work->slice = Divider<int32_t>(params_.row_clusters, params_.row_cluster_reciprocal).Divide(along, &row_cluster);
    work->first_row = row_cluster * kClusterRows + rank % kTile.row_blocks * kTile.rows;
    work->first_col = (col_cluster * kTile.col_blocks + rank / kTile.row_blocks) * kTile.cols;
    work->residue = !kTile.boxed && params_.live_classes > 1 ? order_[place] : 0;
    FindTaps(params_, work);
    int32_t first = 0, end = work->steps.taps;
    if (params_.leaves_out_taps) LeaveOutTaps(*work, row_cluster * kClusterRows, &first, &end);
    FindSteps(params_, first, end, work);
    return true;
  }

 private:
  static constexpr int kClusterRows = kTile.row_blocks * kTile.rows;

  // The first taps, and the last ones, which are in the order of their rows, may see no row of the image from the rows
  // of positions that a cluster has, whose blocks take the same steps, as each copies for all.
  __device__ __forceinline__ void LeaveOutTaps(const WgmmaWork& work, int32_t first_row, int32_t* first,
                                               int32_t* end) const {
    const RowPlaces<kTile> rows(params_);
    const ptx::PixelPlace begin = rows.At(first_row), last = rows.At(first_row + kClusterRows - 1);
    if (begin.image != last.image) return;
    const auto step = static_cast<int32_t>(params_.problem.step[1]);
    const auto is_seen = [&](int32_t tap) {
      const int32_t shift = params_.taps[work.first_tap + tap].shift[1];
      return last.h * step + shift >= 0 && begin.h * step + shift < params_.problem.src_size[1];
    };
    while (*first < *end && !is_seen(*first)) ++*first;
    while (*end > *first && !is_seen(*end - 1)) --*end;
  }

  const WgmmaParams& params_;
  const int32_t (&order_)[kMostWgmmaClasses];
};

}  // namespace jaxconv
