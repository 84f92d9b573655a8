// The settings of the gather family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"
#include "conv_problem.h"
#include "gather/config.h"

namespace jaxconv {

// The window, as kernels are told it: they read no table of taps, since what depends on one waits for two loads in a
// row. Along each dimension, taps are evenly apart in the source and in the filter.
struct GatherWindow {
  int32_t first[kSpatial];         // of the first position's first tap: source depth, row and column
  int32_t taps[kSpatial];          // depths, rows and columns of taps
  int32_t apart[kSpatial];         // source pixels from a tap to the next
  int32_t filter_first;            // elements of the filter before the first tap
  int32_t filter_apart[kSpatial];  // and from a tap to the next: less than 0 where a data gradient turns the filter
};

struct GatherSettings {
  static constexpr const char* kFamily = "gather";
  static constexpr const auto& kTiles = kGatherTiles;
  static constexpr bool kTakesFloat8 = false;
  static constexpr bool kNeedsAligned = true;

  int64_t tile = 0;  // an index of kTiles
  int64_t split = 1;
  int64_t first_depth = 0;
  int64_t first_row = 0;
  int64_t first_col = 0;
  int64_t tap_depths = 0;  // 0: the window is not known
  int64_t tap_rows = 0;
  int64_t tap_cols = 0;
  int64_t depths_apart = 1;
  int64_t rows_apart = 1;
  int64_t cols_apart = 1;
  int64_t filter_first = 0;
  int64_t filter_depth = 0;
  int64_t filter_row = 0;
  int64_t filter_col = 0;

  static constexpr std::array<Field<GatherSettings>, 14> Fields() {
    using S = GatherSettings;
    return {{{"split", &S::split},
             {"first_depth", &S::first_depth},
             {"first_row", &S::first_row},
             {"first_col", &S::first_col},
             {"tap_depths", &S::tap_depths},
             {"tap_rows", &S::tap_rows},
             {"tap_cols", &S::tap_cols},
             {"depths_apart", &S::depths_apart},
             {"rows_apart", &S::rows_apart},
             {"cols_apart", &S::cols_apart},
             {"filter_first", &S::filter_first},
             {"filter_depth", &S::filter_depth},
             {"filter_row", &S::filter_row},
             {"filter_col", &S::filter_col}}};
  }

  GatherWindow window() const {
    return {{In32(first_depth), In32(first_row), In32(first_col)},
            {In32(tap_depths), In32(tap_rows), In32(tap_cols)},
            {In32(depths_apart), In32(rows_apart), In32(cols_apart)},
            In32(filter_first),
            {In32(filter_depth), In32(filter_row), In32(filter_col)}};
  }
};

}  // namespace jaxconv
