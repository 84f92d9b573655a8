// The tile scheduler of the wgmma family: a warp asks which tile is next, and broadcasts it to the producers and
// consumers of its thread block.
#pragma once

#include <cstdint>

#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/stage_pipeline.cuh"
#include "wgmma/cluster.cuh"
#include "wgmma/params.cuh"
#include "wgmma/tile_order.cuh"

namespace jaxconv {

// The tiles that a block has next, in shared memory.
template <WgmmaTile kTile>
struct WgmmaNextTiles {
  static constexpr int kSlots = kTile.stages;  // so many tiles of one step each are copied ahead
  static constexpr int kIndices = kTile.cluster() > 1 ? 2 : 1;
  using TilePipeline = StagePipeline<kSlots>;
  using IndexPipeline = StagePipeline<kIndices>;
  WgmmaWorkTile tiles[kSlots];
  uint64_t tile_barriers[TilePipeline::kBarriers];
  uint64_t index_barriers[IndexPipeline::kBarriers];  // between a cluster's first block and the others
  uint32_t indices[kIndices];

  // `consumers` are warps. All of their lanes arrive when they have read.
  __device__ void InitBarriers(int consumers) const {
    TilePipeline(ptx::SharedAddress(tile_barriers)).Init(1, 32 * consumers);
    if constexpr (kTile.cluster() > 1) IndexPipeline(ptx::SharedAddress(index_barriers)).Init(1, kTile.cluster() - 1);
  }
};

// A tile as a warp receives it: a lane has each of its numbers, as registers are needed for sums. When all lanes had
// all numbers, ptxas 13.0 took the next tile's column for the last one's, in some of the subtiles that are stored while
// the next tile is multiplied.
class WgmmaReceivedTile {
 public:
  WgmmaReceivedTile() = default;
  __device__ __forceinline__ explicit WgmmaReceivedTile(const WgmmaWorkTile& at)
      : number_(reinterpret_cast<const int32_t*>(&at)[threadIdx.x % kNumbers]) {}

  __device__ __forceinline__ int32_t residue() const { return Number(0); }
  __device__ __forceinline__ int32_t first_row() const { return Number(2); }
  __device__ __forceinline__ int32_t first_col() const { return Number(3); }
  __device__ __forceinline__ WgmmaSteps steps() const { return {Number(5), Number(6), Number(7)}; }
  __device__ __forceinline__ bool is_there() const { return Number(7) > 0; }
  __device__ __forceinline__ WgmmaWorkTile All() const {
    return {Number(0), Number(1), Number(2), Number(3), Number(4), steps()};
  }

 private:
  static constexpr int kNumbers = 8;
  static_assert(sizeof(WgmmaWorkTile) == kNumbers * sizeof(int32_t), "a tile is so many numbers, in All()'s order");

  __device__ __forceinline__ int32_t Number(int i) const { return __shfl_sync(0xffffffff, number_, i); }

  int32_t number_;
};

// A block's tiles, one after the other, which one warp broadcasts. Each lane that reads a tile arrives by itself:
// racecheck does not follow reads through __syncwarp to a lane that arrives for its warp.
template <WgmmaTile kTile>
class WgmmaTileBroadcast {
 public:
  __device__ WgmmaTileBroadcast(const WgmmaParams& p, WgmmaNextTiles<kTile>& next_tiles)
      : next_tiles_(next_tiles), pipeline_(ptx::SharedAddress(next_tiles.tile_barriers), 0, p.tiles_ahead) {}

  // Of the first tile. To be called by a warp that reads the others.
  __device__ __forceinline__ void BroadcastFirst(const WgmmaWorkTile& tile) {
    if (threadIdx.x % 32 == 0) Write(tile);
    pipeline_.ReleaseByLane();
  }

  // Of the others. To be called by one lane: it skips the first, waits until there is room, and broadcasts.
  __device__ __forceinline__ void SkipFirst() { pipeline_.Advance(); }
  __device__ __forceinline__ void WaitForRoom() const { pipeline_.WaitUntilEmpty(); }
  __device__ __forceinline__ void Broadcast(const WgmmaWorkTile& tile) {
    Write(tile);
    pipeline_.Advance();
  }

