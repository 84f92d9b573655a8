// Implicit GEMM on Hopper. Thread blocks are persistent. They have one or two producer warps, consumer warpgroups, a
// tile scheduler, and a warp that stores zeros.
//
// TMA reads pixels in its im2col mode, where a tap of the filter is an offset, or as halo tiles for many taps. It reads
// the filter as it lies. Blocks of a cluster share what they read of one operand: L2 gives less than the tensor cores
// take.
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
#include "wgmma/cluster_split.cuh"
#include "wgmma/config.h"
#include "wgmma/epilogue.cuh"
#include "wgmma/halo.cuh"
#include "wgmma/kernels.h"
#include "wgmma/mainloop.cuh"
#include "wgmma/params.cuh"
#include "wgmma/tile_order.cuh"
#include "wgmma/tile_scheduler.cuh"
#include "wgmma/zeros.cuh"

namespace jaxconv {

template <typename T, WgmmaTile kTile, bool kKMajor>
using WgmmaMainLoop = std::conditional_t<kTile.halo, WgmmaHalo<T, kTile, kKMajor>, WgmmaIm2col<T, kTile, kKMajor>>;

template <typename T, WgmmaTile kTile, bool kKMajor>
struct alignas(1024) WgmmaShared {
  using Stages = typename WgmmaMainLoop<T, kTile, kKMajor>::Stages;
  Stages stages;
  char results[kTile.warpgroups()][ResultBuffers(kTile)][4 * kResultBytes];
  alignas(128) char zeros[WgmmaZeros<kTile>::kBytes];
  uint64_t barriers[Stages::kBarriers];
  int32_t order[kMostWgmmaClasses];
  WgmmaNextTiles<kTile> next_tiles;
};

// Registers of a thread, where producers give theirs to consumers.
inline constexpr int kProducerRegisters = 40, kConsumerRegisters = 232;

// A block of a cluster may reach into another once that one's barriers are there, and until it ends.
template <WgmmaTile kTile>
__device__ __forceinline__ void SyncBlocks() {
  __syncthreads();
  if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
}

// Fetches what the first copy waits for longest, as no cache has it: the maps, and the first tap, if it is looked up.
// To be called by a thread.
template <WgmmaTile kTile>
__device__ __forceinline__ void FetchAhead(const WgmmaParams& p) {
  ptx::PrefetchMap(p.src_map);
  ptx::PrefetchMap(p.rhs_map);
  if (!kTile.halo && p.rank > 2) ptx::Prefetch(p.taps);
}

// Of producer warps. They find out what to copy first while barriers are set up.
template <typename T, WgmmaTile kTile, bool kKMajor>
__device__ __forceinline__ void ProduceTiles(const WgmmaParams& p, WgmmaShared<T, kTile, kKMajor>& shared,
                                             uint32_t barriers, int warp) {
  typename WgmmaMainLoop<T, kTile, kKMajor>::Producer producer(p, shared.stages, barriers, warp);
  WgmmaTileBroadcast<kTile> tiles(p, shared.next_tiles);
  WgmmaWorkTile tile;
  bool is_more = true;  // each block has a tile at least
  const auto next = [&] {
    WgmmaReceivedTile received;
    is_more = tiles.Next(&received);
    tile = received.All();
    if (is_more) producer.Find(tile);
  };
  if (warp == 0) {
    WgmmaTileOrder<kTile>::FillOrder(p, shared.order);
    __syncwarp();
    WgmmaTileOrder<kTile>(p, shared.order).Find(WgmmaTileScheduler<kTile>::First(), &tile);
    producer.Find(tile);
    SyncBlocks<kTile>();
    tiles.BroadcastFirst(tile);
  } else {
    SyncBlocks<kTile>();
    next();
  }
  while (is_more) {
    producer.Copy(tile);
    __syncwarp();
    next();
  }
  if constexpr (kTile.cluster() > 1) {
    if (threadIdx.x % 32 == 0) producer.Finish();
  }
}

// Of the tile scheduler: one lane of a warp. A producer broadcasts the first tile.
template <typename T, WgmmaTile kTile, bool kKMajor>
__device__ __forceinline__ void ScheduleTiles(const WgmmaParams& p, WgmmaShared<T, kTile, kKMajor>& shared) {
  SyncBlocks<kTile>();
  if (threadIdx.x % 32 != 0) return;
  const WgmmaTileOrder<kTile> order(p, shared.order);
  WgmmaTileScheduler<kTile> scheduler(p, shared.next_tiles);
  WgmmaTileBroadcast<kTile> tiles(p, shared.next_tiles);
  tiles.SkipFirst();
  WgmmaWorkTile tile;
  for (bool is_more = true; is_more;) {
    tiles.WaitForRoom();  // a block that asks early takes tiles from others
    is_more = order.Find(scheduler.Next(), &tile);
    if (!is_more) tile.steps.end = 0;
    tiles.Broadcast(tile);
  }
  scheduler.Finish();
}

// Of the warp that stores zeros, if there are classes of them.
template <typename T, WgmmaTile kTile, bool kKMajor>
__device__ __forceinline__ void StoreZeros(const WgmmaParams& p, WgmmaShared<T, kTile, kKMajor>& shared) {
  SyncBlocks<kTile>();
  if (p.empty_classes == 0) return;
  const WgmmaZeros<kTile> zeros(p, shared.order, shared.zeros);
  WgmmaTileBroadcast<kTile> tiles(p, shared.next_tiles);
  for (WgmmaReceivedTile tile; tiles.Next(&tile);) zeros.Store(tile);
  zeros.Finish();
}

// Of consumer warpgroups.
template <typename T, WgmmaTile kTile, bool kKMajor, bool kHasEpilogue>
__device__ __forceinline__ void ConsumeTiles(const WgmmaParams& p, WgmmaShared<T, kTile, kKMajor>& shared,
                                             uint32_t barriers) {
  using Consumer = typename WgmmaMainLoop<T, kTile, kKMajor>::Consumer;
  WgmmaTileBroadcast<kTile> tiles(p, shared.next_tiles);
  Consumer sums(p, shared.stages, barriers);
  WgmmaEpilogue<T, kTile, kHasEpilogue, Consumer> epilogue(p, ptx::SharedAddress(shared.results[threadIdx.x / 128]));
  WgmmaReceivedTile next;
  for (bool is_more = tiles.Next(&next); is_more;) {
    const WgmmaReceivedTile tile = next;
    epilogue.Begin(tile);
    sums.Multiply(tile.steps(), epilogue, [&] { is_more = tiles.Next(&next); });
    epilogue.Take(sums, tile);
  }
  epilogue.Finish();
}

template <typename T, int kTileIndex, bool kKMajor, bool kHasEpilogue>
__global__ void __launch_bounds__(WgmmaThreads(kWgmmaTiles[kTileIndex]), kWgmmaTiles[kTileIndex].ctas_per_sm)
    WgmmaKernel(const __grid_constant__ WgmmaParams p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  static_assert(
      kTile.ctas_per_sm > 1 || (kTile.warpgroups() == 2 && kProducerRegisters + 2 * kConsumerRegisters <= 3 * 168),
      "a launch gives 384 threads 168 registers each");
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches mma's
  } else {
    using Shared = WgmmaShared<T, kTile, kKMajor>;
    constexpr int kProducers = WgmmaMainLoop<T, kTile, kKMajor>::kProducers;
    constexpr bool kStoresZeros = StoresZeros(kTile) && !kHasEpilogue;  // else zeros are no results
    if (threadIdx.x == 32 * ConsumerWarps(kTile)) FetchAhead<kTile>(p);
    extern __shared__ __align__(1024) char raw_shared[];
    Shared& shared = *reinterpret_cast<Shared*>(raw_shared);
    const uint32_t barriers = ptx::SharedAddress(shared.barriers);
    static_assert(sizeof(Shared) == kTile.shared_bytes(kKMajor),
                  "planning knows how much shared memory a thread block has");
    static_assert(offsetof(Shared, results) % 1024 == 0, "each tile begins a turn of its swizzle");
    if (ptx::SharedAddress(&shared) % alignof(Shared) != 0) __trap();
    if constexpr (kTile.halo) shared.stages.FillTaps(p);
    if (threadIdx.x == 0) {
      Shared::Stages::InitBarriers(barriers);
      shared.next_tiles.InitBarriers(ConsumerWarps(kTile) + kProducers + (kStoresZeros && p.empty_classes > 0));
      ptx::FenceBarriers();
    }
    if (threadIdx.x / 128 == kTile.warpgroups()) {
      if constexpr (kTile.ctas_per_sm == 1) ptx::LeaveRegisters<kProducerRegisters>();
      const int warp = static_cast<int>(threadIdx.x) / 32 - ConsumerWarps(kTile);
      if (warp < kProducers) {
        ProduceTiles<T, kTile, kKMajor>(p, shared, barriers, warp);
      } else if (warp == kProducers) {
        ScheduleTiles<T, kTile, kKMajor>(p, shared);
      } else if (kStoresZeros && warp == kProducers + 1) {
        StoreZeros<T, kTile, kKMajor>(p, shared);
      } else {
        SyncBlocks<kTile>();
      }
    } else {
      SyncBlocks<kTile>();
      if constexpr (kTile.ctas_per_sm == 1) ptx::TakeRegisters<kConsumerRegisters>();
      ConsumeTiles<T, kTile, kKMajor, kHasEpilogue>(p, shared, barriers);
    }
    __syncwarp();
    if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
  }
}

template <typename T, int kTileIndex, bool kKMajor, bool kHasEpilogue>
constexpr WgmmaKernelOfTile CompiledWgmma() {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  if constexpr (kTile.cluster_split > 0) {
    return {WgmmaClusterSplitKernel<T, kTileIndex, kKMajor, kHasEpilogue>,
            sizeof(WgmmaClusterSplitShared<T, kTile, kKMajor>)};
  } else {
    return {WgmmaKernel<T, kTileIndex, kKMajor, kHasEpilogue>, sizeof(WgmmaShared<T, kTile, kKMajor>)};
  }
}

// The compiled kernels for operands of type T.
template <typename T>
WgmmaKernelOfTile FindWgmma(int64_t tile, bool k_major, bool has_epilogue) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    constexpr WgmmaKernelOfTile kKernels[][2][2] = {
        {{CompiledWgmma<T, kIndex, false, false>(), CompiledWgmma<T, kIndex, false, true>()},
         {CompiledWgmma<T, kIndex, true, false>(), CompiledWgmma<T, kIndex, true, true>()}}...};
    return kKernels[tile][k_major][has_epilogue];
  }(std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace jaxconv
