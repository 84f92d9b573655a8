// The settings of the im2col family.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "common/settings.h"
#include "im2col/config.h"

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

// The tile must exist.
inline Reason UnsupportedChunk(const Im2colSettings& s) {
  const int64_t rows = kIm2colTiles[s.tile].block_m;
  if (s.chunk >= 1 && s.chunk % rows == 0) return std::nullopt;
  return "a chunk of " + std::to_string(s.chunk) + " rows, not whole tiles of " + std::to_string(rows);
}

}  // namespace jaxconv