  // The next tile, if there is one. To be called by a warp. A tile without steps ends them.
  __device__ __forceinline__ bool Next(WgmmaReceivedTile* tile) {
    pipeline_.WaitUntilFull();
    *tile = WgmmaReceivedTile(next_tiles_.tiles[pipeline_.stage()]);
    pipeline_.ReleaseByLane();
    return tile->is_there();
  }

 private:
  __device__ __forceinline__ void Write(const WgmmaWorkTile& tile) {
    next_tiles_.tiles[pipeline_.stage()] = tile;
    ptx::Arrive(pipeline_.full());
  }

  WgmmaNextTiles<kTile>& next_tiles_;
  typename WgmmaNextTiles<kTile>::TilePipeline pipeline_;
};

// Which tiles a cluster takes. Thread blocks are persistent. A cluster's index in the grid gives its first two tiles.
// For each further one its first block asks a counter, and tells the others. Multiprocessors get unlike shares of the
// memory's bandwidth: were all tiles shared out beforehand, they would drift apart, meet pages of memory at random, and
// some would end late. To be used by a lane.
template <WgmmaTile kTile>
class WgmmaTileScheduler {
 public:
  __device__ WgmmaTileScheduler(const WgmmaParams& p, WgmmaNextTiles<kTile>& next_tiles)
      : params_(p),
        next_tiles_(next_tiles),
        pipeline_(ptx::SharedAddress(next_tiles.index_barriers)),
        clusters_(gridDim.x / kTile.cluster()),
        index_(First()) {}

  static __device__ __forceinline__ uint32_t First() { return blockIdx.x / kTile.cluster(); }

  // The next tile's index; or one behind the last.
  __device__ __forceinline__ uint32_t Next() {
    if (index_ < clusters_) {
      // Without rounds, classes of many taps come first: a cluster with a long tile first has a short one next.
      index_ = params_.rounds == 0 ? 2 * clusters_ - 1 - index_ : index_ + clusters_;
    } else if (params_.asked_for == nullptr) {
      index_ += clusters_;
    } else if (blockIdx.x % kTile.cluster() == 0) {
      index_ = AskForTile(params_, clusters_);
      if constexpr (kTile.cluster() > 1) Send();
    } else {
      Receive();
    }
    return index_;
  }

  // Waits until the others have read all indices: they arrive in this block, which must not have ended.
  __device__ __forceinline__ void Finish() {
    if constexpr (kTile.cluster() > 1) {
      if (blockIdx.x % kTile.cluster() != 0) return;
      for (int i = 0; i < WgmmaNextTiles<kTile>::kIndices; ++i) {
        pipeline_.WaitUntilEmpty();
        pipeline_.Advance();
      }
    }
  }

 private:
  __device__ __forceinline__ void Send() {
    pipeline_.WaitUntilEmpty();
    const uint32_t at = ptx::SharedAddress(&next_tiles_.indices[pipeline_.stage()]);
    for (uint32_t block = 1; block < kTile.cluster(); ++block) {
      ptx::StoreAsyncAndArrive(ptx::MapToCta(at, block), index_, ptx::MapToCta(pipeline_.full(), block));
    }
    pipeline_.Advance();
  }
  __device__ __forceinline__ void Receive() {
    pipeline_.WaitUntilFull();
    index_ = *static_cast<volatile uint32_t*>(&next_tiles_.indices[pipeline_.stage()]);
    ptx::ArriveRemote(pipeline_.empty(), 0);
    pipeline_.Advance();
  }

  const WgmmaParams& params_;
  WgmmaNextTiles<kTile>& next_tiles_;
  typename WgmmaNextTiles<kTile>::IndexPipeline pipeline_;
  uint32_t clusters_;
  uint32_t index_;
};

}  // namespace jaxconv
