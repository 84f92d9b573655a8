// Implicit GEMM on Hopper. Thread blocks are persistent. They have one or two producer warps, consumer warpgroups, a
// tile scheduler, and a warp that stores zeros.
//
// TMA reads pixels in its im2col mode, where a tap of the filter is an offset, or as halo tiles for many taps. It reads
// the filter as it lies. Blocks of a cluster share what they read of one operand, or of both: L2 gives less than the
// tensor cores take.
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
#include "wgmma/finite_sums.cuh"
#include "wgmma/halo.cuh"
#include "wgmma/kernels.h"
#include "wgmma/mainloop.cuh"
#include "wgmma/params.cuh"
#include "wgmma/tile_order.cuh"
#include "wgmma/tile_scheduler.cuh"
#include "wgmma/zeros.cuh"

namespace jaxconv {

inline constexpr int kProducerRegisters = 40;  // of a thread, where producers give theirs to consumers

// A block of a cluster may reach into another once that one's barriers are there, and until it ends.
template <WgmmaTile kTile>
__device__ __forceinline__ void SyncBlocks() {
  __syncthreads();
  if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
}

// Fetches what copies and stores wait for longest, as no cache has it: the maps, and the first tap, if it is looked up.
// To be called by one thread, of a warp that has nothing else to do.
template <WgmmaTile kTile>
__device__ __forceinline__ void FetchAhead(const WgmmaParams& p) {
  ptx::PrefetchMap(p.src_map);
  ptx::PrefetchMap(p.rhs_map);
  if (!kTile.halo && p.rank > 2) ptx::Prefetch(p.taps);
  if (!p.has_out_maps) return;
  for (int32_t c = 0; c < p.live_classes; ++c) ptx::PrefetchMap(p.out_maps[c]);
}

// A thread block: its shared memory, and what its warps do.
template <typename T, WgmmaTile kTile, bool kKMajor>
struct alignas(1024) WgmmaBlock {
  template <template <typename, WgmmaTile, bool> class OfIm2col, template <typename, WgmmaTile, bool> class OfHalo>
  using MainLoop = std::conditional_t<kTile.halo, OfHalo<T, kTile, kKMajor>, OfIm2col<T, kTile, kKMajor>>;
  using Stages = MainLoop<WgmmaStages, WgmmaHaloStages>;
  using Producer = MainLoop<WgmmaProducer, WgmmaHaloProducer>;
  using Consumer = MainLoop<WgmmaConsumer, WgmmaHaloConsumer>;

  Stages stages;
  char results[kTile.warpgroups()][ResultBuffers(kTile)][4 * kResultBytes];
  using Zeros = WgmmaZeros<WgmmaResult<T, WgmmaEpilogueKind::kNone>, kTile>;
  alignas(128) char zeros[Zeros::kBytes];
  uint64_t barriers[Stages::kBarriers];
  int32_t order[kMostWgmmaClasses];
  WgmmaNextTiles<kTile> next_tiles;
  uint64_t residual_barriers[ConsumerWarps(kTile)][ResultBuffers(kTile)];

  // Of producer warps. They find out what to copy first while barriers are set up.
  __device__ __forceinline__ void ProduceTiles(const WgmmaParams& p, int warp) {
    Producer producer(p, stages, ptx::SharedAddress(barriers), warp);
    WgmmaTileBroadcast<kTile> tiles(p, next_tiles);
    WgmmaWorkTile tile;
    bool is_more = true;  // each block has a tile at least
    const auto next = [&] {
      WgmmaReceivedTile received;
      is_more = tiles.Next(&received);
      tile = received.All();
      if (is_more) producer.Find(tile);
    };
    if (warp == 0) {
      WgmmaTileOrder<kTile>::FillOrder(p, order);
      __syncwarp();
      WgmmaTileOrder<kTile>(p, order).Find(WgmmaTileScheduler<kTile>::First(), &tile);
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
      if (ptx::ElectOne()) producer.Finish();
    }
  }

  // Of the tile scheduler: one lane of a warp. A producer broadcasts the first tile.
  __device__ __forceinline__ void ScheduleTiles(const WgmmaParams& p) {
    SyncBlocks<kTile>();
    if (threadIdx.x % 32 != 0) return;
    const WgmmaTileOrder<kTile> tile_order(p, order);
    WgmmaTileScheduler<kTile> scheduler(p, next_tiles);
    WgmmaTileBroadcast<kTile> tiles(p, next_tiles);
    tiles.SkipFirst();
    WgmmaWorkTile tile;
    for (bool is_more = true; is_more;) {
      tiles.WaitForRoom();  // a block that asks early takes tiles from others
      is_more = tile_order.Find(scheduler.Next(), &tile);
      if (!is_more) tile.steps.end = 0;
      tiles.Broadcast(tile);
    }
    scheduler.Finish();
  }

