// How works come to the blocks of the wgmma family: a warp asks which one is next, and tells those that copy and
// multiply of it.
#pragma once

#include <cstdint>

#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/stage_ring.cuh"
#include "wgmma/params.cuh"
#include "wgmma/scheduler.cuh"

namespace jaxconv {

// Shared memory of the works that a block has next.
template <WgmmaTile kTile>
struct WgmmaDealt {
  static constexpr int kWorks = kTile.stages;  // at most: as many as are copied ahead, if they are of one step
  static constexpr int kIndices = kTile.cluster() > 1 ? 2 : 1;
  using WorkRing = StageRing<kWorks>;
  using IndexRing = StageRing<kIndices>;
  WgmmaWork works[kWorks];
  uint64_t work_barriers[WorkRing::kBarriers];
  uint64_t index_barriers[IndexRing::kBarriers];  // of a cluster's first block, and the others
  uint32_t indices[kIndices];

  // Readers are warps; all lanes of each say that they have read, so 32 times as many threads arrive.
  __device__ void InitBarriers(int readers) const {
    WorkRing(ptx::SharedAddress(work_barriers)).Init(1, 32 * readers);
    if constexpr (kTile.cluster() > 1) IndexRing(ptx::SharedAddress(index_barriers)).Init(1, kTile.cluster() - 1);
  }
};

// A work that a warp was told of, each of whose numbers a lane has: registers are needed for sums. Of numbers in
// registers that all lanes have, ptxas 13.0 took the next work's column for the last one's, in some of the pieces that
// are stored while the next work is multiplied.
class WgmmaTold {
 public:
  WgmmaTold() = default;
  __device__ __forceinline__ explicit WgmmaTold(const WgmmaWork& at)
      : number_(reinterpret_cast<const int32_t*>(&at)[threadIdx.x % kNumbers]) {}

  __device__ __forceinline__ int32_t residue() const { return Number(0); }
  __device__ __forceinline__ int32_t first_row() const { return Number(2); }
  __device__ __forceinline__ int32_t first_col() const { return Number(3); }
  __device__ __forceinline__ WgmmaSteps steps() const { return {Number(5), Number(6), Number(7)}; }
  __device__ __forceinline__ bool is_there() const { return Number(7) > 0; }
  __device__ __forceinline__ WgmmaWork All() const {
    return {Number(0), Number(1), Number(2), Number(3), Number(4), steps()};
  }

 private:
  static constexpr int kNumbers = 8;
  static_assert(sizeof(WgmmaWork) == kNumbers * sizeof(int32_t), "a work is so many numbers, in All()'s order");

  __device__ __forceinline__ int32_t Number(int i) const { return __shfl_sync(0xffffffff, number_, i); }

  int32_t number_;
};

// A block's works, one after the other, of which one warp tells all others. Each lane that reads a work says so:
// compute-sanitizer's racecheck does not follow reads through __syncwarp to a lane that arrives for its warp, and
// reported write-after-read hazards of a work's numbers in every tile; so it is clean, and nothing measurable is lost
// (14 layers of ResNet-50, vgg and seed: within 0.5 % either way).
template <WgmmaTile kTile>
class WgmmaWorks {
 public:
  __device__ WgmmaWorks(const WgmmaParams& p, WgmmaDealt<kTile>& dealt)
      : dealt_(dealt), ring_(ptx::SharedAddress(dealt.work_barriers), 0, p.works_ahead) {}

  // Tells of the first, to be called by a warp that reads the others.
  __device__ __forceinline__ void TellFirst(const WgmmaWork& work) {
    if (threadIdx.x % 32 == 0) Write(work);
    ring_.ReleaseOfLane();
  }

  // To be called by a lane that tells of the others: goes behind the first; waits until there is room; tells.
  __device__ __forceinline__ void SkipFirst() { ring_.Advance(); }
  __device__ __forceinline__ void WaitForRoom() const { ring_.WaitUntilEmpty(); }
  __device__ __forceinline__ void Tell(const WgmmaWork& work) {
    Write(work);
    ring_.Advance();
  }

  // The next work, if there is one, to be called by a warp; the last one told of has no steps.
  __device__ __forceinline__ bool Next(WgmmaTold* work) {
    ring_.WaitUntilFull();
    *work = WgmmaTold(dealt_.works[ring_.stage()]);
    ring_.ReleaseOfLane();
    return work->is_there();
  }

 private:
  __device__ __forceinline__ void Write(const WgmmaWork& work) {
    dealt_.works[ring_.stage()] = work;
    ptx::Arrive(ring_.full());
  }

  WgmmaDealt<kTile>& dealt_;
  typename WgmmaDealt<kTile>::WorkRing ring_;
};

// Which works a cluster takes: the first two are those of its place in the grid, further ones those that are next when
// its first block asks for them, which tells the others. Were all shared out beforehand, multiprocessors, which get
// unlike shares of the memory's bandwidth, would drift apart: pages of memory would be met at random, and some would
// end late. To be used by a lane.
template <WgmmaTile kTile>
class WgmmaDealer {
 public:
  __device__ WgmmaDealer(const WgmmaParams& p, WgmmaDealt<kTile>& dealt)
      : params_(p),
        dealt_(dealt),
        ring_(ptx::SharedAddress(dealt.index_barriers)),
        clusters_(gridDim.x / kTile.cluster()),
        index_(First()) {}

  static __device__ __forceinline__ uint32_t First() { return blockIdx.x / kTile.cluster(); }

  // The next work's index; or one behind the last.
  __device__ __forceinline__ uint32_t Next() {
    if (index_ < clusters_) {
      // Classes that are not in rounds come by their taps: who has a long work first has a short one next.
      index_ = params_.rounds == 0 ? 2 * clusters_ - 1 - index_ : index_ + clusters_;
    } else if (params_.asked_for == nullptr) {
      index_ += clusters_;
    } else if (blockIdx.x % kTile.cluster() == 0) {
      index_ = ptx::CountUp(params_.asked_for, params_.works - clusters_ - 1) + 2 * clusters_;
      if constexpr (kTile.cluster() > 1) Send();
    } else {
      Receive();
    }
    return index_;
  }

  // Waits until the others have all indices: to a block that has ended they cannot say so.
  __device__ __forceinline__ void Finish() {
    if (kTile.cluster() == 1 || blockIdx.x % kTile.cluster() != 0) return;
    for (int i = 0; i < WgmmaDealt<kTile>::kIndices; ++i) {
      ring_.WaitUntilEmpty();
      ring_.Advance();
    }
  }

 private:
  __device__ __forceinline__ void Send() {
    ring_.WaitUntilEmpty();
    const uint32_t at = ptx::SharedAddress(&dealt_.indices[ring_.stage()]);
    for (uint32_t block = 1; block < kTile.cluster(); ++block) {
      ptx::SendOne(ptx::InBlock(at, block), index_, ptx::InBlock(ring_.full(), block));
    }
    ring_.Advance();
  }
  __device__ __forceinline__ void Receive() {
    ring_.WaitUntilFull();
    index_ = *static_cast<volatile uint32_t*>(&dealt_.indices[ring_.stage()]);
    ptx::ArriveAt(ring_.empty(), 0);
    ring_.Advance();
  }

  const WgmmaParams& params_;
  WgmmaDealt<kTile>& dealt_;
  typename WgmmaDealt<kTile>::IndexRing ring_;
  uint32_t clusters_;
  uint32_t index_;
};

}  // namespace jaxconv
