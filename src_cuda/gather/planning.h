// Planning of the gather family: the settings of a tile that support a problem, and their estimated time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/planning.h"
#include "common/product.h"
#include "common/tiled_product.h"
#include "gather/config.h"
#include "gather/settings.h"
#include "gather/support.h"
#include "gather/window.h"

namespace jaxconv {

class GatherPlanner {
 public:
  using Settings = GatherSettings;

  static constexpr const char* kName = GatherSettings::kFamily;
  static constexpr const auto& kRules = gather::kRules;

  GatherPlanner(const Product& product, const Device& device)
      : product_(product), device_(device), costs_(device.CostsOf(kName)) {
    unsupported_ = UnsupportedArrays(product);
    if (!unsupported_) unsupported_ = gather::UnsupportedProblem(product.conv, product.pass);
    if (unsupported_) return;
    window_ = gather::WindowOf(product);
    if (!window_) unsupported_ = "no taps are seen, or these are not evenly apart";
  }

  static TileFields FieldsOfTile(int64_t tile) {
    const GatherTile& t = kGatherTiles[tile];
    return {{"cols", t.cols}, {"width", t.width}, {"height", t.height}, {"has_conv", 1}, {"has_wgrad", 0}};
  }

  Reason UnsupportedReason() const { return unsupported_; }
  Reason UnsupportedUnlessNamed() const { return std::nullopt; }
  bool IsFor(int64_t) const { return GatherIsFor(product_.conv.src_type); }

  std::vector<GatherSettings> Candidates(int64_t tile, const Requested& requested) const {
    GatherSettings s = *window_;
    s.tile = tile, s.split = requested.Find("split").value_or(1);
    return {s};
  }

  Reason UnsupportedReason(const GatherSettings& s) const {
    return kRules.unsupported_reason(product_.conv, product_.pass, s);
  }

  // An SM's threads share its rate of loads and of multiplications. Those that it holds at the same time wait together,
  // from one set of operands to the next. The start and the end are shorter than those of a kernel with shared memory,
  // which device_.launch_seconds has.
  double Seconds(const GatherSettings& s) const {
    const GatherTile& tile = kGatherTiles[s.tile];
    const int64_t blocks = CeilDiv(gather::ThreadBlocks(product_.conv, tile), device_.multiprocessors);
    const int64_t sets = s.tap_depths * s.tap_rows * CeilDiv(s.tap_cols, tile.taps());
    const double threads = static_cast<double>(blocks) * kGatherThreads;
    const double loading = threads * LoadBytes(s, tile) / costs_["load_bytes_per_clock"];
    const double multiplying =
        threads * Instructions(s, tile) * costs_["instruction_clocks"] / device_.float32_fmas_per_clock;
    // What waits but once is a part of the start.
    const int64_t waits = CeilDiv(blocks, tile.ctas_per_sm(product_.has_epilogue)) * CeilDiv(sets, tile.sets()) - 1;
    const double waiting = static_cast<double>(waits) * costs_["set_clocks"];
    const double compute = (std::max(loading, multiplying) + waiting) / device_.clock_hz;
    return costs_["begin_seconds"] + Overlapped(compute, MemorySeconds());
  }

  int64_t WorkspaceBytes(const GatherSettings& s) const {
    return kRules.workspace_bytes(product_.conv, product_.pass, s);
  }

 private:
  // Vectors that a thread loads: of taps and of pixels.
  static int64_t Loads(const GatherSettings& s, const GatherTile& tile) {
    const int64_t sets = CeilDiv(s.tap_cols, tile.taps());
    return s.tap_depths * s.tap_rows * (2 * s.tap_cols + sets * (tile.cols - 1));
  }
  static double LoadBytes(const GatherSettings& s, const GatherTile& tile) {
    return static_cast<double>(Loads(s, tile)) * kVectorBytes;
  }

  // Instructions of a thread: its multiply-adds, conversions of what is not float32, and addresses.
  double Instructions(const GatherSettings& s, const GatherTile& tile) const {
    constexpr int kOfAddress = 8;
    const int vector = TraitsOf(product_.conv.src_type).vector();
    const int64_t multiplied = s.tap_depths * s.tap_rows * s.tap_cols * tile.cols * vector;
    const int64_t converted = product_.conv.src_type == DType::kF32 ? 0 : Loads(s, tile) * vector;
    return static_cast<double>(multiplied + converted + Loads(s, tile) * kOfAddress);
  }

  // What L2 has counts less. Activations beyond it come in no good order: a thread block has parts of few rows.
  double MemorySeconds() const {
    const auto bytes = static_cast<double>(product_.activation_bytes());
    const double share = bytes <= device_.cached_bytes ? costs_["cached_activations"] : 1;
    return bytes * share / (device_.bandwidth * costs_["bandwidth"]);
  }

  const Product& product_;
  const Device& device_;
  const Numbers& costs_;
  Reason unsupported_;
  std::optional<GatherSettings> window_;
};

}  // namespace jaxconv
