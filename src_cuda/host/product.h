// Sizes of a call's matrix product, and of the tiles that cut it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "conv_problem.h"
#include "host/types.h"
#include "launch.h"

namespace jaxconv {

inline constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t Positions(const ConvProblem& p) { return p.batch * p.dst_size[0] * p.dst_size[1] * p.dst_size[2]; }

inline int64_t ChannelTaps(const ConvProblem& p) { return p.tap_count * p.in_channels; }

inline int64_t Rows(const ConvProblem& p, Pass pass) { return pass == Pass::kGather ? Positions(p) : ChannelTaps(p); }

inline int64_t ResultElements(const ConvProblem& p, Pass pass) { return p.groups * Rows(p, pass) * p.out_channels; }

// Tiles of rows, each within a residue class. Classes are on the device, so the rows of each are unknown here: a bound
// on the tiles of all, exact for one class. Blocks past the last tile end at once.
inline int64_t RowTiles(const ConvProblem& p, int64_t rows, int tile_rows) {
  return (rows + static_cast<int64_t>(p.class_count) * (tile_rows - 1)) / tile_rows;
}

// Scratch for the sums of a split reduction's slices.
inline size_t SliceBytes(const ConvProblem& p, Pass pass, int split) {
  return split * ResultElements(p, pass) * ElementBytes(SumType(p));
}

// Why no family that has `tiles` can run a plan, or null.
template <size_t kCount>
const char* WhyNotTile(const Tile (&tiles)[kCount], const ConvProblem& p, const Plan& plan) {
  if (plan.tile < 0 || plan.tile >= static_cast<int>(kCount)) return "no such tile is compiled";
  if (tiles[plan.tile].only_f32 && SumType(p) != DType::kF32) return "the tile is compiled for float32 sums only";
  return plan.split < 1 ? "the split must be positive" : nullptr;
}

}  // namespace jaxconv
