// The settings of the im2col family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"

namespace jaxconv {

struct Im2colSettings {
  static constexpr const char* kFamily = "im2col";
  static constexpr bool kTakesFloat8 = false;
  static constexpr bool kTakesAligned = false;

  int64_t tile = 0;
  int64_t split = 1;
  int64_t chunk = 0;  // rows of the column matrix in the workspace at a time

  static constexpr std::array<Field<Im2colSettings>, 3> Fields() {
    return {{{"tile", &Im2colSettings::tile}, {"split", &Im2colSettings::split}, {"chunk", &Im2colSettings::chunk}}};
  }
};

}  // namespace jaxconv
