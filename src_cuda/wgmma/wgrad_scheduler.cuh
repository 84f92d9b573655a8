// The tile scheduler of weight gradients: which tiles a cluster takes, one after the other. Its thread blocks share
// operands or add their sums, so all of them have the same tile.
#pragma once

#include <cstdint>

#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/stage_pipeline.cuh"
#include "wgmma/cluster.cuh"
#include "wgmma/config.h"
#include "wgmma/filter.cuh"
#include "wgmma/params.cuh"

namespace jaxconv {

// Which of the clusters this CTA's is, and how many there are.
template <WgmmaTile kTile>
struct WgradCluster {
  uint32_t index, count;

  __device__ __forceinline__ explicit WgradCluster(const WgmmaParams& p) {
    const int log_parts = 31 - __clz(p.wgrad_parts);
    index = blockIdx.x / kTile.cluster() >> log_parts, count = gridDim.x / kTile.cluster() >> log_parts;
  }
};

inline constexpr int kWgradProducers = 2;  // threads of a CTA, one for each operand

// Whether a scheduler asks. Consumers of float32 also hold source pixels in registers: for them the longer code costs
// more than it saves.
template <typename T>
inline constexpr bool kWgradIsDynamic = kReadsMnMajor<T>;

// The next tile's index, in the shared memory of each CTA. All CTAs release it in the cluster's first one.
template <WgmmaTile kTile>
struct WgradNextTile {
  using Pipeline = StagePipeline<1>;
  static constexpr int kReaders = kWgradProducers + ConsumerWarps(kTile);  // of a CTA: consumers read by warps
  uint64_t barriers[Pipeline::kBarriers];
  uint32_t index;

  static __device__ __forceinline__ int Ctas(const WgmmaParams& p) { return kTile.cluster() * p.wgrad_parts; }

  __device__ void InitBarriers(const WgmmaParams& p) const {
    Pipeline(ptx::SharedAddress(barriers)).Init(1, Ctas(p) * kReaders - 1);  // one of them asks
  }
};

// Who goes through a cluster's tiles. kAsks: the source's producers; that of the first CTA asks, and tells all.
enum class WgradReader { kAsks, kProducer, kConsumerWarp };

// A cluster's index in the grid gives its first tile, and its second, if there is one. For each further tile it asks a
// counter, once it has begun to copy the last step of the one before: clusters with short tiles, or on fast
// multiprocessors, take more of them. Without a counter, or if it is not dynamic, a cluster takes every n-th tile.
template <bool kIsDynamic, WgmmaTile kTile, WgradReader kReader>
class WgradTileScheduler {
 public:
  __device__ __forceinline__ WgradTileScheduler(const WgmmaParams& p, WgradNextTile<kTile>& next_tile)
      : params_(p), cluster_(p), next_tile_(next_tile), pipeline_(ptx::SharedAddress(next_tile.barriers)) {}

  // A launch has no more clusters than tiles, so there is a first one.
  __device__ __forceinline__ uint32_t First() const { return cluster_.index; }

  // The index of the tile behind another; or one behind the last tile.
  __device__ __forceinline__ uint32_t Next(uint32_t index) {
    if (!kIsDynamic || index < cluster_.count || params_.asked_for == nullptr) return index + cluster_.count;
    if (kReader == WgradReader::kAsks && ptx::RankInCluster() == 0) return Ask();
    return Receive();
  }

 private:
  __device__ __forceinline__ uint32_t Ask() {
    const uint32_t index = AskForTile(params_, cluster_.count);
    pipeline_.WaitUntilEmpty();
    const uint32_t at = ptx::SharedAddress(&next_tile_.index), ctas = WgradNextTile<kTile>::Ctas(params_);
    for (uint32_t cta = 0; cta < ctas; ++cta) {
      ptx::StoreAsyncAndArrive(ptx::MapToCta(at, cta), index, ptx::MapToCta(pipeline_.full(), cta));
    }
    pipeline_.Advance();
    return index;
  }

  // Behind the last tile nobody releases: the first CTA may have ended. The reduction says that a warp's lanes have the
  // same index. Else the compiler would keep all that depends on it, also addresses of stages, in registers of lanes,
  // and move it to uniform ones for each multiplication.
  __device__ __forceinline__ uint32_t Receive() {
    constexpr bool kIsWarp = kReader == WgradReader::kConsumerWarp;
    pipeline_.WaitUntilFull();
    uint32_t index = *static_cast<volatile uint32_t*>(&next_tile_.index);
    if constexpr (kIsWarp) index = __reduce_max_sync(0xffffffff, index);
    if (index < params_.tiles && (!kIsWarp || threadIdx.x % 32 == 0)) ptx::ArriveRemote(pipeline_.empty(), 0);
    pipeline_.Advance();
    return index;
  }

  const WgmmaParams& params_;
  WgradCluster<kTile> cluster_;
  WgradNextTile<kTile>& next_tile_;
  typename WgradNextTile<kTile>::Pipeline pipeline_;
};

}  // namespace jaxconv
