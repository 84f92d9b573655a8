// Launches that the families share.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/convert.cuh"
#include "host/product.h"

namespace jaxconv {

// Lets a kernel have so much dynamic shared memory, which the caller has compared with the device's limit.
inline cudaError_t AllowShared(const void* function, size_t shared_bytes) {
  constexpr size_t kUnasked = 48 * 1024;  // more is given only to kernels that ask for it
  if (shared_bytes <= kUnasked) return cudaSuccess;
  return cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
}

// With `shared_bytes` of dynamic shared memory.
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

inline constexpr int kSliceThreads = 256;

// Adds so many slices in order, the first of which is at `from`, each `step` elements further on. One round of loads is
// all there is of instructions: most calls take one, and wait for instructions to come from memory, too.
template <typename Acc>
__device__ __forceinline__ Acc AddEach(const Acc* from, int64_t step, int split) {
  constexpr int kLoads = 8;  // in flight
  Acc sum = 0;
#pragma unroll 1
  for (; split > 0; split -= kLoads) {
    Acc values[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j, from += step) values[j] = j < split ? *from : 0;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) sum += values[j];
  }
  return sum;
}

// Adds slices, kParts threads a result: each every kParts-th slice in order, then the parts in theirs.
template <typename Acc, int kParts>
__global__ void AddSlicesKernel(const Acc* slices, void* out, DType type, int64_t elements, int split) {
  constexpr int kResults = kSliceThreads / kParts;
  const int result = threadIdx.x % kResults, part = threadIdx.x / kResults;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kResults + result;
  Acc sum = 0;
  if (i < elements) {
    sum = AddEach(slices + part * elements + i, kParts * elements, CeilDiv(split - part, kParts));
  }
  if constexpr (kParts > 1) {
    __shared__ Acc parts[kParts][kResults];
    parts[part][result] = sum;
    __syncthreads();
    sum = parts[0][result];
#pragma unroll
    for (int p = 1; p < kParts; ++p) sum += parts[p][result];
  }
  if (part == 0 && i < elements) StoreNarrowed(Pack<Acc, 1>{sum}, out, i, type);
}

// The last kernel of a call that keeps sums in the scratch: adds the slices in an order of its own.
template <typename Acc>
cudaError_t AddSlices(const ConvCall& call, const Plan& plan, cudaStream_t stream) {
  constexpr int kParts = 8;  // of many slices, as a thread has to wait for each
  const int64_t elements = ResultElements(call.problem, call.pass);
  const DType type = ResultType(call.problem, call.pass);
  const int parts = plan.split >= 2 * kParts ? kParts : 1;
  return Enqueue(parts == 1 ? AddSlicesKernel<Acc, 1> : AddSlicesKernel<Acc, kParts>,
                 CeilDiv(elements * parts, kSliceThreads), kSliceThreads, stream,
                 static_cast<const Acc*>(call.scratch), call.result, type, elements, plan.split);
}

}  // namespace jaxconv
