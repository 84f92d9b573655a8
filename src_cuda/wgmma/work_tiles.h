// How a convolution is shared out among the clusters of the wgmma family. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/product.h"
#include "common/types.h"
#include "conv_problem.h"
#include "operand_traits.h"
#include "wgmma/config.h"
#include "wgmma/settings.h"

namespace jaxconv {

// Channels of one tap that are a step of K. TMA takes longer for pixels if the copy reaches beyond their channels. So
// blocks of K end with the channels, or shortly behind them; but each block costs a step.
inline int BlockK(const ConvProblem& p, bool bf16x6) {
  const int row = TraitsOf(p.src_type).swizzle_row();
  const int mma_depth = TraitsOf(bf16x6 ? DType::kBF16 : p.src_type).mma_depth;
  const auto cost = [&](int block_k) { return CeilDiv(p.in_channels, block_k) * (block_k + row / 4); };
  const auto all = BlockKs(row, mma_depth);
  const auto end = p.dst.block == 0 ? all.end() - 1 : all.end();
  return *std::min_element(all.begin(), end, [&](int one, int other) { return cost(one) < cost(other); });
}
inline int64_t KBlocks(const ConvProblem& p, bool bf16x6) { return CeilDiv(p.in_channels, BlockK(p, bf16x6)); }

// The operand that is split into parts: of a conv the filter, of wgrad the output's gradient.
inline int64_t SplitElements(const ConvProblem& p, Pass pass) {
  return p.groups * (pass == Pass::kConv ? ChannelTaps(p) : Positions(p)) * p.out_channels;
}

inline int64_t PartsBytes(const ConvProblem& p, Pass pass, const WgmmaTile& tile) {
  return tile.bf16x6 ? SplitElements(p, pass) * kBF16Parts * TraitsOf(DType::kBF16).bytes : 0;
}

// Elements from a pixel to the next, if those of all images are evenly apart; else 0.
inline int64_t PixelStride(const TensorStrides& s, const int64_t (&size)[kSpatial], int64_t batch) {
  const int64_t counts[] = {size[2], size[1], size[0], batch};
  const int64_t strides[] = {s.spatial[2], s.spatial[1], s.spatial[0], s.batch};
  int64_t apart = s.batch, pixels = 1;
  for (int axis = 0; axis < 1 + kSpatial; ++axis) {
    if (counts[axis] == 1) continue;
    if (pixels == 1) apart = strides[axis];
    if (strides[axis] != apart * pixels) return 0;
    pixels *= counts[axis];
  }
  return apart;
}

// Whether the filter is K-major: its source channels are neighbours in memory.
inline bool IsKMajor(const ConvProblem& p) { return p.filter.out != 1; }

// Whether the filter's groups are side by side along K. Else they are along columns, if FilterGroupsFollow.
inline bool FilterGroupsAlongK(const ConvProblem& p) { return IsKMajor(p) && p.filter.group == p.in_channels; }
inline bool FilterGroupsFollow(const ConvProblem& p) {
  return FilterGroupsAlongK(p) || p.filter.group == p.out_channels * p.filter.out;
}

// Whether the channels of groups follow each other in all arrays, and no block of K has channels of two groups: an
// infinity of one would be a NaN in the other's results. In a weight gradient source channels are rows, and rows of
// another group are not stored.
inline bool GroupsFollow(const ConvProblem& p, Pass pass, bool bf16x6) {
  return p.src.channel == 1 && p.src.group == p.in_channels && p.dst.group == p.out_channels * p.dst.channel &&
         p.dst.block == 0 && FilterGroupsFollow(p) && (pass == Pass::kWgrad || p.in_channels % BlockK(p, bf16x6) == 0);
}

// Whether all groups are columns of one product, which is one launch: if the columns of each cluster are of one group,
// and kernels can count them. Otherwise each group is a launch.
inline bool GroupsAreColumns(const ConvProblem& p, Pass pass, const WgmmaTile& tile) {
  const int64_t channels = p.groups * std::max(p.in_channels, p.out_channels);
  const int64_t most = tile.cluster_split > 0 ? UINT16_MAX * int64_t{tile.cols} : INT32_MAX;
  return p.groups > 1 && channels <= most && p.out_channels % (int64_t{tile.cols} * tile.col_blocks) == 0 &&
         GroupsFollow(p, pass, tile.bf16x6);
}

// The problem of a launch: that of one group, or of all. Then out_channels are those of all groups, and in_channels
// those of each.
inline ConvProblem OfLaunch(ConvProblem p, Pass pass, const WgmmaTile& tile) {
  if (GroupsAreColumns(p, pass, tile)) {
    p.out_channels *= p.groups;
  } else {
    p.groups = 1;
  }
  return p;
}
inline int64_t SrcChannels(const ConvProblem& of_launch) { return of_launch.groups * of_launch.in_channels; }

// The problem of one tap whose pixels, of all images, are the rows of a matrix: an image of one row of pixels.
inline ConvProblem AsMatrix(ConvProblem p) {
  p.src.spatial[2] = PixelStride(p.src, p.src_size, p.batch);
  p.dst.spatial[2] = PixelStride(p.dst, p.dst_size, p.batch);
  const int64_t pixels = p.batch * p.src_size[0] * p.src_size[1] * p.src_size[2];
  p.batch = 1;
  for (int d = 0; d < kSpatial; ++d) p.src_size[d] = p.dst_size[d] = d == kSpatial - 1 ? pixels : 1;
  return p;
}

// Rows, or columns, of a unit: the positions of one halo tile.
inline int32_t UnitOf(const ConvProblem& p, int d) {
  static_assert(kUnitSide * kUnitSide == kUnitRows, "a unit is a square, or a line");
  return p.dst_size[1] == 1 ? (d == 1 ? 1 : kUnitRows) : kUnitSide;
}

// Rows, or columns, of the halo tile of a plane.
inline int64_t HaloSize(const ConvProblem& p, const WgmmaSettings& s, int d) {
  return UnitOf(p, d) + s.reach(d) / p.step[d];
}

// Positions of the largest class along each dimension, or, with halo tiles, its units. Other classes have as many here.
inline std::array<int64_t, kSpatial> ClassCounts(const ConvProblem& p, const WgmmaTile& tile) {
  std::array<int64_t, kSpatial> counts;
  for (int d = 0; d < kSpatial; ++d) {
    counts[d] = CeilDiv(p.dst_size[d], p.period[d] * (tile.halo && d > 0 ? UnitOf(p, d) : 1));
  }
  return counts;
}

// Rows of a class's product.
inline int64_t ClassRows(const ConvProblem& p, const WgmmaTile& tile) {
  const auto counts = ClassCounts(p, tile);
  return p.batch * counts[0] * counts[1] * counts[2] * (tile.halo ? kUnitRows : 1);
}

// Clusters of tiles along a class's rows, and along columns.
inline int64_t RowClusters(const ConvProblem& p, const WgmmaTile& tile) {
  return CeilDiv(ClassRows(p, tile), int64_t{tile.rows} * tile.row_blocks);
}

// Of wgrad: units of rows of all classes.
inline int64_t WgradUnits(const ConvProblem& p, const WgmmaSettings& s) {
  const bool halo = kWgmmaTiles[s.tile].halo;
  const int64_t rows_of_taps = halo ? p.tap_count / s.taps_w * CeilDiv(s.taps_w, kHaloWgradTaps) : p.tap_count;
  return rows_of_taps * CeilDiv(p.in_channels, kBlockRows);
}

// Clusters along them. The table of classes is on the device, so the host counts from above.
inline int64_t WgradRowClusters(const ConvProblem& p, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  return RowTiles(p, WgradUnits(p, s), tile.rows / WgradUnit(tile) * tile.row_blocks);
}
// Tiles along them, of all blocks of a cluster.
inline int64_t WgradRowTiles(const ConvProblem& p, const WgmmaSettings& s) {
  return WgradRowClusters(p, s) * kWgmmaTiles[s.tile].row_blocks;
}
// Rows of GradientSums, each of all output channels: of each slice and row tile.
inline int64_t GradientSumRows(const ConvProblem& p, const WgmmaSettings& s) {
  return s.gradient_sums ? s.split * WgradRowTiles(p, s) : 0;
}

// The workspace: sums of the gradient, an operand's parts, then slices of split-K. The latter two grow evenly with the
// batch, without gaps between them.
inline size_t WgmmaWorkspace(const ConvProblem& p, Pass pass, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  return GradientSumBytes(p, GradientSumRows(p, s)) + PartsBytes(p, pass, tile) +
         SplitBytes(p, pass, tile.workspace_split(pass, s.split));
}

// Steps of K of a class.
inline int64_t WgradSteps(const ConvProblem& p, const WgmmaTile& tile) {
  return CeilDiv(ClassRows(p, tile), WgradPositions(tile, TraitsOf(p.src_type).bytes));
}

// Pixels by which windows begin before an image or end behind it, at the end where they are more.
inline int64_t PixelsBeyond(const ConvProblem& p, const WgmmaSettings& s, const WgmmaTile& tile, int dim) {
  const int64_t last = (ClassCounts(p, tile)[dim] - 1) * p.step[dim];
  return std::max(-s.corner(dim), s.corner(dim) + s.reach(dim) + last - (p.src_size[dim] - 1));
}

// Of wgrad: whether some taps see nothing from about a quarter of an image's positions or more, at one of its ends, and
// from whole steps of them. Then clusters leave these steps out. To leave out fewer costs what it saves.
inline bool LeavesOutSteps(const ConvProblem& p, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  if (tile.halo || s.rank == 2) return false;
  const int dim = s.rows_dim();  // the outermost one that positions have
  const auto counts = ClassCounts(p, tile);
  int64_t row = 1;
  for (int d = dim + 1; d < kSpatial; ++d) row *= counts[d];
  const int64_t unseen = PixelsBeyond(p, s, tile, dim) / p.step[dim];
  const int64_t least = std::max(counts[dim] / 4, CeilDiv(2 * WgradPositions(tile, TraitsOf(p.src_type).bytes), row));
  return unseen > least;
}
inline int64_t ColClusters(const ConvProblem& p, const WgmmaTile& tile) {
  return CeilDiv(p.out_channels, int64_t{tile.cols} * tile.col_blocks);
}

// The work tiles that clusters share out: of a class, and of all.
inline int64_t ClassWorkTiles(const ConvProblem& p, const WgmmaTile& tile, int64_t split) {
  return RowClusters(p, tile) * ColClusters(p, tile) * split;
}
inline int64_t WorkTiles(const ConvProblem& p, const WgmmaTile& tile, int64_t split) {
  return ClassWorkTiles(p, tile, split) * LiveClasses(p);
}
inline int64_t WgradWorkTiles(const ConvProblem& p, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  return WgradRowClusters(p, s) * ColClusters(p, tile) * tile.workspace_split(Pass::kWgrad, s.split);
}

// The epilogue of a conv's kernel of a tile. With split-K there is none. Where a cluster adds sums, threads store
// results from registers, also in blocks.
inline WgmmaEpilogueKind EpilogueKindOf(const ConvProblem& p, const WgmmaTile& tile, bool has_epilogue) {
  if (!has_epilogue) return WgmmaEpilogueKind::kNone;
  if (p.dst.block != 0 && tile.cluster_split == 0) return WgmmaEpilogueKind::kBlocks;
  return IsByte(p.dst_type) ? WgmmaEpilogueKind::kBytes : WgmmaEpilogueKind::kPlain;
}

// The type of results that kernels of an operand's type store by TMA. They store others from registers.
inline DType TypeStoredByTma(DType src_type, WgmmaEpilogueKind epilogue_kind) {
  if (!IsByte(src_type)) return src_type;
  if (epilogue_kind == WgmmaEpilogueKind::kBytes) return IsFloat8(src_type) ? DType::kE4M3 : DType::kS8;
  return epilogue_kind == WgmmaEpilogueKind::kNone && !IsFloat8(src_type) ? DType::kS32 : DType::kBF16;
}

// Whether TMA stores the results. Residue classes that are not equally large have boxes that end outside of the result,
// which are illegal instructions to TMA.
inline bool StoresByTma(const ConvProblem& p, const WgmmaTile& tile, int64_t split, bool has_epilogue) {
  const bool is_of_type = p.dst_type == TypeStoredByTma(p.src_type, EpilogueKindOf(p, tile, has_epilogue));
  return tile.cluster_split == 0 && split == 1 && is_of_type && HasEqualClasses(p) && p.dst.block == 0;
}

// The rows of the result that tiles store whole, one behind the other; 0 if they do not.
inline int64_t WholeRows(const ConvProblem& p, const WgmmaTile& tile, int64_t split, bool has_epilogue) {
  const bool is_one_piece = PixelStride(p.dst, p.dst_size, p.batch) == p.out_channels && p.class_count == 1;
  const int bytes = TraitsOf(p.dst_type).bytes;
  if (!StoresWholeRows(tile, bytes) || !StoresByTma(p, tile, split, has_epilogue) || !is_one_piece) return 0;
  return p.out_channels < ResultCols(tile, bytes) ? p.batch * p.dst_size[0] * p.dst_size[1] * p.dst_size[2] : 0;
}

// Residue classes without taps that are no tiles: their zeros are stored beside the tiles of other classes. With an
// epilogue their results are no zeros.
inline int64_t ClassesOfZeros(const ConvProblem& p, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  return s.empty_classes > 0 && StoresZeros(tile) && StoresByTma(p, tile, s.split, false) ? s.empty_classes : 0;
}

}  // namespace jaxconv
