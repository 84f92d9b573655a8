// What a thread block of the mma family multiplies, and the points of its rows.
#pragma once

#include <cstdint>

#include "device/points.cuh"
#include "device/product.cuh"
#include "device/step_table.cuh"

namespace jaxconv {

// Points in shared memory. Every ninth place is unused: threads that copy pieces of eight elements read every eighth
// point, which would all be in the same banks.
template <int kCount>
class PointTable {
 public:
  __device__ Point& operator[](int i) { return points_[i + i / 8]; }
  __device__ const Point& operator[](int i) const { return points_[i + i / 8]; }

 private:
  Point points_[kCount + kCount / 8];
};

inline constexpr int kFeedRing = 4;  // tiles of which a feed prepares the steps: more than are copied ahead

// `src` of points is in bytes here, and so is `partner` where it is an operand's.
template <int kRows>
struct Block {
  const ProductParams& params;
  const Work& work;
  const ClassPoints& points;
  const PointTable<kRows>& rows;
  StepRange range;
  int64_t first_col;
};

}  // namespace jaxconv
