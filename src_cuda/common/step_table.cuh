// The points of K, computed by the whole CTA in advance. The main loop needs one for each step of K, and so has no
// divisions.
#pragma once

#include <cstdint>

#include "common/points.cuh"

namespace jaxconv {

// A range of K.
struct StepRange {
  int64_t begin;
  int64_t end;

  __device__ int Tiles(int block_k) const { return static_cast<int>((end - begin + block_k - 1) / block_k); }

  // One slice of split-K. All slices have equally many blocks of K, except the last.
  __device__ StepRange Slice(int slice, int split, int block_k) const {
    const int64_t size = static_cast<int64_t>((Tiles(block_k) + split - 1) / split) * block_k;
    const int64_t from = min(begin + slice * size, end);
    return {from, min(from + size, end)};
  }
};

// A double buffer. While one half is read, each thread fills in one point of the other half.
template <int kThreads, int kBlockK>
class StepTable {
 public:
  static constexpr int kTilesPerHalf = kThreads / kBlockK;

  __device__ StepTable(Point (&buffer)[2 * kThreads], const ClassPoints& points, StepRange steps)
      : buffer_(buffer), points_(points), steps_(steps) {}

  // Fills the half that starts with `tile`.
  __device__ void Fill(int tile) const {
    const int64_t step = steps_.begin + static_cast<int64_t>(tile) * kBlockK + threadIdx.x;
    buffer_[Slot(tile) + threadIdx.x] = step < steps_.end ? points_.Step(step) : OutOfBounds();
  }

  // Fills the half after the one that starts with `tile`. A barrier must follow before the last tile of that half is
  // multiplied, because the main loop then reads the next half.
  __device__ void FillAfter(int tile) const { Fill(tile + kTilesPerHalf); }

  // The points of K of a tile.
  __device__ const Point* Tile(int tile) const { return buffer_ + Slot(tile); }

 private:
  static __device__ unsigned Slot(int tile) { return static_cast<unsigned>(tile) * kBlockK % (2 * kThreads); }

  Point* buffer_;
  const ClassPoints& points_;
  StepRange steps_;
};

}  // namespace jaxconv
