// The sums of a wgrad's gradient in a kernel of their own.
#include "common/gradient_sums.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "common/enqueue.cuh"
#include "common/product.h"

namespace jaxconv {
namespace {

constexpr int kWarps = 32;

// A block adds up 32 channels of a group: each warp every kWarps-th position, then all warps' sums in their order.
template <typename T>
__global__ void __launch_bounds__(32 * kWarps)
    GradientSumsKernel(const T* gradient, const ConvProblem p, int64_t positions, int64_t rows, float* sums) {
  __shared__ float of_warps[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t blocks = CeilDiv(p.out_channels, 32), channels = p.groups * p.out_channels;
  const int64_t channel = blockIdx.x % blocks * 32 + lane, group = blockIdx.x / blocks;
  const TensorStrides& apart = p.dst;
  float sum = 0;
  for (int64_t i = warp; i < positions && channel < p.out_channels; i += kWarps) {
    int64_t rest = i, element = group * apart.group + channel * apart.channel;
    for (int d = kSpatial - 1; d >= 0; --d) {
      element += rest % p.dst_size[d] * apart.spatial[d];
      rest /= p.dst_size[d];
    }
    sum += static_cast<float>(gradient[element + rest * apart.batch]);
  }
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || channel >= p.out_channels) return;
  for (int i = 1; i < kWarps; ++i) sum += of_warps[i][lane];
  for (int64_t row = 0; row < rows; ++row) {
    sums[row * channels + group * p.out_channels + channel] = row == 0 ? sum : 0;
  }
}

}  // namespace

cudaError_t EnqueueGradientSums(const ConvCall& given, int64_t rows, cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  const ConvProblem& p = given.problem;
  const auto enqueue = [&]<typename T>(T) {
    return Enqueue(GradientSumsKernel<T>, CeilDiv(p.out_channels, 32) * p.groups, 32 * kWarps, stream,
                   static_cast<const T*>(given.rhs), p, Positions(p), rows, GradientSumsOf(given, rows));
  };
  return p.dst_type == DType::kBF16 ? enqueue(__nv_bfloat16()) : enqueue(__half());
}

}  // namespace jaxconv
