// Functions of CUDA's driver, which this library is not linked with.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace jaxconv {

// Null if the driver is too old.
template <typename Function>
Function* DriverFunction(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
  return reinterpret_cast<Function*>(status == cudaSuccess ? function : nullptr);
}

}  // namespace jaxconv
