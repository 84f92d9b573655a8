// The tiles of the simt family.
#pragma once

#include "common/tile.h"

namespace jaxconv {

inline constexpr Tile kSimtTiles[] = {
    {128, 128, 8, 2, 8, 8, 2, true},
    {128, 64, 8, 2, 8, 8, 4, true},
    {64, 64, 8, 2, 4, 8, 8, false},
    {128, 32, 8, 2, 4, 8, 8, false},
};

// That of calls of other families, whose kernels cannot run: for all types of sums, and the only one for float8.
inline constexpr int kStandInTile = 2;
static_assert(!kSimtTiles[kStandInTile].only_f32, "it is compiled for all types of sums");

}  // namespace jaxconv
