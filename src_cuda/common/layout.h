// How a call's operands lie in memory, seen as matrices: lines (rows of the source, columns of the other operand and
// of the result) by steps of the reduction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <numeric>

#include "common/family.h"
#include "common/product.h"
#include "common/types.h"
#include "conv_problem.h"

namespace jaxconv {

// Whether each operand begins with what is loaded or stored at once at most.
inline bool AreAligned(std::initializer_list<const void*> operands) {
  constexpr uintptr_t kPieceBytes = 16;
  return std::all_of(operands.begin(), operands.end(),
                     [](const void* data) { return reinterpret_cast<uintptr_t>(data) % kPieceBytes == 0; });
}

struct OperandLayout {
  const void* data;
  DType type;
  int64_t line_stride;
  int64_t step_stride;
  int64_t line_unit;  // neighbouring lines are contiguous in runs of this many, which begin at its multiples
  int64_t step_unit;  // likewise steps; 1 where they are not contiguous

  bool LineVectors(int elements) const { return line_unit % elements == 0 && IsAligned(elements); }
  bool StepVectors(int elements) const { return step_unit % elements == 0 && IsAligned(elements); }

 private:
  // A vector load or store takes 16 bytes at most.
  bool IsAligned(int elements) const {
    const size_t alignment = std::min<size_t>(16, elements * ElementBytes(type));
    return reinterpret_cast<uintptr_t>(data) % alignment == 0;
  }
};

namespace internal {

inline int64_t Unit(int64_t stride, int64_t count, std::initializer_list<int64_t> other_strides) {
  if (stride != 1) return 1;
  for (int64_t other : other_strides) count = std::gcd(count, other);
  return count;
}

inline int64_t ChannelUnit(const TensorStrides& s, int64_t channels) {
  return Unit(s.channel, channels, {s.batch, s.spatial[0], s.spatial[1], s.spatial[2], s.group});
}

// The offsets of taps are multiples of a unit where these strides are: a filter is dense.
inline int64_t FilterOutUnit(const ConvProblem& p) {
  return Unit(p.filter.out, p.out_channels, {p.in_channels == 1 ? 0 : p.filter.in, p.filter.group});
}

inline int64_t FilterInUnit(const ConvProblem& p) {
  return Unit(p.filter.in, p.in_channels, {p.out_channels == 1 ? 0 : p.filter.out, p.filter.group});
}

}  // namespace internal

inline OperandLayout SourceLayout(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  const int64_t position = p.src.spatial[kSpatial - 1] * p.step[kSpatial - 1];
  const int64_t unit = internal::ChannelUnit(p.src, p.in_channels);
  if (call.pass == Pass::kWgrad) return {call.src, p.src_type, p.src.channel, position, unit, 1};
  return {call.src, p.src_type, position, p.src.channel, 1, unit};
}

inline OperandLayout RhsLayout(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  if (call.pass == Pass::kConv) {
    return {call.rhs, p.filter_type, p.filter.out, p.filter.in, internal::FilterOutUnit(p), internal::FilterInUnit(p)};
  }
  const int64_t position = p.dst.spatial[kSpatial - 1] * p.period[kSpatial - 1];
  return {call.rhs, p.dst_type, p.dst.channel, position, internal::ChannelUnit(p.dst, p.out_channels), 1};
}

// The result has lines alone. The slices of a split reduction lie as it does, in the type of the sums.
inline OperandLayout ResultLayout(const ConvCall& call, int64_t split) {
  const ConvProblem& p = call.problem;
  const DType type = StoredType(p, call.pass, split);
  const void* data = StoredData(call, split);
  if (call.pass == Pass::kWgrad) return {data, type, p.filter.out, 0, internal::FilterOutUnit(p), 1};
  return {data, type, p.dst.channel, 0, internal::ChannelUnit(p.dst, p.out_channels), 1};
}

}  // namespace jaxconv
