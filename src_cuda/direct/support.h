// What tiles of the direct family do not take, and why: for planning, and for the handlers, which look at any plan.
// Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/planning.h"
#include "common/product.h"
#include "common/tma_limits.h"
#include "common/types.h"
#include "conv_problem.h"
#include "direct/layout.h"

namespace jaxconv {
namespace direct {

// Whether the types are none of the family's. Results of int8 have an epilogue, or are sums.
inline Reason UnsupportedTypes(const ConvProblem& p, Pass pass) {
  if (p.src_type == DType::kF32 && pass == Pass::kConv) return UnsupportedOperands(p, pass);
  if (p.src_type != DType::kS8) return UnsupportedHalves(p, pass);
  if (Reason why = UnsupportedBytes(p, pass)) return why;
  return p.dst.block != 0 ? Reason(kBlocks) : std::nullopt;
}

// Whether a result or its reduction has no elements.
inline bool IsEmpty(const ConvProblem& p) {
  const auto elements = [](const int64_t (&size)[kSpatial]) { return size[0] * size[1] * size[2]; };
  const bool has_channels = p.in_channels > 0 && p.out_channels > 0;
  return !(p.batch > 0 && has_channels && p.tap_count > 0 && elements(p.src_size) > 0 && elements(p.dst_size) > 0);
}

// Whether pixels are whole vectors of a unit of channels.
inline bool HasPixels(const TensorStrides& s, int64_t groups, int64_t channels, int unit) {
  return s.channel == 1 && (groups == 1 || s.group == channels) && s.batch % unit == 0 && s.spatial[0] % unit == 0 &&
         s.spatial[1] % unit == 0 && s.spatial[2] % unit == 0 && groups * channels % unit == 0;
}

// Why a tile of packed K does not take a source: neighbours are read two at a time, and TMA copies vectors. Or why it
// need not.
inline Reason UnsupportedPacking(const ConvProblem& p) {
  const TensorStrides& s = p.src;
  if (p.groups > 1 || p.in_channels % kPackedVector == 0 || s.spatial[2] != p.in_channels) {
    return "no rows of few channels";
  }
  if (p.class_count > 1) return "taps that are not neighbours";
  const bool is_whole = s.batch % kPackedVector == 0 && s.spatial[0] % kPackedVector == 0 &&
                        s.spatial[1] % kPackedVector == 0 && p.src_size[2] * p.in_channels % kPackedVector == 0;
  return is_whole ? Reason() : "rows that are no whole pieces";
}

}  // namespace direct

// A weight gradient's positions would not be neighbours.
inline constexpr const char* kDilatedInput = "an input that is dilated";

inline std::string NoPieces(int unit) { return "channels are not last, in pieces of " + std::to_string(unit); }

// Why a tile does not take a pass that has results, of the family's types, whatever its taps.
inline Reason UnsupportedProblem(const DirectPass& d) {
  const ConvProblem& p = d.problem;
  if (!d.tile.IsFor(p.src_type)) return "the tile is compiled for other types";
  if (direct::IsEmpty(p)) return "nothing is to be computed";
  const int unit = d.tile.packed > 0 ? 1 : d.vector();
  if (!direct::HasPixels(p.src, p.groups, p.in_channels, unit)) return NoPieces(unit);
  if (!direct::HasPixels(p.dst, p.groups, p.out_channels, d.out_unit())) return NoPieces(d.out_unit());
  if (Reason why = d.tile.packed > 0 ? direct::UnsupportedPacking(p) : std::nullopt) return why;
  if (p.groups > 1 && direct::BlockGroups(p, d.tile) == 0) {
    return "groups of " + std::to_string(std::max(p.in_channels, p.out_channels)) + " channels";
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
  if (!d.tile.of_bytes() && p.dst_type != DType::kF32 && p.dst_type != p.src_type) {
    return "results of " + Name(p.dst_type);
  }
  if (p.step[1] != rows.step) return "rows that move by " + std::to_string(p.step[1]);
  if (d.row_taps < 1 || d.taps % rows.rows || p.tap_count % d.row_taps || (d.packed > 0 && d.row_taps != d.packed)) {
    return "taps in other than " + std::to_string(rows.rows) + " rows";
  }
  const bool is_held = d.steps().of_row <= rows.steps && (d.packed == 0 || d.entry_vectors <= d.tile.packed);
  return d.chunks > 1 || !is_held ? Reason("its warps do not hold the filter") : std::nullopt;
}

// Why a tile does not take so many taps. The kernel looks at where they are.
inline Reason UnsupportedChannels(const DirectChannels& d) {
  if (!d.is_conv()) {
    constexpr int kMostColBlocks = 8;  // of a gradient's pixel in shared memory
    const bool too_many = d.items > kWgradWarps || d.col_blocks > kMostColBlocks;
    return too_many ? Reason("its warps do not hold the sums of all taps") : std::nullopt;
  }
  if (Reason why = d.streams_rows() ? UnsupportedRowStream(d) : std::nullopt) return why;
  if (d.warps_across() > d.tile.warps || d.tile.warps % d.warps_across()) {
    return "its warps do not share out the channels";
  }
  // depthwise has exact sums of float32, and multiplies no zeros.
  if (d.tile.of_floats() && d.problem.groups > 1 && d.problem.in_channels == 1) return "groups of one channel";
  // A warp may multiply its halo tile again, with operands that are rounded to finite numbers.
  if (d.tile.of_floats() && d.chunks > 1) {
    return "more than " + std::to_string(d.tile.vectors * d.vector()) + " channels";
  }
  if (!d.taps_in_n()) return std::nullopt;
  if (d.problem.groups > 1) return "there are groups";
  const int64_t cols = std::max(1, d.taps) * d.problem.out_channels;
  return cols > d.tile.col_blocks() * 8 ? Reason(std::to_string(cols) + " columns of all taps") : std::nullopt;
}

// Why an output tile cannot have as many rows and columns.
inline Reason UnsupportedExtent(int64_t rows, int64_t cols) {
  if (rows < 1 || cols < 1 || cols % kMatrixRows) {
    return "an area of (" + std::to_string(rows) + ", " + std::to_string(cols) + ")";
  }
  if (std::max(rows, cols) > kMaxBoxExtent) return "the area is too large for TMA";
  return std::nullopt;
}

// Why an output tile is none of a tile's.
inline Reason UnsupportedTileSize(const DirectPass& d, const OutputTile& size) {
  if (Reason why = UnsupportedExtent(size.rows, size.cols)) return why;
  const bool is_packed = d.tile.packed > 0;
  if (size.taps < 0 || size.taps > d.problem.tap_count || size.packed < 0 || size.packed > size.taps ||
      (size.packed > 0) != is_packed || (is_packed && (size.taps != d.problem.tap_count || size.taps % size.packed))) {
    return "no such taps";
  }
  const bool has_stream = size.stream > 1;
  if (size.stream < 1 || size.rows % size.stream || (has_stream && !d.streams_rows())) return "no such walk";
  const bool has_parts = is_packed || d.taps_in_n();  // rows of the halo tile are no multiples of a matrix's rows
  const int32_t least = std::min({size.halo[0], size.halo[1], size.halo[2]});
  if (least < 1 || (!has_parts && size.halo[2] % kMatrixRows)) return "no such box";
  const int64_t width = int64_t{size.halo[2]} * (is_packed ? kPackedVector : 1);
  if (std::max<int64_t>({size.halo[0], size.halo[1], width}) > kMaxBoxExtent) return "the box is too large for TMA";
  return std::nullopt;
}

// Why the source rows of a stream do not follow each other as those of its halo tile.
inline Reason UnsupportedRowDilation(const DirectLayout& d) {
  const RowStream& rows = d.tile.row_stream;
  const int32_t dilation = d.row_dilation, last_row = (d.out_tile.rows - 1) * rows.step + (rows.rows - 1) * dilation;
  const bool is_dense = rows.step > 1 || rows.stages_rows();
  if (dilation < 1 || (is_dense && dilation > 1) || d.out_tile.halo[1] != last_row + 1) {
    return "rows that move by " + std::to_string(rows.step) + ", " + std::to_string(dilation) + " apart";
  }
  return d.out_tile.stream < rows.lags() - 1 || d.streams_abreast() % dilation ? Reason("no such walk") : std::nullopt;
}

// Why a kernel does not read rows of neighbours. At an image's ends TMA copies halo tiles row by row.
inline Reason UnsupportedRows(const DirectLayout& d, const DirectSettings& s) {
  if (!s.has_rows()) return std::nullopt;
  if (!d.is_conv()) return "neighbours' rows are for convs";
  if (!d.tile.of_halves()) return "neighbours' rows are of 16 bits";
  const int32_t (&halo)[kSpatial] = d.out_tile.halo;
  const int dim = s.rows_dim();
  if (dim < 0 || dim > 1 || (dim == 1 && halo[0] > 1)) return "neighbours' rows of another dimension";
  if (std::min(s.rows_before, s.rows_after) < 0 || std::max(s.rows_before, s.rows_after) > d.problem.src_size[dim]) {
    return "no such rows of neighbours";
  }
  if (d.problem.src.spatial[2] > d.problem.src.spatial[dim]) return "rows whose pixels lie apart";
  const int64_t pixels = dim == 0 ? (d.stages_rows() ? 1 : halo[1]) * halo[2] : halo[2];
  constexpr int kAlignment = 128;  // of what TMA writes to shared memory
  return (pixels << d.src_pixel.pitch) * 16 % kAlignment == 0 ? Reason() : "rows that are no whole 128 bytes";
}

// Why a thread block does not hold an output tile, its shared memory aside.
inline Reason UnsupportedLayout(const DirectLayout& d) {
  const OutputTile& out_tile = d.out_tile;
  if (d.packed > 0 && out_tile.cols % 16) return "an area whose rows are not whole multiplications";
  if (d.packed > 0 && out_tile.halo[2] < d.RowVectors(out_tile.cols)) return "no such box of runs";
  if (Reason why = d.streams_rows() ? UnsupportedRowDilation(d) : std::nullopt) return why;
  if (int64_t{d.streams_abreast()} * out_tile.cols > d.positions) return "its warps do not cover the area";
  if (d.taps_in_n() && HaloPixels(out_tile) > d.pixels_held()) return "its warps do not hold the box";
  return std::nullopt;
}

}  // namespace jaxconv
