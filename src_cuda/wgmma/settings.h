// The settings of the wgmma family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"
#include "conv_problem.h"

namespace jaxconv {

// Where TMA's im2col mode finds the source's pixels and the filter's taps.
struct Im2col {
  int32_t corner[kSpatial];  // the first window's: the lowest shift of a tap, in any residue class
  int32_t rank;              // of the maps: channels, images, and the last rank - 2 dimensions of space
  int32_t tap_stride;        // elements of the filter from a tap to the next
  int32_t reach[2];          // rows and columns from the corner to the last tap's pixel
  int32_t empty_classes;     // that have positions, but no taps
};

// All but tile and split follow from the problem, see Im2col.
struct WgmmaSettings {
  static constexpr const char* kFamily = "wgmma";

  int64_t tile = 0;
  int64_t split = 1;
  int64_t corner_d = 0, corner_h = 0, corner_w = 0;
  int64_t rank = 0;
  int64_t tap_stride = 0;
  int64_t reach_h = 0, reach_w = 0;
  int64_t empty_classes = 0;

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

  Im2col im2col() const {
    return {{In32(corner_d), In32(corner_h), In32(corner_w)},
            In32(rank),
            In32(tap_stride),
            {In32(reach_h), In32(reach_w)},
            In32(empty_classes)};
  }
};

}  // namespace jaxconv
