// The settings of the im2col family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"
#include "im2col/config.h"

namespace jaxconv {

struct Im2colSettings {
  static constexpr const char* kFamily = "im2col";
  static constexpr const auto& kTiles = kIm2colTiles;
  static constexpr bool kTakesFloat8 = false;
  static constexpr bool kNeedsAligned = false;

  int64_t tile = 0;  // an index of kTiles
  int64_t split = 1;
  int64_t chunk = 0;  // rows of the column matrix in the workspace at a time

  static constexpr std::array<Field<Im2colSettings>, 2> Fields() {
    return {{{"split", &Im2colSettings::split}, {"chunk", &Im2colSettings::chunk}}};
  }
};

}  // namespace jaxconv
