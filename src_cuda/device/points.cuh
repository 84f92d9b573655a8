// Rows and steps of the two products, as points.
//
// Both products multiply a matrix of source elements, one for each pair of an output position and a (tap, channel):
// in a gather the positions are the rows and the (tap, channel)s the steps of the reduction, in a reduce the other way
// round. An element's address and coordinates are the sum of its row's and its step's, so one kernel serves both.
#pragma once

#include <cstdint>

#include "conv_problem.h"
#include "launch.h"

namespace jaxconv {

// A position's coordinates are its source base, those of a (tap, channel) the tap's shift.
struct alignas(16) Point {
  int64_t src;      // elements from the source's origin
  int64_t partner;  // elements from the origin of the tensor that has positions (dst) or taps (filter), or -1: no point
  int32_t at[kSpatial];
};

// Far outside any source, also after another point's coordinates were added.
__device__ __forceinline__ Point Nowhere() {
  constexpr int32_t kFar = INT32_MIN / 2;
  return {0, -1, {kFar, kFar, kFar}};
}

// The points of one residue class. `reduce` exchanges rows and steps.
struct ClassPoints {
  const ConvProblem& problem;
  const Tap* taps;
  ResidueClass residue;
  bool reduce;

  __device__ int64_t positions() const {
    return problem.batch * residue.count[0] * residue.count[1] * residue.count[2];
  }
  __device__ int64_t channel_taps() const { return problem.in_channels * residue.tap_count; }
  __device__ int64_t rows() const { return reduce ? channel_taps() : positions(); }
  __device__ int64_t steps() const { return reduce ? positions() : channel_taps(); }
  __device__ Point Row(int64_t i) const { return reduce ? ChannelTap(i) : Position(i); }
  __device__ Point Step(int64_t i) const { return reduce ? Position(i) : ChannelTap(i); }

  __device__ Point Position(int64_t i) const {
    Point point{};
#pragma unroll
    for (int d = kSpatial - 1; d >= 0; --d) {
      const int64_t rest = i / residue.count[d];
      const int64_t q = i - rest * residue.count[d];
      i = rest;
      const int64_t at = q * problem.step[d];
      point.at[d] = static_cast<int32_t>(at);
      point.src += at * problem.src.spatial[d];
      point.partner += (residue.phase[d] + q * problem.period[d]) * problem.dst.spatial[d];
    }
    point.src += i * problem.src.batch;
    point.partner += i * problem.dst.batch;
    return point;
  }

  __device__ Point ChannelTap(int64_t i) const {
    const int64_t place = i / problem.in_channels;
    const int64_t channel = i - place * problem.in_channels;
    const Tap tap = taps[residue.first_tap + place];
    return {tap.src_delta + channel * problem.src.channel,
            tap.filter_delta + channel * problem.filter.in,
            {tap.shift[0], tap.shift[1], tap.shift[2]}};
  }
};

// Finds the class of a row tile and makes the tile's index one within the class; null where all classes have ended.
__device__ inline const ResidueClass* FindClass(const ConvProblem& problem, const Tap* taps,
                                                const ResidueClass* classes, bool reduce, int tile_rows,
                                                uint32_t* row_tile) {
  for (int c = 0; c < problem.class_count; ++c) {
    const int64_t rows = ClassPoints{problem, taps, classes[c], reduce}.rows();
    const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
    if (*row_tile < tiles) return &classes[c];
    *row_tile -= static_cast<uint32_t>(tiles);
  }
  return nullptr;
}

}  // namespace jaxconv
