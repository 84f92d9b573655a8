// Attributes of the device that a launch runs on.
#pragma once

#include <cuda_runtime_api.h>

namespace jaxconv {

// Whether this build has code for sm_90a, the only architecture with wgmma.
#ifdef JAXCONV_SM_90A
inline constexpr bool kHasWgmmaCode = true;
#else
inline constexpr bool kHasWgmmaCode = false;
#endif

// An attribute of the current device; 0 where it cannot be read.
inline int DeviceAttribute(cudaDeviceAttr name) {
  int device = 0, value = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  return cudaDeviceGetAttribute(&value, name, device) == cudaSuccess ? value : 0;
}

// Whether the current device has wgmma. It may differ from the device that the program was compiled for.
inline bool DeviceHasWgmma() {
  return kHasWgmmaCode && DeviceAttribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
         DeviceAttribute(cudaDevAttrComputeCapabilityMinor) == 0;
}

}  // namespace jaxconv
