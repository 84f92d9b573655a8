// Sizes of arrays, and of the matrix product of a problem, on the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "conv_problem.h"

namespace jaxconv {

inline constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements between neighbours along an axis of an array of these sizes.
inline int64_t StrideAlong(std::span<const int64_t> sizes, int64_t axis) {
  int64_t stride = 1;
  for (size_t i = axis + 1; i < sizes.size(); ++i) stride *= sizes[i];
  return stride;
}

inline int64_t Positions(const ConvProblem& p) { return p.batch * p.dst_size[0] * p.dst_size[1] * p.dst_size[2]; }

// The distance of neighbouring output positions that see the same taps: those of a residue class.
inline int64_t PeriodOf(int64_t stride, int64_t dilation) { return dilation / std::gcd(stride, dilation); }

// Residue classes with positions come first in the table: LivePhases of each dimension.
inline int64_t LivePhases(const ConvProblem& p, int d) { return std::min(p.period[d], p.dst_size[d]); }
inline int64_t LiveClasses(const ConvProblem& p) { return LivePhases(p, 0) * LivePhases(p, 1) * LivePhases(p, 2); }

inline int64_t ChannelTaps(const ConvProblem& p) { return p.tap_count * p.in_channels; }

inline int64_t Rows(const ConvProblem& p, Pass pass) { return pass == Pass::kConv ? Positions(p) : ChannelTaps(p); }

}  // namespace jaxconv
