// What the producers share that copy in 16-byte vectors. The operands' channels are contiguous.
//
// A vector's address and its validity are worked out beforehand. So a copy costs one multiplication, one test of a bit
// and the copy itself. Some taps of a position lie outside the source. A mask has a bit for each of 32 taps.
#pragma once

#include <cstdint>

#include "common/points.cuh"

namespace jaxconv {

inline constexpr int kMaskTaps = 32;  // taps of a mask

// A mask of those taps, up to kMaskTaps, that lie inside the source as seen from a position. `taps` have a `shift`.
template <typename TapShift>
__device__ __forceinline__ uint32_t TapsInside(const int32_t (&at)[kSpatial], const TapShift* taps, int count,
                                               const uint32_t (&size)[kSpatial]) {
  uint32_t inside = 0;
  count = min(count, kMaskTaps);
  constexpr int kInFlight = 4;  // taps that are loaded at once
#pragma unroll 1
  for (int first = 0; first < count; first += kInFlight) {
#pragma unroll
    for (int t = first; t < first + kInFlight; ++t) {
      const TapShift& tap = taps[min(t, count - 1)];
      bool is_inside = t < count;
#pragma unroll
      for (int d = 0; d < kSpatial; ++d) is_inside &= static_cast<uint32_t>(at[d] + tap.shift[d]) < size[d];
      inside |= static_cast<uint32_t>(is_inside) << t;
    }
  }
  return inside;
}

// The same as a function, for where several rows are prepared: it is long.
static __device__ __noinline__ uint32_t TapsInsideOfRow(int32_t d, int32_t h, int32_t w, const Tap* taps, int count,
                                                        const uint32_t* size) {
  const int32_t at[kSpatial] = {d, h, w};
  const uint32_t sizes[kSpatial] = {size[0], size[1], size[2]};
  return TapsInside(at, taps, count, sizes);
}

}  // namespace jaxconv
