// What a kernel of the wgmma family is launched with, and the positions that its rows are.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "common/convert.cuh"
#include "common/family.h"
#include "common/fast_division.h"
#include "common/ptx_cluster.cuh"
#include "conv_epilogue.h"
#include "conv_problem.h"
#include "wgmma/config.h"

namespace jaxconv {

// All residue classes have the positions of the largest one here: what lies outside of the result is not stored.
//
// The constants' cache begins empty, and a thread block waits for each line of it. So what it reads before its first
// copy, and at its end, is in the first lines.
inline constexpr size_t kConstantLine = 64;

struct WgmmaParams {
  // Of all kernels. A reciprocal is 2^32 - 1 over its number: the hardware has no fast division of integers.
  uint32_t tiles;  // of clusters, of all classes
  // Of a class's tiles. A tile's neighbour in their order is along the inner side: columns, or rows of wgrad without
  // cols_inside.
  int32_t outer_clusters, inner_clusters;
  uint32_t outer_cluster_reciprocal, inner_cluster_reciprocal;
  int32_t class_taps;  // of the only residue class, also those of neighbours' rows; 0 of several
  int32_t split;
  uint32_t split_reciprocal;
  int32_t k_blocks;  // of a tap: of block_k source channels each
  uint32_t k_block_reciprocal;
  int32_t block_k;   // kBlockK, or less
  int16_t rank;      // of the maps; 2: pixels are the rows of a matrix, which the filter's one tap reads as they lie
  bool has_groups;   // whether columns are those of several groups, see GroupsAreColumns
  bool cols_inside;  // of wgrad: neighbours have the next columns
  int32_t live_classes;  // those that have positions, the first ones of the table
  int32_t tiles_ahead;   // that the scheduler broadcasts, kTile.stages at most
  int32_t out_channels;
  bool is_plain;      // one residue class has positions, and tiles have all of its taps
  bool leaves_out;    // taps that see nothing of the image, or of a neighbour, from a tile; of wgrad, see SeenSteps
  bool has_rows;      // of neighbours
  bool has_out_maps;  // and residual_maps, if there is a residual

  // Of what is no matrix.
  const Tap* taps;
  int32_t counts[kSpatial];
  uint32_t count_reciprocals[kSpatial];
  int32_t corner[kSpatial];  // of the first position's window, in any class
  int32_t step[kSpatial];    // pixels from a position to the next
  int32_t tap_stride;        // elements of the filter from a tap to the next
  uint32_t tap_reciprocal;

  // Of wgrad.
  int32_t class_units;              // of rows of the only residue class, see WgradUnit; 0 of several
  int32_t slice_steps, steps_left;  // steps of positions of a class by slices: the quotient, and what is left
  int32_t wgrad_parts;              // slices that a cluster adds
  int32_t taps_h, taps_w;           // rows of a window's plane, and taps of a row
  int32_t tap_pixels;               // from a tap of a row to the next
  int32_t filter_taps;              // of all that is no matrix
  // Of halo tiles.
  int32_t unit_rows, unit_cols;             // positions
  int32_t halo_rows, halo_cols;             // pixels of the largest plane that they see
  uint32_t step_reciprocals[kSpatial - 1];  // of rows, and of columns
  // How many tiles the schedulers have asked for: zero before and after a launch. Null: tiles are shared out
  // beforehand.
  uint32_t* asked_for;

  int32_t whole_rows;     // see WholeRows
  int32_t empty_classes;  // of live ones, those without taps whose zeros are stored beside other classes' tiles
  uint32_t class_tiles;   // of clusters, of a class
  uint32_t rounds;        // of a class: a round gives each cluster a tile, see WgmmaTileOrder
  const ResidueClass* classes;
  void* out;               // where TMA does not store: the result, or the workspace of split-K
  int64_t slice_elements;  // from a slice's results in the workspace to the next one's
  DType out_type;
  int32_t gradient_channels;   // of all groups
  float* gradient_sums;        // see GradientSums; null: they are not asked for
  int32_t gradient_row_tiles;  // tiles that share out a slice's gradient
  ConvProblem problem;
  CUtensorMap src_map;
  CUtensorMap rhs_map;
  CUtensorMap out_maps[kMostWgmmaClasses];  // of each class
  CUtensorMap residual_maps[kMostWgmmaClasses];
  // Rows of neighbours. Of halo tiles: those before the image and those after it. In im2col mode: those that the
  // table's first taps see, and those that its last taps see.
  CUtensorMap rows_maps[2];
  CUtensorMap part_maps[3];  // of halo tiles without rows before the image, without rows after it, without either
  int32_t rows_dim;          // their dimension of space
  int32_t rows_count[2];
  int32_t rows_shift[2];       // from a row of the image to its coordinate among them
  int32_t rows_taps[2];        // in im2col mode, how many taps see them
  int32_t rows_first_cluster;  // of a class's tiles, the one that comes first: those behind it see rows after the image
  // Of groups.
  int32_t group_cols;  // of each
  uint32_t group_col_reciprocal;
  int32_t group_channels;         // of the source, from a group to the next
  int32_t filter_group_channels;  // the same of a filter whose groups are side by side along K; 0: along columns
  // Of wgrad that leaves out steps: positions of an image, and of one of its rows, and what rows are of: pixels along
  // the outermost dimension, and how far positions are apart there.
  int32_t image_positions, row_positions;
  uint32_t image_reciprocal, outer_step_reciprocal;
  int32_t outer_size, outer_step;
  const void *src, *rhs;  // what the maps read, for sums of tf32 that are not finite
  Epilogue epilogue;      // of a conv
};
static_assert(alignof(WgmmaParams) % kConstantLine == 0, "TMA's maps align the parameters to such lines");
static_assert(offsetof(WgmmaParams, taps) == kConstantLine && offsetof(WgmmaParams, class_units) == 2 * kConstantLine &&
                  offsetof(WgmmaParams, whole_rows) == 3 * kConstantLine,
              "what is read together is in one line of the constants' cache");

// The most channels of one tap that are a step of K: a row of 128 bytes, as TMA swizzles it.
template <typename T>
inline constexpr int kBlockK = kTraits<T>.swizzle_row();

// A column as one of its group's.
struct GroupColumn {
  int32_t group = 0;
  int32_t col;

