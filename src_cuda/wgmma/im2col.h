// Finds the settings of TMA's im2col mode for a convolution. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/planning.h"
#include "common/tma_limits.h"
#include "wgmma/config.h"
#include "wgmma/support.h"

namespace jaxconv::wgmma {

// Elements from a tap to the next, if the filter's spatial axes follow each other, rows of rows; else 0. One tap has no
// next one: then it is `of_one`.
inline int64_t TapStride(const ArrayShape& filter, int64_t of_one) {
  int64_t stride = 0, outer = 0;  // `outer`: of the next axis
  for (int64_t i = filter.rank() - 1; i >= 2; --i) {
    const int64_t axis = filter.axes[i];
    if (filter.sizes[axis] == 1) continue;
    if (stride == 0) stride = outer = filter.Stride(axis);
    if (filter.Stride(axis) != outer) return 0;
    outer *= filter.sizes[axis];
  }
  return stride == 0 ? of_one : stride;
}

// The taps that positions see: their number, and the lowest and highest shifts.
struct Shifts {
  int64_t count = 0;
  int32_t lowest[kSpatial]{};
  int32_t highest[kSpatial]{};

  explicit Shifts(const Product& product) {
    for (int64_t c = 0; c < LiveClasses(product.conv); ++c) {
      const ResidueClass& of = product.residue_classes[c];
      for (int32_t i = 0; i < of.tap_count; ++i) Add(product.taps[of.first_tap + i]);
    }
  }
  void Add(const Tap& tap) {
    for (int d = 0; d < kSpatial; ++d) {
      lowest[d] = count == 0 ? tap.shift[d] : std::min(lowest[d], tap.shift[d]);
      highest[d] = count == 0 ? tap.shift[d] : std::max(highest[d], tap.shift[d]);
    }
    ++count;
  }
  int64_t reach(int d) const { return int64_t{highest[d]} - lowest[d]; }
};

// Residue classes that have positions, but no taps. At least one class is left for tiles.
inline int32_t EmptyClasses(const Product& product) {
  const auto classes = static_cast<int32_t>(LiveClasses(product.conv));
  int32_t empty = 0;
  for (int32_t c = 0; c < classes; ++c) empty += product.residue_classes[c].tap_count == 0;
  return std::min(empty, classes - 1);
}

// The rank of TMA's maps. They leave out leading dimensions of one pixel.
inline int32_t RankOf(const ConvProblem& p, const Shifts& shifts) {
  int first = 0;
  const auto is_there = [&](int d) {
    return p.src_size[d] > 1 || p.dst_size[d] > 1 || shifts.lowest[d] != 0 || shifts.highest[d] != 0;
  };
  while (first < kSpatial - 1 && !is_there(first)) ++first;
  return 2 + kSpatial - first;
}

// Whether one residue class has all taps, from the window's corner on.
inline bool AreAscending(const Product& product) {
  const auto& [first, last] = std::pair(product.taps.front(), product.taps.back());
  bool ascends = product.residue_classes.size() == 1;
  for (int d = 0; d < kSpatial; ++d) ascends &= first.shift[d] <= last.shift[d];
  return ascends;
}

// Fills in the settings, or says why TMA cannot find the pixels.
inline Reason FindIm2col(const Product& product, WgmmaSettings* s) {
  const Shifts shifts(product);
  s->corner_d = shifts.lowest[0], s->corner_h = shifts.lowest[1], s->corner_w = shifts.lowest[2];
  s->rank = shifts.count == 1 && IsMatrix(product.conv, *s) ? 2 : RankOf(product.conv, shifts);
  const ConvProblem& p = product.conv;
  const bool in_parts = product.MultipliesFloat32(Float32::kBF16x6) && product.pass == Pass::kConv;
  // In parts, one tap's next one is that of the next part.
  const int64_t of_one = in_parts ? p.groups * p.in_channels * p.out_channels : TraitsOf(p.filter_type).vector();
  s->tap_stride = In32(TapStride(product.filter, of_one));
  s->reach_d = shifts.reach(0), s->reach_h = shifts.reach(1), s->reach_w = shifts.reach(2);
  s->empty_classes = EmptyClasses(product);
  if (product.pass == Pass::kWgrad && AreAscending(product)) {
    s->taps_h = In32(product.kernel[1]), s->taps_w = In32(product.kernel[2]);
  }
  if (Reason why = UnsupportedIm2col(p, *s, in_parts)) return why;
  const int64_t reach = std::max({shifts.reach(0), shifts.reach(1), shifts.reach(2)});
  const int64_t end = Im2colOffsetEnd(s->rank);
  if (reach < end) return std::nullopt;
  return "taps " + std::to_string(reach) + " pixels apart, of less than " + std::to_string(end);
}

// Fills in how many taps see rows of neighbours. Of a residue class they are the table's first and last ones.
inline void FindRows(const Product& product, WgmmaSettings* s) {
  if (!s->has_rows()) return;
  const int dim = s->rows_dim();
  const ConvProblem& p = product.conv;
  const int64_t last = (p.dst_size[dim] - 1) * p.step[dim];  // position
  int64_t before = 0, after = 0;
  for (const Tap& tap : product.taps) {
    before += tap.shift[dim] < 0;
    after += last + tap.shift[dim] >= p.src_size[dim];
  }
  s->taps_reversed = product.taps.front().shift[dim] > product.taps.back().shift[dim];
  s->taps_before = s->rows_before > 0 ? before : 0;
  s->taps_after = s->rows_after > 0 ? after : 0;
}

// How many taps see each plane of pixels, see halo.cuh. There is one residue class.
inline std::vector<int64_t> TapsOfPlanes(const Product& product, const WgmmaSettings& s) {
  std::map<std::array<int64_t, kSpatial>, int64_t> planes;
  const ResidueClass& all = product.residue_classes[0];
  for (int32_t i = 0; i < all.tap_count; ++i) {
    const auto& shift = product.taps[all.first_tap + i].shift;
    const int64_t row = shift[1] - s.corner(1), col = shift[2] - s.corner(2);
    ++planes[{shift[0], row % product.conv.step[1], col % product.conv.step[2]}];
  }
  std::vector<int64_t> taps;
  for (const auto& [plane, count] : planes) taps.push_back(count);
  return taps;
}

}  // namespace jaxconv::wgmma
