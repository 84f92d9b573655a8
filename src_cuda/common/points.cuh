// Rows and steps of the two products, as points.
//
// Both products multiply a matrix of source elements, one for each pair of an output position and a (tap, channel):
// in a conv the positions are the rows and the (tap, channel)s the steps of the reduction, in a wgrad the other way
// round. An element's address and coordinates are the sum of its row's and its step's, so one kernel serves both.
#pragma once

#include <cstdint>
#include <type_traits>

#include "conv_problem.h"

namespace jaxconv {

// A position's coordinates are its source base, those of a (tap, channel) the tap's shift.
struct alignas(16) Point {
  int64_t src;      // elements from the source's origin
  int64_t partner;  // elements from the origin of the tensor that has positions (dst) or taps (filter), or -1: no point
  int32_t at[kSpatial];
};

// Division by a number that many share: a multiplication, where the hardware would take a hundred cycles and more.
template <typename Index>
class Divider {
 public:
  Divider() = default;
  __host__ __device__ __forceinline__ explicit Divider(Index divisor)
      : divisor_(divisor), reciprocal_(Reciprocal(max(divisor, Index{1}))) {}

  // Of 32 bits: 2^32 - 1 over the divisor, rounded down.
  __device__ __forceinline__ Divider(Index divisor, uint32_t reciprocal) : divisor_(divisor), reciprocal_(reciprocal) {
    static_assert(sizeof(Index) == 4, "others have longer ones");
  }

  // i / divisor and i % divisor of 0 <= i. The reciprocal is rounded down: the quotient may be one too small at first.
  __device__ __forceinline__ Index Divide(Index i, Index* rest) const {
    const Index quotient = static_cast<Index>(UpperHalf(static_cast<Unsigned>(i), reciprocal_));
    *rest = i - quotient * divisor_;
    const bool small = *rest >= divisor_;
    *rest -= small ? divisor_ : 0;
    return quotient + small;
  }

 private:
  using Unsigned = std::make_unsigned_t<Index>;

  static __device__ __forceinline__ uint32_t UpperHalf(uint32_t a, uint32_t b) { return __umulhi(a, b); }
  static __device__ __forceinline__ uint64_t UpperHalf(uint64_t a, uint64_t b) { return __umul64hi(a, b); }

  static __host__ __device__ __forceinline__ uint32_t Reciprocal(int32_t divisor) {
    return UINT32_MAX / static_cast<uint32_t>(divisor);
  }

  // 64 bits behind the point, of which the first 50 are right: good for dividends below 2^46. In float64 from an
  // estimate in float32, each of Newton's steps doubling the bits.
  static __device__ __forceinline__ uint64_t Reciprocal(int64_t divisor) {
    const double d = static_cast<double>(divisor);
    double x = __fdividef(1.0f, static_cast<float>(d));
    x = __fma_rn(x, __fma_rn(-d, x, 1.0), x);
    x = __fma_rn(x, __fma_rn(-d, x, 1.0), x);
    constexpr double kBelowOne = 18446744073709535232.0;  // 2^64 (1 - 2^-50)
    return static_cast<uint64_t>(x * kBelowOne);
  }

  Index divisor_;
  Unsigned reciprocal_;
};

// Far outside any source, also after another point's coordinates were added.
__device__ __forceinline__ Point Nowhere() {
  constexpr int32_t kFar = INT32_MIN / 2;
  return {0, -1, {kFar, kFar, kFar}};
}

__device__ inline int64_t Positions(const ConvProblem& problem, const ResidueClass& residue) {
  return problem.batch * residue.count[0] * residue.count[1] * residue.count[2];
}

// The points of one residue class, numbered by Index. `wgrad` exchanges rows and steps.
template <typename Index>
struct ClassPointsOf {
  const ConvProblem& problem;
  const Tap* taps;
  ResidueClass residue;
  bool wgrad;
  Divider<Index> by_channels;
  Divider<Index> by_count[kSpatial];

  __device__ ClassPointsOf(const ConvProblem& problem, const Tap* taps, const ResidueClass& residue, bool wgrad)
      : problem(problem),
        taps(taps),
        residue(residue),
        wgrad(wgrad),
        by_channels(static_cast<Index>(problem.in_channels)),
        by_count{Divider<Index>(residue.count[0]), Divider<Index>(residue.count[1]), Divider<Index>(residue.count[2])} {
  }

  __device__ int64_t positions() const { return Positions(problem, residue); }
  __device__ int64_t channel_taps() const { return problem.in_channels * residue.tap_count; }
  __device__ int64_t rows() const { return wgrad ? channel_taps() : positions(); }
  __device__ int64_t steps() const { return wgrad ? positions() : channel_taps(); }
  __device__ Point Row(int64_t i) const { return wgrad ? ChannelTap(i) : Position(i); }
  __device__ Point Step(int64_t i) const { return wgrad ? Position(i) : ChannelTap(i); }

  // Coordinates and strides within an image fit 32 bits, their products do not.
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

  // The tap, in its class, and the channel of a (tap, channel).
  __device__ __forceinline__ int TapOf(int64_t i, int* channel) const {
    Index rest;
    const int tap = static_cast<int>(by_channels.Divide(static_cast<Index>(i), &rest));
    *channel = static_cast<int>(rest);
    return tap;
  }

  __device__ Point ChannelTap(int64_t i) const {
    int channel;
    const int place = TapOf(i, &channel);
    const Tap tap = taps[residue.first_tap + place];
    return {tap.src_delta + channel * problem.src.channel,
            tap.filter_delta + channel * problem.filter.in,
            {tap.shift[0], tap.shift[1], tap.shift[2]}};
  }
};

using ClassPoints = ClassPointsOf<int64_t>;

// Finds the class of a row tile and makes the tile's index one within the class; null where all classes have ended.
__device__ inline const ResidueClass* FindClass(const ConvProblem& problem, const ResidueClass* classes, bool wgrad,
                                                int tile_rows, uint32_t* row_tile) {
  if (problem.class_count == 1) return classes;  // and there is no tile too many
  for (int c = 0; c < problem.class_count; ++c) {
    const int64_t rows = wgrad ? problem.in_channels * classes[c].tap_count : Positions(problem, classes[c]);
    const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
    if (*row_tile < tiles) return &classes[c];
    *row_tile -= static_cast<uint32_t>(tiles);
  }
  return nullptr;
}

}  // namespace jaxconv
