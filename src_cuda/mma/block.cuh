// What a thread block of the mma family multiplies: a tile of one class's rows over one slice of the reduction, with a
// few N tiles in turn. An N tile is a tile of one group's columns. What is worked out for the rows serves all of them.
#pragma once

#include <cstdint>

#include "common/points.cuh"
#include "common/product.cuh"
#include "common/step_table.cuh"
#include "common/types.h"
#include "conv_epilogue.h"

namespace jaxconv {

struct MmaParams : ProductParams {
  uint32_t n_tiles;  // of all groups
  uint32_t n_tiles_per_cta;
  uint32_t merged;      // of kernels that merge: the residue classes whose columns follow each other
  uint32_t class_cols;  // likewise: the columns of each
  Epilogue epilogue;
  float* gradient_sums;  // of a wgrad: those of each slice, by channels; null: of none
};

// A column of merged classes: the elements to add to the first class's offsets in the filter and in the result.
struct MergedCol {
  int64_t filter;
  int64_t result;

  __device__ static MergedCol Of(const MmaParams& p, int64_t col) {
    const ResidueClass& residue = p.classes[static_cast<uint32_t>(col) / p.class_cols];
    const int64_t col_of_class = static_cast<uint32_t>(col) % p.class_cols;
    const int32_t filter = p.taps[residue.first_tap].filter_delta - p.taps[p.classes[0].first_tap].filter_delta;
    MergedCol found{filter + col_of_class * p.rhs_col_stride, col_of_class * p.out_col_stride};
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      found.result += (residue.phase[d] - p.classes[0].phase[d]) * p.problem.dst.spatial[d];
    }
    return found;
  }
};

// Traps if the plan is of another problem: merged classes see the same source pixels, and their columns are equally far
// apart if the filter lies along the steps.
template <bool kKMajor>
__device__ __forceinline__ void CheckMerged(const MmaParams& p) {
  const ResidueClass& first = p.classes[0];
  for (uint32_t i = threadIdx.x; i < p.merged * first.tap_count; i += blockDim.x) {
    const uint32_t c = i / first.tap_count, t = i % first.tap_count;
    const ResidueClass& residue = p.classes[c];
    const Tap &tap = p.taps[residue.first_tap + t], &of_first = p.taps[first.first_tap + t];
    const int64_t apart = tap.filter_delta - of_first.filter_delta;
    const int64_t first_apart = p.taps[residue.first_tap].filter_delta - p.taps[first.first_tap].filter_delta;
    bool is_same =
        residue.tap_count == first.tap_count && apart == (kKMajor ? c * p.class_cols * p.rhs_col_stride : first_apart);
    for (int d = 0; d < kSpatial; ++d) {
      is_same &= residue.count[d] == first.count[d] && tap.shift[d] == of_first.shift[d];
    }
    if (!is_same) __trap();
  }
}

// Points in shared memory. Every ninth is unused: threads that copy vectors of eight elements read every eighth point,
// and these would all be in the same banks.
template <int kCount>
class PointTable {
 public:
  __device__ Point& operator[](int i) { return points_[i + i / 8]; }
  __device__ const Point& operator[](int i) const { return points_[i + i / 8]; }

 private:
  Point points_[kCount + kCount / 8];
};

struct NTile {
  uint32_t group;
  int64_t first_col;
};

// Points are those of the first group; `src` is in bytes, and so is `partner` where it is an operand's.
template <int kRows, typename Index>
struct Block {
  const MmaParams& params;
  const ClassPointsOf<Index>& points;
  const PointTable<kRows>& rows;
  StepRange range;
  uint32_t row_tile;

  // The tap, in its class, of a (tap, channel).
  __device__ __forceinline__ int TapOf(int64_t i) const {
    int channel;
    return points.TapOf(i, &channel);
  }
};

}  // namespace jaxconv
