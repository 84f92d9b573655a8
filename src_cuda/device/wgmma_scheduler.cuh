// The works of the wgmma family's clusters, and their order.
#pragma once

#include <cstdint>

#include "device/ptx_cluster.cuh"
#include "device/wgmma_params.cuh"

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

// Fills in the steps of a class's slice. Of one class all taps are there, without a look at the table.
__device__ __forceinline__ void FindSteps(const WgmmaParams& p, WgmmaWork* work) {
  WgmmaSteps& steps = work->steps;
  work->first_tap = 0, steps.taps = p.problem.tap_count;
  if (p.problem.class_count > 1) {
    const ResidueClass& residue = p.classes[work->residue];
    work->first_tap = residue.first_tap, steps.taps = residue.tap_count;
  }
  const int32_t end = steps.taps * p.chunks;
  int32_t size = end;
  if (p.split > 1) size = static_cast<uint32_t>(end + p.split - 1) / static_cast<uint32_t>(p.split);
  steps.first = min(work->slice * size, end);
  steps.end = min(steps.first + size, end);
  if (steps.first == steps.end) steps.first = end, steps.end = end + 1;  // of zeros
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
    const uint32_t live = kTile.boxed ? 1 : params_.live_classes;  // boxes are of one class
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
    work->first_row = (row_cluster * kTile.row_blocks + rank % kTile.row_blocks) * kTile.rows;
    work->first_col = (col_cluster * kTile.col_blocks + rank / kTile.row_blocks) * kTile.cols;
    work->residue = live > 1 ? order_[place] : 0;
    FindSteps(params_, work);
    return true;
  }

 private:
  const WgmmaParams& params_;
  const int32_t (&order_)[kMostWgmmaClasses];
};

}  // namespace jaxconv
