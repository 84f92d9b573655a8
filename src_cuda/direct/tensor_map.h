// A tensor's map: how Hopper's copy engine, TMA, sees it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/tma.h"
#include "conv_problem.h"
#include "direct/params.cuh"
#include "operand_traits.h"

namespace jaxconv {

// Describes an activation and a box of it to TMA. `in_rows`: the map takes a row of pixels for one pixel, if they are
// neighbours of one vector each. Packed K is such a row, too, and its extent counts vectors. False where the driver
// refuses, or is too old.
inline bool EncodeMap(CUtensorMap* map, bool* in_rows, const void* tensor, DType type, const TensorStrides& s,
                      const int64_t (&size)[kSpatial], int64_t batch, int64_t channels, const PixelLayout& pixel,
                      const int32_t (&extent)[kSpatial], bool is_packed) {
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  *in_rows = pixel.pitch == 0 && channels == TraitsOf(type).vector() && s.spatial[2] == channels &&
             extent[2] * channels <= kMaxBoxExtent;
  const bool is_row = *in_rows || is_packed;
  const int64_t pixel_channels = TraitsOf(type).vector() << pixel.pitch;
  const int32_t box_row = is_row ? extent[2] : 1;
  const cuuint32_t box[] = {static_cast<cuuint32_t>(pixel_channels * box_row),
                            static_cast<cuuint32_t>(extent[2] / box_row), static_cast<cuuint32_t>(extent[1]),
                            static_cast<cuuint32_t>(extent[0]), 1};
  return EncodeActivation(map, tensor, {type, kSwizzles[pixel.pitch]}, s, size, batch, channels, is_row ? size[2] : 1,
                          box);
}

}  // namespace jaxconv
