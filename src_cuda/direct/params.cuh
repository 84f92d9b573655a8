// What a kernel of the direct family is launched with, and a thread block's part of it.
//
// A thread block has some source and output channels of one residue class, and computes output tiles, one after the
// other. An output tile's source pixels are its halo tile: it lies in shared memory once for all taps. A pixel there is
// 16-byte vectors of channels. An entry is a (tap, vector): a row of the filter matrix that is multiplied with such a
// vector.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/family.h"
#include "common/fast_division.h"
#include "conv_epilogue.h"
#include "conv_problem.h"
#include "direct/config.h"
#include "direct/memory.h"
#include "direct/settings.h"

namespace jaxconv {

// Which channels of a conv's filter are contiguous, in whole vectors: source channels, output channels, or none.
enum class FilterOrder { kIns, kOuts, kNone };

// How a residue class's positions are cut into output tiles.
struct TileGrid {
  FastDivmod<int32_t> by_wide, by_high, by_deep;  // output tiles along a row, and so on
  int32_t of_image;

  TileGrid() = default;
  __host__ __device__ __forceinline__ TileGrid(const OutputTile& tile, const int32_t (&count)[kSpatial]) {
    const int32_t high = (count[1] + tile.rows - 1) / tile.rows, wide = (count[2] + tile.cols - 1) / tile.cols;
    by_wide = FastDivmod<int32_t>(wide), by_high = FastDivmod<int32_t>(high), by_deep = FastDivmod<int32_t>(count[0]);
    of_image = count[0] * high * wide;
  }
};

// Elements of a 16-byte vector of a pixel, and a row of the filter's matrices.
template <typename T>
inline constexpr int kVector = kTraits<T>.vector();
template <typename T>
using FilterRow = Pack<T, kVector<T>>;

// The output channel of a column, among those of two blocks of eight. A lane has two neighbouring columns of each. Sums
// of int8 are int32: their columns are ordered so that the lane has four neighbouring channels, which it stores at
// once.
template <typename Sum>
inline constexpr bool kInFours = std::is_same_v<Sum, int32_t>;
template <typename Sum>
constexpr int32_t ChannelOfCol(int32_t col) {
  return kInFours<Sum> ? (col & ~15) + (col & 6) * 2 + (col & 8) / 4 + (col & 1) : col;
}

struct DirectParams {
  CUtensorMap src_map;  // for TMA, where there is one
  CUtensorMap dst_map;  // of a wgrad's gradient
  // Of a row of what is copied at once: before the image, in it, and after it. The two others are neighbours'.
  CUtensorMap row_maps[3];
  bool has_rows;
  int32_t rows_dim;  // of space: 0 or 1
  int32_t rows_before, rows_after;
  uint32_t row_bytes;  // from one to the next, in a halo tile
  ConvProblem problem;
  // The first halo tile waits for these, so they lie together: parameters come in lines, each from afar. The host makes
  // reciprocals, as divisions are among a thread block's first instructions.
  FastDivmod<int32_t> by_workers, by_channel_parts, by_channel_blocks;
  TileGrid grid;    // of the only class
  int32_t workers;  // thread blocks that share out the output tiles
  int32_t channel_blocks;
  int32_t channel_parts;  // parts of the source channels, of the only group
  int32_t block_groups;   // groups of a channel block; 0: a part of the only group's channels
  int32_t col_blocks;     // blocks of eight output channels of a channel block
  PixelLayout src_pixel;
  PixelLayout dst_pixel;  // of a wgrad
  OutputTile tile;
  int32_t position_elements;  // with packed K: from one position to the next
  bool src_in_rows;           // whether the map takes a row of pixels for one pixel: TMA is slow with boxes
  bool dst_in_rows;           // whose rows have 16 bytes
  DirectOffsets offsets;
  int32_t copied[kSpatial];  // source pixels that are copied at once: the halo tile, or a row of it
  FastDivmod<int32_t> by_cols, by_vectors, by_ins, by_outs;
  int32_t dst_apart[kSpatial];  // elements between neighbouring positions of a class
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;       // the filter, or the destination's gradient
  void* out;             // the result, or the slices in the workspace
  int64_t out_elements;  // of one slice
  DType out_type;
  int32_t entry_vectors;  // vectors of source channels that a set of output channels reads of each tap: see FirstVector
  int32_t positions;      // of an output tile, and behind its end as many as make whole multiplications
  int32_t items;          // of a wgrad: warps that have a thread block's sums
  int32_t parts;          // and of its positions, among so many warps each
  int32_t row_taps;       // with row streaming: taps of a row; else 0
  int32_t row_dilation;   // with row streaming: source rows from one row of taps to the next
  FilterOrder filter_order;
  Epilogue epilogue;     // of a conv
  float* gradient_sums;  // of a wgrad: of each worker and share, by channels; null: of none
  int32_t all_channels;  // of the gradient
};

struct Channels {
  int32_t group;  // the first
  int32_t src;    // the first of all groups' channels
  int32_t src_count;
  int32_t dst;
  int32_t dst_count;
};

// Where an output tile begins among the class's positions.
struct TileCoord {
  int32_t image;
  int32_t at[kSpatial];
};

// Where a position is in an output tile; with row streaming, where its stream begins. As many streams as the dilation
// has rows begin beside each other, and the next ones behind their ends.
template <bool kStreamsRows>
struct TilePosition {
  int32_t column;
  int32_t row;

