// Planning of the wgmma family: implicit GEMM on Hopper, of pixels that TMA reads in its im2col mode or as halo tiles.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "common/tiled_product.h"
#include "wgmma/config.h"
#include "wgmma/im2col.h"
#include "wgmma/settings.h"
#include "wgmma/support.h"
#include "wgmma/work_tiles.h"

namespace jaxconv {

// Fitted costs, looked up once for many settings. They are seconds, where no comment says otherwise.
struct WgmmaCosts {
  double begin, tile, result;
  double halo_pixel;
  double halos[2];  // of a plane, with one CTA a multiprocessor, and with two
  double cluster_turn, cluster_step, cluster_copy, cluster_block;
  double cluster_held;        // the part of the places for blocks that clusters fill
  double few_channels;        // the part of a block of K that few channels save
  double reads_apart;         // how often taps of windows several pixels apart read a pixel
  double activations;         // what the memory takes for all
  std::vector<double> steps;  // to multiply a block of K, by the tile
};

class WgmmaPlanner : public TiledPlanner<WgmmaPlanner, WgmmaSettings> {
 public:
  static constexpr const char* kName = WgmmaSettings::kFamily;
  static constexpr const auto& kTiles = kWgmmaTiles;

  WgmmaPlanner(const Product& product, const Device& device) : TiledPlanner(product, device), unsupported_(FindMaps()) {
    if (!unsupported_) FindCosts();
  }

  Reason UnsupportedReason() const { return unsupported_; }
  using TiledPlanner::UnsupportedReason;

  WgmmaSettings WithExtra(const WgmmaSettings& s, const Asked&) const {
    WgmmaSettings extra = im2col_;
    extra.tile = s.tile, extra.split = s.split;
    return extra;
  }

  Reason UnsupportedExtra(const WgmmaSettings& s) const { return wgmma::UnsupportedTile(product_.conv, s); }

  // With cluster split-K, all divisors of the most slices.
  std::vector<int64_t> SplitsOf(const WgmmaSettings& whole) const {
    const int most = kTiles[whole.tile].cluster_split;
    if (most == 0) return TiledPlanner::SplitsOf(whole);
    std::vector<int64_t> splits;
    for (int n = 1; n <= most; ++n) {
      if (most % n == 0) splits.push_back(n);
    }
    return splits;
  }

  int64_t Blocks(const WgmmaSettings& s) const { return WorkTilesOf(s) * kTiles[s.tile].cluster(); }

  int64_t SharedBytes(const WgmmaSettings& s) const { return kTiles[s.tile].shared_bytes(IsKMajor(product_.conv)); }

  int64_t WorkspaceBytes(WgmmaSettings s) const {
    s.split = kTiles[s.tile].workspace_split(s.split);
    return TiledPlanner::WorkspaceBytes(s);
  }

  // The tiles of a cluster, one after the other; then the slices' sum.
  double Seconds(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    if (tile.cluster_split > 0) return SecondsOfClusterSplit(s);
    const double steps = std::max(fitted_.steps[s.tile], StepsSeconds(s) / s.split);
    const double results = tile.rows * tile.cols * (s.split == 1 ? 1 : 2);  // slices are of twice as many bytes
    const double end = fitted_.tile + results * fitted_.result;
    const int64_t turns = CeilDiv(WorkTilesOf(s), std::max<int64_t>(1, device_.multiprocessors / tile.cluster()));
    const int64_t ends = CeilDiv(turns, tile.ctas_per_sm);  // those while nothing is multiplied
    const double reads = !tile.halo && AreApart() ? fitted_.reads_apart : 1;
    const double copies = reads * fitted_.activations + end / tile.ctas_per_sm, busy = turns * steps + ends * end;
    // Neither hides all of the other.
    const double both = std::cbrt(busy * busy * busy + copies * copies * copies);
    return fitted_.begin + both + SlicesSeconds(product_, device_, costs_, s.split);
  }

 private:
  Reason FindMaps() {
    const ConvProblem& p = product_.conv;
    if (Reason why = wgmma::UnsupportedTypes(p, product_.pass)) return why;
    if (Reason why = WithoutWgmmaInstruction(device_)) return why;
    if (Reason why = wgmma::UnsupportedSizes(p)) return why;
    if (Reason why = wgmma::FindIm2col(product_, &im2col_)) return why;
    if (!wgmma::UnsupportedHalo(p, im2col_)) plane_taps_ = wgmma::TapsOfPlanes(product_, im2col_);
    return std::nullopt;
  }

