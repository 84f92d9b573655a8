// The indices of M and K as points.
//
// In both products, A is a matrix of source elements: one for each pair of an output position and a (tap, channel). In
// a conv, M is positions and K is (tap, channel). In a wgrad it is the other way round. The address and the coordinates
// of an element are the sum of two points, one for its row (M) and one for its step (K). So one kernel serves both
// products.
#pragma once

#include <cstdint>

#include "common/fast_division.h"
#include "conv_problem.h"

namespace jaxconv {

// The point of an output position or of a (tap, channel).
struct alignas(16) Point {
  int64_t src;           // offset in the source, in elements
  int64_t partner;       // of a position: offset in dst; of a (tap, channel): offset in the filter; -1: no such point
  int32_t at[kSpatial];  // coordinates in the source: of the position's base, or the tap's shift
};

// Elements from a pixel's first channel to another one.
__device__ __forceinline__ int64_t ChannelOffset(const TensorStrides& s, int64_t channel) {
  if (s.block == 0) return channel * s.channel;
  return channel / kBlockChannels * s.block + channel % kBlockChannels;
}

// A point outside of every source, also after the coordinates of another point were added.
__device__ __forceinline__ Point OutOfBounds() {
  constexpr int32_t kFar = -kCoordinateLimit;
  return {0, -1, {kFar, kFar, kFar}};
}

__device__ inline int64_t Positions(const ConvProblem& problem, const ResidueClass& residue) {
  return problem.batch * residue.count[0] * residue.count[1] * residue.count[2];
}

// The points of one residue class, with indices of type Index. `wgrad` exchanges M and K.
template <typename Index>
struct ClassPointsOf {
  const ConvProblem& problem;
  const Tap* taps;
  ResidueClass residue;
  bool wgrad;
  FastDivmod<Index> by_channels;
  FastDivmod<Index> by_count[kSpatial];

  __device__ ClassPointsOf(const ConvProblem& problem, const Tap* taps, const ResidueClass& residue, bool wgrad)
      : problem(problem),
        taps(taps),
        residue(residue),
        wgrad(wgrad),
        by_channels(static_cast<Index>(problem.in_channels)),
        by_count{FastDivmod<Index>(residue.count[0]), FastDivmod<Index>(residue.count[1]),
                 FastDivmod<Index>(residue.count[2])} {}

  __device__ int64_t positions() const { return Positions(problem, residue); }
  __device__ int64_t channel_taps() const { return problem.in_channels * residue.tap_count; }
  __device__ int64_t rows() const { return wgrad ? channel_taps() : positions(); }
  __device__ int64_t steps() const { return wgrad ? positions() : channel_taps(); }
  __device__ Point Row(int64_t i) const { return wgrad ? ChannelTap(i) : Position(i); }
  __device__ Point Step(int64_t i) const { return wgrad ? Position(i) : ChannelTap(i); }

  // Coordinates and strides within an image fit into 32 bits, their products do not.
  __device__ Point Position(int64_t i) const {
    const auto times = [](int32_t a, int64_t b) { return static_cast<int64_t>(a) * static_cast<int32_t>(b); };
    Point point{};
    Index rest = static_cast<Index>(i);
#pragma unroll
    for (int d = kSpatial - 1; d >= 0; --d) {
      Index q;
      rest = by_count[d].Divide(rest, &q);
      point.at[d] = static_cast<int32_t>(q) * static_cast<int32_t>(problem.step[d]);
      point.src += times(point.at[d], problem.src.spatial[d]);
      const int32_t dst_at = residue.phase[d] + static_cast<int32_t>(q) * static_cast<int32_t>(problem.period[d]);
      point.partner += times(dst_at, problem.dst.spatial[d]);
    }
    point.src += rest * problem.src.batch;
    point.partner += rest * problem.dst.batch;
    return point;
  }

  // The tap, counted from the first of the class, and the channel of a (tap, channel).
  __device__ __forceinline__ int TapOf(int64_t i, int* channel) const {
    Index rest;
    const int tap = static_cast<int>(by_channels.Divide(static_cast<Index>(i), &rest));
    *channel = static_cast<int>(rest);
    return tap;
  }

  __device__ Point ChannelTap(int64_t i) const {
    int channel;
    const int index = TapOf(i, &channel);
    const Tap tap = taps[residue.first_tap + index];
    return {tap.src_delta + channel * problem.src.channel,
            tap.filter_delta + channel * problem.filter.in,
            {tap.shift[0], tap.shift[1], tap.shift[2]}};
  }
};

using ClassPoints = ClassPointsOf<int64_t>;

// Finds the residue class of a tile of M, and changes the tile's index to one within the class. Null after the last
// class. There may be thousands of classes, so the lanes of a warp look at 32 of them at once: whole warps call this.
__device__ inline const ResidueClass* FindClass(const ConvProblem& problem, const ResidueClass* classes, bool wgrad,
                                                int tile_rows, uint32_t* row_tile) {
  if (problem.class_count == 1) return classes;  // then no CTA is after the last tile
  constexpr uint32_t kAll = 0xffffffff;
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < problem.class_count; first += 32) {
    uint32_t tiles = 0;
    if (first + lane < problem.class_count) {
      const ResidueClass& residue = classes[first + lane];
      const int64_t rows = wgrad ? problem.in_channels * residue.tap_count : Positions(problem, residue);
      tiles = static_cast<uint32_t>((rows + tile_rows - 1) / tile_rows);
    }
    uint32_t end = tiles;  // of this lane's class, counted from the first lane's
    for (int apart = 1; apart < 32; apart *= 2) {
      const uint32_t before = __shfl_up_sync(kAll, end, apart);
      if (lane >= apart) end += before;
    }
    if (const uint32_t ends_behind = __ballot_sync(kAll, *row_tile < end)) {
      const int found = __ffs(ends_behind) - 1;
      *row_tile -= __shfl_sync(kAll, end - tiles, found);
      return &classes[first + found];
    }
    *row_tile -= __shfl_sync(kAll, end, 31);
  }
  return nullptr;
}

}  // namespace jaxconv
