// TMA descriptors (tensor maps): the driver's functions and types.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>

#include "common/tma_limits.h"
#include "conv_problem.h"

namespace jaxconv {

// A function of the driver, because this library does not link with it. Null if the driver is too old.
template <typename Function>
Function* DriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  return reinterpret_cast<Function*>(status == cudaSuccess ? function : nullptr);
}

inline CUtensorMapDataType MapType(DType type) {
  switch (type) {
    case DType::kF32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::kF64: return CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
    case DType::kBF16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::kF16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::kS8:
    case DType::kE4M3:
    case DType::kE5M2: return CU_TENSOR_MAP_DATA_TYPE_UINT8;  // TMA copies bytes, whatever they mean
    case DType::kS32: return CU_TENSOR_MAP_DATA_TYPE_INT32;
  }
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

// What a map is of: how TMA converts elements, and swizzles them.
struct MapElements {
  DType type;
  CUtensorMapSwizzle swizzle;
  CUtensorMapDataType in_map = MapType(type);
};

inline constexpr cuuint32_t kEachElement[2 + kSpatial] = {1, 1, 1, 1, 1};

// An array of so many rows along a dimension, which else lies as the source does.
struct RowsOfSource {
  int64_t size[kSpatial];
  TensorStrides strides;

  RowsOfSource(const ConvProblem& p, int dim, int64_t count) : strides(p.src) {
    for (int d = 0; d < kSpatial; ++d) size[d] = d == dim ? count : p.src_size[d];
    const auto shrink = [&](int64_t* stride) {
      if (*stride > p.src.spatial[dim]) *stride = *stride / p.src_size[dim] * count;
    };
    shrink(&strides.batch);
    for (int64_t& stride : strides.spatial) shrink(&stride);
  }
};

// Makes a descriptor of a (channel, w, h, d, image) activation and a box. `steps` are the element strides: the
// distances between copied elements. `merged_pixels` neighbouring pixels of a row count as one pixel with all their
// channels. False if the driver refuses, or is too old.
inline bool EncodeActivation(CUtensorMap* map, const void* tensor, const MapElements& of, const TensorStrides& s,
                             const int64_t (&size)[kSpatial], int64_t batch, int64_t channels, int64_t merged_pixels,
                             const cuuint32_t (&box)[2 + kSpatial],
                             const cuuint32_t (&steps)[2 + kSpatial] = kEachElement) {
  static const auto encode = DriverFunction<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  if (encode == nullptr) return false;
  const auto size_of = [](int64_t size) { return static_cast<cuuint64_t>(size); };
  // The stride of a missing dimension is 0. The driver wants a valid stride, but any will do.
  const auto bytes = [&](int64_t stride) {
    return size_of(std::max(stride, channels * merged_pixels) * ElementBytes(of.type));
  };
  const cuuint64_t sizes[] = {size_of(channels * merged_pixels), size_of(size[2] / merged_pixels), size_of(size[1]),
                              size_of(size[0]), size_of(batch)};
  const cuuint64_t strides[] = {bytes(s.spatial[2] * merged_pixels), bytes(s.spatial[1]), bytes(s.spatial[0]),
                                bytes(s.batch)};
  return encode(map, of.in_map, 5, const_cast<void*>(tensor), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                of.swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace jaxconv
