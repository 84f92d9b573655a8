// Sizes of the matrix product of a call, of its tiles and of its workspace.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/types.h"
#include "conv_problem.h"
#include "reason.h"
#include "sizes.h"

namespace jaxconv {

// Elements of the source along all dimensions but this one of space.
inline int64_t ElementsOfRow(const ConvProblem& p, int dim) {
  int64_t elements = p.batch * p.groups * p.in_channels;
  for (int d = 0; d < kSpatial; ++d) elements *= d == dim ? 1 : p.src_size[d];
  return elements;
}

inline int64_t ResultElements(const ConvProblem& p, Pass pass) { return p.groups * Rows(p, pass) * p.out_channels; }

// Whether a result or its reduction has no elements.
inline bool IsEmpty(const ConvProblem& p) {
  const int64_t pixels = p.src_size[0] * p.src_size[1] * p.src_size[2];
  return Positions(p) == 0 || p.out_channels == 0 || ChannelTaps(p) == 0 || pixels == 0;
}

// Whether all of these classes have equally many positions. There must be positions.
inline bool HasEqualClasses(const ConvProblem& p) {
  bool are_equal = true;
  for (int d = 0; d < kSpatial; ++d) are_equal &= p.dst_size[d] % LivePhases(p, d) == 0;
  return are_equal;
}

// Tiles along M, where no tile crosses residue classes. The table of classes is on the device, so the host does not
// know the rows of each class. This is an upper bound, exact for one class. CTAs after the last tile exit immediately.
inline int64_t RowTiles(const ConvProblem& p, int64_t rows, int tile_rows) {
  return (rows + static_cast<int64_t>(p.class_count) * (tile_rows - 1)) / tile_rows;
}

// Workspace for the slices of split-K.
inline size_t SliceBytes(const ConvProblem& p, Pass pass, int64_t split) {
  return split * ResultElements(p, pass) * ElementBytes(SumType(p));
}

// The workspace of a family that uses it for split-K only.
inline size_t SplitBytes(const ConvProblem& p, Pass pass, int64_t split) {
  return split > 1 ? SliceBytes(p, pass, split) : 0;
}
template <typename Settings>
size_t SplitWorkspace(const ConvProblem& p, Pass pass, const Settings& s) {
  return SplitBytes(p, pass, s.split);
}

// Bytes of rows of sums of a wgrad's gradient, see common/gradient_sums.h.
inline int64_t GradientSumBytes(const ConvProblem& p, int64_t rows) {
  return rows * p.groups * p.out_channels * TraitsOf(DType::kF32).bytes;
}
// For a family whose slices have a row each, which come before them.
template <typename Settings>
int64_t GradientSumRows(const Settings& s) {
  return s.gradient_sums ? s.split : 0;
}
template <typename Settings>
size_t SummingWorkspace(const ConvProblem& p, Pass pass, const Settings& s) {
  return GradientSumBytes(p, GradientSumRows(s)) + SplitWorkspace(p, pass, s);
}

// The type that the first kernel of a call stores: with split-K the type of the sums.
inline DType StoredType(const ConvProblem& p, Pass pass, int64_t split) {
  return split > 1 ? SumType(p) : ResultType(p, pass);
}

template <typename Settings>
Reason UnsupportedSplit(const Settings& s) {
  return s.split < 1 ? Reason("a split of " + std::to_string(s.split)) : std::nullopt;
}

inline Reason UnsupportedBlocks(int64_t blocks) {
  return blocks > INT32_MAX ? Reason("more than 2^31 - 1 thread blocks") : std::nullopt;
}

}  // namespace jaxconv
