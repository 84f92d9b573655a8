// A producer/consumer pipeline of stages in shared memory.
#pragma once

#include <cstdint>

#include "common/ptx_barrier.cuh"

namespace jaxconv {

// The current stage of a producer or of a consumer warp, and its phase. A stage has two barriers, full and empty. A
// pipeline may use fewer stages than kStages.
template <int kStages>
class StagePipeline {
 public:
  static constexpr int kBarriers = 2 * kStages;

  // Starts at `stage`.
  __device__ __forceinline__ explicit StagePipeline(uint32_t barriers, int stage = 0, int stages = kStages)
      : barriers_(barriers), stage_(stage), stages_(stages) {}

  // Must be called by one thread, before any other thread waits. The numbers are those of arrivals for each stage.
  __device__ __forceinline__ void Init(int producers, int consumers) const {
    for (int stage = 0; stage < kStages; ++stage) {
      ptx::InitBarrier(barriers_ + stage * 16, producers);
      ptx::InitBarrier(barriers_ + stage * 16 + 8, consumers);
    }
  }

  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ uint32_t full() const { return barriers_ + stage_ * 16; }
  __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
  __device__ __forceinline__ void WaitUntilFull() const { ptx::Wait(full(), phase_); }
  __device__ __forceinline__ void WaitUntilEmpty() const { ptx::Wait(empty(), phase_ ^ 1); }

  // Releases the stage that this warp has read, and advances.
  __device__ __forceinline__ void Release() {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::Arrive(empty());
    Advance();
  }

  // The same for pipelines whose consumers are single lanes.
  __device__ __forceinline__ void ReleaseByLane() {
    ptx::Arrive(empty());
    Advance();
  }

  __device__ __forceinline__ void Advance() {
    stage_ = stage_ + 1 < stages_ ? stage_ + 1 : 0;
    phase_ ^= stage_ == 0;
  }

  // The same stage, one turn of the whole pipeline later.
  __device__ __forceinline__ void FlipPhase() { phase_ ^= 1; }

 private:
  uint32_t barriers_;
  int stage_;
  int stages_;
  uint32_t phase_ = 0;
};

}  // namespace jaxconv
