// The tiles of the im2col family.
#pragma once

#include "common/tile.h"

namespace jaxconv {

inline constexpr Tile kIm2colTiles[] = {
    {.block_m = 128, .block_n = 128, .block_k = 8, .stages = 1, .thread_m = 8, .ctas_per_sm = 2, .only_f32 = true},
    {.block_m = 64, .block_n = 64, .block_k = 8, .stages = 1, .thread_m = 8, .ctas_per_sm = 8},
};

// A CTA writes kIm2colRows x kIm2colSteps elements of the column matrix. A warp copies 32 neighbouring columns of one
// row.
inline constexpr int kIm2colSteps = 32;
inline constexpr int kIm2colWarps = 8;
inline constexpr int kIm2colRows = 32;
static_assert(kIm2colRows % kIm2colWarps == 0);

}  // namespace jaxconv
