// Planning of the families that launch one CTA for each tile of the product: split-K, CTAs and costs.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/planning.h"

namespace jaxconv {

inline constexpr int64_t kPointBytes = 32;  // of a Point in shared memory

inline constexpr int64_t kMaxSplit = 264, kMaxWaves = 6;  // for split-K

// A tile as planning sees it.
struct PlannedTile {
  int64_t block_m, block_n, block_k, ctas_per_sm;
};

// How often a family launches its kernel for one call, and M and K of each launch.
struct Launches {
  int64_t count, m, k;
};

// CTAs of a launch with M = rows that have a tile, on average: for costs. Each residue class has its own tiles along M.
// `merged` classes are one product: their columns (N) are side by side.
inline int64_t ThreadBlocks(const Product& product, const PlannedTile& tile, int64_t rows, int64_t merged,
                            int64_t split) {
  const int64_t classes = product.classes();
  const int64_t row_tiles = classes / merged * CeilDiv(CeilDiv(rows, classes), tile.block_m);
  return row_tiles * CeilDiv(merged * product.cols(), tile.block_n) * product.conv.groups * split;
}

// The splits of K that are worth a try: one slice, and as many as fill whole waves of CTAs. Each slice keeps several
// blocks of K.
inline std::vector<int64_t> Splits(const Device& device, const PlannedTile& tile, int64_t steps, int64_t blocks) {
  const int64_t most = std::min(kMaxSplit, steps / (4 * tile.block_k)),
                wave = tile.ctas_per_sm * device.multiprocessors;
  std::set<int64_t> splits{1};
  for (int64_t waves = 1; waves <= kMaxWaves; ++waves) {
    splits.insert(std::max<int64_t>(1, std::min(waves * wave / std::max<int64_t>(1, blocks), most)));
  }
  return {splits.begin(), splits.end()};
}

// The time to move the activations through device memory.
inline double ActivationSeconds(const Product& product, const Device& device, const Numbers& costs) {
  return product.activation_bytes() / (costs["bandwidth"] * device.bandwidth);
}

// The time of copies and of multiplications. They overlap, but not completely.
inline double Overlapped(double one, double other) { return std::cbrt(one * one * one + other * other * other); }

// The same of classes without taps, whose zeros are stored behind all multiplications.
inline double OverlappedBehind(double one, double other) {
  return std::pow(std::pow(one, 1.25) + std::pow(other, 1.25), 0.8);
}

// Results that an SM has to end.
inline double SumsPerSm(const Product& product, const Device& device) {
  return static_cast<double>(product.sums()) / device.multiprocessors;
}

// The time that the epilogue adds to a result. `name`: of the cost of what is no residual.
inline double EpilogueSecondsOfResult(const Product& product, const Numbers& costs,
                                      const char* name = "epilogue_seconds") {
  if (!product.has_epilogue) return 0;
  return costs[name] + (product.has_residual ? costs["residual_seconds"] : 0);
}

// The time of the epilogue, where no multiplication hides it.
inline double EpilogueSeconds(const Product& product, const Device& device, const Numbers& costs,
                              const char* name = "epilogue_seconds") {
  return SumsPerSm(product, device) * EpilogueSecondsOfResult(product, costs, name);
}

// The time to write the slices of split-K, and to read them in one more kernel.
inline double SlicesSeconds(const Product& product, const Device& device, const Numbers& costs, int64_t split) {
  if (split == 1) return 0;
  const double slices = static_cast<double>(split) * product.sums_bytes();
  return 2 * slices / device.bandwidth + split * costs["slice_seconds"] + device.next_kernel_seconds;
}

// The time of the multiplications and of device memory, and of the split-K reduction. Tiles count in full, also where
// they are only partly inside the result. rate: multiply-adds of an SM in a second. copying: the time of an SM's
// copies, if it is not part of the rate.
inline double TiledSeconds(const Product& product, const Device& device, const Numbers& costs, const PlannedTile& tile,
                           const Launches& launches, int64_t blocks, int64_t split, double rate, double copying) {
  const double share = product.share_with_taps();
  const double steps = CeilDiv(launches.k, split) / share + costs["fill"] * tile.block_k;
  const double tiles_per_sm = std::ceil(share * blocks / device.multiprocessors);
  // An SM with fewer CTAs than it can hold does not hide all latencies.
  const double longest = share * product.longest_class(product.classes());
  const double load =
      std::max({tiles_per_sm, 0.2 * tile.ctas_per_sm + 0.8 * tiles_per_sm, longest}) * tile.block_m * tile.block_n;
  const double multiplying = Overlapped(launches.count * load * steps / rate, copying);
  const double moving = ActivationSeconds(product, device, costs);
  const double seconds = share < 1 ? OverlappedBehind(multiplying, moving) : Overlapped(multiplying, moving);
  return seconds + launches.count * device.launch_seconds + SlicesSeconds(product, device, costs, split);
}

// Multiply-adds of an SM in a clock on tensor cores, at their peak rate.
inline double TensorCoreRate(const Device& device, DType type) {
  return device.tensor_core_bytes_per_clock / TraitsOf(type).bytes;
}

// The fraction of the family's peak rate that a tile was measured to reach.
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

// The common part of these families' planners. Family is the derived class. It has kRules and Rate, and may replace
// LaunchesOf, Blocks, Merged, SplitsOf, CopySeconds, WithExtra, UnsupportedExtra and call.
template <typename Family, typename S>
class TiledPlanner {
 public:
  using Settings = S;
  static constexpr const auto& kTiles = S::kTiles;

