// What a kernel of the direct family is launched with, and a thread block's part of it.
//
// A thread block has some source and output channels of one residue class, and computes areas of output positions, one
// after the other. The source pixels of an area, a box with the halo that its taps reach, lie in shared memory once for
// all taps. In shared memory a pixel is pieces of eight channels; a row of the filter matrix that is multiplied with
// such a piece is an entry: a (tap, piece).
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/convert.cuh"
#include "common/epilogue.h"
#include "common/family.h"
#include "common/points.cuh"
#include "conv_problem.h"
#include "direct/config.h"
#include "direct/memory.h"
#include "direct/settings.h"

namespace jaxconv {

// Which channels of a conv's filter are contiguous, in pieces of eight: source channels, output channels, or none.
enum class FilterOrder { kIns, kOuts, kNone };

// How a residue class's positions are cut into areas.
struct AreaGrid {
  Divider<int32_t> by_wide, by_high, by_deep;  // areas along a row, and so on
  int32_t of_image;

  AreaGrid() = default;
  __host__ __device__ __forceinline__ AreaGrid(const Area& area, const int32_t (&count)[kSpatial]) {
    const int32_t high = (count[1] + area.rows - 1) / area.rows, wide = (count[2] + area.cols - 1) / area.cols;
    by_wide = Divider<int32_t>(wide), by_high = Divider<int32_t>(high), by_deep = Divider<int32_t>(count[0]);
    of_image = count[0] * high * wide;
  }
};

// Elements of a 16-byte vector of a pixel, and a row of the filter's matrices.
template <typename T>
inline constexpr int kVector = kTraits<T>.vector();
template <typename T>
using FilterRow = Pack<T, kVector<T>>;

struct DirectParams {
  CUtensorMap src_map;  // for TMA, where there is one
  CUtensorMap dst_map;  // of a wgrad's gradient
  ConvProblem problem;
  // What the first box waits for lies together: parameters come in lines, each from afar. Reciprocals are made on the
  // host, as divisions are among a thread block's first instructions.
  Divider<int32_t> by_workers, by_chunks, by_channel_blocks;
  AreaGrid grid;    // of the only class
  int32_t workers;  // thread blocks that share out the areas
  int32_t channel_blocks;
  int32_t chunks;        // parts of the source channels, of the only group
  int32_t block_groups;  // groups of a channel block; 0: a part of the only group's channels
  int32_t col_blocks;    // blocks of eight output channels of a channel block
  PixelLayout src_pixel;
  PixelLayout dst_pixel;  // of a wgrad
  Area area;
  int32_t position_elements;  // where the source is read in runs: from one position to the next
  bool src_in_rows;  // whether the map takes the pixels of a row for one: they are neighbours, and TMA is slow with
  bool dst_in_rows;  // pieces of 16 bytes
  DirectPlaces places;
  int32_t copied[kSpatial];  // source pixels that are copied at once: the area's box, or a row of it
  Divider<int32_t> by_cols, by_pieces, by_ins, by_outs;
  int32_t dst_apart[kSpatial];  // elements between neighbouring positions of a class
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;       // the filter, or the destination's gradient
  void* out;             // the result, or the slices in the scratch
  int64_t out_elements;  // of one slice
  DType out_type;
  int32_t entry_pieces;  // pieces of source channels that a set of output channels reads of each tap: see FirstPiece
  int32_t positions;     // of an area, with those behind its end that make whole multiplications, if it has such
  int32_t items;         // of a wgrad: warps that have a thread block's sums
  int32_t parts;         // and of its positions, among so many warps each
  int32_t row_taps;      // where warps walk: taps of a row; else 0
  int32_t row_dilation;  // where warps walk: source rows from one row of taps to the next
  FilterOrder filter_order;
  Epilogue epilogue;  // of a conv
};

struct Channels {
  int32_t group;  // the first
  int32_t src;    // the first of all groups' channels
  int32_t src_count;
  int32_t dst;
  int32_t dst_count;
};

// An area's place among the class's positions.
struct AreaPlace {
  int32_t image;
  int32_t at[kSpatial];
};

// Where a position is in an area: of a walk its first row. As many walks as the dilation has rows begin beside each
// other, and the next ones behind their ends.
template <bool kWalks>
struct AreaPosition {
  int32_t column;
  int32_t row;

