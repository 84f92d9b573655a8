// The reduction's steps as points, worked out by the whole block some time ahead, so that the main loop, which needs
// one for each step, has no divisions.
#pragma once

#include <cstdint>

#include "common/points.cuh"

namespace jaxconv {

// Steps of the reduction.
struct StepRange {
  int64_t begin;
  int64_t end;

  __device__ int Tiles(int depth) const { return static_cast<int>((end - begin + depth - 1) / depth); }

  // One of `split` parts: whole tiles, equally many, but for the last.
  __device__ StepRange Slice(int slice, int split, int depth) const {
    const int64_t size = static_cast<int64_t>((Tiles(depth) + split - 1) / split) * depth;
    const int64_t from = min(begin + slice * size, end);
    return {from, min(from + size, end)};
  }
};

// A ring of two halves. A half is filled by one step a thread while the other is read.
template <int kThreads, int kDepth>
class StepTable {
 public:
  static constexpr int kTilesPerHalf = kThreads / kDepth;

  __device__ StepTable(Point (&ring)[2 * kThreads], const ClassPoints& points, StepRange steps)
      : ring_(ring), points_(points), steps_(steps) {}

  // Fills the half that begins with a tile.
  __device__ void Fill(int tile) const {
    const int64_t step = steps_.begin + static_cast<int64_t>(tile) * kDepth + threadIdx.x;
    ring_[Place(tile) + threadIdx.x] = step < steps_.end ? points_.Step(step) : Nowhere();
  }

  // Fills the half after the one that begins with `tile`, which is being read. A barrier must follow before the last
  // tile of the latter is multiplied, as the next is read then.
  __device__ void FillAfter(int tile) const { Fill(tile + kTilesPerHalf); }

  // The steps of a tile.
  __device__ const Point* Tile(int tile) const { return ring_ + Place(tile); }

 private:
  static __device__ unsigned Place(int tile) { return static_cast<unsigned>(tile) * kDepth % (2 * kThreads); }

  Point* ring_;
  const ClassPoints& points_;
  StepRange steps_;
};

}  // namespace jaxconv