  TiledPlanner(const Product& product, const Device& device)
      : product_(product), device_(device), costs_(device.CostsOf(Family::kName)) {}

  static TileFields FieldsOfTile(int64_t tile) { return kTiles[tile].fields(); }
  static PlannedTile Planned(int64_t tile) { return kTiles[tile].planned(); }

  Reason UnsupportedReason() const { return std::nullopt; }
  // Why the planner does not consider the family for the product unless the user names the family.
  Reason UnsupportedUnlessNamed() const { return std::nullopt; }
  // Whether a tile is compiled for the types of the product.
  bool IsFor(int64_t) const { return true; }

  std::vector<S> Candidates(int64_t tile, const Requested& requested) const {
    std::vector<S> candidates;
    const S whole = family().WithExtra({.tile = tile, .split = 1}, requested);
    const auto split = requested.Find("split");
    for (int64_t n : split ? std::vector{*split} : family().SplitsOf(whole)) {
      candidates.push_back(whole);
      candidates.back().split = n;
    }
    return candidates;
  }

  Reason UnsupportedReason(const S& s) const {
    const Product& call = family().call();
    if (Reason why = Family::kRules.unsupported_reason(call.conv, call.pass, s)) return why;
    if (Reason why = family().UnsupportedExtra(s)) return why;
    return TooMuchSharedMemory(Family::kRules.shared_bytes(call.conv, call.pass, s), device_);
  }

  double Seconds(const S& s) const {
    const double rate = family().Rate() * device_.clock_hz * Efficiency(product_, costs_, kTiles[s.tile].name());
    return TiledSeconds(product_, device_, costs_, Planned(s.tile), family().LaunchesOf(s), family().Blocks(s), s.split,
                        rate, family().CopySeconds(s));
  }

  int64_t WorkspaceBytes(const S& s) const {
    const Product& call = family().call();
    return Family::kRules.workspace_bytes(call.conv, call.pass, s);
  }

  // What the settings are for, of which `product_` may be a part.
  const Product& call() const { return product_; }
  // Adds the settings that only some families have.
  S WithExtra(const S& s, const Requested&) const { return s; }
  // What else this GPU, or the product, does not have.
  Reason UnsupportedExtra(const S&) const { return std::nullopt; }
  Launches LaunchesOf(const S&) const { return {1, product_.rows(), product_.steps()}; }
  int64_t Merged(const S&) const { return 1; }
  double CopySeconds(const S&) const { return 0; }
  // CTAs of a launch.
  int64_t Blocks(const S& s) const {
    return ThreadBlocks(product_, Planned(s.tile), family().LaunchesOf(s).m, family().Merged(s), s.split);
  }
  std::vector<int64_t> SplitsOf(const S& whole) const {
    return Splits(device_, Planned(whole.tile), family().LaunchesOf(whole).k, family().Blocks(whole));
  }

 protected:
  const Family& family() const { return static_cast<const Family&>(*this); }

  const Product& product_;
  const Device& device_;
  const Numbers& costs_;
};

}  // namespace jaxconv
