// The settings of the wgmma family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"
#include "conv_problem.h"
#include "wgmma/config.h"

namespace jaxconv {

// All but tile and split follow from the problem: they say where TMA's im2col mode finds pixels and taps.
struct WgmmaSettings {
  static constexpr const char* kFamily = "wgmma";
  static constexpr const auto& kTiles = kWgmmaTiles;
  static constexpr bool kTakesFloat8 = true;
  static constexpr bool kNeedsAligned = true;

  int64_t tile = 0;  // an index of kTiles
  int64_t split = 1;
  // The first window's corner: the lowest shift of a tap, in any residue class.
  int64_t corner_d = 0, corner_h = 0, corner_w = 0;
  int64_t rank = 0;        // of the maps: channels, images, and the last rank - 2 dimensions of space
  int64_t tap_stride = 0;  // elements of the filter from a tap to the next
  int64_t reach_d = 0, reach_h = 0, reach_w = 0;  // pixels from the corner to the last tap's
  int64_t empty_classes = 0;                      // that have positions, but no taps
  int64_t taps_h = 0, taps_w = 0;  // of wgrad: rows of a window's plane, and taps of a row; 0: not a whole window
  // Rows that neighbours have, along the maps' first dimension of space, and how many taps see them.
  int64_t rows_before = 0, rows_after = 0;
  int64_t taps_before = 0, taps_after = 0;
  int64_t taps_reversed = 0;  // whether the table's first taps are those that see the rows after the image
  int64_t gradient_sums = 0;  // of wgrad: 1 if the workspace begins with GradientSums, in rows

  int64_t corner(int d) const { return d == 0 ? corner_d : d == 1 ? corner_h : corner_w; }
  int64_t reach(int d) const { return d == 0 ? reach_d : d == 1 ? reach_h : reach_w; }
  bool has_rows() const { return rows_before > 0 || rows_after > 0; }
  int rows_dim() const { return static_cast<int>(kSpatial - (rank - 2)); }
  // Pixels from a tap of a row to the next; 0: they are not evenly apart.
  int64_t tap_pixels() const { return taps_w > 1 && reach_w % (taps_w - 1) == 0 ? reach_w / (taps_w - 1) : 0; }

  static constexpr std::array<Field<WgmmaSettings>, 18> Fields() {
    using S = WgmmaSettings;
    return {{{"split", &S::split},
             {"corner_d", &S::corner_d},
             {"corner_h", &S::corner_h},
             {"corner_w", &S::corner_w},
             {"rank", &S::rank},
             {"tap_stride", &S::tap_stride},
             {"reach_d", &S::reach_d},
             {"reach_h", &S::reach_h},
             {"reach_w", &S::reach_w},
             {"empty_classes", &S::empty_classes},
             {"taps_h", &S::taps_h},
             {"taps_w", &S::taps_w},
             {"gradient_sums", &S::gradient_sums},
             {"rows_before", &S::rows_before},
             {"rows_after", &S::rows_after},
             {"taps_before", &S::taps_before},
             {"taps_after", &S::taps_after},
             {"taps_reversed", &S::taps_reversed}}};
  }
};

}  // namespace jaxconv
