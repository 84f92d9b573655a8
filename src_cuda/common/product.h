// Sizes of a call's matrix product, and of the tiles that cut it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/plan.h"
#include "common/types.h"
#include "conv_problem.h"

namespace jaxconv {

inline constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t Positions(const ConvProblem& p) { return p.batch * p.dst_size[0] * p.dst_size[1] * p.dst_size[2]; }

inline int64_t ChannelTaps(const ConvProblem& p) { return p.tap_count * p.in_channels; }

inline int64_t Rows(const ConvProblem& p, Pass pass) { return pass == Pass::kConv ? Positions(p) : ChannelTaps(p); }

inline int64_t ResultElements(const ConvProblem& p, Pass pass) { return p.groups * Rows(p, pass) * p.out_channels; }

// Residue classes that have positions are the table's first ones: of each dimension so many phases.
inline int64_t LivePhases(const ConvProblem& p, int d) { return std::min(p.period[d], p.dst_size[d]); }
inline int64_t LiveClasses(const ConvProblem& p) { return LivePhases(p, 0) * LivePhases(p, 1) * LivePhases(p, 2); }

// Whether these have equally many positions. There are results.
inline bool HasEqualClasses(const ConvProblem& p) {
  bool are_equal = true;
  for (int d = 0; d < kSpatial; ++d) are_equal &= p.dst_size[d] % LivePhases(p, d) == 0;
  return are_equal;
}

// Tiles of rows, each within a residue class. Classes are on the device, so the rows of each are unknown here: a bound
// on the tiles of all, exact for one class. Blocks past the last tile end at once.
inline int64_t RowTiles(const ConvProblem& p, int64_t rows, int tile_rows) {
  return (rows + static_cast<int64_t>(p.class_count) * (tile_rows - 1)) / tile_rows;
}

// Scratch for the sums of a split reduction's slices.
inline size_t SliceBytes(const ConvProblem& p, Pass pass, int split) {
  return split * ResultElements(p, pass) * ElementBytes(SumType(p));
}

// The scratch of a family that keeps nothing else there.
inline size_t SplitBytes(const ConvProblem& p, Pass pass, const Plan& plan) {
  return plan.split > 1 ? SliceBytes(p, pass, plan.split) : 0;
}

// What a call's first kernel stores: the slices of a split reduction are in the type of the sums.
inline DType StoredType(const ConvProblem& p, Pass pass, const Plan& plan) {
  return plan.split > 1 ? SumType(p) : ResultType(p, pass);
}

// Why no family that has as many tiles can run a plan, or null.
inline const char* WhyNotPlan(const Plan& plan, size_t tiles) {
  if (plan.tile < 0 || plan.tile >= static_cast<int>(tiles)) return "no such tile is compiled";
  return plan.split < 1 ? "the split must be positive" : nullptr;
}

}  // namespace jaxconv
