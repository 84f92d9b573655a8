// Sizes of the matrix product of a problem, on the host.
#pragma once

#include <cstdint>

#include "conv_problem.h"

namespace jaxconv {

inline constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t Positions(const ConvProblem& p) { return p.batch * p.dst_size[0] * p.dst_size[1] * p.dst_size[2]; }

inline int64_t ChannelTaps(const ConvProblem& p) { return p.tap_count * p.in_channels; }

inline int64_t Rows(const ConvProblem& p, Pass pass) { return pass == Pass::kConv ? Positions(p) : ChannelTaps(p); }

}  // namespace jaxconv
