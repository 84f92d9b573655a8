// TMA's maps: of the pixels that a convolution's windows see, in im2col mode or as boxes, and of its filter.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "common/tma.h"
#include "common/tma_limits.h"
#include "conv_problem.h"
#include "operand_traits.h"

namespace jaxconv {

// Windows that move over an activation: the first one's corner, how far apart they are and how many.
struct Im2colWindows {
  int64_t corner[kSpatial];
  int64_t step[kSpatial];
  int64_t count[kSpatial];
  void Set(int d, int64_t corner_of, int64_t step_of, int64_t count_of) {
    corner[d] = corner_of, step[d] = step_of, count[d] = count_of;
  }
};

// Operands' rows in shared memory have 128 bytes each, and a box may fill a part of each. Tensor cores would truncate
// float32: TMA rounds it to tf32 on the way.
inline MapElements OfOperand(DType type) {
  return {type, CU_TENSOR_MAP_SWIZZLE_128B, type == DType::kF32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : MapType(type)};
}
// Results' rows of so many columns may have 64 bytes.
inline MapElements OfResult(DType type, int cols) {
  return {type, cols == TraitsOf(type).swizzle_row() ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B};
}

// Describes matrices, such as the taps of a filter. One axis is contiguous. A box has `fast` elements of that axis, in
// a swizzled row, by `slow` of the other. False where the driver refuses, or is too old.
inline bool EncodeMatrices(CUtensorMap* map, const void* first, const MapElements& of, int64_t fast_size,
                           int64_t slow_size, int64_t slow_stride, int64_t matrices, int64_t matrix_stride, int fast,
                           int slow) {
  static const auto encode = DriverFunction<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(fast_size), static_cast<cuuint64_t>(slow_size),
                              static_cast<cuuint64_t>(matrices)};
  const auto bytes = [&](int64_t stride) { return static_cast<cuuint64_t>(stride * TraitsOf(of.type).bytes); };
  const cuuint64_t strides[] = {bytes(slow_stride), bytes(matrix_stride)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(fast), static_cast<cuuint32_t>(slow), 1}, steps[] = {1, 1, 1};
  return encode(map, of.in_map, 3, const_cast<void*>(first), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                of.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Describes the pixels that one tap of all windows reads: `pixels` of them and `channels_at_once` channels of each at a
// time. The map has channels, images, and the last rank - 2 dimensions of space. Of rank 2, pixels are rows of a
// matrix.
inline bool EncodeIm2col(CUtensorMap* map, int rank, const void* tensor, const MapElements& of, const TensorStrides& s,
                         const int64_t (&size)[kSpatial], int64_t batch, int64_t channels, const Im2colWindows& windows,
                         int channels_at_once, int pixels) {
  const OperandTraits& traits = TraitsOf(of.type);
  if (rank == 2) {  // one matrix: how far the next one is may be anything that is valid
    return EncodeMatrices(map, tensor, of, channels, size[2], s.spatial[2], 1, traits.vector(), channels_at_once,
                          pixels);
  }
  static const auto encode = DriverFunction<decltype(cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  if (encode == nullptr) return false;
  cuuint64_t sizes[2 + kSpatial] = {static_cast<cuuint64_t>(channels)}, strides[1 + kSpatial];
  cuuint32_t steps[2 + kSpatial] = {1};
  int lower[kSpatial], upper[kSpatial];
  // Strides of dimensions that there are none of may be anything that is valid.
  const auto bytes = [&](int64_t stride) { return static_cast<cuuint64_t>(std::max(stride, channels) * traits.bytes); };
  int dim = 0;
  for (; dim < rank - 2; ++dim) {
    const int d = kSpatial - 1 - dim;
    sizes[dim + 1] = static_cast<cuuint64_t>(size[d]);
    strides[dim] = bytes(s.spatial[d]);
    steps[dim + 1] = static_cast<cuuint32_t>(windows.step[d]);
    lower[dim] = static_cast<int>(windows.corner[d]);
    upper[dim] = static_cast<int>(windows.corner[d] + (windows.count[d] - 1) * windows.step[d] - (size[d] - 1));
  }
  sizes[dim + 1] = static_cast<cuuint64_t>(batch);
  strides[dim] = bytes(s.batch);
  steps[dim + 1] = 1;
  return encode(map, of.in_map, rank, const_cast<void*>(tensor), sizes, strides, lower, upper, channels_at_once, pixels,
                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, of.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Pixels in one plane: so many rows and columns, a step apart.
struct PixelBox {
  int64_t rows;
  int64_t cols;
  int64_t row_step = 1;
  int64_t col_step = 1;
};

// Describes boxes of an activation's pixels, and `channels_at_once` channels of each.
inline bool EncodeBoxes(CUtensorMap* map, const void* tensor, const MapElements& of, const TensorStrides& s,
                        const int64_t (&size)[kSpatial], int64_t batch, int64_t channels, int channels_at_once,
                        const PixelBox& pixels) {
  const auto number = [](int64_t number) { return static_cast<cuuint32_t>(number); };
  const cuuint32_t box[] = {number(channels_at_once), number(BoxExtent(pixels.cols, pixels.col_step)),
                            number(BoxExtent(pixels.rows, pixels.row_step)), 1, 1};
  const cuuint32_t steps[] = {1, number(pixels.col_step), number(pixels.row_step), 1, 1};
  return EncodeActivation(map, tensor, of, s, size, batch, channels, 1, box, steps);
}

}  // namespace jaxconv
