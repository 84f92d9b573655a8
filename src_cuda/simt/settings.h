// The settings of the simt family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"
#include "simt/config.h"

namespace jaxconv {

struct SimtSettings {
  static constexpr const char* kFamily = "simt";
  static constexpr const auto& kTiles = kSimtTiles;
  static constexpr bool kTakesFloat8 = true;
  static constexpr bool kNeedsAligned = false;

  int64_t tile = 0;  // an index of kTiles
  int64_t split = 1;

  static constexpr std::array<Field<SimtSettings>, 1> Fields() { return {{{"split", &SimtSettings::split}}}; }
};

}  // namespace jaxconv
