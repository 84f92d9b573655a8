// Planning of the wgmma family: implicit GEMM on Hopper, of pixels that TMA reads in its im2col mode or as boxes.
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
#include "wgmma/settings.h"
#include "wgmma/support.h"
#include "wgmma/windows.h"
#include "wgmma/works.h"

namespace jaxconv {

// Fitted costs, looked up once for many settings. All but three are seconds.
struct WgmmaCosts {
  double begin, tile, result;
  double box_pixel;
  double boxes[2];  // of a plane, where a multiprocessor has one thread block, and where it has two
  double cluster_turn, cluster_step, cluster_copy, cluster_block;
  double cluster_held;        // of the blocks that multiprocessors have room for, as clusters do not fill all
  double few_channels;        // of a chunk that has few, what is saved
  double reads_apart;         // how often pixels are read that several taps of windows several pixels apart see
  double activations;         // the memory's, for all
  std::vector<double> steps;  // a chunk's multiplications, by the tile
};

class WgmmaPlanner : public TiledPlanner<WgmmaPlanner, WgmmaSettings> {
 public:
  static constexpr const char* kName = WgmmaSettings::kFamily;
  static constexpr const auto& kTiles = kWgmmaTiles;

  WgmmaPlanner(const Product& product, const Device& device)
      : TiledPlanner(product, device), unsupported_(FindWindows()) {
    if (!unsupported_) FindCosts();
  }

  Reason UnsupportedReason() const { return unsupported_; }
  using TiledPlanner::UnsupportedReason;

  WgmmaSettings WithExtra(const WgmmaSettings& s, const Asked&) const {
    const auto& [corner, rank, tap_stride, reach, empty_classes] = im2col_;
    return {s.tile, s.split, corner[0], corner[1], corner[2], rank, tap_stride, reach[0], reach[1], empty_classes};
  }

  Reason UnsupportedExtra(const WgmmaSettings& s) const {
    return wgmma::UnsupportedTile(product_.conv, im2col_, kTiles[s.tile], s.split);
  }

  // Where a cluster adds the slices, parts of as many as it may have.
  std::vector<int64_t> SplitsOf(const WgmmaSettings& whole) const {
    const int slices = kTiles[whole.tile].slices;
    if (slices == 0) return TiledPlanner::SplitsOf(whole);
    std::vector<int64_t> splits;
    for (int n = 1; n <= slices; ++n) {
      if (slices % n == 0) splits.push_back(n);
    }
    return splits;
  }

  int64_t Blocks(const WgmmaSettings& s) const { return WorksOf(s) * kTiles[s.tile].cluster(); }

  int64_t SharedBytes(const WgmmaSettings& s) const { return kTiles[s.tile].shared_bytes(IsAlongSteps(product_.conv)); }

  int64_t WorkspaceBytes(WgmmaSettings s) const {
    s.split = kTiles[s.tile].stored_slices(s.split);
    return TiledPlanner::WorkspaceBytes(s);
  }

  // The tiles of a cluster, one after the other; then the slices' sum.
  double Seconds(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    if (tile.slices > 0) return SecondsOfClusterSplit(s);
    const double steps = std::max(fitted_.steps[s.tile], StepsSeconds(s) / s.split);
    const double results = tile.rows * tile.cols * (s.split == 1 ? 1 : 2);  // slices are of twice as many bytes
    const double end = fitted_.tile + results * fitted_.result;
    const int64_t turns = CeilDiv(WorksOf(s), std::max<int64_t>(1, device_.multiprocessors / tile.cluster()));
    const int64_t ends = CeilDiv(turns, tile.resident);  // those while nothing is multiplied
    const double reads = !tile.boxed && AreApart() ? fitted_.reads_apart : 1;
    const double copies = reads * fitted_.activations + end / tile.resident, works = turns * steps + ends * end;
    // Neither hides all of the other.
    const double both = std::cbrt(works * works * works + copies * copies * copies);
    return fitted_.begin + both + SlicesSeconds(product_, device_, costs_, s.split);
  }