  // Of the warp that stores zeros, if there are classes of them.
  __device__ __forceinline__ void StoreZeros(const WgmmaParams& p) {
    SyncBlocks<kTile>();
    if (p.empty_classes == 0) return;
    const Zeros stores(p, order, zeros);
    WgmmaTileBroadcast<kTile> tiles(p, next_tiles);
    for (WgmmaReceivedTile tile; tiles.Next(&tile);) stores.Store(tile);
    stores.Finish();
  }

  // Of the warp that brings the residual to L2, if there is one: consumers lack the registers.
  __device__ __forceinline__ void PrefetchResiduals(const WgmmaParams& p) {
    SyncBlocks<kTile>();
    if (p.epilogue.residual == nullptr) return;
    const WgmmaStores<T, kTile, WgmmaEpilogueKind::kPlain> stores(p, 0);
    WgmmaTileBroadcast<kTile> tiles(p, next_tiles);
    for (WgmmaReceivedTile received; tiles.Next(&received);) {
      const WgmmaWorkTile tile = received.All();
      PrefetchResidual<T>(p, threadIdx.x % 32, 32, kTile.rows, tile.first_col, kTile.cols,
                          [&](int row) { return stores.RowOffset(tile, tile.first_row + row); });
    }
  }

  // Of consumer warpgroups.
  template <WgmmaEpilogueKind kEpilogueKind>
  __device__ __forceinline__ void ConsumeTiles(const WgmmaParams& p) {
    WgmmaTileBroadcast<kTile> tiles(p, next_tiles);
    Consumer sums(p, stages, ptx::SharedAddress(barriers));
    WgmmaEpilogue<T, kTile, kEpilogueKind, Consumer> epilogue(p, ptx::SharedAddress(results[threadIdx.x / 128]),
                                                              ptx::SharedAddress(residual_barriers[threadIdx.x / 32]),
                                                              ptx::SharedAddress(zeros));
    WgmmaReceivedTile next;
    for (bool is_more = tiles.Next(&next); is_more;) {
      const WgmmaReceivedTile tile = next;
      epilogue.Begin(tile);
      sums.Multiply(tile.steps(), epilogue, [&] {
        is_more = tiles.Next(&next);
        epilogue.EndSoon(tile);
      });
      if constexpr (kRoundsToInfinity<T, kTile>) {
        if (!FiniteConvSums<kTile>::AreFinite(sums.All())) {
          FiniteConvSums<kTile>(p, HaloTaps())
              .template Store<kEpilogueKind != WgmmaEpilogueKind::kNone>(sums.All(), tile.All(),
                                                                         tile.first_row() + Consumer::FirstRow(),
                                                                         tile.first_col() + Consumer::FirstCol());
          continue;
        }
      }
      epilogue.Take(sums, tile);
    }
    epilogue.Finish();
  }

