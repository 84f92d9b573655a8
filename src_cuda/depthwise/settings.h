// The settings of the depthwise family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"
#include "conv_problem.h"
#include "depthwise/config.h"

namespace jaxconv {

// A thread block's tile. It streams the rows of the source along it.
struct Stream {
  int32_t rows;             // of the destination, in positions of a residue class
  int32_t cols;             // of each image's row: whole strips
  int32_t channels;         // of a thread block
  int32_t images;           // of a tile, or planes of volumes; 0: the rows of all images follow each other as rows
                            // of one, where no tap leaves its row
  int32_t first[kSpatial];  // source depth, row and column of the first position's first tap
  int32_t window_parts[kSpatial];  // of the window, along each dimension
  int32_t apart[2];  // rows, and columns, from one to the next of a tile, as between taps of a dilated window
};

// A Stream, and the slices of a wgrad.
struct DepthwiseSettings {
  static constexpr const char* kFamily = "depthwise";
  static constexpr const auto& kTiles = kDepthwiseTiles;
  static constexpr bool kTakesFloat8 = false;
  static constexpr bool kNeedsAligned = true;

  int64_t tile = 0;  // an index of kTiles
  int64_t split = 1;
  int64_t rows = 0;
  int64_t cols = 0;  // 0: no output tile takes the problem
  int64_t channels = 0;
  int64_t images = 1;
  int64_t first_depth = 0;
  int64_t first_row = 0;
  int64_t first_col = 0;
  int64_t depth_parts = 1;
  int64_t row_parts = 1;
  int64_t col_parts = 1;
  int64_t rows_apart = 1;
  int64_t cols_apart = 1;
  int64_t gradient_sums = 0;  // of wgrad: 1 if the workspace begins with sums of the gradient, of each slice

  static constexpr std::array<Field<DepthwiseSettings>, 14> Fields() {
    using S = DepthwiseSettings;
    return {{{"split", &S::split},
             {"rows", &S::rows},
             {"cols", &S::cols},
             {"channels", &S::channels},
             {"images", &S::images},
             {"first_depth", &S::first_depth},
             {"first_row", &S::first_row},
             {"first_col", &S::first_col},
             {"depth_parts", &S::depth_parts},
             {"row_parts", &S::row_parts},
             {"col_parts", &S::col_parts},
             {"rows_apart", &S::rows_apart},
             {"cols_apart", &S::cols_apart},
             {"gradient_sums", &S::gradient_sums}}};
  }

  Stream stream() const {
    return {In32(rows),
            In32(cols),
            In32(channels),
            In32(images),
            {In32(first_depth), In32(first_row), In32(first_col)},
            {In32(depth_parts), In32(row_parts), In32(col_parts)},
            {In32(rows_apart), In32(cols_apart)}};
  }
};

}  // namespace jaxconv
