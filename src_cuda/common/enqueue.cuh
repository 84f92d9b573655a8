// Launches that the families share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

namespace jaxconv {

// Raises a kernel's limit of dynamic shared memory to all that the current device has, once for each kernel and device.
// The limit does not depend on the call, because several threads may launch one kernel with different sizes.
inline cudaError_t AllowShared(const void* function, size_t shared_bytes) {
  constexpr size_t kDefaultLimit = 48 * 1024;  // a kernel gets more only after cudaFuncSetAttribute
  if (shared_bytes <= kDefaultLimit) return cudaSuccess;
  static std::mutex mutex;
  static std::set<std::pair<int, const void*>> allowed;
  int device = 0, limit = 0;
  if (const cudaError_t status = cudaGetDevice(&device)) return status;
  const std::lock_guard lock(mutex);
  if (allowed.contains({device, function})) return cudaSuccess;
  cudaFuncAttributes attributes;
  if (const cudaError_t status = cudaFuncGetAttributes(&attributes, function)) return status;
  if (const cudaError_t status = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) {
    return status;
  }
  const int most = limit - static_cast<int>(attributes.sharedSizeBytes);
  if (const cudaError_t status = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, most)) {
    return status;
  }
  allowed.insert({device, function});
  return cudaSuccess;
}

// Launches a kernel with `shared_bytes` of dynamic shared memory.
template <typename Kernel, typename... Args>
cudaError_t EnqueueShared(Kernel* kernel, int64_t blocks, int threads, size_t shared_bytes, cudaStream_t stream,
                          Args... args) {
  const void* function = reinterpret_cast<const void*>(kernel);
  if (const cudaError_t status = AllowShared(function, shared_bytes)) return status;
  void* arguments[] = {&args...};
  return cudaLaunchKernel(function, dim3(static_cast<uint32_t>(blocks)), dim3(threads), arguments, shared_bytes,
                          stream);
}

template <typename Kernel, typename... Args>
cudaError_t Enqueue(Kernel* kernel, int64_t blocks, int threads, cudaStream_t stream, Args... args) {
  return EnqueueShared(kernel, blocks, threads, 0, stream, args...);
}

}  // namespace jaxconv
