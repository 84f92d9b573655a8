// The tiles of the im2col family.
#pragma once

#include "common/tile.h"

namespace jaxconv {

inline constexpr Tile kIm2colTiles[] = {
    {128, 128, 8, 1, 8, 8, 2, true},
    {64, 64, 8, 1, 8, 8, 8, false},
};

}  // namespace jaxconv
