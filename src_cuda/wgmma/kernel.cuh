// Implicit GEMM on Hopper: thread blocks that stay, of one or two warps that copy, two warpgroups that multiply, a warp
// that tells them what is next, and one that stores zeros.
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

#include "common/family.h"
#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "wgmma/boxes.cuh"
#include "wgmma/config.h"
#include "wgmma/dealer.cuh"
#include "wgmma/epilogue.cuh"
#include "wgmma/kernels.h"
#include "wgmma/mainloop.cuh"
#include "wgmma/params.cuh"
#include "wgmma/scheduler.cuh"
#include "wgmma/slices.cuh"
#include "wgmma/zeros.cuh"

namespace jaxconv {

template <typename T, WgmmaTile kTile, bool kAlongSteps>
using WgmmaMainLoop =
    std::conditional_t<kTile.boxed, WgmmaBoxes<T, kTile, kAlongSteps>, WgmmaWindows<T, kTile, kAlongSteps>>;

template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct alignas(1024) WgmmaShared {
  using Stages = typename WgmmaMainLoop<T, kTile, kAlongSteps>::Stages;
  Stages stages;
  char results[kTile.warpgroups()][ResultBuffers(kTile)][4 * kResultBytes];
  alignas(128) char zeros[WgmmaZeros<kTile>::kBytes];
  uint64_t barriers[Stages::kBarriers];
  int32_t order[kMostWgmmaClasses];
  WgmmaDealt<kTile> dealt;
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

// Of warps that copy. What the first copies are is found out while barriers are set up.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
__device__ __forceinline__ void CopyWorks(const WgmmaParams& p, WgmmaShared<T, kTile, kAlongSteps>& shared,
                                          uint32_t barriers, int copier) {
  typename WgmmaMainLoop<T, kTile, kAlongSteps>::Copies copies(p, shared.stages, barriers, copier);
  WgmmaWorks<kTile> works(p, shared.dealt);
  WgmmaWork work;
  bool is_more = true;  // each block has a work at least
  const auto next = [&] {
    WgmmaTold told;
    is_more = works.Next(&told);
    work = told.All();
    if (is_more) copies.Find(work);
  };
  if (copier == 0) {
    WgmmaScheduler<kTile>::FillOrder(p, shared.order);
    __syncwarp();
    WgmmaScheduler<kTile>(p, shared.order).Find(WgmmaDealer<kTile>::First(), &work);
    copies.Find(work);
    SyncBlocks<kTile>();
    works.TellFirst(work);
  } else {
    SyncBlocks<kTile>();
    next();
  }
  while (is_more) {
    copies.Copy(work);
    __syncwarp();
    next();
  }
  if constexpr (kTile.cluster() > 1) {
    if (threadIdx.x % 32 == 0) copies.Finish();
  }
}

// Of the warp that tells the others of all works but the first; one lane.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
__device__ __forceinline__ void DealWorks(const WgmmaParams& p, WgmmaShared<T, kTile, kAlongSteps>& shared) {
  SyncBlocks<kTile>();
  if (threadIdx.x % 32 != 0) return;
  const WgmmaScheduler<kTile> scheduler(p, shared.order);
  WgmmaDealer<kTile> dealer(p, shared.dealt);
  WgmmaWorks<kTile> works(p, shared.dealt);
  works.SkipFirst();
  WgmmaWork work;
  for (bool is_more = true; is_more;) {
    works.WaitForRoom();  // who asks early takes works from others
    is_more = scheduler.Find(dealer.Next(), &work);
    if (!is_more) work.steps.end = 0;
    works.Tell(work);
  }
  dealer.Finish();
}

// Of the warp that stores zeros, if there are classes of them.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
__device__ __forceinline__ void StoreZeros(const WgmmaParams& p, WgmmaShared<T, kTile, kAlongSteps>& shared) {
  SyncBlocks<kTile>();
  if (p.empty_classes == 0) return;
  const WgmmaZeros<kTile> zeros(p, shared.order, shared.zeros);
  WgmmaWorks<kTile> works(p, shared.dealt);
  for (WgmmaTold work; works.Next(&work);) zeros.Store(work);
  zeros.Finish();
}

// Of warpgroups that multiply.
template <typename T, WgmmaTile kTile, bool kAlongSteps, bool kHasEpilogue>
__device__ __forceinline__ void MultiplyWorks(const WgmmaParams& p, WgmmaShared<T, kTile, kAlongSteps>& shared,
                                              uint32_t barriers) {
  using Products = typename WgmmaMainLoop<T, kTile, kAlongSteps>::Products;
  WgmmaWorks<kTile> works(p, shared.dealt);
  Products sums(p, shared.stages, barriers);
  WgmmaEpilogue<T, kTile, kHasEpilogue, Products> epilogue(p, ptx::SharedAddress(shared.results[threadIdx.x / 128]));
  WgmmaTold next;
  for (bool is_more = works.Next(&next); is_more;) {
    const WgmmaTold work = next;
    epilogue.Begin(work);
    sums.Multiply(work.steps(), epilogue, [&] { is_more = works.Next(&next); });
    epilogue.Take(sums, work);
  }
  epilogue.Finish();
}

template <typename T, int kTileIndex, bool kAlongSteps, bool kHasEpilogue>
__global__ void __launch_bounds__(WgmmaThreads(kWgmmaTiles[kTileIndex]), kWgmmaTiles[kTileIndex].resident)
    WgmmaKernel(const __grid_constant__ WgmmaParams p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  static_assert(kTile.resident > 1 || (kTile.warpgroups() == 2 && kCopyRegisters + 2 * kMultiplyRegisters <= 3 * 168),
                "384 threads are launched with 168 registers each");
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches mma's
  } else {
    using Shared = WgmmaShared<T, kTile, kAlongSteps>;
    constexpr int kCopiers = WgmmaMainLoop<T, kTile, kAlongSteps>::kCopiers;
    constexpr bool kStoresZeros = StoresZeros(kTile) && !kHasEpilogue;  // zeros are no results where there is one
    if (threadIdx.x == 32 * WgmmaReaders(kTile)) FetchAhead<kTile>(p);
    extern __shared__ __align__(1024) char raw_shared[];
    Shared& shared = *reinterpret_cast<Shared*>(raw_shared);
    const uint32_t barriers = ptx::SharedAddress(shared.barriers);
    static_assert(sizeof(Shared) == kTile.shared_bytes(kAlongSteps),
                  "planning knows how much shared memory a thread block has");
    static_assert(offsetof(Shared, results) % 1024 == 0, "each tile begins a turn of its swizzle");
    if (ptx::SharedAddress(&shared) % alignof(Shared) != 0) __trap();
    if constexpr (kTile.boxed) shared.stages.FillTaps(p);
    if (threadIdx.x == 0) {
      Shared::Stages::InitBarriers(barriers);
      shared.dealt.InitBarriers(WgmmaReaders(kTile) + kCopiers + (kStoresZeros && p.empty_classes > 0));
      ptx::FenceBarriers();
    }
    if (threadIdx.x / 128 == kTile.warpgroups()) {
      if constexpr (kTile.resident == 1) ptx::LeaveRegisters<kCopyRegisters>();
      const int copier = static_cast<int>(threadIdx.x) / 32 - WgmmaReaders(kTile);
      if (copier < kCopiers) {
        CopyWorks<T, kTile, kAlongSteps>(p, shared, barriers, copier);
      } else if (copier == kCopiers) {
        DealWorks<T, kTile, kAlongSteps>(p, shared);
      } else if (kStoresZeros && copier == kCopiers + 1) {
        StoreZeros<T, kTile, kAlongSteps>(p, shared);
      } else {
        SyncBlocks<kTile>();
      }
    } else {
      SyncBlocks<kTile>();
      if constexpr (kTile.resident == 1) ptx::TakeRegisters<kMultiplyRegisters>();
      MultiplyWorks<T, kTile, kAlongSteps, kHasEpilogue>(p, shared, barriers);
    }
    __syncwarp();
    if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
  }
}

template <typename T, int kTileIndex, bool kAlongSteps, bool kHasEpilogue>
constexpr WgmmaKernelOfTile CompiledWgmma() {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  if constexpr (kTile.slices > 0) {
    return {WgmmaKernelOfSlices<T, kTileIndex, kAlongSteps, kHasEpilogue>,
            sizeof(WgmmaSlicesShared<T, kTile, kAlongSteps>)};
  } else {
    return {WgmmaKernel<T, kTileIndex, kAlongSteps, kHasEpilogue>, sizeof(WgmmaShared<T, kTile, kAlongSteps>)};
  }
}

// The compiled kernels for operands of type T.
template <typename T>
WgmmaKernelOfTile FindWgmma(int64_t tile, bool along_steps, bool has_epilogue) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    constexpr WgmmaKernelOfTile kKernels[][2][2] = {
        {{CompiledWgmma<T, kIndex, false, false>(), CompiledWgmma<T, kIndex, false, true>()},
         {CompiledWgmma<T, kIndex, true, false>(), CompiledWgmma<T, kIndex, true, true>()}}...};
    return kKernels[tile][along_steps][has_epilogue];
  }(std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace jaxconv