 private:
  Reason FindWindows() {
    const ConvProblem& p = product_.conv;
    if (Reason why = wgmma::UnsupportedTypes(p, product_.pass)) return why;
    if (Reason why = WithoutWgmmaInstruction(device_)) return why;
    if (Reason why = wgmma::UnsupportedSizes(p)) return why;
    if (Reason why = wgmma::FindIm2col(product_, &im2col_)) return why;
    if (!wgmma::UnsupportedBoxes(p, im2col_)) plane_taps_ = wgmma::TapsOfPlanes(product_, im2col_);
    return std::nullopt;
  }

  // Residue classes of whose tiles clusters' works are.
  int64_t DealtClasses(const WgmmaSettings& s) const {
    return product_.classes() - ClassesOfZeros(product_.conv, im2col_, kTiles[s.tile], s.split);
  }
  int64_t WorksOf(const WgmmaSettings& s) const {
    return ClassWorks(product_.conv, kTiles[s.tile], s.split) * DealtClasses(s);
  }

  // Rows times columns of the pixels of a plane that a unit sees.
  int64_t UnitPixels() const { return BoxSize(product_.conv, im2col_, 1) * BoxSize(product_.conv, im2col_, 2); }

  // Whether windows are several pixels apart that have several taps along planes of pixels.
  bool AreApart() const {
    const auto& step = product_.conv.step;
    return (step[1] != 1 || step[2] != 1) && UnitPixels() > kUnitRows;
  }

  // Chunks of all taps that a position of a work's class sees, on average. Of a chunk of few channels less is
  // multiplied, but as many pixels are copied, and as much of the filter, which boxes of 256 columns wait for.
  double Steps(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    const int64_t channels = product_.conv.in_channels, block_k = BlockK(product_.conv), last = channels % block_k;
    const bool are_few = tile.boxed ? 0 < last && last <= block_k / 2 && tile.cols < 256 : channels <= block_k * 3 / 4;
    const double chunks = KBlocks(product_.conv) - (are_few ? fitted_.few_channels : 0);
    return static_cast<double>(product_.conv.tap_count) / DealtClasses(s) * chunks;
  }

  void FindCosts() {
    const Numbers& of = costs_;
    fitted_ = {
        .begin = of["begin_seconds"],
        .tile = of["tile_seconds"],
        .result = of["result_seconds"],
        .box_pixel = of["box_pixel_seconds"],
        .boxes = {of["boxes_seconds"], of["boxes_seconds_of_two_blocks"]},
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
    // Multiply-adds of a multiprocessor in a clock, of 16-bit types. A step, which is of 128 bytes, takes as long of
    // all.
    constexpr double kRate = 2048;
    for (const WgmmaTile& tile : kTiles) {
      const double rate = kRate * device_.clock_hz * (tile.slices > 0 ? 1 : Efficiency(product_, of, tile.name()));
      fitted_.steps.push_back(tile.rows * tile.cols * double{kPlannedBlockK} / rate);
    }
  }

  // Of a tile. A plane of few taps is multiplied before the next one's pixels are there.
  double StepsSeconds(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    const double steps = Steps(s) * fitted_.steps[s.tile], chunks = KBlocks(product_.conv);
    if (!tile.boxed) return steps;
    const double pixels = tile.rows / kUnitRows * UnitPixels();
    const double boxes = fitted_.boxes[tile.resident - 1] + pixels * fitted_.box_pixel;
    double seconds = 0;
    for (int64_t taps : plane_taps_) {
      seconds += std::max(static_cast<double>(taps) / product_.residue_classes[0].tap_count * steps, chunks * boxes);
    }
    return seconds;
  }

  // Of tiles whose slices a cluster adds. Thread blocks begin and end with their tiles; a step takes a while, or L2,
  // which all blocks copy from.
  double SecondsOfClusterSplit(const WgmmaSettings& s) const {
    const double blocks = WorksOf(s), places = kTiles[s.tile].resident * device_.multiprocessors;
    const double held = std::max(1.0, std::floor(fitted_.cluster_held * places));
    const double turns = std::max(1.0, std::ceil(blocks / held)), steps = std::ceil(Steps(s) / s.split);
    const double step = std::max(fitted_.cluster_step, blocks / turns * fitted_.cluster_copy);
    return turns * (fitted_.cluster_turn + steps * step) + blocks * fitted_.cluster_block;
  }

  WgmmaCosts fitted_;
  Im2col im2col_{};
  std::vector<int64_t> plane_taps_;  // where boxes are supported
  Reason unsupported_;
};

}  // namespace jaxconv
