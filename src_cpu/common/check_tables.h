// Whether kernels may follow a call's offset tables: a program can call the handlers with any.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

#include "conv_problem.h"
#include "make_problem.h"

namespace jaxconv {

namespace internal {

using Wide = __int128;  // holds the products of sizes that may not fit 64 bits

// Offsets of output positions fit 64 bits.
inline const char* CheckSteps(const ConvProblem& p) {
  constexpr int64_t kMost = int64_t{1} << 61;
  for (int i = 0; i < kSpatial; ++i) {
    const Wide last = Wide{std::max<int64_t>(p.dst_size[i] - 1, 0)} / p.period[i] * p.step[i];
    if (p.period[i] > kMost || p.step[i] > kMost || last * std::max<int64_t>(p.src.spatial[i], 1) > kMost)
      return "window_strides or lhs_dilation are too large";
  }
  return nullptr;
}

// Classes hold each position once, in the order of their phases, and each tap once. The last one may hold taps alone.
inline const char* CheckClasses(const ConvProblem& p, const ResidueClass* classes) {
  int64_t phases[kSpatial], live = 0, taps = 0;
  if (!CountClasses(p, &live)) return "there are too many residue classes";
  for (int i = 0; i < kSpatial; ++i) phases[i] = std::min(p.period[i], p.dst_size[i]);
  for (int64_t c = 0; c < p.class_count; ++c) {
    const ResidueClass& cls = classes[c];
    if (cls.first_tap != taps || cls.tap_count < 0) return "the classes do not hold each tap once";
    taps += cls.tap_count;
    int64_t rest = c;
    for (int i = kSpatial - 1; i >= 0; --i) {
      const int64_t phase = c < live ? rest % phases[i] : 0;
      const int64_t count = c < live ? (p.dst_size[i] - phase - 1) / p.period[i] + 1 : 0;
      if (cls.phase[i] != phase || cls.count[i] != count) return "the classes do not hold each position once";
      if (c < live) rest /= phases[i];
    }
  }
  return taps == p.tap_count ? nullptr : "the classes do not hold each tap once";
}

// A tap's offset in the source is that of its displacement. Its offset in the filter is that of another tap each.
inline const char* CheckTaps(const ConvProblem& p, const Tap* taps, const ArrayArguments& filter) {
  // The filter's spatial axes, outermost first: a tap's offset is taken apart by dividing, so axes of one element are
  // left out.
  int rank = 0;
  int64_t sizes[kSpatial], strides[kSpatial];
  for (int64_t axis = 0; axis < std::ssize(filter.sizes); ++axis) {
    if (axis == filter.axes[0] || axis == filter.axes[1] || filter.sizes[axis] == 1) continue;
    sizes[rank] = filter.sizes[axis];
    strides[rank++] = filter.Stride(axis);
  }
  const bool is_empty = std::ranges::count(filter.sizes, 0) > 0;  // nothing of it is read or written
  std::vector<bool> found(is_empty ? 0 : p.tap_count);
  for (int32_t t = 0; t < p.tap_count; ++t) {
    Wide delta = 0;
    for (int i = 0; i < kSpatial; ++i) {
      if (std::abs(int64_t{taps[t].shift[i]}) >= std::numeric_limits<int32_t>::max()) return "a tap is too far away";
      delta += Wide{taps[t].shift[i]} * p.src.spatial[i];
    }
    if (taps[t].src_delta != delta) return "a tap's offset in the source is not that of its displacement";
    if (is_empty) continue;
    int64_t rest = taps[t].filter_delta, index = 0;
    for (int i = 0; i < rank; ++i) {
      const int64_t at = rest / strides[i];
      if (at < 0 || at >= sizes[i]) return "a tap's offset in the filter is not a tap's";
      index = index * sizes[i] + at;
      rest -= at * strides[i];
    }
    if (rest != 0) return "a tap's offset in the filter is not a tap's";
    if (found[index]) return "two taps have one offset in the filter";
    found[index] = true;
  }
  return nullptr;
}

}  // namespace internal

// Why kernels must not follow a problem's tables, or null. Otherwise they read inside the operands, and write every
// result once. The tables say which convolution it is.
inline const char* CheckTables(const ConvProblem& p, const Tap* taps, const ResidueClass* classes,
                               const ArrayArguments& filter) {
  if (const char* why = internal::CheckSteps(p)) return why;
  if (const char* why = internal::CheckClasses(p, classes)) return why;
  return internal::CheckTaps(p, taps, filter);
}

}  // namespace jaxconv
