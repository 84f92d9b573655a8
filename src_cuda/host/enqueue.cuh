// Launches that the families share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/convert.cuh"
#include "host/product.h"

namespace jaxconv {

template <typename Kernel, typename... Args>
cudaError_t Enqueue(Kernel* kernel, int64_t blocks, int threads, cudaStream_t stream, Args... args) {
  void* arguments[] = {&args...};
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<uint32_t>(blocks)), dim3(threads),
                          arguments, 0, stream);
}

template <typename Acc>
__global__ void AddSlicesKernel(const Acc* slices, void* out, DType type, int64_t elements, int split) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= elements) return;
  Acc sum = slices[i];
#pragma unroll 8  // loads in flight; the order of the sum is the loop's
  for (int s = 1; s < split; ++s) sum += slices[s * elements + i];
  StoreNarrowed(Pack<Acc, 1>{sum}, out, i, type);
}

// The last kernel of a split call: adds the slices in their order.
template <typename Acc>
cudaError_t AddSlices(const void* slices, void* out, DType type, int64_t elements, int split, cudaStream_t stream) {
  constexpr int kThreads = 256;
  return Enqueue(AddSlicesKernel<Acc>, CeilDiv(elements, kThreads), kThreads, stream, static_cast<const Acc*>(slices),
                 out, type, elements, split);
}

}  // namespace jaxconv
