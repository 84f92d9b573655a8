// The settings of the direct family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"
#include "conv_problem.h"
#include "direct/config.h"

namespace jaxconv {

// The output positions that a thread block computes at a time, rows by columns. The source pixels that they read, in
// the class that reads most. The taps of the class that has most.
struct OutputTile {
  int32_t rows;
  int32_t cols;
  int32_t halo[kSpatial];
  int32_t taps;
  int32_t stream;            // rows that a warp takes in turn, a dilation apart; 1: it takes all at once
  int32_t packed;            // with packed K: taps of a row, and halo[2] counts vectors; else 0
  int32_t corner[kSpatial];  // of a wgrad: least shifts of the first class's taps. Halo tiles begin there
};

// An OutputTile. It may have more rows than were asked for: with row streaming a warp takes several.
struct DirectSettings {
  static constexpr const char* kFamily = "direct";
  static constexpr const auto& kTiles = kDirectTiles;
  static constexpr bool kTakesFloat8 = false;
  static constexpr bool kNeedsAligned = true;

  int64_t tile = 0;  // an index of kTiles
  int64_t split = 1;
  int64_t rows = 0;  // output positions that a thread block computes at a time
  int64_t cols = 0;
  int64_t streams = 0;  // streams abreast, of `stream_rows` rows each: no fewer rows than `rows`
  int64_t stream_rows = 1;
  int64_t halo_depth = 0;
  int64_t halo_height = 0;
  int64_t halo_width = 0;
  int64_t taps = 0;
  int64_t packed_taps = 0;
  int64_t corner_depth = 0;
  int64_t corner_row = 0;
  int64_t corner_col = 0;
  int64_t rows_before = 0;  // that neighbours have, along this dimension of space
  int64_t rows_after = 0;
  int64_t rows_along = 0;
  int64_t gradient_sums = 0;  // of wgrad: 1 if the workspace begins with sums of the gradient, in rows

  bool has_rows() const { return rows_before > 0 || rows_after > 0; }
  int rows_dim() const { return static_cast<int>(rows_along); }

  static constexpr std::array<Field<DirectSettings>, 17> Fields() {
    return {{{"split", &DirectSettings::split},
             {"rows", &DirectSettings::rows},
             {"cols", &DirectSettings::cols},
             {"streams", &DirectSettings::streams},
             {"stream_rows", &DirectSettings::stream_rows},
             {"halo_depth", &DirectSettings::halo_depth},
             {"halo_height", &DirectSettings::halo_height},
             {"halo_width", &DirectSettings::halo_width},
             {"taps", &DirectSettings::taps},
             {"packed_taps", &DirectSettings::packed_taps},
             {"corner_depth", &DirectSettings::corner_depth},
             {"corner_row", &DirectSettings::corner_row},
             {"corner_col", &DirectSettings::corner_col},
             {"rows_before", &DirectSettings::rows_before},
             {"rows_after", &DirectSettings::rows_after},
             {"rows_along", &DirectSettings::rows_along},
             {"gradient_sums", &DirectSettings::gradient_sums}}};
  }

  OutputTile out_tile() const {
    return {In32(streams * stream_rows),
            In32(cols),
            {In32(halo_depth), In32(halo_height), In32(halo_width)},
            In32(taps),
            In32(stream_rows),
            In32(packed_taps),
            {In32(corner_depth), In32(corner_row), In32(corner_col)}};
  }
};

}  // namespace jaxconv
