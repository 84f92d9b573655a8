// Planning of the simt family.
#pragma once

#include "common/tile.h"
#include "common/tiled_product.h"
#include "simt/config.h"
#include "simt/settings.h"
#include "simt/support.h"

namespace jaxconv {

class SimtPlanner : public TiledPlanner<SimtPlanner, SimtSettings> {
 public:
  static constexpr const char* kName = SimtSettings::kFamily;
  static constexpr const auto& kRules = simt::kRules;

  using TiledPlanner::TiledPlanner;

  // Those of float8 stand in for wgmma's where these cannot run. As bfloat16, float8 is multiplied on tensor cores.
  Reason UnsupportedReason() const {
    return HasFloat8(product_.conv) ? Reason("float8 is faster as bfloat16") : std::nullopt;
  }
  using TiledPlanner::UnsupportedReason;
  double Rate() const { return FmaRate(product_, device_); }
};

}  // namespace jaxconv
