// Planning of the mma family: implicit GEMM on tensor cores. Both operands have the same type.
#pragma once

#include <cstdint>

#include "common/tiled_product.h"
#include "mma/config.h"
#include "mma/settings.h"
#include "mma/support.h"
#include "operand_traits.h"

namespace jaxconv {

// The number of residue classes that can be merged: all, or 1 (none). Classes can be merged if they read the same
// source pixels, because windows do not overlap, as in dgrad of a patch embedding. The columns (N) of merged classes
// are side by side in one product, so each pixel is read once.
inline int64_t MergedClasses(const Product& product) {
  const auto& taps = product.taps;
  const auto& classes = product.residue_classes;
  if (taps.empty()) return 1;
  const int64_t count = classes.size(), each = taps.size() / count;
  for (const ResidueClass& c : classes) {
    if (c.tap_count != classes[0].tap_count) return 1;
    for (int d = 0; d < kSpatial; ++d) {
      if (c.count[d] != classes[0].count[d]) return 1;
    }
  }
  const ConvProblem& p = product.conv;
  bool follow = true;  // copies of a K-major filter need columns with a constant stride, also across classes
  for (int64_t c = 0; c < count; ++c) {
    const int64_t apart = taps[c * each].filter_delta - taps[0].filter_delta;
    follow &= apart == c * p.out_channels * p.filter.out;
    for (int64_t t = 0; t < each; ++t) {
      const Tap &tap = taps[c * each + t], &first = taps[t];
      if (tap.filter_delta - first.filter_delta != apart) return 1;
      for (int d = 0; d < kSpatial; ++d) {
        if (tap.shift[d] != first.shift[d]) return 1;
      }
    }
  }
  const bool are_read = follow || p.filter.in > p.filter.out;
  return are_read && !mma::UnsupportedMerged(p, product.pass, count) ? count : 1;
}

class MmaPlanner : public TiledPlanner<MmaPlanner, MmaSettings> {
 public:
  static constexpr const char* kName = MmaSettings::kFamily;
  static constexpr const auto& kRules = mma::kRules;

  MmaPlanner(const Product& product, const Device& device) : TiledPlanner(product, device) {}

  Reason UnsupportedReason() const {
    if (Reason why = mma::UnsupportedTypes(product_.conv, product_.pass)) return why;
    if (product_.MultipliesFloat32(Float32::kFloat32)) return "float32 is to be multiplied as it is";
    return std::nullopt;
  }
  using TiledPlanner::UnsupportedReason;

  Reason UnsupportedUnlessNamed() const {
    if (!product_.MultipliesFloat32(Float32::kBF16x6)) return std::nullopt;
    return "precision HIGHEST is float32 itself; by name, mma multiplies it as tf32 in three passes";
  }

  bool IsFor(int64_t tile) const {
    const int passes = product_.MultipliesFloat32(Float32::kBF16x6) ? 3 : 1;
    return kTiles[tile].IsOf(product_.conv.src_type) && kTiles[tile].passes == passes;
  }

  MmaSettings WithExtra(MmaSettings s, const Requested& requested) const {
    s.n_tiles_per_cta = requested.Find("n_tiles_per_cta").value_or(0);
    s.merged = MayMerge(s) ? MergedClasses(product_) : 1;
    s.gradient_sums = requested.Find("gradient_sums").value_or(0);
    return s;
  }

  Reason UnsupportedExtra(const MmaSettings& s) const {
    return kTiles[s.tile].wgmma ? WithoutWgmmaInstruction(device_) : std::nullopt;
  }

  int64_t Merged(const MmaSettings& s) const { return s.merged; }
  int64_t GradientSumRows(const MmaSettings& s) const { return jaxconv::GradientSumRows(s); }
  double Rate() const { return TensorCoreRate(device_, product_.conv.src_type); }

  // Copies of a step that spans several taps: vectors, and an address for each tap whose pixels are no neighbours of
  // the last one's in memory.
  double CopySeconds(const MmaSettings& s) const {
    const PlannedTile tile = Planned(s.tile);
    const int64_t vectors_of_tap = CeilDiv(product_.conv.in_channels, traits().vector());
    if (!CopiesVectors() || vectors_of_tap >= tile.block_k / traits().vector()) return 0;
    const int64_t tiles = CeilDiv(Blocks(s), device_.multiprocessors), steps = CeilDiv(product_.steps(), s.split);
    const double vectors = static_cast<double>(tiles * tile.block_m * steps) / traits().vector();
    const int64_t neighbours = product_.rhs_dilation[kSpatial - 1] == 1 ? product_.kernel[kSpatial - 1] : 1;
    const double addresses = vectors / static_cast<double>(vectors_of_tap * neighbours);
    const std::string pass = product_.pass == Pass::kWgrad ? "wgrad" : "conv";
    const double clocks = vectors * costs_[pass + "_vector_clocks"] + addresses * costs_[pass + "_address_clocks"];
    return clocks / device_.clock_hz;
  }

  double Seconds(const MmaSettings& s) const {
    const double seconds = TiledPlanner::Seconds(s) * (CopiesVectors() ? 1 : costs_["elementwise"]);
    return seconds + ScatteredSeconds(s) + EpilogueSeconds(product_, device_, costs_);
  }

 private:
  // Whether operands are copied in 16-byte vectors. A filter of bytes must lie as tensor cores read it.
  bool CopiesVectors() const {
    const ConvProblem& p = product_.conv;
    return product_.HasChannelVectors(traits().vector()) && (p.src_type != DType::kS8 || p.filter.in < p.filter.out);
  }
  // With its operands swapped, a wgrad's sums of neighbouring columns are not neighbours in memory.
  double ScatteredSeconds(const MmaSettings& s) const {
    if (product_.pass != Pass::kWgrad || product_.conv.filter.out == 1) return 0;
    return s.split * SumsPerSm(product_, device_) * costs_["scattered_sum_seconds"];
  }
  const OperandTraits& traits() const { return TraitsOf(product_.conv.src_type); }

  bool MayMerge(const MmaSettings& s) const {
    const int64_t classes = product_.classes();
    if (classes == 1 || product_.pass == Pass::kWgrad || !kTiles[s.tile].merges()) return false;
    if (product_.taps.size() % classes) return false;  // classes have different numbers of taps
    return product_.HasChannelVectors(traits().vector()) &&
           product_.cols() % traits().vector() == 0;  // results are stored as vectors, too
  }
};

}  // namespace jaxconv
