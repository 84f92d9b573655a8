// A problem's window, as the gather family's kernels are told it. For planning. Host-only: without CUDA.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "common/planning.h"
#include "common/tap_reach.h"
#include "conv_problem.h"
#include "gather/settings.h"

namespace jaxconv::gather {

// The window, in settings of no tile. None if no taps are seen, or if these are not evenly apart: of a large window on
// a small image, only some may be seen. The problem has one residue class.
inline std::optional<GatherSettings> WindowOf(const Product& product) {
  const TapReach reach(product);
  if (reach.is_empty()) return std::nullopt;
  std::array<int64_t, kSpatial> apart, taps, filter_apart{};
  for (int d = 0; d < kSpatial; ++d) {
    apart[d] = reach.apart[d] > 0 ? reach.apart[d] : 1;
    taps[d] = (reach.size(d) - 1) / apart[d] + 1;
  }
  // The place of a tap in the window, how far it is from the first one, and the filter's elements before that one and
  // its neighbours.
  const auto place = [&](const Tap& tap, int d) { return (tap.shift[d] - reach.least[d]) / apart[d]; };
  const auto distance = [&](const Tap& tap) { return place(tap, 0) + place(tap, 1) + place(tap, 2); };
  int64_t filter_first = 0, count = 0;
  ForEachSeenTap(product, [&](const Tap& tap, const ResidueClass&) {
    ++count;
    if (distance(tap) == 0) filter_first = tap.filter_delta;
  });
  ForEachSeenTap(product, [&](const Tap& tap, const ResidueClass&) {
    for (int d = 0; d < kSpatial; ++d) {
      if (distance(tap) == 1 && place(tap, d) == 1) filter_apart[d] = tap.filter_delta - filter_first;
    }
  });
  bool is_even = count == taps[0] * taps[1] * taps[2];
  ForEachSeenTap(product, [&](const Tap& tap, const ResidueClass&) {
    int64_t at = filter_first;
    for (int d = 0; d < kSpatial; ++d) at += place(tap, d) * filter_apart[d];
    is_even &= at == tap.filter_delta;
  });
  if (!is_even) return std::nullopt;
  GatherSettings s;
  s.first_depth = reach.least[0], s.first_row = reach.least[1], s.first_col = reach.least[2];
  s.tap_depths = taps[0], s.tap_rows = taps[1], s.tap_cols = taps[2];
  s.depths_apart = apart[0], s.rows_apart = apart[1], s.cols_apart = apart[2];
  s.filter_first = filter_first;
  s.filter_depth = filter_apart[0], s.filter_row = filter_apart[1], s.filter_col = filter_apart[2];
  return s;
}

}  // namespace jaxconv::gather
