// What the feeds that copy in pieces of 16 bytes share: those of operands whose channels are contiguous.
//
// What a piece's address and its validity depend on is worked out beforehand, so that a copy costs one multiplication,
// one test of a bit and the copy itself. A position's window lies inside the source but for some taps: that is a mask,
// of up to 32 taps at a time.
#pragma once

#include <cstdint>

#include "common/points.cuh"
#include "common/ptx.cuh"

namespace jaxconv {

inline constexpr int kPieceBytes = 16;
inline constexpr int kWindow = 32;  // taps of a mask

// A mask of those taps, up to kWindow, that lie inside the source as seen from a position. `taps` have a `shift`.
template <typename TapShift>
__device__ __forceinline__ uint32_t TapsInside(const int32_t (&at)[kSpatial], const TapShift* taps, int count,
                                               const uint32_t (&size)[kSpatial]) {
  uint32_t inside = 0;
  count = min(count, kWindow);
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

// Copies one of `parts` parts of a tile; from(i) is the address of the thread's i-th piece, is_valid(i) whether it
// exists, else it is zeros.
template <typename Pattern, typename Tile, typename From, typename IsValid>
__device__ __forceinline__ void CopyPieces(uint32_t to, int part, int parts, const From& from,
                                           const IsValid& is_valid) {
#pragma unroll
  for (int i = 0; i < Pattern::kCount; ++i) {
    if (!Pattern::IsIn(i, part, parts)) continue;
    ptx::CopyAsync(Tile::Further(to, i * Pattern::kStride), from(i), is_valid(i));
  }
}

}  // namespace jaxconv
