// Sizes of arrays, and of the matrix product of a problem, on the host.
#pragma once

#include <cstddef>
#include <cstdint>
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

inline int64_t ChannelTaps(const ConvProblem& p) { return p.tap_count * p.in_channels; }

inline int64_t Rows(const ConvProblem& p, Pass pass) { return pass == Pass::kConv ? Positions(p) : ChannelTaps(p); }

}  // namespace jaxconv
