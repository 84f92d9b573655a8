// How the operands of a call lie in memory, seen as matrices. A, the source, is M x K. B, the other operand, is N x K.
// "MN" is the dimension that is not K: M for A, N for B and for the result.
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

// Whether each operand starts at a 16-byte boundary, as the widest load and store need.
inline bool AreAligned(std::initializer_list<const void*> operands) {
  return std::all_of(operands.begin(), operands.end(),
                     [](const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; });
}

struct OperandLayout {
  const void* data;
  DType type;
  int64_t mn_stride;
  int64_t k_stride;
  int64_t mn_unit;  // along MN, aligned groups of this many elements are contiguous; 1 if neighbours are not
  int64_t k_unit;   // the same along K

  // Whether vectors of as many elements can be loaded or stored along MN, or along K.
  bool MnVectors(int elements) const { return mn_unit % elements == 0 && IsAligned(elements); }
  bool KVectors(int elements) const { return k_unit % elements == 0 && IsAligned(elements); }

 private:
  // Longer vectors are several loads or stores of 16 bytes.
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

// A filter is dense. So the offsets of its taps are multiples of a unit if these strides are.
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

// The result has no K. The slices of split-K have the layout of the result, and the type of the sums.
inline OperandLayout ResultLayout(const ConvCall& call, int64_t split) {
  const ConvProblem& p = call.problem;
  const DType type = StoredType(p, call.pass, split);
  const void* data = StoredData(call, split);
  if (call.pass == Pass::kWgrad) return {data, type, p.filter.out, 0, internal::FilterOutUnit(p), 1};
  return {data, type, p.dst.channel, 0, internal::ChannelUnit(p.dst, p.out_channels), 1};
}

}  // namespace jaxconv
