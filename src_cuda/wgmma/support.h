// Which convolutions the wgmma family does not take, and why: for planning and launches. Host-only: without CUDA.
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
#include "wgmma/config.h"
#include "wgmma/work_tiles.h"

namespace jaxconv::wgmma {

// For float8. There are kernels for filters of one type, which are those of forward passes.
inline Reason UnsupportedFloat8(const ConvProblem& p, Pass pass) {
  if (pass == Pass::kWgrad) return "weight gradients of " + Name(p.src_type);
  if (p.dst.block != 0) return kBlocks;
  if (p.filter_type != DType::kE4M3) return "a source of float8, and a filter of " + Name(p.filter_type);
  return std::nullopt;
}

inline Reason UnsupportedTypes(const ConvProblem& p, Pass pass) {
  if (p.src_type == DType::kS8) {
    if (p.dst.block != 0 && p.dst_type != p.src_type) return kBlocks;
    return UnsupportedBytes(p, pass);
  }
  if (IsFloat8(p.src_type)) return UnsupportedFloat8(p, pass);
  return UnsupportedOperands(p, pass);
}

// Whether tensor cores read the operands K-major alone. Those that are split into bfloat16 are read as that.
inline bool ReadsKMajorAlone(const ConvProblem& p, bool bf16x6) {
  return TraitsOf(p.src_type).is_k_major_alone() && !bf16x6;
}

// Groups that are not columns of one product are launches. Of more than these, other families take all in one.
inline constexpr int64_t kMostLaunches = 16;
inline Reason TooManyLaunches(const ConvProblem& p) {
  if (p.groups <= kMostLaunches) return std::nullopt;
  return std::to_string(p.groups) + " groups, each of which is a launch, of " + std::to_string(kMostLaunches) +
         " at most";
}

// TMA copies 16-byte vectors of channels, from pixels that begin at multiples of 16 bytes. So do groups.
inline bool HasVectors(const TensorStrides& s, int64_t channels, int vector) {
  bool are_whole = s.channel == 1 && channels % vector == 0 && s.batch % vector == 0 && s.group % vector == 0;
  for (int64_t stride : s.spatial) are_whole &= stride % vector == 0;
  return are_whole;
}

// Whether the gradients of each output channel are contiguous in memory: K-major, as wgrad of float32 reads them.
inline bool HasPositionVectors(const ConvProblem& p) {
  const int vector = TraitsOf(p.dst_type).vector();
  return PixelStride(p.dst, p.dst_size, p.batch) == 1 && p.dst.channel % vector == 0 && p.dst.group % vector == 0;
}

// For operands that tensor cores read K-major alone.
inline Reason UnsupportedKMajor(const ConvProblem& p, Pass pass) {
  if (pass == Pass::kConv) {
    if (IsKMajor(p)) return std::nullopt;
    return "the filter's input channels are not its last axis, and tensor cores read " + Name(p.src_type) +
           " in no other order";
  }
  if (!HasPositionVectors(p)) return "positions are no whole vectors, as tensor cores read float32";
  return LiveClasses(p) > 1 ? Reason("several residue classes of float32") : std::nullopt;
}

// For an operand that is split: its parts follow each other, so it is contiguous in memory.
inline Reason UnsupportedParts(const ConvProblem& p, Pass pass) {
  const int vector = TraitsOf(DType::kBF16).vector();
  const int64_t channels = pass == Pass::kConv && IsKMajor(p) ? p.in_channels : p.out_channels;
  if (channels % vector != 0) return "parts of no whole vectors of " + std::to_string(vector) + " channels";
  if (pass == Pass::kWgrad && PixelStride(p.dst, p.dst_size, p.batch) != p.groups * p.out_channels) {
    return "parts whose images are not one behind the other";
  }
  if (pass == Pass::kWgrad && Positions(p) > INT32_MAX / kBF16Parts) return "too many positions";
  return std::nullopt;
}

// `bf16x6`: float32 is multiplied so, not as tf32.
inline Reason UnsupportedSizes(const ConvProblem& p, Pass pass, bool bf16x6) {
  if (Reason why = TooManyLaunches(p); why && !GroupsFollow(p, pass, bf16x6)) return why;
  const bool is_k_major = ReadsKMajorAlone(p, bf16x6);
  if (Reason why = is_k_major ? UnsupportedKMajor(p, pass) : Reason()) return why;
  if (Reason why = bf16x6 ? UnsupportedParts(p, pass) : Reason()) return why;
  const int vector = TraitsOf(p.src_type).vector();
  const bool has_pixels = pass == Pass::kConv || !is_k_major;  // else the output's positions are last
  if (!HasVectors(p.src, p.in_channels, vector) || (has_pixels && !HasVectors(p.dst, p.out_channels, vector)) ||
      p.out_channels % vector != 0) {
    return "pixels are no whole vectors of " + std::to_string(vector) + " channels";
  }
  if (p.filter.in != 1 && p.filter.out != 1) return "the filter's channels are not its last axis";
  if (IsEmpty(p)) return "there is nothing to multiply";
  int64_t pixels = 1, apart = 1;
  for (int d = 0; d < kSpatial; ++d) {
    pixels = std::max({pixels, p.src_size[d], p.dst_size[d]});
    apart = std::max({apart, p.step[d], p.period[d]});
  }
  if (pixels > INT32_MAX) return "too many pixels";
  if (p.tap_count * KBlocks(p, bf16x6) > INT32_MAX / 2) return "too many steps";
  const int64_t classes = LiveClasses(p);
  if (classes > p.class_count) return "residue classes that are not in the table";
  if (classes > kMostWgmmaClasses) {
    return std::to_string(classes) + " residue classes, of " + std::to_string(kMostWgmmaClasses) + " at most";
  }
  if (apart <= kMaxElementStride) return std::nullopt;
  return "windows, or the results of a residue class, " + std::to_string(apart) + " pixels apart, of " +
         std::to_string(kMaxElementStride) + " at most";
}

// Whether the pixels are the rows of a matrix, and the filter's one tap reads them as they lie.
inline bool IsMatrix(const ConvProblem& p, const WgmmaSettings& s) {
  bool as_they_lie = p.tap_count == 1 && p.class_count == 1;
  for (int d = 0; d < kSpatial; ++d) {
    as_they_lie &= p.step[d] == 1 && p.period[d] == 1 && s.corner(d) == 0 && p.src_size[d] == p.dst_size[d];
  }
  return as_they_lie && PixelStride(p.src, p.src_size, p.batch) != 0 && PixelStride(p.dst, p.dst_size, p.batch) != 0;
}

// For windows that maps of the rank do not reach.
inline Reason UnsupportedCorners(const ConvProblem& p, const WgmmaSettings& s) {
  if (s.rank == 2) return IsMatrix(p, s) ? Reason() : "pixels are not the rows of a matrix";
  if (s.rank < 3 || s.rank > 2 + kSpatial) return "no such rank";
  const int64_t end = Im2colCornerEnd(s.rank);
  bool reaches = true;
  for (int d = 0; d < kSpatial; ++d) {
    const int64_t first = s.corner(d), count = CeilDiv(p.dst_size[d], p.period[d]);
    const int64_t last = first + (count - 1) * p.step[d] - (p.src_size[d] - 1);
    reaches &= std::min(first, last) >= -end && std::max(first, last) < end;
    const bool is_in_map = kSpatial - d <= s.rank - 2;
    if (!is_in_map && (p.src_size[d] > 1 || p.dst_size[d] > 1 || first != 0)) {
      return "a dimension that maps of the rank lack";
    }
  }
  if (reaches) return std::nullopt;
  return "windows that begin or end more than " + std::to_string(end) + " pixels from the image's edges";
}

// For a filter whose map would leave it. `in_parts`: a part's first tap is behind the last one of the part before it.
inline Reason UnsupportedFilter(const ConvProblem& p, const WgmmaSettings& s, bool in_parts) {
  const int64_t stride = s.tap_stride, elements = p.groups * ChannelTaps(p) * p.out_channels;
  const int64_t last = (p.tap_count - 1) * stride + (p.in_channels - 1) * p.filter.in +
                       (p.out_channels - 1) * p.filter.out + (p.groups - 1) * p.filter.group;
  if (in_parts && p.tap_count * stride != elements) return "parts of a filter whose taps are not one behind the other";
  const int vector = TraitsOf(in_parts ? DType::kBF16 : p.filter_type).vector();
  const bool has_vectors = stride > 0 && stride % vector == 0 && std::max(p.filter.in, p.filter.out) % vector == 0 &&
                           p.filter.group % vector == 0;
  return has_vectors && last < elements ? Reason() : "a filter whose windows are not one axis";
}

inline Reason UnsupportedIm2col(const ConvProblem& p, const WgmmaSettings& s, bool in_parts) {
  if (Reason why = UnsupportedFilter(p, s, in_parts)) return why;
  if (Reason why = UnsupportedCorners(p, s)) return why;
  const bool has_taps = s.empty_classes == 0 || s.empty_classes < LiveClasses(p);
  return has_taps && s.empty_classes >= 0 ? Reason() : "no such number of residue classes without taps";
}

// For halo tiles that are too large.
inline Reason UnsupportedHalo(const ConvProblem& p, const WgmmaSettings& s) {
  int64_t pixels = 1, extent = 1;
  bool has_one_tap = true;
  for (int64_t period : p.period) {
    if (period != 1) return "neighbouring results are of several residue classes";
  }
  for (int d = 1; d < kSpatial; ++d) {
    if (s.reach(d) < 0) return "windows end before they begin";
    const int64_t size = HaloSize(p, s, d);
    has_one_tap &= size == UnitOf(p, d);
    pixels *= size;
    extent = std::max(extent, BoxExtent(size, p.step[d]));
  }
  const auto most = [](int64_t number) { return ", of " + std::to_string(number) + " at most"; };
  if (has_one_tap) return "a plane has one tap";
  if (pixels > kMostHaloPixels) return "halo tiles of " + std::to_string(pixels) + " pixels" + most(kMostHaloPixels);
  if (extent > kMaxBoxExtent) {
    return "halo tiles of " + std::to_string(extent) + " pixels, with those between them" + most(kMaxBoxExtent);
  }
  return p.tap_count > kMostHaloTaps ? std::to_string(p.tap_count) + " taps" + most(kMostHaloTaps) : Reason();
}

// For gradients of float32 with halo tiles, of which TMA copies eights of a line. Lines begin at multiples of 16 bytes,
// and a unit that is a line ends with the image, or eights would reach into the next one.
inline Reason UnsupportedGradientLines(const ConvProblem& p) {
  const int whole = UnitOf(p, 1) == 1 ? kUnitSide : TraitsOf(p.dst_type).vector();
  if (p.dst_size[2] % whole == 0) return std::nullopt;
  return "lines of " + std::to_string(p.dst_size[2]) + " positions, which are no multiple of " + std::to_string(whole);
}

// For weight gradients with halo tiles. Their windows' taps are rows of evenly spaced ones, which follow each other in
// the table. A multiplication may read pixels of taps that a row does not have.
inline Reason UnsupportedWgradHalo(const ConvProblem& p, const WgmmaSettings& s) {
  if (Reason why = UnsupportedHalo(p, s)) return why;
  if (p.step[1] != 1 || p.step[2] != 1) return "windows several pixels apart";
  if (s.taps_h < 1 || s.taps_w < 1 || s.tap_pixels() < 1 || p.tap_count % (s.taps_h * s.taps_w) || p.class_count != 1) {
    return "taps that are not rows of a window";
  }
  const int64_t more = (CeilDiv(s.taps_w, kHaloWgradTaps) * kHaloWgradTaps - s.taps_w) * s.tap_pixels();
  if (HaloSize(p, s, 1) * HaloSize(p, s, 2) + more > kMostHaloPixels) return "halo tiles that are too large";
  return p.src_type == DType::kF32 ? UnsupportedGradientLines(p) : Reason();
}

// Positions of a class that a cluster's tile has along the maps' first dimension, if they are of one image.
inline int64_t RowsOfCluster(const ConvProblem& p, const WgmmaTile& tile, int dim) {
  const auto counts = ClassCounts(p, tile);
  int64_t row = 1;
  for (int d = dim + 1; d < kSpatial; ++d) row *= counts[d];
  return CeilDiv(int64_t{tile.rows} * tile.row_blocks, row) + 1;
}

// For neighbours' rows in halo tiles. Those before the image are to be the first ones of the first unit's halo tiles,
// those after it the last ones of the last unit's.
inline Reason UnsupportedHaloRows(const ConvProblem& p, const WgmmaSettings& s) {
  const int dim = s.rows_dim();
  if (dim == 0) return std::nullopt;  // a halo tile is of one depth
  const int64_t unit = UnitOf(p, dim), end = s.corner(dim) + s.reach(dim);
  const bool are_whole = p.step[dim] == 1 && p.dst_size[dim] == p.src_size[dim] && p.dst_size[dim] % unit == 0;
  const bool are_first = s.rows_before == 0 || (s.corner(dim) == -s.rows_before && s.rows_before <= unit);
  const bool are_last = s.rows_after == 0 || (end == s.rows_after && s.rows_after <= unit);
  return are_whole && are_first && are_last ? Reason() : "neighbours' rows that are no end of halo tiles";
}

// For neighbours' rows in im2col mode. They have maps of their own, whose corners are as far from them as the image's
// windows are. If that is farther than TMA allows, the corners are nearer. Then a tile is to have positions of one
// image, and those of a tile that sees the rows are to be near enough.
inline Reason UnsupportedIm2colRows(const ConvProblem& p, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  const int dim = s.rows_dim();
  const int64_t end = Im2colCornerEnd(s.rank), corner = s.corner(dim);
  const int64_t last = corner + (p.dst_size[dim] - 1) * p.step[dim];  // the last window's
  const int64_t upper = last - p.src_size[dim] - (s.rows_after - 1);  // of the rows after the image
  const bool reaches = p.src_size[dim] - corner <= end && last + 1 < end;
  const int64_t rows = RowsOfCluster(p, tile, dim) * p.step[dim];
  const int64_t positions = p.dst_size[0] * p.dst_size[1] * p.dst_size[2];
  const bool are_of_one = p.batch == 1 || positions % (int64_t{tile.rows} * tile.row_blocks) == 0;
  const bool are_near = are_of_one && rows + std::max<int64_t>(s.reach(dim), 2) <= end;
  const bool has_corners = corner + s.rows_before < end && (s.rows_after == 0 || upper >= -end);
  return has_corners && (reaches || are_near) ? Reason() : "neighbours' rows too far from windows of the same tile";
}

// For neighbours' rows.
inline Reason UnsupportedRows(const ConvProblem& p, Pass pass, const WgmmaSettings& s) {
  if (!s.has_rows()) return s.taps_before || s.taps_after ? Reason("taps of no neighbour's rows") : std::nullopt;
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  if (pass != Pass::kConv || TraitsOf(p.src_type).bytes != 2) return "neighbours' rows are for convs of 16 bits";
  if (p.groups > 1) return "neighbours' rows of groups";
  if (s.rank == 2 || p.class_count != 1) return "neighbours' rows of one tap, or of several residue classes";
  if (tile.cluster_split > 0) return "a tile that reads no rows of neighbours";
  const int64_t size = p.src_size[s.rows_dim()];
  if (std::min({s.rows_before, s.rows_after, s.taps_before, s.taps_after}) < 0 ||
      std::max(s.rows_before, s.rows_after) > size || std::max(s.taps_before, s.taps_after) > p.tap_count ||
      s.taps_reversed < 0 || s.taps_reversed > 1) {
    return "no such rows of neighbours";
  }
  return tile.halo ? UnsupportedHaloRows(p, s) : UnsupportedIm2colRows(p, s);
}

// For weight gradients.
inline Reason UnsupportedWgrad(const ConvProblem& p, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  if (!tile.HasWgrad(p.src_type)) {
    return tile.HasWgrad(DType::kBF16) ? "a tile whose weight gradients are for 16 bits alone"
                                       : "a tile that is for convs alone";
  }
  if (!HasEqualClasses(p)) return "residue classes that are not equally large";
  if (p.filter.out != 1) return "the filter's output channels are not its last axis";
  if (s.split > kMostWgradSplit) return "a split into more than " + std::to_string(kMostWgradSplit);
  if (ClassRows(p, tile) > INT32_MAX / 2) return "too many positions";
  if (Reason why = tile.halo ? UnsupportedWgradHalo(p, s) : Reason()) return why;
  const int64_t col_clusters = ColClusters(OfLaunch(p, Pass::kWgrad, tile), tile);
  if (WgradRowClusters(p, s) * col_clusters * s.split * tile.cluster() > INT32_MAX) {
    return "more than 2^31 - 1 thread blocks";
  }
  // Row tiles share out the steps of the gradient's sums, so they are to have the same ones.
  const bool leaves_out = s.gradient_sums != 0 && LeavesOutSteps(p, s);
  return leaves_out ? Reason("sums of a gradient whose steps are left out") : std::nullopt;
}

// For an epilogue. The last kernel of split-K takes any. Otherwise residuals come by TMA, or where a cluster's CTAs add
// slices, from device memory; in blocks by threads.
inline Reason UnsupportedEpilogue(const ConvProblem& p, const WgmmaTile& tile, int64_t split, bool has_residual) {
  if (tile.workspace_split(Pass::kConv, split) > 1) return std::nullopt;
  if (!tile.HasEpilogue(p.src_type, IsKMajor(p))) return "an epilogue behind a K-major filter of 16 bits";
  const bool takes_residual = tile.cluster_split > 0 || StoresByTma(p, tile, split, true) ||
                              EpilogueKindOf(p, tile, true) == WgmmaEpilogueKind::kBlocks;
  return has_residual && !takes_residual ? Reason("a residual of results that TMA does not store") : std::nullopt;
}

// For a tile. The problem and its windows are supported.
inline Reason UnsupportedTile(const ConvProblem& p, Pass pass, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  if (tile.is_of_float32() && p.src_type != DType::kF32) return "a tile for float32 alone";
  if (Reason why = UnsupportedRows(p, pass, s)) return why;
  if (Reason why = UnsupportedGradientSums(p, pass, s)) return why;
  if (Reason why = TooManyLaunches(p); why && !GroupsAreColumns(p, pass, tile)) return why;
  if (pass == Pass::kWgrad) return UnsupportedWgrad(p, s);
  if (!tile.has_conv) return "a tile that is for weight gradients alone";
  if (!tile.HasConv(p.src_type)) return "a tile that is not for operands of " + Name(p.src_type);
  if (s.split > 0 && tile.cluster_split % s.split) {
    return "a split of " + std::to_string(s.split) + ", which " + std::to_string(tile.cluster_split) +
           " slices are no multiple of";
  }
  const ConvProblem of_launch = OfLaunch(p, pass, tile);
  if (tile.cluster_split > 0 && ColClusters(of_launch, tile) > UINT16_MAX) {
    return "more than " + std::to_string(UINT16_MAX) + " tiles of columns";
  }
  if (ClassRows(p, tile) > INT32_MAX / 2) return "too many positions";
  if (WorkTiles(of_launch, tile, s.split) * tile.cluster() > INT32_MAX) return "more than 2^31 - 1 thread blocks";
  return tile.halo ? UnsupportedHalo(p, s) : std::nullopt;
}

inline Reason UnsupportedSettings(const ConvProblem& p, Pass pass, const WgmmaSettings& s) {
  if (Reason why = UnsupportedSplit(s)) return why;
  if (ResultElements(p, pass) == 0) return std::nullopt;
  if (Reason why = wgmma::UnsupportedTypes(p, pass)) return why;
  const bool bf16x6 = kWgmmaTiles[s.tile].bf16x6;
  if (Reason why = UnsupportedSizes(p, pass, bf16x6)) return why;
  if (Reason why = UnsupportedIm2col(p, s, bf16x6 && pass == Pass::kConv)) return why;
  return UnsupportedTile(p, pass, s);
}

inline size_t SharedBytes(const ConvProblem& p, Pass pass, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  return pass == Pass::kWgrad ? tile.wgrad_shared_bytes() : tile.shared_bytes(IsKMajor(p));
}

inline constexpr Rules<WgmmaSettings> kRules{UnsupportedSettings, WgmmaWorkspace, SharedBytes};

}  // namespace jaxconv::wgmma
