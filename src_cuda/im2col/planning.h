// Planning of the im2col family.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/tile.h"
#include "common/tiled_product.h"
#include "im2col/config.h"
#include "im2col/settings.h"
#include "im2col/support.h"

namespace jaxconv {

inline constexpr int64_t kMaxColumnBytes = int64_t{256} << 20;  // of a chunk, unless one tile needs more

class Im2colPlanner : public TiledPlanner<Im2colPlanner, Im2colSettings> {
 public:
  static constexpr const char* kName = Im2colSettings::kFamily;
  static constexpr const auto& kRules = im2col::kRules;

  using TiledPlanner::TiledPlanner;

  // As many whole tiles of rows as the workspace's limit allows.
  Im2colSettings WithExtra(Im2colSettings s, const Requested& requested) const {
    const int64_t most = std::min(kMaxColumnBytes / std::max<int64_t>(1, im2col::MatrixRowBytes(product_.conv)),
                                  im2col::MatrixRows(product_.conv, s));
    const int64_t rows = kTiles[s.tile].block_m;
    s.chunk = requested.Find("chunk").value_or(std::max<int64_t>(1, most / rows) * rows);
    return s;
  }

  // One launch for each chunk of the column matrix, which is a part of M (conv) or of K (wgrad).
  Launches LaunchesOf(const Im2colSettings& s) const {
    const int64_t chunk = std::max<int64_t>(1, s.chunk);  // a requested chunk may be 0
    const int64_t count = std::max<int64_t>(1, CeilDiv(product_.positions(), chunk));
    if (product_.pass == Pass::kConv) return {count, std::min(product_.rows(), chunk), product_.steps()};
    return {count, product_.rows(), std::min(product_.steps(), chunk)};
  }

  // The slices get no more workspace than the column matrix, because results can be large.
  std::vector<int64_t> SplitsOf(const Im2colSettings& whole) const {
    std::vector<int64_t> splits = TiledPlanner::SplitsOf(whole);
    std::erase_if(splits, [&](int64_t n) { return SplitBytes(product_.conv, product_.pass, n) > kMaxColumnBytes; });
    return splits;
  }

  double Rate() const { return FmaRate(product_, device_); }

  // The column matrix is written and read once.
  double Seconds(const Im2colSettings& s) const {
    const double copies = 2.0 * product_.positions() * im2col::MatrixRowBytes(product_.conv) / device_.bandwidth;
    return copies + LaunchesOf(s).count * device_.launch_seconds + TiledPlanner::Seconds(s);
  }
};

}  // namespace jaxconv
