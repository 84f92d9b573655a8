// Makes a ConvProblem from the sizes of arrays and the parameters of a convolution, for handlers and planning.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>

#include "conv_problem.h"
#include "sizes.h"

namespace jaxconv {

using Numbers64 = std::span<const int64_t>;

// The sizes and axes of an array. Axes are (batch, channel, spatial...) for activations and (out, in, spatial...) for
// the filter, as in lax.ConvDimensionNumbers.
struct ArrayArguments {
  Numbers64 sizes;
  Numbers64 axes;
  DType type;

  int64_t Stride(int64_t axis) const { return StrideAlong(sizes, axis); }
};

struct ProblemArguments {
  ArrayArguments src, filter, dst;
  Numbers64 window_strides, lhs_dilation;
  int64_t groups;
  bool src_batch_grouped;  // the source's groups are on its batch axis, not its channel axis
  bool dst_batch_grouped;  // the same for the destination
  bool filter_in_grouped;  // the filter's groups are on its `in` axis (dgrad), not its `out` axis
  bool dst_in_blocks;      // the destination's first spatial axis is blocks of channels; the problem has it as 1
  Numbers64 tap_table, class_table;  // sizes of the offset tables
};

namespace internal {

// Whether `axes` has each axis of the array once.
inline bool AreAxes(const ArrayArguments& a) {
  if (a.axes.size() != a.sizes.size()) return false;
  uint32_t seen = 0;
  for (int64_t axis : a.axes) {
    if (axis < 0 || axis >= static_cast<int64_t>(a.sizes.size()) || seen >> axis & 1) return false;
    seen |= 1u << axis;
  }
  return true;
}

// Fills in the sizes and strides of an activation. `batch` and `channels` become the sizes of one group.
inline bool DecodeTensor(const ArrayArguments& a, int64_t groups, bool batch_grouped, int64_t* batch, int64_t* channels,
                         int64_t* size, TensorStrides* strides) {
  *batch = a.sizes[a.axes[0]];
  *channels = a.sizes[a.axes[1]];
  strides->batch = a.Stride(a.axes[0]);
  strides->channel = a.Stride(a.axes[1]);
  int64_t* grouped = batch_grouped ? batch : channels;
  if (*grouped % groups) return false;
  *grouped /= groups;
  strides->group = *grouped * (batch_grouped ? strides->batch : strides->channel);
  const int lead = kSpatial - static_cast<int>(a.sizes.size() - 2);
  for (int i = 0; i < kSpatial; ++i) {
    size[i] = i < lead ? 1 : a.sizes[a.axes[2 + i - lead]];
    strides->spatial[i] = i < lead ? 0 : a.Stride(a.axes[2 + i - lead]);
  }
  return true;
}

// The residue classes that have positions: one for each phase of each dimension. False if they are too many.
inline bool CountClasses(const ConvProblem& p, int64_t* live) {
  *live = 1;
  for (int i = 0; i < kSpatial; ++i) {
    if (__builtin_mul_overflow(*live, LivePhases(p, i), live)) return false;
  }
  return *live < INT32_MAX;
}

// The destination's first spatial axis becomes blocks of its channels. False if it is none.
inline bool TakeBlocks(const ArrayArguments& dst, ConvProblem* p) {
  const bool are_blocks = dst.sizes.size() == 2 + kSpatial && p->groups == 1 && p->out_channels == kBlockChannels;
  if (!are_blocks) return false;
  p->out_channels *= std::exchange(p->dst_size[0], 1);
  p->dst.block = std::exchange(p->dst.spatial[0], 0);
  p->dst.group = 0;
  return true;
}

}  // namespace internal

// Whether kernels can count the output positions. Planning may ask for more: for the workspace of any batch.
inline bool CountsPositions(const ConvProblem& p) {
  int64_t positions = p.batch;
  for (const int64_t size : p.dst_size) {
    if (__builtin_mul_overflow(positions, size, &positions) || positions >= kPositionsLimit) return false;
  }
  return true;
}

// Fills in the problem. Returns why the arguments do not fit together, or null.
inline const char* MakeProblem(const ProblemArguments& a, ConvProblem* problem) {
  ConvProblem& p = *problem;
  p = {};
  p.groups = a.groups;
  if (p.groups < 1) return "groups must be positive";
  const size_t rank = a.src.sizes.size();
  if (rank < 2 || rank > 2 + kSpatial) return "0 to 3 spatial dimensions are supported";
  if (a.filter.sizes.size() != rank || a.dst.sizes.size() != rank) return "ranks differ";
  if (!internal::AreAxes(a.src) || !internal::AreAxes(a.filter) || !internal::AreAxes(a.dst)) {
    return "a spec must name each axis of its array once";
  }
  if (a.window_strides.size() != rank - 2 || a.lhs_dilation.size() != rank - 2)
    return "window_strides and lhs_dilation need an entry for each spatial dimension";
  int64_t dst_batch = 0;
  if (!internal::DecodeTensor(a.src, p.groups, a.src_batch_grouped, &p.batch, &p.in_channels, p.src_size, &p.src) ||
      !internal::DecodeTensor(a.dst, p.groups, a.dst_batch_grouped, &dst_batch, &p.out_channels, p.dst_size, &p.dst))
    return "groups do not divide the batch or channels";
  if (a.dst_in_blocks && !internal::TakeBlocks(a.dst, &p)) return "blocks of channels are 32 of one group's volume";
  if (dst_batch != p.batch) return "the batches of source and destination differ";

  const int64_t out = a.filter.sizes[a.filter.axes[0]], in = a.filter.sizes[a.filter.axes[1]];
  p.filter.out = a.filter.Stride(a.filter.axes[0]);
  p.filter.in = a.filter.Stride(a.filter.axes[1]);
  p.filter.group = a.filter_in_grouped ? p.in_channels * p.filter.in : p.out_channels * p.filter.out;
  if (in != p.in_channels * (a.filter_in_grouped ? p.groups : 1) ||
      out != p.out_channels * (a.filter_in_grouped ? 1 : p.groups))
    return "the filter's channels do not match the source's and destination's";

  int64_t tap_count = 1;
  for (size_t i = 2; i < rank; ++i) tap_count *= a.filter.sizes[a.filter.axes[i]];
  if (a.tap_table.size() != 2 || a.tap_table[0] != tap_count + 1 || a.tap_table[1] != kTapColumns ||
      a.class_table.size() != 2 || a.class_table[1] != kClassColumns)
    return "the offset tables are not those of this problem";
  p.tap_count = static_cast<int32_t>(tap_count);
  p.class_count = static_cast<int32_t>(a.class_table[0]);

  const int lead = kSpatial - static_cast<int>(rank - 2);
  for (int i = 0; i < kSpatial; ++i) {
    const int64_t stride = i < lead ? 1 : a.window_strides[i - lead];
    const int64_t dilation = i < lead ? 1 : a.lhs_dilation[i - lead];
    if (stride < 1 || dilation < 1) return "window_strides and lhs_dilation must be positive";
    p.period[i] = PeriodOf(stride, dilation);
    p.step[i] = stride / std::gcd(stride, dilation);
  }
  int64_t live = 0;
  if (!internal::CountClasses(p, &live)) return "there are too many residue classes";
  // The last class may hold taps alone.
  if (p.class_count != live && p.class_count != live + 1) return "the table of classes has a wrong number of rows";
  p.src_type = a.src.type;
  p.filter_type = a.filter.type;
  p.dst_type = a.dst.type;
  return nullptr;
}

}  // namespace jaxconv
