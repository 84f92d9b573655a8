// The limits of TMA. Host-only: without CUDA.
#pragma once

#include <cstdint>

namespace jaxconv {

inline constexpr int32_t kMaxBoxExtent = 256;    // elements of a box along an axis, with those that a stride skips
inline constexpr int32_t kMaxElementStride = 8;  // distance between copied elements

// The extent of a box with as many copied elements along an axis.
constexpr int64_t BoxExtent(int64_t elements, int64_t stride) { return (elements - 1) * stride + 1; }

// In im2col mode, with a descriptor of this rank: the corners of the bounding box, relative to those of the image, must
// be in [-n, n), and the offset of a tap in [0, m). With more dimensions, each has fewer bits.
constexpr int32_t Im2colCornerEnd(int rank) { return rank == 3 ? 1 << 15 : rank == 4 ? 1 << 7 : 1 << 4; }
constexpr uint32_t Im2colOffsetEnd(int rank) { return rank == 3 ? 1 << 16 : rank == 4 ? 1 << 8 : 1 << 5; }

}  // namespace jaxconv
