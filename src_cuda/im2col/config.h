// The tiles of the im2col family.
#pragma once

#include "common/tile.h"

namespace jaxconv {

inline constexpr Tile kIm2colTiles[] = {
    {128, 128, 8, 1, 8, 8, 2, true},
    {64, 64, 8, 1, 8, 8, 8, false},
};

// A CTA writes kIm2colRows x kIm2colSteps elements of the column matrix. A warp copies 32 neighbouring columns of one
// row.
inline constexpr int kIm2colSteps = 32;
inline constexpr int kIm2colWarps = 8;
inline constexpr int kIm2colRows = 32;
static_assert(kIm2colRows % kIm2colWarps == 0);

}  // namespace jaxconv