  __device__ __forceinline__ GroupColumn(const WgmmaParams& p, int32_t of_all) : col(of_all) {
    if (!p.has_groups) return;
    group = FastDivmod<int32_t>(p.group_cols, p.group_col_reciprocal).Divide(of_all, &col);
  }
};

// Where a tile's operands begin. All of its columns are of one group.
struct OperandOrigin {
  int32_t src_channel = 0;     // the group's first one
  int32_t filter_channel = 0;  // the same in the filter's map
  int32_t filter_col;

  __device__ __forceinline__ OperandOrigin(const WgmmaParams& p, int32_t first_col) : filter_col(first_col) {
    if (!p.has_groups) return;
    const GroupColumn first(p, first_col);
    src_channel = first.group * p.group_channels;
    filter_channel = first.group * p.filter_group_channels;
    if (p.filter_group_channels > 0) filter_col = first.col;
  }
};

// The same where there are no groups: a step has no more instructions.
struct OriginWithoutGroups {
  static constexpr int32_t src_channel = 0, filter_channel = 0;
  int32_t filter_col;
};

// A tap of a tile by its index. Where there are rows of neighbours, first come the taps that see one's, then all taps,
// which see the image, then those that see the other one's.
struct TapCoord {
  static constexpr int32_t kImage = -1;
  int32_t tap;            // of the residue class
  int32_t rows = kImage;  // whose it sees: of rows_maps, or kImage

  __device__ __forceinline__ TapCoord(const WgmmaParams& p, int32_t index) : tap(index) {
    if (!p.has_rows) return;
    const int32_t first = p.rows_taps[0], last = p.rows_taps[1];
    if (index < first) {
      rows = 0;
    } else if (index >= p.class_taps - last && index < p.class_taps) {
      rows = 1, tap -= first + last;
    } else {
      tap -= first;
    }
  }
};

// A pixel's coordinate in a dimension of space.
__device__ __forceinline__ int32_t Along(int32_t dim, const ptx::PixelCoord& at) {
  return dim == 2 ? at.w : dim == 1 ? at.h : at.d;
}
__device__ __forceinline__ ptx::PixelCoord MovedAlong(int32_t dim, int32_t by, ptx::PixelCoord at) {
  (dim == 2 ? at.w : dim == 1 ? at.h : at.d) += by;
  return at;
}

// From a row of a class to its position. With halo tiles 64 rows are a unit, one line of positions after the other.
template <WgmmaTile kTile>
class RowPositions {
 public:
  __device__ explicit RowPositions(const WgmmaParams& p)
      : by_count_{{p.counts[0], p.count_reciprocals[0]},
                  {p.counts[1], p.count_reciprocals[1]},
                  {p.counts[2], p.count_reciprocals[2]}},
        unit_rows_(p.unit_rows),
        unit_cols_(p.unit_cols) {}

  // Images are counted on behind the last one.
  __device__ __forceinline__ ptx::PixelCoord At(int32_t row) const {
    if constexpr (!kTile.halo) return OfCounts(row);
    const auto unsigned_row = static_cast<uint32_t>(row);  // divided by shifts
    ptx::PixelCoord at = OfUnit(unsigned_row / kUnitRows);
    const uint32_t in_unit = unsigned_row % kUnitRows;
    if (unit_rows_ == 1) {
      at.w += in_unit;
    } else {
      at.w += in_unit % kUnitSide, at.h += in_unit / kUnitSide;
    }
    return at;
  }

  // A unit's first one.
  __device__ __forceinline__ ptx::PixelCoord OfUnit(int32_t unit) const {
    ptx::PixelCoord at = OfCounts(unit);
    at.w *= unit_cols_;
    at.h *= unit_rows_;
    return at;
  }

 private:
  __device__ __forceinline__ ptx::PixelCoord OfCounts(int32_t i) const {
    ptx::PixelCoord at;
    int32_t rest = by_count_[2].Divide(i, &at.w);
    rest = by_count_[1].Divide(rest, &at.h);
    at.image = by_count_[0].Divide(rest, &at.d);
    return at;
  }

  FastDivmod<int32_t> by_count_[kSpatial];
  int32_t unit_rows_;
  int32_t unit_cols_;
};

// Where a residue class's positions begin. If there is one class, the table is not read: a thread block would wait.
struct ClassPhase {
  int32_t of[kSpatial] = {};

  __device__ __forceinline__ ClassPhase(const WgmmaParams& p, int32_t residue) {
    if (p.class_taps > 0) return;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) of[d] = p.classes[residue].phase[d];
  }
};

// The same coordinates, in pixels of a tensor.
template <typename Step>
__device__ __forceinline__ ptx::PixelCoord InPixels(const ptx::PixelCoord& at, const Step (&step)[kSpatial],
                                                    const int32_t (&first)[kSpatial]) {
  return {at.w * static_cast<int32_t>(step[2]) + first[2], at.h * static_cast<int32_t>(step[1]) + first[1],
          at.d * static_cast<int32_t>(step[0]) + first[0], at.image};
}

}  // namespace jaxconv
