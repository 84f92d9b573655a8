// The boxes of a thread block's areas, or the rows that its walks go along, on their way to the stages.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "direct/params.cuh"
#include "direct/ring.cuh"
#include "direct/tables.cuh"

namespace jaxconv {

// What the first warp of a conv copies: an area's box, of one chunk of the source channels after the other.
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
                         block.channels.src + chunk_ * p.src_pixel.pieces * kVector<T>, at, place.image);
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

// What a warp of its own copies where the source passes by: of all areas the rows that the walks go along, one of each
// walk at a time. To be called by all of the warp; it waits for those that read.
template <typename T>
__device__ __forceinline__ void CopyWalkRows(const DirectParams& p, const DirectBlock& block, const BoxOrigin& origin,
                                             const Box& row, RowRing filled, uint32_t stages) {
  const int32_t walks = p.area.rows / p.area.walk, rows = p.area.walk + p.area.box[1] - p.area.rows;
#pragma unroll 1
  for (int32_t area = block.worker; area < block.areas; area += p.workers) {
    const AreaPlace place = block.Place(p, area);
    int32_t at[kSpatial];
    origin.BoxAt<false>(p, place, at);
    const int32_t end = at[1] + rows;
#pragma unroll 1
    for (; at[1] < end; ++at[1]) {
      filled.WaitUntilEmpty();
#pragma unroll 1
      for (int32_t walk = 0; walk < walks; ++walk) {
        const int32_t from[kSpatial] = {at[0], at[1] + walk * p.area.walk, at[2]};
        row.template Copy<T>(stages + filled.stage() * p.places.stage + walk * row.Bytes(), filled.full(),
                             block.channels.src, from, place.image);
      }
      Box::Arrive(filled.full(), walks * row.Bytes());
      filled.Advance();
    }
  }
  ptx::CommitCopies();
  ptx::WaitForCopies<0>();  // without TMA they are this warp's, which ends
}

}  // namespace jaxconv
