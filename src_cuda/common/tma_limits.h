// What Hopper's copy engine, TMA, takes. Host-only: without CUDA.
#pragma once

#include <cstdint>

namespace jaxconv {

inline constexpr int32_t kMostBoxExtent = 256;    // elements of a box along an axis, those between copied ones included
inline constexpr int32_t kMostElementStride = 8;  // elements from a copied one to the next

// Along an axis, from the first of so many elements to the last.
constexpr int64_t BoxExtent(int64_t elements, int64_t stride) { return (elements - 1) * stride + 1; }

// In im2col mode, by the rank of the map: corners of the windows' box, from the image's own, are in [-n, n), and a
// tap's offset from its window's corner is in [0, m): their bits in a descriptor and in an instruction shrink.
constexpr int32_t Im2colCornerEnd(int rank) { return rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4; }
constexpr uint32_t Im2colOffsetEnd(int rank) { return rank == 3 ? 1 << 16 : rank == 4 ? 1 << 8 : 1 << 5; }

}  // namespace jaxconv
