// Planning of the families that cut a matrix product into tiles: their splits, thread blocks, and costs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "common/planning.h"

namespace jaxconv {

inline constexpr double kLaunchSeconds = 3e-6;
inline constexpr int64_t kMostSplit = 264, kMostWaves = 6;  // of a split's thread blocks

// What planning knows of a tile: results, steps of the reduction at a time, thread blocks that a multiprocessor holds.
struct PlannedTile {
  int64_t rows, cols, depth, resident;
};

// How often a family launches its product, and the rows and steps of each launch.
struct Rounds {
  int64_t count, rows, steps;
};

// Thread blocks of a round. Each residue class has its own tiles of rows, or `merged` ones have their columns in one.
inline int64_t ThreadBlocks(const Product& product, const PlannedTile& tile, int64_t rows, int64_t merged,
                            int64_t split) {
  const int64_t classes = product.classes();
  const int64_t row_tiles = classes / merged * CeilDiv(CeilDiv(rows, classes), tile.rows);
  return row_tiles * CeilDiv(merged * product.cols(), tile.cols) * product.conv.groups * split;
}

// One slice, and those that fill whole waves of thread blocks, if that leaves each slice some tiles.
inline std::vector<int64_t> Splits(const Device& device, const PlannedTile& tile, int64_t steps, int64_t blocks) {
  const int64_t most = std::min(kMostSplit, steps / (4 * tile.depth)), wave = tile.resident * device.multiprocessors;
  std::set<int64_t> splits{1};
  for (int64_t waves = 1; waves <= kMostWaves; ++waves) {
    splits.insert(std::max<int64_t>(1, std::min(waves * wave / std::max<int64_t>(1, blocks), most)));
  }
  return {splits.begin(), splits.end()};
}

// What the memory takes for the activations.
inline double ActivationSeconds(const Product& product, const Device& device, const Numbers& costs) {
  return product.activation_bytes() / (costs["bandwidth"] * device.bandwidth);
}

// For slices that are written, and read by one more kernel.
inline double SlicesSeconds(const Product& product, const Device& device, const Numbers& costs, int64_t split) {
  if (split == 1) return 0;
  const double slices = static_cast<double>(split) * product.sums_bytes();
  return 2 * slices / device.bandwidth + split * costs["slice_seconds"] + kLaunchSeconds;
}

// A multiprocessor's results, there or not, each for a slice of the reduction; or memory. Then the slices' sum.
// rate: multiply-adds of a multiprocessor in a second.
inline double TiledSeconds(const Product& product, const Device& device, const Numbers& costs, const PlannedTile& tile,
                           const Rounds& rounds, int64_t blocks, int64_t split, double rate) {
  const double steps = CeilDiv(rounds.steps, split) + costs["fill"] * tile.depth;
  const double turns = CeilDiv(blocks, device.multiprocessors);
  // Where fewer blocks run than a multiprocessor holds, latencies show.
  const double load = std::max(turns, 0.2 * tile.resident + 0.8 * turns) * tile.rows * tile.cols;
  const double seconds = std::max(rounds.count * load * steps / rate, ActivationSeconds(product, device, costs));
  return seconds + rounds.count * kLaunchSeconds + SlicesSeconds(product, device, costs, split);
}

// The measured part of a family's rate that a tile reaches, by its name.
inline double Efficiency(const Product& product, const Numbers& costs, const std::string& tile) {
  return costs[(product.pass == Pass::kConv ? "conv " : "wgrad ") + tile];
}

inline Reason TooMuchSharedMemory(int64_t bytes, const Device& device) {
  if (bytes <= device.shared_bytes) return std::nullopt;
  return std::to_string(bytes) + " bytes of shared memory, the device has " + std::to_string(device.shared_bytes);
}

inline Reason WithoutWgmmaInstruction(const Device& device) {
  if (device.wgmma) return std::nullopt;
  return "wgmma is of compute capability 9.0, and in kernels that are built for it";
}

// What the families that launch tiles of a product share. Family: the class that derives from this one; it has kTiles,
// with names and what is planned of each, and says what differs: Rate, and in some RoundsOf, Blocks, Merged and Extra.
template <typename Family, typename S>
class TiledPlanner {
 public:
  using Settings = S;

  TiledPlanner(const Product& product, const Device& device)
      : product_(product), device_(device), costs_(device.CostsOf(Family::kName)) {}

  static int64_t TileCount() { return std::size(Family::kTiles); }
  static std::string TileName(int64_t tile) { return Family::kTiles[tile].name(); }
  static TileFields FieldsOfTile(int64_t tile) { return Family::kTiles[tile].fields(); }
  static PlannedTile Planned(int64_t tile) { return Family::kTiles[tile].planned(); }

  Reason UnsupportedReason() const { return std::nullopt; }
  // Why the product is for the family only if that is named.
  Reason UnsupportedUnlessNamed() const { return std::nullopt; }
  // Whether a tile is for the product's types.
  bool IsFor(int64_t) const { return true; }

  std::vector<S> Candidates(int64_t tile, const Asked& asked) const {
    std::vector<S> candidates;
    const S whole = family().WithExtra({.tile = tile, .split = 1}, asked);
    const auto split = asked.Find("split");
    for (int64_t n : split ? std::vector{*split} : family().SplitsOf(whole)) {
      candidates.push_back(whole);
      candidates.back().split = n;
    }
    return candidates;
  }

  Reason UnsupportedReason(const S& s) const {
    if (Reason why = family().UnsupportedExtra(s)) return why;
    if (s.split < 1) return "a split of " + std::to_string(s.split);
    if (Reason why = TooMuchSharedMemory(family().SharedBytes(s), device_)) return why;
    return UnsupportedBlocks(family().Blocks(s));
  }

  double Seconds(const S& s) const {
    const double rate = family().Rate() * device_.clock_hz * Efficiency(product_, costs_, TileName(s.tile));
    return TiledSeconds(product_, device_, costs_, Planned(s.tile), family().RoundsOf(s), family().Blocks(s), s.split,
                        rate);
  }

  int64_t WorkspaceBytes(const S& s) const { return s.split > 1 ? s.split * product_.sums_bytes() : 0; }

  S WithExtra(const S& s, const Asked&) const { return s; }
  Reason UnsupportedExtra(const S&) const { return std::nullopt; }
  Rounds RoundsOf(const S&) const { return {1, product_.rows(), product_.steps()}; }
  int64_t Merged(const S&) const { return 1; }
  // Thread blocks of a round.
  int64_t Blocks(const S& s) const {
    return ThreadBlocks(product_, Planned(s.tile), family().RoundsOf(s).rows, family().Merged(s), s.split);
  }
  std::vector<int64_t> SplitsOf(const S& whole) const {
    return Splits(device_, Planned(whole.tile), family().RoundsOf(whole).steps, family().Blocks(whole));
  }

 protected:
  const Family& family() const { return static_cast<const Family&>(*this); }

  const Product& product_;
  const Device& device_;
  const Numbers& costs_;
};

}  // namespace jaxconv
