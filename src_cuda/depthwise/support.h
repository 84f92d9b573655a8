// What the depthwise family's kernels take, and why not. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>

#include "common/planning.h"
#include "common/product.h"
#include "common/rules.h"
#include "common/types.h"
#include "conv_problem.h"
#include "depthwise/config.h"
#include "depthwise/layout.h"
#include "depthwise/params.h"

namespace jaxconv::depthwise {

inline constexpr int kMostParts = 1 << 10;  // of a window
inline constexpr int kMostReach = 1 << 30;  // of it, in rows or columns
inline constexpr int kMostApart = 1 << 16;  // of a dilated one's taps, or tiles of an image

inline Reason UnsupportedTypes(const ConvProblem& p) {
  const auto is_for_type = [&](const DepthwiseTile& tile) { return tile.IsFor(p.src_type); };
  const bool has_kernels = std::ranges::any_of(kDepthwiseTiles, is_for_type);
  if (has_kernels && p.filter_type == p.src_type && p.dst_type == p.src_type) return std::nullopt;
  return NoKernelsOf(p);
}

// What depends on the problem alone.
inline Reason UnsupportedProblem(const ConvProblem& p) {
  if (Reason why = UnsupportedTypes(p)) return why;
  if (p.in_channels != 1 || p.out_channels != 1) return "it is for groups of one channel";
  if (p.tap_count == 0 || p.class_count == 0) return "there are no taps";  // kernels read the first one
  const int64_t vector = TraitsOf(p.src_type).vector();
  if (!HasVectorsOfGroups(p.src, p.groups, vector) || !HasVectorsOfGroups(p.dst, p.groups, vector)) {
    return "channels are not last, in vectors of 16 bytes";
  }
  if (kMostPeriod % p.period[2] != 0) {
    return "columns of a residue class are " + std::to_string(p.period[2]) + " apart, not 1, 2 or 4";
  }
  return std::nullopt;
}

// Of an output tile. Strips are whole.
inline std::string NoStrips(int64_t rows, int64_t cols) {
  return "an output tile of (" + std::to_string(rows) + ", " + std::to_string(cols) +
         "): it has rows, and a multiple of " + std::to_string(kStripCols) + " columns";
}

// What depends on the tile, whatever its stream is.
inline Reason UnsupportedTile(const ConvProblem& p, Pass pass, const DepthwiseTile& tile) {
  const auto ratio = [](int64_t step, int64_t period) { return std::to_string(step) + ":" + std::to_string(period); };
  const auto moves = [&](int d) {
    return ratio(p.step[d], p.period[d]) + ", the tile's by " + ratio(tile.step, tile.period);
  };
  const auto fits = [&](int d) { return p.step[d] == tile.step && p.period[d] == tile.period; };
  if (!tile.IsFor(p.src_type)) return "the tile is compiled for other types";
  if (!IsFlat(p) && !tile.has_planes()) return "it does not take three spatial dimensions";
  if (!fits(1)) return "rows move by " + moves(1);
  if (tile.on_cuda_cores() && !fits(2)) return "columns move by " + moves(2);
  if (!tile.Has(pass)) return pass == Pass::kConv ? "it has no conv" : "the sums of all taps do not fit into registers";
  const int64_t columns = std::max(p.src_size[2], p.dst_size[2]);
  if (tile.in_pairs && columns > kStripCols) {
    return "rows of " + std::to_string(columns) + " columns, more than " + std::to_string(kStripCols);
  }
  return std::nullopt;
}

// Where a window begins, its window parts, and how far apart its taps are.
inline Reason UnsupportedWindow(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  int64_t window_parts = 1;
  for (int d = 0; d < kSpatial; ++d) {
    if (p.src_size[d] == 0) return "the source is empty";
    if (std::abs(int64_t{stream.first[d]}) > kMostReach) return "windows begin too far from the image";
    const int32_t along = stream.window_parts[d];
    if (along < 1 || (along > 1 && !tile.in_parts)) {
      return "it does not take a window in " + std::to_string(along) + " parts";
    }
    if ((window_parts *= along) > kMostParts) {
      return "a window in " + std::to_string(window_parts) + " parts, more than " + std::to_string(kMostParts);
    }
  }
  for (int i = 0; i < 2; ++i) {
    const int64_t taps = i == 0 ? tile.step * tile.lags : tile.pixels();
    const bool is_strided = p.step[i + 1] != 1 || p.period[i + 1] != 1;
    const int64_t apart = stream.apart[i];
    if (apart < 1 || apart >= kMostApart || stream.window_parts[i + 1] * taps * apart > kMostReach) {
      return "taps that are " + std::to_string(apart) + " apart, or a window of too many rows or columns";
    }
    if (apart > 1 && is_strided) return "rows or columns of a dilated window are strided";
  }
  return std::nullopt;
}

// Rows and elements that kernels count in 32 bits.
inline Reason UnsupportedSizes(const ConvProblem& p, const Stream& stream) {
  const int64_t planes = p.batch * p.dst_size[0];
  if (planes * std::max(p.src_size[1], p.dst_size[1]) >= INT32_MAX) return "rows do not fit 32 bits";
  // The volumes that a tile's planes belong to.
  const int64_t volumes = (std::max(1, stream.images) + 2 * p.dst_size[0] - 2) / std::max<int64_t>(1, p.dst_size[0]);
  const auto extent = [&](const TensorStrides& s, const int64_t (&size)[kSpatial]) {
    const int64_t within = std::max({size[0] * s.spatial[0], size[1] * s.spatial[1], size[2] * s.spatial[2]});
    return std::max(volumes * s.batch, within);
  };
  if (std::max(extent(p.src, p.src_size), extent(p.dst, p.dst_size)) >= INT32_MAX) {
    return "elements of a tile's images do not fit 32 bits";
  }
  return std::nullopt;
}

// What depends on the stream, for a tile that takes the problem, which is InElements. MakeShape takes no other streams.
inline Reason UnsupportedStream(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  constexpr int kMostStrips = kMultiplied * kDepthwiseWarps, kMostRows = 1 << 16;
  const int64_t channel_bytes = stream.channels * static_cast<int64_t>(ElementBytes(p.src_type));
  if (channel_bytes < kVectorBytes || channel_bytes > MostChannelBytes(tile) ||
      !std::has_single_bit(static_cast<uint32_t>(stream.channels))) {
    return "thread blocks of " + std::to_string(stream.channels) + " channels: they have a power of two, of " +
           std::to_string(kVectorBytes) + " to " + std::to_string(MostChannelBytes(tile)) + " bytes";
  }
  if (Reason why = UnsupportedWindow(p, tile, stream)) return why;
  if (stream.rows < 1 || stream.cols < kStripCols || stream.cols % kStripCols != 0) {
    return NoStrips(stream.rows, stream.cols);
  }
  if (stream.images < 0 || stream.cols > kMostStrips * kStripCols || stream.images > kMostStrips ||
      (tile.in_parts && stream.rows > kMostRows)) {
    return "the output tile has more than " + std::to_string(kMostStrips) + " images, " +
           std::to_string(kMostStrips * kStripCols) + " columns or " + std::to_string(kMostRows) + " rows";
  }
  if (stream.images == 0 && !CanJoinImages(p, tile, stream))
    return "rows of all images cannot follow each other as those of one";
  return UnsupportedSizes(p, stream);
}

// Sums of the gradient need a row of the window inside the source for all outputs, and the last pixel free: see
// toeplitz_wgrad.cuh. Planning knows the window's columns.
inline Reason UnsupportedGradientSums(const DepthwiseShape& d, const DepthwiseTile& tile) {
  const ConvProblem& p = d.problem;
  if (!tile.may_sum_gradient()) return "a tile that does not sum a gradient";
  if (tile.in_pairs && p.src_size[2] >= kStripCols) return "sums of a gradient in pairs of rows without free pixels";
  const int64_t first = d.first_row + int64_t{d.unseen_rows} * d.row_apart, last = first + p.dst_size[1] - 1;
  const bool is_seen = d.unseen_rows < tile.lags && first >= 0 && last < p.src_size[1];
  return is_seen ? std::nullopt : Reason("sums of a gradient where no row of the window is inside for all outputs");
}

// TMA copies rows of whole images, and fills all strips.
inline Reason UnsupportedHaloTiles(const DepthwiseShape& d, const DepthwiseTile& tile) {
  const ConvProblem& p = d.problem;
  const auto text = [](int32_t n) { return std::to_string(n); };
  if (const int64_t bytes = d.channels * ElementBytes(p.src_type); bytes != kBoxPixelBytes) {
    return "a thread block has " + std::to_string(bytes) + " bytes of each pixel, TMA copies " +
           std::to_string(kBoxPixelBytes);
  }
  if (d.images * d.strips != d.tile_strips || !d.images_first) {
    return text(d.images) + " images of " + text(d.strips) + " strips do not fill the tile, which has " +
           text(d.tile_strips);
  }
  if (tile.in_pairs && d.strips != 1) return "images of " + text(d.strips) + " strips, not of one";
  if (d.column_tiles != 1 || std::max(d.row_apart, d.col_apart) > 1)
    return "the output tile has parts of rows, TMA copies whole ones";
  if (p.step[2] != 1 || p.period[2] != 1) return "columns are apart, TMA copies neighbours";
  return std::nullopt;
}

// Whether thread blocks of the tile cover the output tile of a shape, which is MakeShape's.
inline bool CoversOutputTile(const DepthwiseShape& d, const DepthwiseTile& tile) {
  return d.images * d.strips <= d.tile_strips && d.copies <= MostCopies(tile);
}

inline Reason UnsupportedShape(const DepthwiseShape& d, const DepthwiseTile& tile) {
  if (!CoversOutputTile(d, tile)) return "the output tile has more positions than warps hold";
  if (tile.by_tma) {
    if (Reason why = UnsupportedHaloTiles(d, tile)) return why;
  }
  if (d.stream_rows == INT32_MAX) return "there are too many rows";
  if (std::max(d.row_apart, d.col_apart) > 1 && d.column_tiles >= kMostApart) {
    return std::to_string(d.column_tiles) + " tiles of an image, more than " + std::to_string(kMostApart - 1);
  }
  return std::nullopt;
}

inline DepthwiseShape ShapeOf(const ConvProblem& p, Pass pass, const DepthwiseSettings& s) {
  return MakeShape(InElements(p), pass, kDepthwiseTiles[s.tile], s.stream());
}

inline Reason UnsupportedSettings(const ConvProblem& p, Pass pass, const DepthwiseSettings& s) {
  if (Reason why = UnsupportedSplit(s, pass)) return why;
  if (Reason why = jaxconv::UnsupportedGradientSums(p, pass, s)) return why;
  if (ResultElements(p, pass) == 0) return std::nullopt;
  if (Reason why = UnsupportedProblem(p)) return why;
  const DepthwiseTile& tile = kDepthwiseTiles[s.tile];
  if (Reason why = UnsupportedTile(p, pass, tile)) return why;
  if (Reason why = UnsupportedStream(InElements(p), tile, s.stream())) return why;
  const DepthwiseShape shape = ShapeOf(p, pass, s);
  if (Reason why = UnsupportedShape(shape, tile)) return why;
  return s.gradient_sums ? UnsupportedGradientSums(shape, tile) : std::nullopt;
}

inline size_t SharedBytes(const ConvProblem& p, Pass pass, const DepthwiseSettings& s) {
  return ShapeOf(p, pass, s).offsets.end;
}

inline constexpr Rules<DepthwiseSettings> kRules{UnsupportedSettings, SummingWorkspace, SharedBytes};

}  // namespace jaxconv::depthwise
