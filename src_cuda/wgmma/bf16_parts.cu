// Splits a filter of float32, or a weight gradient's output gradient, into parts of bfloat16: see bf16x6.cuh.
#include <algorithm>
#include <cstdint>

#include "common/product.h"
#include "wgmma/bf16x6.cuh"
#include "wgmma/kernels.h"

namespace jaxconv {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;  // elements that a thread splits at a time: 16 bytes are read, and 8 of each part written

__global__ void __launch_bounds__(kThreads) BF16PartsKernel(const float4* operand, int64_t vectors, uint2* parts) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < vectors; i += gridDim.x * int64_t{kThreads}) {
    const float4 four = operand[i];
    uint32_t one[kBF16Parts], two[kBF16Parts];
    SplitPair<true>(four.x, four.y, one);
    SplitPair<true>(four.z, four.w, two);
#pragma unroll
    for (int part = 0; part < kBF16Parts; ++part) parts[part * vectors + i] = {one[part], two[part]};
  }
}

}  // namespace

cudaError_t EnqueueBF16Parts(const float* operand, int64_t elements, void* parts, cudaStream_t stream) {
  constexpr int64_t kMostBlocks = 1 << 16;
  const int64_t vectors = elements / kVector, blocks = CeilDiv(vectors, kThreads);
  if (blocks == 0) return cudaSuccess;
  BF16PartsKernel<<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads, 0, stream>>>(
      reinterpret_cast<const float4*>(operand), vectors, static_cast<uint2*>(parts));
  return cudaGetLastError();
}

}  // namespace jaxconv