 private:
  __device__ __forceinline__ const HaloTap* HaloTaps() const {
    if constexpr (kTile.halo) {
      return stages.taps;
    } else {
      return nullptr;
    }
  }
};

template <typename T, int kTileIndex, bool kKMajor, WgmmaEpilogueKind kEpilogueKind>
__global__ void __launch_bounds__(WgmmaThreads(kWgmmaTiles[kTileIndex]), kWgmmaTiles[kTileIndex].ctas_per_sm)
    WgmmaKernel(const __grid_constant__ WgmmaParams p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  constexpr int kWarpgroups = kTile.warpgroups(), kLaunched = kWarpgroups == 2 ? 168 : 128;
  constexpr int kConsumerRegisters = ConsumerRegisters(kTile, kProducerRegisters);
  static_assert(kTile.ctas_per_sm > 1 || kWarpgroups == 2 || kWarpgroups == 3,
                "a block alone has two or three consumers");
  static_assert(
      kTile.ctas_per_sm > 1 || kProducerRegisters + kWarpgroups * kConsumerRegisters <= (kWarpgroups + 1) * kLaunched,
      "a launch gives 384 threads 168 registers each, and 512 threads 128");
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches mma's
  } else {
    using Block = WgmmaBlock<T, kTile, kKMajor>;
    constexpr int kProducers = Block::Stages::kProducers;
    constexpr bool kHasEpilogue = kEpilogueKind != WgmmaEpilogueKind::kNone;
    constexpr bool kStoresZeros = StoresZeros(kTile) && !kHasEpilogue;    // else zeros are no results
    constexpr bool kPrefetches = kHasEpilogue && kTile.ctas_per_sm == 1;  // others have no warp to spare
    if (threadIdx.x == 32 * (ConsumerWarps(kTile) + kProducers)) FetchAhead<kTile>(p);
    extern __shared__ __align__(1024) char raw_shared[];
    Block& block = *reinterpret_cast<Block*>(raw_shared);
    static_assert(sizeof(Block) == kTile.shared_bytes(kKMajor),
                  "planning knows how much shared memory a thread block has");
    static_assert(offsetof(Block, results) % 1024 == 0, "each tile begins a turn of its swizzle");
    if (ptx::SharedAddress(&block) % alignof(Block) != 0) __trap();
    if constexpr (kTile.halo) block.stages.FillTaps(p);
    if (threadIdx.x == 0) {
      Block::Stages::InitBarriers(ptx::SharedAddress(block.barriers));
      const bool is_one_more =
          kHasEpilogue ? kPrefetches && p.epilogue.residual != nullptr : kStoresZeros && p.empty_classes > 0;
      block.next_tiles.InitBarriers(ConsumerWarps(kTile) + kProducers + is_one_more);
      if constexpr (kHasEpilogue) {
        for (auto& of_warp : block.residual_barriers) {
          for (uint64_t& barrier : of_warp) ptx::InitBarrier(ptx::SharedAddress(&barrier), 1);
        }
      }
      ptx::FenceBarriers();
    }
    if (threadIdx.x / 128 == kTile.warpgroups()) {
      if constexpr (kTile.ctas_per_sm == 1) ptx::DecreaseRegisters<kProducerRegisters>();
      const int warp = static_cast<int>(threadIdx.x) / 32 - ConsumerWarps(kTile);
      if (warp < kProducers) {
        block.ProduceTiles(p, warp);
      } else if (warp == kProducers) {
        block.ScheduleTiles(p);
      } else if (kStoresZeros && warp == kProducers + 1) {
        block.StoreZeros(p);
      } else if (kPrefetches && warp == kProducers + 1) {
        block.PrefetchResiduals(p);
      } else {
        SyncBlocks<kTile>();
      }
    } else {
      SyncBlocks<kTile>();
      if constexpr (kTile.ctas_per_sm == 1) ptx::IncreaseRegisters<kConsumerRegisters>();
      block.template ConsumeTiles<kEpilogueKind>(p);
    }
    __syncwarp();
    if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
  }
}

template <typename T, bool kBF16x6, int kTileIndex, bool kKMajor, WgmmaEpilogueKind kEpilogueKind>
constexpr WgmmaKernelPtr CompiledWgmma() {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  constexpr bool kToBytes = kEpilogueKind == WgmmaEpilogueKind::kBytes || kEpilogueKind == WgmmaEpilogueKind::kBlocks;
  if constexpr (kToBytes && sizeof(T) != 1) {
    return nullptr;
  } else if constexpr (kEpilogueKind == WgmmaEpilogueKind::kBlocks &&
                       (!std::is_same_v<T, int8_t> || kTile.cluster_split > 0)) {
    return nullptr;
  } else if constexpr (!kTile.HasConv(TypeOf<T>()) || kTile.bf16x6 != kBF16x6 ||
                       !(kKMajor || kReadsMnMajor<T> || kBF16x6)) {
    return nullptr;
  } else if constexpr (kEpilogueKind != WgmmaEpilogueKind::kNone && !kTile.HasEpilogue(TypeOf<T>(), kKMajor)) {
    return nullptr;
  } else if constexpr (kTile.cluster_split > 0) {
    return WgmmaClusterSplitKernel<T, kTileIndex, kKMajor, kEpilogueKind>;
  } else {
    return WgmmaKernel<T, kTileIndex, kKMajor, kEpilogueKind>;
  }
}

// The compiled kernels for operands of type T.
template <typename T, bool kBF16x6>
WgmmaKernelPtr FindWgmma(int64_t tile, bool k_major, WgmmaEpilogueKind epilogue_kind) {
  using enum WgmmaEpilogueKind;
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    constexpr WgmmaKernelPtr kKernels[][2][4] = {
        {{CompiledWgmma<T, kBF16x6, kIndex, false, kNone>(), CompiledWgmma<T, kBF16x6, kIndex, false, kPlain>(),
          CompiledWgmma<T, kBF16x6, kIndex, false, kBytes>(), CompiledWgmma<T, kBF16x6, kIndex, false, kBlocks>()},
         {CompiledWgmma<T, kBF16x6, kIndex, true, kNone>(), CompiledWgmma<T, kBF16x6, kIndex, true, kPlain>(),
          CompiledWgmma<T, kBF16x6, kIndex, true, kBytes>(), CompiledWgmma<T, kBF16x6, kIndex, true, kBlocks>()}}...};
    return kKernels[tile][k_major][static_cast<int>(epilogue_kind)];
  }(std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace jaxconv
