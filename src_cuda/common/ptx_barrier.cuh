// mbarriers in shared memory, and the TMA copies that arrive at them.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace jaxconv::ptx {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasTma = true;
#else
inline constexpr bool kHasTma = false;
#endif

__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void Arrive(uint32_t barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}

// Waits until the barrier's phase with this parity has completed.
__device__ __forceinline__ void Wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#else
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
#endif
  }
}

// Arrives when all earlier cp.async copies of this thread are complete.
__device__ __forceinline__ void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Arrives. The phase then completes only after TMA has written as many bytes.
__device__ __forceinline__ void ArriveExpecting(uint32_t barrier, uint32_t bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared.b64 state, [%0], %1; }" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Prefetches a TMA descriptor, before the first copy.
__device__ __forceinline__ void PrefetchMap(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(&map)) : "memory");
}

// Copies a box of a (channel, w, h, d, image) tensor. Elements outside of the tensor are zeros.
__device__ __forceinline__ void CopyBoxByTma(uint32_t to, const CUtensorMap& map, uint32_t barrier, int32_t channel,
                                             int32_t w, int32_t h, int32_t d, int32_t image) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, "
      "%7}], [%2];" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(&map)), "r"(barrier), "r"(channel), "r"(w), "r"(h), "r"(d), "r"(image)
      : "memory");
}

// Orders accesses to shared memory before those of TMA: this thread's own, and those of others that it has waited for.
__device__ __forceinline__ void FenceForTma() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

}  // namespace jaxconv::ptx
