// Which tiles a cluster of the wgmma family computes, one after the other.
#pragma once

#include <cstdint>

#include "device/step_table.cuh"
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
  StepRange steps;
};

// Clusters run through all works in turn: neighbouring columns of the same rows at the same time, classes of many taps
// first, so that short works fill the end.
template <WgmmaTile kTile>
class WgmmaScheduler {
 public:
  __device__ WgmmaScheduler(const WgmmaParams& p, const int32_t (&order)[kMostWgmmaClasses])
      : params_(p), order_(order), next_(blockIdx.x / kTile.cluster()), rank_(blockIdx.x % kTile.cluster()) {}

  // To be called by the first threads of a block: the classes by their taps.
  static __device__ void FillOrder(const WgmmaParams& p, int32_t (&order)[kMostWgmmaClasses]) {
    const int32_t c = threadIdx.x;
    if (c >= p.live_classes) return;
    int32_t place = 0;
    for (int32_t other = 0; p.live_classes > 1 && other < p.live_classes; ++other) {
      const int32_t more = p.classes[other].tap_count - p.classes[c].tap_count;
      place += more > 0 || (more == 0 && other < c);
    }
    order[place] = c;
  }

  __device__ __forceinline__ bool Next(WgmmaWork* work) {
    if (next_ >= params_.works) return false;
    uint32_t rest = next_;
    next_ += gridDim.x / kTile.cluster();
    const uint32_t col_tile = rest % params_.col_clusters * kTile.col_blocks + rank_ / kTile.row_blocks;
    rest /= params_.col_clusters;
    const uint32_t row_tile = rest % params_.row_clusters * kTile.row_blocks + rank_ % kTile.row_blocks;
    rest /= params_.row_clusters;
    work->first_row = static_cast<int32_t>(row_tile * kTile.rows);
    work->first_col = static_cast<int32_t>(col_tile * kTile.cols);
    work->slice = static_cast<int32_t>(rest % params_.split);
    work->residue = order_[rest / params_.split];
    const ResidueClass& residue = params_.classes[work->residue];
    work->first_tap = residue.first_tap, work->taps = residue.tap_count;
    const int64_t end = int64_t{residue.tap_count} * params_.chunks;
    work->steps = StepRange{0, end}.Slice(work->slice, params_.split, 1);
    if (work->steps.begin == work->steps.end) work->steps = {end, end + 1};  // of zeros
    return true;
  }

 private:
  const WgmmaParams& params_;
  const int32_t (&order_)[kMostWgmmaClasses];
  uint32_t next_;
  uint32_t rank_;  // of the block in its cluster
};

}  // namespace jaxconv
