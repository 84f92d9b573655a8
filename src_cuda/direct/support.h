// What tiles of the direct family do not take, and why: for planning, and for the handlers, which look at any plan.
// Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/planning.h"
#include "common/product.h"
#include "common/rules.h"
#include "common/tma_limits.h"
#include "common/types.h"
#include "conv_problem.h"
#include "direct/layout.h"

namespace jaxconv {

// Packed K has the taps of a row as they lie.
inline constexpr const char* kDilatedTaps = "taps of a row are not neighbours";
// A weight gradient's positions would not be neighbours.
inline constexpr const char* kDilatedInput = "it has no weight gradients of a dilated input";

namespace direct {

// Whether the types are none of the family's. Results of int8 have an epilogue, or are sums.
inline Reason UnsupportedTypes(const ConvProblem& p, Pass pass) {
  if (p.src_type == DType::kF32 && pass == Pass::kConv) return UnsupportedOperands(p, pass);
  if (p.src_type == DType::kBF16 && pass == Pass::kConv && RoundsFloatsToInt8(p)) {
    ConvProblem to_halves = p;
    to_halves.dst_type = p.src_type;
    return UnsupportedHalves(to_halves, pass);
  }
  if (p.src_type != DType::kS8) return UnsupportedHalves(p, pass);
  if (Reason why = UnsupportedBytes(p, pass)) return why;
  return p.dst.block != 0 ? Reason(kBlocks) : std::nullopt;
}

// Whether pixels are whole vectors of a unit of channels.
inline bool HasPixels(const TensorStrides& s, int64_t groups, int64_t channels, int unit) {
  return s.channel == 1 && (groups == 1 || s.group == channels) && s.batch % unit == 0 && s.spatial[0] % unit == 0 &&
         s.spatial[1] % unit == 0 && s.spatial[2] % unit == 0 && groups * channels % unit == 0;
}

// Why a tile of packed K does not take a source (neighbours are read two at a time, and TMA copies vectors), or why
// packed K is not needed for it.
inline Reason UnsupportedPacking(const ConvProblem& p) {
  const TensorStrides& s = p.src;
  if (p.groups > 1 || p.in_channels % kPackedVector == 0 || s.spatial[2] != p.in_channels) {
    return "it is for rows of few channels, without groups or gaps";
  }
  if (p.class_count > 1) return kDilatedTaps;
  const bool is_whole = s.batch % kPackedVector == 0 && s.spatial[0] % kPackedVector == 0 &&
                        s.spatial[1] % kPackedVector == 0 && p.src_size[2] * p.in_channels % kPackedVector == 0;
  return is_whole ? Reason() : "rows of the source are no whole 16-byte vectors";
}

}  // namespace direct

inline std::string NoVectors(int unit) { return "channels are not last, in vectors of " + std::to_string(unit); }

inline std::string NotInRows(const RowStream& stream) {
  return "it is for taps in " + std::to_string(stream.rows) + " equal rows";
}

// Why a tile does not take a pass that has results, of the family's types, whatever its taps.
inline Reason UnsupportedProblem(const DirectPass& d) {
  const ConvProblem& p = d.problem;
  if (!d.tile.IsFor(p.src_type)) return "the tile is compiled for other types";
  if (d.is_conv() && RoundsFloatsToInt8(p) && !d.tile.rounds_to_int8()) return "the tile has no results of int8";
  if (IsEmpty(p)) return "nothing is to be computed";
  const int unit = d.tile.packed > 0 ? 1 : d.vector();
  if (!direct::HasPixels(p.src, p.groups, p.in_channels, unit)) return NoVectors(unit);
  if (!direct::HasPixels(p.dst, p.groups, p.out_channels, d.out_unit())) return NoVectors(d.out_unit());
  if (Reason why = d.tile.packed > 0 ? direct::UnsupportedPacking(p) : std::nullopt) return why;
  if (p.groups > 1 && direct::BlockGroups(p, d.tile) == 0) {
    return "thread blocks do not hold groups of " + std::to_string(std::max(p.in_channels, p.out_channels)) +
           " channels";
  }
  if (!d.is_conv() && std::max({p.period[0], p.period[1], p.period[2]}) > 1) {
    return kDilatedInput;
  }
  const auto image = [](const TensorStrides& s, const int64_t (&size)[kSpatial]) {
    return std::max({s.spatial[0] * size[0], s.spatial[1] * size[1], s.spatial[2] * size[2]});
  };
  const int64_t sums = d.is_conv() ? 0 : ResultElements(p, d.pass);
  if (std::max({Positions(p), sums, image(p.src, p.src_size), image(p.dst, p.dst_size)}) >= INT32_MAX) {
    return "positions, a gradient's sums, or the elements of an image do not fit 32 bits";
  }
  return std::nullopt;
}

inline Reason UnsupportedRowStream(const DirectChannels& d) {
  const ConvProblem& p = d.problem;
  const RowStream& rows = d.tile.row_stream;
  if (p.step[1] != rows.step) {
    return "rows move by " + std::to_string(p.step[1]) + ", the tile's by " + std::to_string(rows.step);
  }
  if (d.row_taps < 1 || d.taps % rows.rows || p.tap_count % d.row_taps || (d.packed > 0 && d.row_taps != d.packed)) {
    return NotInRows(rows);
  }
  const bool is_held = d.steps().of_row <= rows.steps && (d.packed == 0 || d.entry_vectors <= d.tile.packed);
  return d.channel_parts > 1 || !is_held ? Reason("the filter does not fit into registers") : std::nullopt;
}

// Why a tile does not take so many taps. The kernel looks at where they are.
inline Reason UnsupportedChannels(const DirectChannels& d) {
  if (!d.is_conv()) {
    constexpr int kMostColBlocks = 8;  // of a gradient's pixel in shared memory
    const bool too_many = d.items > kWgradWarps || d.col_blocks > kMostColBlocks;
    return too_many ? Reason("the sums of all taps do not fit into registers") : std::nullopt;
  }
  if (Reason why = d.streams_rows() ? UnsupportedRowStream(d) : std::nullopt) return why;
  if (d.warps_across() > d.tile.warps || d.tile.warps % d.warps_across()) {
    return std::to_string(d.tile.warps) + " warps cannot share out " + std::to_string(d.col_blocks * 8) +
           " output channels";
  }
  // depthwise and gather have exact sums of float32, and multiply no zeros.
  if (d.tile.of_floats() && d.problem.groups > 1 && d.problem.in_channels == 1)
    return "groups of one channel are for depthwise and gather";
  // A warp may multiply its halo tile again, with operands that are rounded to finite numbers.
  if (d.tile.of_floats() && d.channel_parts > 1) {
    return "there are more than " + std::to_string(d.tile.vectors * d.vector()) + " channels";
  }
  if (!d.taps_in_n()) return std::nullopt;
  if (d.problem.groups > 1) return "there are groups";
  const int64_t cols = std::max(1, d.taps) * d.problem.out_channels, most = d.tile.col_blocks() * 8;
  if (cols <= most) return std::nullopt;
  return "N would be " + std::to_string(cols) + " (tap, output channel)s, more than " + std::to_string(most);
}

// Why an output tile cannot have as many rows and columns.
inline Reason UnsupportedExtent(int64_t rows, int64_t cols) {
  if (rows < 1 || cols < 1 || cols % kMatrixRows) {
    return "an output tile of (" + std::to_string(rows) + ", " + std::to_string(cols) +
           "): it has rows, and a multiple of " + std::to_string(kMatrixRows) + " columns";
  }
  if (std::max(rows, cols) > kMaxBoxExtent) return "the output tile is larger than TMA copies";
  return std::nullopt;
}

// Why an output tile is none of a tile's.
inline Reason UnsupportedTileSize(const DirectPass& d, const OutputTile& size) {
  if (Reason why = UnsupportedExtent(size.rows, size.cols)) return why;
  const bool is_packed = d.tile.packed > 0;
  if (size.taps < 0 || size.taps > d.problem.tap_count || size.packed < 0 || size.packed > size.taps ||
      (size.packed > 0) != is_packed || (is_packed && (size.taps != d.problem.tap_count || size.taps % size.packed))) {
    return "the settings are of another window";
  }
  const bool has_stream = size.stream > 1;
  if (size.stream < 1 || size.rows % size.stream || (has_stream && !d.streams_rows())) {
    return "streams of " + std::to_string(size.stream) + " rows, which the tile does not have";
  }
  const bool has_parts = is_packed || d.taps_in_n();  // rows of the halo tile are no multiples of a matrix's rows
  const int32_t least = std::min({size.halo[0], size.halo[1], size.halo[2]});
  if (least < 1 || (!has_parts && size.halo[2] % kMatrixRows)) {
    return "a halo tile of (" + std::to_string(size.halo[0]) + ", " + std::to_string(size.halo[1]) + ", " +
           std::to_string(size.halo[2]) + "): it has pixels, and whole blocks of columns";
  }
  const int64_t width = int64_t{size.halo[2]} * (is_packed ? kPackedVector : 1);
  if (std::max<int64_t>({size.halo[0], size.halo[1], width}) > kMaxBoxExtent)
    return "the halo tile is larger than TMA copies";
  return std::nullopt;
}

// Why the source rows of a stream do not follow each other as those of its halo tile.
inline Reason UnsupportedRowDilation(const DirectLayout& d) {
  const RowStream& rows = d.tile.row_stream;
  const int32_t dilation = d.row_dilation, last_row = (d.out_tile.rows - 1) * rows.step + (rows.rows - 1) * dilation;
  const bool is_dense = rows.step > 1 || rows.stages_rows();
  if (dilation < 1 || (is_dense && dilation > 1) || d.out_tile.halo[1] != last_row + 1) {
    return "rows of taps that are " + std::to_string(dilation) + " apart";
  }
  if (d.out_tile.stream >= rows.lags() - 1 && d.streams_abreast() % dilation == 0) return std::nullopt;
  return std::to_string(d.streams_abreast()) + " streams of " + std::to_string(d.out_tile.stream) +
         " rows: they have at least " + std::to_string(rows.lags() - 1) + ", and are a multiple of " +
         std::to_string(dilation);
}

// Why a kernel does not read rows of neighbours. At an image's ends TMA copies halo tiles row by row.
inline Reason UnsupportedRows(const DirectLayout& d, const DirectSettings& s) {
  if (!s.has_rows()) return std::nullopt;
  if (!d.is_conv()) return "only convs read rows of neighbours";
  if (!d.tile.of_halves()) return "rows of neighbours must have 16 bits";
  const int32_t (&halo)[kSpatial] = d.out_tile.halo;
  const int dim = s.rows_dim();
  if (dim < 0 || dim > 1 || (dim == 1 && halo[0] > 1)) {
    return "rows of neighbours must be along the first dimension of space";
  }
  if (std::min(s.rows_before, s.rows_after) < 0 || std::max(s.rows_before, s.rows_after) > d.problem.src_size[dim]) {
    return "neighbours have more rows than the source, or fewer than none";
  }
  if (d.problem.src.spatial[2] > d.problem.src.spatial[dim]) return "pixels of a row are not neighbours in memory";
  const int64_t pixels = dim == 0 ? (d.stages_rows() ? 1 : halo[1]) * halo[2] : halo[2];
  constexpr int kAlignment = 128;  // of what TMA writes to shared memory
  return (pixels << d.src_pixel.pitch) * 16 % kAlignment == 0 ? Reason()
                                                              : "rows of the halo tile are no whole 128 bytes";
}

// Why a thread block does not hold an output tile, its shared memory aside.
inline Reason UnsupportedLayout(const DirectLayout& d) {
  const OutputTile& out_tile = d.out_tile;
  if (d.packed > 0 && out_tile.cols % 16) return "rows of the output tile are no multiple of 16";
  if (d.packed > 0 && out_tile.halo[2] < d.RowVectors(out_tile.cols))
    return "rows of the halo tile are shorter than what is read";
  if (Reason why = d.streams_rows() ? UnsupportedRowDilation(d) : std::nullopt) return why;
  if (int64_t{d.streams_abreast()} * out_tile.cols > d.positions)
    return "the output tile has more positions than warps hold";
  if (d.taps_in_n() && HaloPixels(out_tile) > d.pixels_held()) return "the halo tile has more pixels than warps hold";
  return std::nullopt;
}

namespace direct {

inline DirectLayout LayoutOf(const ConvProblem& p, Pass pass, const DirectSettings& s) {
  const OutputTile out_tile = s.out_tile();
  return {DirectChannels({p, pass, kDirectTiles[s.tile]}, out_tile.taps, out_tile.packed), out_tile};
}

inline Reason UnsupportedSettings(const ConvProblem& p, Pass pass, const DirectSettings& s) {
  if (Reason why = UnsupportedSplit(s, pass)) return why;
  if (Reason why = UnsupportedGradientSums(p, pass, s)) return why;
  if (ResultElements(p, pass) == 0) return std::nullopt;
  const DirectPass tile{p, pass, kDirectTiles[s.tile]};
  if (Reason why = direct::UnsupportedTypes(p, pass)) return why;
  if (Reason why = UnsupportedProblem(tile)) return why;
  if (Reason why = UnsupportedTileSize(tile, s.out_tile())) return why;
  const DirectLayout layout = LayoutOf(p, pass, s);
  if (Reason why = UnsupportedChannels(layout)) return why;
  if (Reason why = UnsupportedLayout(layout)) return why;
  return UnsupportedRows(layout, s);
}

// Rows of sums of the gradient: of each slice, and of each warp that shares out the positions.
inline int64_t GradientSumRows(const ConvProblem& p, Pass pass, const DirectSettings& s) {
  if (s.gradient_sums == 0) return 0;
  const DirectLayout layout = LayoutOf(p, pass, s);
  return s.split * layout.parts * (layout.items / layout.sets());
}

// The workspace: sums of the gradient, then slices of split-K.
inline size_t Workspace(const ConvProblem& p, Pass pass, const DirectSettings& s) {
  return GradientSumBytes(p, GradientSumRows(p, pass, s)) + SplitWorkspace(p, pass, s);
}

inline size_t SharedBytes(const ConvProblem& p, Pass pass, const DirectSettings& s) {
  return ResultElements(p, pass) == 0 ? 0 : LayoutOf(p, pass, s).shared_bytes;
}

inline constexpr Rules<DirectSettings> kRules{UnsupportedSettings, Workspace, SharedBytes};

}  // namespace direct

}  // namespace jaxconv
