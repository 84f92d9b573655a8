// The boxes of a thread block's areas, of one chunk of the source channels after the other, on their way to the stages.
#pragma once

#include <cstdint>

#include "device/direct_params.cuh"
#include "device/direct_ring.cuh"
#include "device/direct_tables.cuh"

namespace jaxconv {

// What the first warp of a gather copies.
template <typename T, bool kRuns>
class AreaBoxes {
 public:
  __device__ __forceinline__ AreaBoxes(const DirectBlock& block, const DirectRing& filled)
      : filled_(filled), next_(block.worker) {}

  __device__ __forceinline__ void CopyNext(const DirectParams& p, const DirectBlock& block, const BoxOrigin& origin,
                                           const Box& box, uint32_t stages) {
    if (next_ >= block.areas) return;
    const AreaPlace place = block.Place(p, next_);
    int32_t at[kSpatial];
    origin.BoxAt<kRuns>(p, place, at);
    filled_.WaitUntilEmpty();
    box.template Copy<T>(stages + filled_.stage() * p.places.stage, filled_.full(),
                         block.channels.src + chunk_ * p.src_pixel.pieces * kPieceChannels, at, place.image);
    Box::Arrive(filled_.full(), box.Bytes());
    filled_.Advance();
    chunk_ = chunk_ + 1 < p.chunks ? chunk_ + 1 : 0;
    next_ += chunk_ == 0 ? p.workers : 0;
  }

 private:
  DirectRing filled_;
  int32_t next_;
  int chunk_ = 0;
};

}  // namespace jaxconv
