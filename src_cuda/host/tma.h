// What all maps for Hopper's copy engine, TMA, need: the driver's functions, and its names of types.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "conv_problem.h"

namespace jaxconv {

// A function of the driver, which this library is not linked with; null if it is too old.
template <typename Function>
Function* DriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  return reinterpret_cast<Function*>(status == cudaSuccess ? function : nullptr);
}

inline CUtensorMapDataType MapType(DType type) {
  return type == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

}  // namespace jaxconv
