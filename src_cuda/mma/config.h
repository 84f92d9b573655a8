// The tiles of the mma family.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "common/tiled_product.h"
#include "operand_traits.h"

namespace jaxconv {

// A tile on tensor cores. Warps share it out, or warpgroups of four warps if they multiply by wgmma.
struct MmaTile {
  int rows;
  int cols;
  int depth;  // a row of shared memory along the steps: the elements of kSwizzleBytes
  int stages;
  int warp_rows;
  int warp_cols = cols;
  int ctas_per_sm = 1;
  bool wgmma = false;  // of compute capability 9.0 alone
  int passes = 1;      // 1, or 3: float32 as the sum of two tf32 numbers

  // Whether there are kernels that merge residue classes: for narrower tiles it gains little. Of bytes the filter is
  // K-major.
  constexpr bool merges() const { return cols == 128 && !IsOf(DType::kS8); }
  constexpr int threads() const { return (wgmma ? 128 : 32) * (rows / warp_rows) * (cols / warp_cols); }
  constexpr bool IsOf(DType operands) const { return depth == TraitsOf(operands).swizzle_row(); }
  // The stages of both operands, then the results in their place; points of the rows and the steps, padded.
  constexpr int64_t shared_bytes() const {
    constexpr int64_t kSumBytes = TraitsOf(DType::kF32).bytes, kAlignment = 1024;  // int32 has as many
    const int64_t tiles = stages * int64_t{rows + cols} * kSwizzleBytes;
    const int64_t results = rows * int64_t{cols + 8} * kSumBytes;
    const int64_t points = (rows + int64_t{step_stages()} * depth) * 9 / 8 * kPointBytes;
    return CeilDiv(std::max(tiles, results) + points, kAlignment) * kAlignment;
  }
  std::string name() const {
    const std::string how = wgmma ? " wgmma" : passes > 1 ? " in " + std::to_string(passes) + " passes" : "";
    return std::to_string(rows) + "x" + std::to_string(cols) + "x" + std::to_string(depth) + how;
  }
  TileFields fields() const {
    return {{"rows", rows},
            {"cols", cols},
            {"depth", depth},
            {"stages", stages},
            {"wgmma", wgmma},
            {"passes", passes},
            {"ctas_per_sm", ctas_per_sm}};
  }
  PlannedTile planned() const { return {rows, cols, depth, ctas_per_sm}; }
  // Tiles that are copied ahead of the one that is multiplied. A stage is written again once it has been multiplied. If
  // multiplications go on meanwhile and no other block fills the gap, that is one tile later.
  constexpr int pending() const { return wgmma && ctas_per_sm == 1 ? 1 : 0; }
  constexpr int ahead() const { return stages - 1 - pending(); }
  // The steps of so many tiles are known: of those and of the next. A power of two.
  constexpr int step_stages() const { return ahead() == 1 ? 2 : 4; }
};

inline constexpr MmaTile kMmaTiles[] = {
    {.rows = 128, .cols = 128, .depth = 64, .stages = 3, .warp_rows = 64, .warp_cols = 64, .ctas_per_sm = 2},
    {.rows = 128, .cols = 64, .depth = 64, .stages = 4, .warp_rows = 64, .warp_cols = 32, .ctas_per_sm = 2},
    {.rows = 64, .cols = 64, .depth = 64, .stages = 4, .warp_rows = 32, .warp_cols = 32, .ctas_per_sm = 3},
    {.rows = 128, .cols = 16, .depth = 64, .stages = 4, .warp_rows = 32, .ctas_per_sm = 2},
    {.rows = 256, .cols = 128, .depth = 64, .stages = 4, .warp_rows = 128, .wgmma = true},
    {.rows = 128, .cols = 128, .depth = 64, .stages = 3, .warp_rows = 128, .ctas_per_sm = 2, .wgmma = true},
    {.rows = 128, .cols = 64, .depth = 64, .stages = 2, .warp_rows = 128, .ctas_per_sm = 4, .wgmma = true},
    {.rows = 128, .cols = 16, .depth = 64, .stages = 2, .warp_rows = 128, .ctas_per_sm = 5, .wgmma = true},
    {.rows = 128, .cols = 128, .depth = 32, .stages = 3, .warp_rows = 64, .warp_cols = 64, .ctas_per_sm = 2},
    {.rows = 128, .cols = 64, .depth = 32, .stages = 4, .warp_rows = 64, .warp_cols = 32, .ctas_per_sm = 2},
    {.rows = 64, .cols = 64, .depth = 32, .stages = 4, .warp_rows = 32, .warp_cols = 32, .ctas_per_sm = 3},
    {.rows = 128, .cols = 16, .depth = 32, .stages = 4, .warp_rows = 32, .ctas_per_sm = 2},
    {.rows = 128, .cols = 128, .depth = 32, .stages = 3, .warp_rows = 64, .warp_cols = 32, .passes = 3},
    {.rows = 128, .cols = 128, .depth = 128, .stages = 3, .warp_rows = 64, .warp_cols = 64, .ctas_per_sm = 2},
    {.rows = 128, .cols = 64, .depth = 128, .stages = 4, .warp_rows = 64, .warp_cols = 32, .ctas_per_sm = 2},
    {.rows = 64, .cols = 64, .depth = 128, .stages = 4, .warp_rows = 32, .warp_cols = 32, .ctas_per_sm = 3},
    {.rows = 128, .cols = 16, .depth = 128, .stages = 4, .warp_rows = 32, .ctas_per_sm = 2},
};

// The first of the widest tiles without wgmma of so many columns at most; -1 if there is none. For devices that do not
// have it: programs may be compiled elsewhere.
constexpr int TileWithoutWgmma(DType type, int most_cols) {
  int widest = -1, i = 0;
  for (const MmaTile& tile : kMmaTiles) {
    const bool fits = tile.IsOf(type) && !tile.wgmma && tile.cols <= most_cols;
    if (fits && (widest < 0 || tile.cols > kMmaTiles[widest].cols)) widest = i;
    ++i;
  }
  return widest;
}

constexpr bool HasTilesWithoutWgmma() {
  for (const MmaTile& tile : kMmaTiles) {
    for (const OperandTraits& operands : kOperandTraits) {
      if (operands.mma_depth > 0 && TileWithoutWgmma(operands.type, tile.cols) < 0) return false;
    }
  }
  return true;
}
static_assert(HasTilesWithoutWgmma(), "plans are for any device: another tile takes the place of one that it lacks");

}  // namespace jaxconv
