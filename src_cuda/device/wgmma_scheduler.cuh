// Which tiles a cluster of the wgmma family computes, one after the other.
#pragma once

#include <cstdint>

#include "device/ptx_cluster.cuh"
#include "device/wgmma_params.cuh"

namespace jaxconv {

// A tile of one class's product, over one slice of its reduction, which is counted in (tap, chunk of channels)s. There
// is a step at least.
struct WgmmaWork {
  int32_t residue;  // the class's row in the table
  int32_t first_tap;
  int32_t taps;
  int32_t first_row;
  int32_t first_col;
  int32_t slice;
  int32_t first_step;
  int32_t end_step;
};

// Fills in the steps of a class's slice. Of one class all taps are there, without a look at the table.
__device__ __forceinline__ void FindSteps(const WgmmaParams& p, WgmmaWork* work) {
  work->first_tap = 0, work->taps = p.problem.tap_count;
  if (p.problem.class_count > 1) {
    const ResidueClass& residue = p.classes[work->residue];
    work->first_tap = residue.first_tap, work->taps = residue.tap_count;
  }
  const int32_t end = work->taps * p.chunks;
  int32_t size = end;
  if (p.split > 1) size = static_cast<uint32_t>(end + p.split - 1) / static_cast<uint32_t>(p.split);
  work->first_step = min(work->slice * size, end);
  work->end_step = min(work->first_step + size, end);
  if (work->first_step == work->end_step) work->first_step = end, work->end_step = end + 1;  // of zeros
}

// The one tile of a cluster whose blocks have its slices.
template <WgmmaTile kTile>
__device__ __forceinline__ WgmmaWork WorkOfCluster(const WgmmaParams& p) {
  WgmmaWork work;
  work.residue = static_cast<int32_t>(blockIdx.z);
  work.first_row = static_cast<int32_t>(ptx::ClusterIndex() * kTile.rows);
  work.first_col = static_cast<int32_t>(blockIdx.y * kTile.cols);
  work.slice = static_cast<int32_t>(ptx::RankInCluster());
  FindSteps(p, &work);
  return work;
}

// Clusters run through all works in rounds, neighbouring columns of the same rows at the same time. In a round all have
// works of one class, and in the next ones those of the others for the same rows, which read the same pixels, and whose
// results are neighbours. What is left at the end, of fewer works than clusters, is shared out class by class, those of
// many taps first, so that short works fill the end.
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

  __device__ __forceinline__ bool Next(WgmmaWork* work) {
    const uint32_t clusters = gridDim.x / kTile.cluster();
    const int32_t rank = blockIdx.x % kTile.cluster();
    const uint32_t in_rounds = params_.rounds * clusters;
    const uint32_t live = kTile.boxed ? 1 : params_.live_classes;  // boxes are of one class
    const bool in_round = turn_ < params_.rounds * live;
    uint32_t place = 0, rest = blockIdx.x / kTile.cluster();
    // Behind the rounds, who has the longest works of a turn has the shortest of the next.
    if (live > 1 && !in_round && turn_ % 2 != 0) rest = clusters - 1 - rest;
    rest += turn_ * clusters;
    if (rest >= params_.class_works * live) return false;
    if (live > 1) {  // the class's place in the order, and the work's in the class
      const uint32_t first = in_round ? turn_ / live * clusters : in_rounds;
      const uint32_t each = in_round ? clusters : params_.class_works - in_rounds;
      rest -= first * live;
      place = rest / each, rest = first + rest % each;
    }
    ++turn_;
    int32_t row_cluster, col_cluster;
    const int32_t along = Divider<int32_t>(params_.col_clusters, params_.col_cluster_reciprocal)
                              .Divide(static_cast<int32_t>(rest), &col_cluster);
    work->slice = Divider<int32_t>(params_.row_clusters, params_.row_cluster_reciprocal).Divide(along, &row_cluster);
    work->first_row = (row_cluster * kTile.row_blocks + rank % kTile.row_blocks) * kTile.rows;
    work->first_col = (col_cluster * kTile.col_blocks + rank / kTile.row_blocks) * kTile.cols;
    work->residue = live > 1 ? order_[place] : 0;
    FindSteps(params_, work);
    return true;
  }

 private:
  const WgmmaParams& params_;
  const int32_t (&order_)[kMostWgmmaClasses];
  uint32_t turn_ = 0;
};

}  // namespace jaxconv
