// What the kernels of the mma family do not take, and why: for planning and launches. Host-only: without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/product.h"
#include "common/rules.h"
#include "common/types.h"
#include "conv_problem.h"
#include "mma/config.h"
#include "mma/settings.h"
#include "operand_traits.h"

namespace jaxconv::mma {

inline Reason UnsupportedTypes(const ConvProblem& p, Pass pass) {
  return p.src_type == DType::kS8 ? UnsupportedBytes(p, pass) : UnsupportedOperands(p, pass);
}

// Of the classes' tables, whether their positions and taps can be equally many. The kernel looks at them.
inline Reason UnsupportedMerged(const ConvProblem& p, Pass pass, int64_t merged) {
  if (merged == 1) return std::nullopt;
  if (pass == Pass::kWgrad || merged != p.class_count || merged != LiveClasses(p) || p.tap_count < merged ||
      p.tap_count % merged) {
    return "no such classes to merge";
  }
  if (!HasEqualClasses(p)) return "classes of different sizes cannot be merged";
  if (p.dst.block != 0) return kBlocks;
  const int64_t filter = p.groups * ChannelTaps(p) * p.out_channels * TraitsOf(p.filter_type).bytes;
  return filter < INT32_MAX ? Reason() : "the filter is too large for merged classes";
}

inline Reason UnsupportedSettings(const ConvProblem& p, Pass pass, const MmaSettings& s) {
  if (Reason why = UnsupportedSplit(s)) return why;
  if (s.n_tiles_per_cta < 0) return "a negative number of N tiles of a thread block";
  if (Reason why = UnsupportedGradientSums(p, pass, s)) return why;
  if (ResultElements(p, pass) == 0) return std::nullopt;
  if (Reason why = UnsupportedMerged(p, pass, s.merged)) return why;
  if (Reason why = mma::UnsupportedTypes(p, pass)) return why;
  const MmaTile& tile = kMmaTiles[s.tile];
  if (!tile.IsOf(p.src_type)) return "the tile is for another type";
  return UnsupportedBlocks(GridBlocks(p, pass, s.split, tile.rows, tile.cols));
}

inline size_t SharedBytes(const ConvProblem&, Pass, const MmaSettings& s) { return kMmaTiles[s.tile].shared_bytes(); }

inline constexpr Rules<MmaSettings> kRules{UnsupportedSettings, SummingWorkspace, SharedBytes};

}  // namespace jaxconv::mma
