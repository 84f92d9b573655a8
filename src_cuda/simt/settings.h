// The settings of the simt family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"

namespace jaxconv {

struct SimtSettings {
  static constexpr const char* kFamily = "simt";
  static constexpr bool kTakesFloat8 = true;
  static constexpr bool kTakesAligned = false;

  int64_t tile = 0;
  int64_t split = 1;

  static constexpr std::array<Field<SimtSettings>, 2> Fields() {
    return {{{"tile", &SimtSettings::tile}, {"split", &SimtSettings::split}}};
  }
};

}  // namespace jaxconv
