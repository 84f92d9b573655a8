// Implicit GEMM on Hopper: thread blocks that stay, of one or two warps that copy and two warpgroups that multiply.
//
// TMA reads pixels in its im2col mode, in which a tap of the filter is an offset, or as boxes for many taps, and the
// filter as it lies. Blocks of a cluster have neighbouring rows or columns and share what they read of an operand: L2
// gives less than the tensor cores take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "device/ptx.cuh"
#include "device/ptx_barrier.cuh"
#include "device/ptx_cluster.cuh"
#include "device/ptx_hopper.cuh"
#include "device/wgmma_boxes.cuh"
#include "device/wgmma_epilogue.cuh"
#include "device/wgmma_mainloop.cuh"
#include "device/wgmma_params.cuh"
#include "device/wgmma_scheduler.cuh"
#include "device/wgmma_slices.cuh"
#include "kernels/wgmma.h"
#include "launch.h"

namespace jaxconv {

template <typename T, WgmmaTile kTile, bool kAlongSteps>
using WgmmaMainLoop =
    std::conditional_t<kTile.boxed, WgmmaBoxes<T, kTile, kAlongSteps>, WgmmaWindows<T, kTile, kAlongSteps>>;

template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct alignas(1024) WgmmaShared {
  using Stages = typename WgmmaMainLoop<T, kTile, kAlongSteps>::Stages;
  Stages stages;
  char results[kTile.warpgroups()][ResultBuffers(kTile)][4 * kResultBytes];
  uint64_t barriers[Stages::kBarriers];
  int32_t order[kMostWgmmaClasses];
};

// Registers of a thread, where warps that copy leave theirs to those that multiply.
inline constexpr int kCopyRegisters = 40, kMultiplyRegisters = 232;

// No block of a cluster may reach into another before that one's barriers are there, nor after it has ended.
template <WgmmaTile kTile>
__device__ __forceinline__ void SyncBlocks() {
  __syncthreads();
  if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
}

// What the first copy waits for longest, as nothing of a launch is in a cache: the maps, and the first tap, if it is
// looked up. To be called by a thread.
template <WgmmaTile kTile>
__device__ __forceinline__ void FetchAhead(const WgmmaParams& p) {
  ptx::PrefetchMap(p.src_map);
  ptx::PrefetchMap(p.rhs_map);
  if (!kTile.boxed && p.rank > 2) ptx::Prefetch(p.taps);
}

// Of warps that copy, one lane each. What the first copies are is found out while barriers are set up.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
__device__ __forceinline__ void CopyWorks(const WgmmaParams& p, WgmmaShared<T, kTile, kAlongSteps>& shared,
                                          uint32_t barriers) {
  using MainLoop = WgmmaMainLoop<T, kTile, kAlongSteps>;
  const int lane = threadIdx.x % 32, copier = static_cast<int>(threadIdx.x) / 32 - WgmmaReaders(kTile);
  if (copier >= MainLoop::kCopiers) return SyncBlocks<kTile>();
  if (copier == 0) WgmmaScheduler<kTile>::FillOrder(p, shared.order);
  __syncwarp();
  WgmmaScheduler<kTile> scheduler(p, shared.order);
  typename MainLoop::Copies copies(p, shared.stages, barriers, copier);
  WgmmaWork work;
  for (bool is_first = true; scheduler.Next(&work); is_first = false) {  // each block has a work at least
    copies.Find(work);
    if (is_first) SyncBlocks<kTile>();
    if (lane == 0) copies.Copy(work);
    __syncwarp();
  }
  if constexpr (kTile.cluster() > 1) {
    if (lane == 0) copies.Finish();
  }
}

// Of warpgroups that multiply.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
__device__ __forceinline__ void MultiplyWorks(const WgmmaParams& p, WgmmaShared<T, kTile, kAlongSteps>& shared,
                                              uint32_t barriers) {
  using Products = typename WgmmaMainLoop<T, kTile, kAlongSteps>::Products;
  WgmmaScheduler<kTile> scheduler(p, shared.order);
  Products sums(p, shared.stages, barriers);
  WgmmaEpilogue<T, kTile, Products> epilogue(p, ptx::SharedAddress(shared.results[threadIdx.x / 128]));
  WgmmaWork work;
  while (scheduler.Next(&work)) {
    sums.Multiply(work, epilogue);
    epilogue.Take(sums, work);
  }
  epilogue.Finish();
}

template <typename T, int kTileIndex, bool kAlongSteps>
__global__ void __launch_bounds__(WgmmaThreads(kWgmmaTiles[kTileIndex]), kWgmmaTiles[kTileIndex].resident)
    WgmmaKernel(const __grid_constant__ WgmmaParams p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  static_assert(kTile.resident > 1 || (kTile.warpgroups() == 2 && kCopyRegisters + 2 * kMultiplyRegisters <= 3 * 168),
                "384 threads are launched with 168 registers each");
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches mma's
  } else {
    using Shared = WgmmaShared<T, kTile, kAlongSteps>;
    if (threadIdx.x == 32 * WgmmaReaders(kTile)) FetchAhead<kTile>(p);
    extern __shared__ __align__(1024) char raw_shared[];
    Shared& shared = *reinterpret_cast<Shared*>(raw_shared);
    const uint32_t barriers = ptx::SharedAddress(shared.barriers);
    static_assert(offsetof(Shared, results) % 1024 == 0, "each tile begins a turn of its swizzle");
    if (ptx::SharedAddress(&shared) % alignof(Shared) != 0) __trap();
    if constexpr (kTile.boxed) shared.stages.FillTaps(p);
    if (threadIdx.x == 0) {
      Shared::Stages::InitBarriers(barriers);
      ptx::FenceBarriers();
    }
    if (threadIdx.x / 128 == kTile.warpgroups()) {
      if constexpr (kTile.resident == 1) ptx::LeaveRegisters<kCopyRegisters>();
      CopyWorks<T, kTile, kAlongSteps>(p, shared, barriers);
    } else {
      SyncBlocks<kTile>();
      if constexpr (kTile.resident == 1) ptx::TakeRegisters<kMultiplyRegisters>();
      MultiplyWorks<T, kTile, kAlongSteps>(p, shared, barriers);
    }
    __syncwarp();
    if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
  }
}

template <typename T, int kTileIndex, bool kAlongSteps>
constexpr WgmmaKernelOfTile CompiledWgmma() {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  if constexpr (kTile.slices > 0) {
    return {WgmmaKernelOfSlices<T, kTileIndex, kAlongSteps>, sizeof(WgmmaSlicesShared<T, kTile, kAlongSteps>)};
  } else {
    return {WgmmaKernel<T, kTileIndex, kAlongSteps>, sizeof(WgmmaShared<T, kTile, kAlongSteps>)};
  }
}

// The compiled kernels for operands of type T.
template <typename T>
WgmmaKernelOfTile FindWgmma(int tile, bool along_steps) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    const WgmmaKernelOfTile tiles[][2] = {{CompiledWgmma<T, kIndex, false>(), CompiledWgmma<T, kIndex, true>()}...};
    return tiles[tile][along_steps];
  }(std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace jaxconv