  // Residue classes that have tiles.
  int64_t ScheduledClasses(const WgmmaSettings& s) const {
    return product_.classes() - ClassesOfZeros(product_.conv, s);
  }
  int64_t WorkTilesOf(const WgmmaSettings& s) const {
    return ClassWorkTiles(product_.conv, kTiles[s.tile], s.split) * ScheduledClasses(s);
  }

  // Pixels of a halo tile.
  int64_t UnitPixels() const { return HaloSize(product_.conv, im2col_, 1) * HaloSize(product_.conv, im2col_, 2); }

  // Whether windows are several pixels apart, and have several taps along planes of pixels.
  bool AreApart() const {
    const auto& step = product_.conv.step;
    return (step[1] != 1 || step[2] != 1) && UnitPixels() > kUnitRows;
  }

  // Blocks of K of all taps that a position of a tile's class sees, on average. Few channels in a block of K save
  // multiplications, but no copies of pixels and of the filter. Halo tiles of 256 columns wait for the filter.
  double Steps(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    const int64_t channels = product_.conv.in_channels, block_k = BlockK(product_.conv), last = channels % block_k;
    const bool are_few = tile.halo ? 0 < last && last <= block_k / 2 && tile.cols < 256 : channels <= block_k * 3 / 4;
    const double k_blocks = KBlocks(product_.conv) - (are_few ? fitted_.few_channels : 0);
    return static_cast<double>(product_.conv.tap_count) / ScheduledClasses(s) * k_blocks;
  }

  void FindCosts() {
    const Numbers& of = costs_;
    fitted_ = {
        .begin = of["begin_seconds"],
        .tile = of["tile_seconds"],
        .result = of["result_seconds"],
        .halo_pixel = of["box_pixel_seconds"],
        .halos = {of["boxes_seconds"], of["boxes_seconds_of_two_blocks"]},
        .cluster_turn = of["cluster_turn_seconds"],
        .cluster_step = of["cluster_step_seconds"],
        .cluster_copy = of["cluster_copy_seconds"],
        .cluster_block = of["cluster_block_seconds"],
        .cluster_held = of["cluster_held"],
        .few_channels = of["few_channels"],
        .reads_apart = of["reads_apart"],
        .activations = ActivationSeconds(product_, device_, of),
        .steps = {},
    };
    // Multiply-adds of 16-bit types of a multiprocessor in a clock. A step is 128 bytes of K, and takes as long for
    // others.
    constexpr double kRate = 2048;
    for (const WgmmaTile& tile : kTiles) {
      const double rate =
          kRate * device_.clock_hz * (tile.cluster_split > 0 ? 1 : Efficiency(product_, of, tile.name()));
      fitted_.steps.push_back(tile.rows * tile.cols * double{kPlannedBlockK} / rate);
    }
  }

  // The steps of a tile. A plane of few taps is multiplied before the next one's pixels are there.
  double StepsSeconds(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    const double steps = Steps(s) * fitted_.steps[s.tile], k_blocks = KBlocks(product_.conv);
    if (!tile.halo) return steps;
    const double pixels = tile.rows / kUnitRows * UnitPixels();
    const double halos = fitted_.halos[tile.ctas_per_sm - 1] + pixels * fitted_.halo_pixel;
    double seconds = 0;
    for (int64_t taps : plane_taps_) {
      seconds += std::max(static_cast<double>(taps) / product_.residue_classes[0].tap_count * steps, k_blocks * halos);
    }
    return seconds;
  }

  // With cluster split-K. Thread blocks begin and end with their tiles. A step takes the time of its own, or of L2,
  // from which all blocks copy.
  double SecondsOfClusterSplit(const WgmmaSettings& s) const {
    const double blocks = WorkTilesOf(s), places = kTiles[s.tile].ctas_per_sm * device_.multiprocessors;
    const double held = std::max(1.0, std::floor(fitted_.cluster_held * places));
    const double turns = std::max(1.0, std::ceil(blocks / held)), steps = std::ceil(Steps(s) / s.split);
    const double step = std::max(fitted_.cluster_step, blocks / turns * fitted_.cluster_copy);
    return turns * (fitted_.cluster_turn + steps * step) + blocks * fitted_.cluster_block;
  }

  WgmmaCosts fitted_;
  WgmmaSettings im2col_;             // but for tile and split
  std::vector<int64_t> plane_taps_;  // where halo tiles are supported
  Reason unsupported_;
};

}  // namespace jaxconv