  __device__ __forceinline__ AreaPosition(const DirectParams& p, int32_t position)
      : row(p.by_cols.Divide(position, &column)) {
    if (kWalks) row = row / p.row_dilation * (p.area.walk * p.row_dilation) + row % p.row_dilation;
  }
};

class DirectBlock {
 public:
  __device__ __forceinline__ DirectBlock(const DirectParams& p, int src_chunks, int vector) {
    int32_t part = 0, block, rest = p.by_workers.Divide(static_cast<int32_t>(blockIdx.x), &worker);
    if (src_chunks > 1) rest = p.by_chunks.Divide(rest, &part);
    residue_ = ClassOf(p, p.by_channel_blocks.Divide(rest, &block));
    grid_ = p.problem.class_count > 1 ? AreaGrid(p.area, residue_.count) : p.grid;
    const ConvProblem& q = p.problem;
    areas = static_cast<int32_t>(q.batch) * grid_.of_image;
    const int32_t ins = static_cast<int32_t>(q.in_channels), outs = static_cast<int32_t>(q.out_channels);
    if (p.block_groups > 0) {
      const int32_t first = block * p.block_groups, count = min(p.block_groups, static_cast<int32_t>(q.groups) - first);
      channels = {first, first * ins, count * ins, first * outs, count * outs};
    } else {
      const int32_t chunk = p.src_pixel.pieces * vector, cols = p.col_blocks * 8;
      channels = {0, part * chunk, min(ins - part * chunk, src_chunks > 1 ? chunk : ins), block * cols,
                  min(outs - block * cols, cols)};
    }
    first_to = channels.dst;
    for (int d = 0; d < kSpatial; ++d) first_to += residue_.phase[d] * q.dst.spatial[d];
  }

  __device__ __forceinline__ const ResidueClass& residue() const { return residue_; }

  __device__ __forceinline__ AreaPlace Place(const DirectParams& p, int32_t area) const {
    AreaPlace place;
    int32_t h, w;
    area = grid_.by_wide.Divide(area, &w);
    area = grid_.by_high.Divide(area, &h);
    place.image = grid_.by_deep.Divide(area, &place.at[0]);
    place.at[1] = h * p.area.rows;
    place.at[2] = w * p.area.cols;
    return place;
  }

  int32_t worker;

 private:
  // The only one has all taps and positions. The way to the table is long for a small layer.
  static __device__ __forceinline__ ResidueClass ClassOf(const DirectParams& p, int index) {
    const ConvProblem& q = p.problem;
    if (q.class_count > 1) return p.classes[index];
    return {0,
            q.tap_count,
            {},
            {static_cast<int32_t>(q.dst_size[0]), static_cast<int32_t>(q.dst_size[1]),
             static_cast<int32_t>(q.dst_size[2])}};
  }

  ResidueClass residue_;
  AreaGrid grid_;

 public:
  int32_t areas;
  Channels channels;
  int64_t first_to;  // elements from the destination's origin to the first area's first channel
};

// The first piece of source channels that the set of output channels that begins with a column reads. It is a multiple
// of entry_pieces, a power of two, or zero: it may be added to a piece by exclusive or.
template <typename T>
__device__ __forceinline__ int32_t FirstPiece(const DirectParams& p, int32_t first_col) {
  if (p.entry_pieces == p.src_pixel.pieces) return 0;
  const int32_t first = first_col / static_cast<int32_t>(p.problem.out_channels) *
                        static_cast<int32_t>(p.problem.in_channels) / kVector<T>;
  return first & -p.entry_pieces;
}

// A source channel's, or an output channel's, part of a place in the filter: elements. Those of different groups have
// none together.
struct FilterPlace {
  int64_t at;
  int32_t group;
};

// Places in the filter of a block's source and output channels.
class FilterPlaces {
 public:
  __device__ __forceinline__ FilterPlaces(const DirectParams& p, const Channels& channels, bool is_grouped)
      : strides_(p.problem.filter),
        channels_(channels),
        grouped_(is_grouped),
        outs_(static_cast<int32_t>(p.problem.out_channels)),
        by_ins_(p.by_ins),
        by_outs_(p.by_outs) {}

  __device__ __forceinline__ FilterPlace OfIn(int32_t in) const {
    if (in >= channels_.src_count) return {0, -1};
    if (!grouped_) return {(channels_.src + in) * strides_.in, 0};
    const int32_t group = by_ins_.Divide(in, &in);
    return {in * strides_.in + (channels_.group + group) * strides_.group, group};
  }

  __device__ __forceinline__ FilterPlace OfOut(int32_t out) const {
    if (out >= channels_.dst_count) return {0, -2};
    if (!grouped_) return {(channels_.dst + out) * strides_.out, 0};
    const int32_t group = by_outs_.Divide(out, &out);
    return {out * strides_.out, group};
  }

  // Of a source and an output channel, or -1 where they are of different groups or none.
  __device__ __forceinline__ int64_t Of(int32_t in, int32_t out) const {
    const FilterPlace row = OfIn(in), col = OfOut(out);
    return row.group == col.group ? row.at + col.at : -1;
  }

  // The place of a source channel's first of eight output channels, if these are contiguous, and which of them are of
  // its group: from first to before last.
  __device__ __forceinline__ int64_t OfRow(int32_t in, int32_t out, int32_t* first, int32_t* last) const {
    if (in >= channels_.src_count || out >= channels_.dst_count) return -1;
    *first = 0, *last = kColBlock;
    if (!grouped_) return (channels_.src + in) * strides_.in + channels_.dst + out;
    const int32_t group = by_ins_.Divide(in, &in);
    *first = group * outs_ - out, *last = *first + outs_;
    return *first < kColBlock && *last > 0 ? in * strides_.in + channels_.dst + out : -1;
  }

 private:
  FilterStrides strides_;
  Channels channels_;
  bool grouped_;
  int32_t outs_;
  Divider<int32_t> by_ins_, by_outs_;
};

}  // namespace jaxconv
