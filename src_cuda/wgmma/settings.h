// The settings of the wgmma family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"

namespace jaxconv {

// All but tile and split follow from the problem: they say where TMA's im2col mode finds pixels and taps.
struct WgmmaSettings {
  static constexpr const char* kFamily = "wgmma";

  int64_t tile = 0;
  int64_t split = 1;
  // The first window's corner: the lowest shift of a tap, in any residue class.
  int64_t corner_d = 0, corner_h = 0, corner_w = 0;
  int64_t rank = 0;                  // of the maps: channels, images, and the last rank - 2 dimensions of space
  int64_t tap_stride = 0;            // elements of the filter from a tap to the next
  int64_t reach_h = 0, reach_w = 0;  // rows and columns from the corner to the last tap's pixel
  int64_t empty_classes = 0;         // that have positions, but no taps

  int64_t corner(int d) const { return d == 0 ? corner_d : d == 1 ? corner_h : corner_w; }
  int64_t reach(int d) const { return d == 1 ? reach_h : reach_w; }

  static constexpr std::array<Field<WgmmaSettings>, 10> Fields() {
    using S = WgmmaSettings;
    return {{{"tile", &S::tile},
             {"split", &S::split},
             {"corner_d", &S::corner_d},
             {"corner_h", &S::corner_h},
             {"corner_w", &S::corner_w},
             {"rank", &S::rank},
             {"tap_stride", &S::tap_stride},
             {"reach_h", &S::reach_h},
             {"reach_w", &S::reach_w},
             {"empty_classes", &S::empty_classes}}};
  }
};

}  // namespace jaxconv