  __device__ __forceinline__ TilePosition(const DirectParams& p, int32_t position)
      : row(p.by_cols.Divide(position, &column)) {
    if (kStreamsRows) row = row / p.row_dilation * (p.tile.stream * p.row_dilation) + row % p.row_dilation;
  }
};

class DirectBlock {
 public:
  __device__ __forceinline__ DirectBlock(const DirectParams& p, int src_parts, int vector) {
    int32_t part = 0, block, rest = p.by_workers.Divide(static_cast<int32_t>(blockIdx.x), &worker);
    if (src_parts > 1) rest = p.by_channel_parts.Divide(rest, &part);
    residue_ = ClassOf(p, p.by_channel_blocks.Divide(rest, &block));
    grid_ = p.problem.class_count > 1 ? TileGrid(p.tile, residue_.count) : p.grid;
    const ConvProblem& q = p.problem;
    tiles = static_cast<int32_t>(q.batch) * grid_.of_image;
    const int32_t ins = static_cast<int32_t>(q.in_channels), outs = static_cast<int32_t>(q.out_channels);
    if (p.block_groups > 0) {
      const int32_t first = block * p.block_groups, count = min(p.block_groups, static_cast<int32_t>(q.groups) - first);
      channels = {first, first * ins, count * ins, first * outs, count * outs};
    } else {
      const int32_t part_channels = p.src_pixel.vectors * vector, cols = p.col_blocks * 8;
      channels = {0, part * part_channels, min(ins - part * part_channels, src_parts > 1 ? part_channels : ins),
                  block * cols, min(outs - block * cols, cols)};
    }
    first_to = channels.dst;
    for (int d = 0; d < kSpatial; ++d) first_to += residue_.phase[d] * q.dst.spatial[d];
  }

  __device__ __forceinline__ const ResidueClass& residue() const { return residue_; }

  __device__ __forceinline__ TileCoord CoordOf(const DirectParams& p, int32_t tile) const {
    TileCoord coord;
    int32_t h, w;
    tile = grid_.by_wide.Divide(tile, &w);
    tile = grid_.by_high.Divide(tile, &h);
    coord.image = grid_.by_deep.Divide(tile, &coord.at[0]);
    coord.at[1] = h * p.tile.rows;
    coord.at[2] = w * p.tile.cols;
    return coord;
  }

  int32_t worker;

 private:
  // The only class has all taps and positions. A small layer would wait long for the table.
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
  TileGrid grid_;

 public:
  int32_t tiles;
  Channels channels;
  int64_t first_to;  // elements from the destination's origin to the first output tile's first channel
};

// The first vector of source channels that a set of output channels reads, by the set's first column. It is zero or a
// multiple of entry_vectors, which is a power of two then: exclusive or adds it to a vector's number.
template <typename T>
__device__ __forceinline__ int32_t FirstVector(const DirectParams& p, int32_t first_col) {
  if (p.entry_vectors == p.src_pixel.vectors) return 0;
  const int32_t first = first_col / static_cast<int32_t>(p.problem.out_channels) *
                        static_cast<int32_t>(p.problem.in_channels) / kVector<T>;
  return first & -p.entry_vectors;
}

// What a source channel, or an output channel, adds to an offset in the filter: elements. Channels of different groups
// have no offset together.
struct FilterOffset {
  int64_t at;
  int32_t group;
};

// Offsets in the filter of a block's source and output channels.
class FilterOffsets {
 public:
  __device__ __forceinline__ FilterOffsets(const DirectParams& p, const Channels& channels, bool is_grouped)
      : strides_(p.problem.filter),
        channels_(channels),
        grouped_(is_grouped),
        outs_(static_cast<int32_t>(p.problem.out_channels)),
        by_ins_(p.by_ins),
        by_outs_(p.by_outs) {}

  __device__ __forceinline__ FilterOffset OfIn(int32_t in) const {
    if (in >= channels_.src_count) return {0, -1};
    if (!grouped_) return {(channels_.src + in) * strides_.in, 0};
    const int32_t group = by_ins_.Divide(in, &in);
    return {in * strides_.in + (channels_.group + group) * strides_.group, group};
  }

  __device__ __forceinline__ FilterOffset OfOut(int32_t out) const {
    if (out >= channels_.dst_count) return {0, -2};
    if (!grouped_) return {(channels_.dst + out) * strides_.out, 0};
    const int32_t group = by_outs_.Divide(out, &out);
    return {out * strides_.out, group};
  }

  // Of a source and an output channel, or -1 where they are of different groups or none.
  __device__ __forceinline__ int64_t Of(int32_t in, int32_t out) const {
    const FilterOffset row = OfIn(in), col = OfOut(out);
    return row.group == col.group ? row.at + col.at : -1;
  }

  // The offset of a source channel's first of eight output channels, if these are contiguous. And which of them are of
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
  FastDivmod<int32_t> by_ins_, by_outs_;
};

}  // namespace jaxconv
