// The settings of the mma family.
#pragma once

#include <array>
#include <cstdint>

#include "common/settings.h"
#include "mma/config.h"

namespace jaxconv {

struct MmaSettings {
  static constexpr const char* kFamily = "mma";
  static constexpr const auto& kTiles = kMmaTiles;
  static constexpr bool kTakesFloat8 = false;
  static constexpr bool kNeedsAligned = false;

  int64_t tile = 0;  // an index of kTiles
  int64_t split = 1;
  int64_t n_tiles_per_cta = 0;  // N tiles that a thread block computes in turn; 0: as many as suit the device
  int64_t gradient_sums = 0;    // of wgrad: 1 if the workspace begins with sums of the gradient, of each slice
  int64_t merged = 1;           // residue classes whose columns follow each other in one matrix: all, or 1

  static constexpr std::array<Field<MmaSettings>, 4> Fields() {
    return {{{"split", &MmaSettings::split},
             {"n_tiles_per_cta", &MmaSettings::n_tiles_per_cta},
             {"merged", &MmaSettings::merged},
             {"gradient_sums", &MmaSettings::gradient_sums}}};
  }
};

}  // namespace jaxconv
