// Planning of the simt family.
#pragma once

#include <array>
#include <cstdint>

#include "common/tile.h"
#include "common/tiled_product.h"
#include "simt/config.h"

namespace jaxconv {

struct SimtSettings {
  int64_t tile = 0;
  int64_t split = 1;

  static constexpr std::array<Field<SimtSettings>, 2> Fields() {
    return {{{"tile", &SimtSettings::tile}, {"split", &SimtSettings::split}}};
  }
};

class SimtPlanner : public TiledPlanner<SimtPlanner, SimtSettings> {
 public:
  static constexpr const char* kName = "simt";
  static constexpr const auto& kTiles = kSimtTiles;

  using TiledPlanner::TiledPlanner;

  Reason UnsupportedExtra(const SimtSettings& s) const { return UnsupportedSums(kTiles[s.tile], product_); }
  double Rate() const { return FmaRate(product_); }
  int64_t SharedBytes(const SimtSettings& s) const {
    return kTiles[s.tile].shared_bytes(ElementBytes(product_.sum_type()));
  }
  static Plan AsPlan(const SimtSettings& s) { return {static_cast<int>(s.tile), static_cast<int>(s.split), 0, 0, {}}; }
};

}  // namespace jaxconv
