// The tiles of the simt family.
#pragma once

#include "common/tile.h"

namespace jaxconv {

inline constexpr Tile kSimtTiles[] = {
    {.block_m = 128, .block_n = 128, .block_k = 8, .stages = 2, .thread_m = 8, .ctas_per_sm = 2, .only_f32 = true},
    {.block_m = 128, .block_n = 64, .block_k = 8, .stages = 2, .thread_m = 8, .ctas_per_sm = 4, .only_f32 = true},
    {.block_m = 64, .block_n = 64, .block_k = 8, .stages = 2, .thread_m = 4, .ctas_per_sm = 8},
    {.block_m = 128, .block_n = 32, .block_k = 8, .stages = 2, .thread_m = 4, .ctas_per_sm = 8},
};

// That of calls of other families, whose kernels cannot run: the first for all types of sums, and the only one for
// float8.
inline constexpr int kStandInTile = [] {
  int tile = 0;
  while (kSimtTiles[tile].only_f32) ++tile;
  return tile;
}();

}  // namespace jaxconv
