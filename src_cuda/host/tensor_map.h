// What Hopper's copy engine, TMA, is told of a tensor.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "conv_problem.h"
#include "device/direct_params.cuh"
#include "host/tma.h"

namespace jaxconv {

inline constexpr int32_t kMostBoxExtent = 256;

// Describes an activation and a box of it to TMA. The pixels of a box's row are taken for one if they are neighbours
// and have but eight channels, `in_rows`, or are read in runs, where the box's extent is of pieces of a row. False where
// the driver refuses, or is too old.
inline bool EncodeMap(CUtensorMap* map, bool* in_rows, const void* tensor, DType type, const TensorStrides& s,
                      const int64_t (&size)[kSpatial], int64_t batch, int64_t channels, const PixelLayout& pixel,
                      const int32_t (&extent)[kSpatial], bool is_runs) {
  static const auto encode = DriverFunction<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  const auto size_of = [](int64_t size) { return static_cast<cuuint64_t>(size); };
  *in_rows = pixel.pitch == 0 && channels == kPieceChannels && s.spatial[2] == channels &&
             extent[2] * channels <= kMostBoxExtent;
  const bool is_row = *in_rows || is_runs;
  const int64_t row = is_row ? size[2] : 1, pixel_channels = kPieceChannels << pixel.pitch;
  const int32_t box_row = is_row ? extent[2] : 1;
  // Strides of dimensions that there are none of may be anything that is valid.
  const auto bytes = [&](int64_t stride) { return size_of(std::max<int64_t>(stride, channels * row)) * 2; };
  const cuuint64_t sizes[] = {size_of(channels * row), size_of(size[2] / row), size_of(size[1]), size_of(size[0]),
                              size_of(batch)};
  const cuuint64_t strides[] = {bytes(s.spatial[2] * row), bytes(s.spatial[1]), bytes(s.spatial[0]), bytes(s.batch)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(pixel_channels * box_row),
                            static_cast<cuuint32_t>(extent[2] / box_row), static_cast<cuuint32_t>(extent[1]),
                            static_cast<cuuint32_t>(extent[0]), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1, 1};
  return encode(map, MapType(type), 5, const_cast<void*>(tensor), sizes, strides, box, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzles[pixel.pitch], CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace jaxconv
