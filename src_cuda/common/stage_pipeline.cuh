// Stages of shared memory, which some threads fill, and warps read.
#pragma once

#include <cstdint>

#include "common/ptx_barrier.cuh"

namespace jaxconv {

// A way through the stages, of a warp that reads them or of the one that fills them: kStages of them, or fewer. A stage
// has two barriers: one says that it is full, one that it is empty.
template <int kStages>
class StagePipeline {
 public:
  static constexpr int kBarriers = 2 * kStages;

  // From a stage on.
  __device__ __forceinline__ explicit StagePipeline(uint32_t barriers, int stage = 0, int stages = kStages)
      : barriers_(barriers), stage_(stage), stages_(stages) {}

  // To be called by one thread, before all others wait: how often threads arrive, who fill a stage, and who read it.
  __device__ __forceinline__ void Init(int fillers, int readers) const {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::InitBarrier(barriers_ + stage * 16, fillers);
      ptx::InitBarrier(barriers_ + stage * 16 + 8, readers);
    }
  }

  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ uint32_t full() const { return barriers_ + stage_ * 16; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  __device__ __forceinline__ void WaitUntilFull() const { ptx::Wait(full(), turn_); }
  __device__ __forceinline__ void WaitUntilEmpty() const { ptx::Wait(empty(), turn_ ^ 1); }

  // Says that this warp has read the stage, and goes to the next one.
  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::Arrive(empty());
    Advance();
  }

  // Says that this lane has, of rings that are read by lanes, and goes to the next one.
  __device__ __forceinline__ void ReleaseOfLane() {
    ptx::Arrive(empty());
    Advance();
  }

  __device__ __forceinline__ void Advance() {
    stage_ = stage_ + 1 < stages_ ? stage_ + 1 : 0;
    turn_ ^= stage_ == 0;
  }

  // Goes to the same stage again, all round.
  __device__ __forceinline__ void Return() { turn_ ^= 1; }

 private:
  uint32_t barriers_;
  int stage_;
  int stages_;
  uint32_t turn_ = 0;
};

}  // namespace jaxconv
