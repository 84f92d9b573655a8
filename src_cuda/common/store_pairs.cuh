// Stores the sums of tensor cores to shared memory.
#pragma once

#include "common/convert.cuh"

namespace jaxconv {

// Rounds a warp's sums and stores them into rows of `pitch` elements, two neighbours at a time. The sums are 16 rows by
// kBlocks * 8 columns, in the registers of ptx::MultiplyAdd. row(half, lane / 4) is the row of a register.
template <typename Out, typename Sum, int kBlocks, typename Row>
__device__ __forceinline__ void StorePairs(const Sum (&sum)[kBlocks][4], Out* first, int pitch, const Row& row) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Out* to = first + row(half, lane / 4) * pitch + j * 8 + lane % 4 * 2;
      *reinterpret_cast<Pack<Out, 2>*>(to) = {RoundTo<Out>(sum[j][2 * half]), RoundTo<Out>(sum[j][2 * half + 1])};
    }
  }
}

}  // namespace jaxconv
