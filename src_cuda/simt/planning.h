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

  // Kernels for these stand in for others where those cannot run.
  Reason UnsupportedReason() const {
    if (HasFloat8(product_.conv)) return "float8 is faster as bfloat16";
    return RoundsFloatsToInt8(product_.conv) ? Reason("for int8 results of floats it only stands in") : std::nullopt;
  }
  using TiledPlanner::UnsupportedReason;
  double Rate() const { return FmaRate(product_, device_); }
};

}  // namespace jaxconv
