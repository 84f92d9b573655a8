// What the direct family reads from a problem's offset tables. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <vector>

#include "conv_problem.h"

namespace jaxconv {

// A window's rows of taps: equal ones, `dilation` source rows apart. A residue class has `least` to `most` of them.
struct TapRows {
  int32_t most;
  int32_t least;
  int32_t dilation;
  int32_t taps;  // of each

  // Of all classes, if they are such rows.
  bool Add(const TapRows& other) {
    most = std::max(most, other.most), least = std::min(least, other.least);
    return dilation == other.dilation && taps == other.taps;
  }
};

// The rows of a residue class, if it has several. None if its taps are not in such rows.
inline std::optional<TapRows> RowsOfTaps(std::span<const Tap> taps) {
  const auto shift = [&](size_t tap, int d) { return taps[tap].shift[d]; };
  const size_t count = taps.size();
  size_t of_row = 0;
  for (size_t t = 0; t < count; ++t) of_row += shift(t, 1) == shift(0, 1);
  if (count == of_row || count % of_row) return std::nullopt;
  const int32_t dilation = std::abs(shift(of_row, 1) - shift(0, 1));
  for (size_t t = 0; t < count; ++t) {
    const size_t first = t - t % of_row;  // of its row
    const bool is_row = shift(t, 0) == shift(0, 0) && shift(t, 1) == shift(first, 1);
    const bool is_apart = first == 0 || std::abs(shift(first, 1) - shift(first - of_row, 1)) == dilation;
    if (!is_row || !is_apart || shift(t, 2) != shift(t - first, 2)) return std::nullopt;
  }
  return TapRows{static_cast<int32_t>(count / of_row), static_cast<int32_t>(count / of_row), dilation,
                 static_cast<int32_t>(of_row)};
}

// What the residue classes need at most.
struct Window {
  std::array<int32_t, kSpatial> corner{};       // the first class's taps' least shifts
  std::array<int32_t, kSpatial> size{1, 1, 1};  // of a class's taps, in source pixels
  std::array<int64_t, kSpatial> count{};        // of a class's positions
  int32_t taps = 0;
  int64_t classes;
  std::optional<TapRows> rows;  // if all classes' taps are such

  Window(const std::vector<Tap>& all, const std::vector<ResidueClass>& residue_classes)
      : classes(static_cast<int64_t>(residue_classes.size())) {
    bool has_rows = true;
    for (const ResidueClass& c : residue_classes) {
      const std::span<const Tap> own(all.data() + c.first_tap, c.tap_count);
      const bool is_first = &c == residue_classes.data();
      AddTaps(own, is_first);
      for (int d = 0; d < kSpatial; ++d) count[d] = std::max<int64_t>(count[d], c.count[d]);
      const auto found = has_rows ? RowsOfTaps(own) : std::nullopt;
      has_rows = found && (is_first || rows->Add(*found));
      if (is_first) rows = found;
    }
    if (!has_rows) rows.reset();
  }

 private:
  void AddTaps(std::span<const Tap> own, bool is_first) {
    if (own.empty()) return;
    taps = std::max(taps, static_cast<int32_t>(own.size()));
    for (int d = 0; d < kSpatial; ++d) {
      const auto [least, most] = std::ranges::minmax(own, {}, [d](const Tap& tap) { return tap.shift[d]; });
      if (is_first) corner[d] = least.shift[d];
      size[d] = std::max(size[d], most.shift[d] - least.shift[d] + 1);
    }
  }
};

}  // namespace jaxconv
