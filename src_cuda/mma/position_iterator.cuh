// Positions of a residue class, equally far apart, one after the other without divisions.
#pragma once

#include <cstdint>

#include "common/points.cuh"

namespace jaxconv {

// What is added for each step of the iterator. It is the same for all threads and registers are few, so it is in shared
// memory. Offsets are in vectors of kVector elements.
struct PositionStride {
  struct alignas(16) Digit {  // of a position's number, for a spatial dimension
    int32_t end;              // of the source coordinate: there it begins again, and the next digit is one more
    int32_t src;              // what that adds to the offsets
    int32_t partner;
    int32_t at;  // added at each step
  };
  Digit digits[kSpatial];
  int32_t src;  // added at each step
  int32_t partner;

  // For steps of `distance` positions.
  template <int kVector>
  __device__ __forceinline__ void Fill(const ClassPointsOf<int32_t>& points, int distance) {
    int32_t rest = distance;
    int64_t sum_src = 0, sum_partner = 0;
    FillDigit<2, kVector>(points, rest, sum_src, sum_partner);
    FillDigit<1, kVector>(points, rest, sum_src, sum_partner);
    FillDigit<0, kVector>(points, rest, sum_src, sum_partner);
    src = static_cast<int32_t>((sum_src + rest * points.problem.src.batch) / kVector);
    partner = static_cast<int32_t>((sum_partner + rest * points.problem.dst.batch) / kVector);
  }

 private:
  // Takes the digit from `rest` and adds to the offsets what it is worth.
  template <int d, int kVector>
  __device__ __forceinline__ void FillDigit(const ClassPointsOf<int32_t>& points, int32_t& rest, int64_t& sum_src,
                                            int64_t& sum_partner) {
    const ConvProblem& p = points.problem;
    const int64_t count = points.residue.count[d];
    const int64_t one_src = p.step[d] * p.src.spatial[d], one_partner = p.period[d] * p.dst.spatial[d];
    constexpr int kNext = d == 0 ? 0 : d - 1;
    const int64_t next_src = d == 0 ? p.src.batch : p.step[kNext] * p.src.spatial[kNext];
    const int64_t next_partner = d == 0 ? p.dst.batch : p.period[kNext] * p.dst.spatial[kNext];
    int32_t digit;
    rest = points.by_count[d].Divide(rest, &digit);
    sum_src += digit * one_src;
    sum_partner += digit * one_partner;
    digits[d] = {static_cast<int32_t>(count * p.step[d]), static_cast<int32_t>((next_src - count * one_src) / kVector),
                 static_cast<int32_t>((next_partner - count * one_partner) / kVector),
                 static_cast<int32_t>(digit * p.step[d])};
  }
};

struct PositionIterator {
  int32_t src;
  int32_t partner;
  int32_t at[kSpatial];

  // From the i-th position on.
  __device__ __forceinline__ PositionIterator(const ClassPointsOf<int32_t>& points, int64_t i, int vector) {
    const Point point = points.Position(i);
    src = static_cast<int32_t>(point.src / vector);
    partner = static_cast<int32_t>(point.partner / vector);
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) at[d] = point.at[d];
  }

  __device__ __forceinline__ void Advance(const PositionStride& stride, const int64_t (&step)[kSpatial]) {
    src += stride.src;
    partner += stride.partner;
#pragma unroll
    for (int d = kSpatial - 1; d >= 0; --d) {
      const PositionStride::Digit digit = stride.digits[d];
      at[d] += digit.at;
      if (at[d] < digit.end) continue;
      at[d] -= digit.end;
      src += digit.src;
      partner += digit.partner;
      if (d > 0) at[d - 1] += static_cast<int32_t>(step[d - 1]);
    }
  }
};

}  // namespace jaxconv
