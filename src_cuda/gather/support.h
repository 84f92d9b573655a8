// What the gather family's kernels take, and why not. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "common/product.h"
#include "common/rules.h"
#include "common/types.h"
#include "conv_problem.h"
#include "gather/config.h"
#include "gather/settings.h"

namespace jaxconv::gather {

// What depends on the problem alone.
inline Reason UnsupportedProblem(const ConvProblem& p, Pass pass) {
  if (pass == Pass::kWgrad) return "it has no weight gradients";
  if (!GatherIsFor(p.src_type) || p.filter_type != p.src_type || p.dst_type != p.src_type) {
    return NoKernelsOf(p);
  }
  if (p.in_channels != 1 || p.out_channels != 1) return "it is for groups of one channel";
  const int64_t vector = TraitsOf(p.src_type).vector();
  if (!HasVectorsOfGroups(p.src, p.groups, vector) || !HasVectorsOfGroups(p.dst, p.groups, vector)) {
    return "channels are not last, in vectors of 16 bytes";
  }
  if (p.filter.group != 1) return "channels are not last in the filter";
  for (const int64_t period : p.period) {
    if (period != 1) return "the input is dilated: results are of " + std::to_string(period) + " residue classes";
  }
  return std::nullopt;
}

// The window's taps: those that the filter has.
inline Reason UnsupportedTaps(const ConvProblem& p, const GatherWindow& w) {
  int64_t taps = 1, least = w.filter_first, most = w.filter_first;
  for (int d = 0; d < kSpatial; ++d) {
    if (w.taps[d] < 1) return "a window without taps";
    if (w.filter_apart[d] % TraitsOf(p.filter_type).vector() != 0) return "taps of the filter are not whole vectors";
    const int64_t along = int64_t{w.taps[d] - 1} * w.filter_apart[d];
    least += std::min<int64_t>(along, 0);
    most += std::max<int64_t>(along, 0);
    taps *= w.taps[d];
    if (taps > p.tap_count) return "the window has more taps than the filter";
  }
  const int64_t elements = p.tap_count * p.groups;
  if (elements * static_cast<int64_t>(ElementBytes(p.filter_type)) > INT32_MAX) return "a filter of 2^31 bytes or more";
  const bool is_inside = least >= 0 && most <= elements - p.groups && w.filter_first % p.groups == 0;
  return is_inside ? std::nullopt : Reason("taps are outside of the filter");
}

// How far pixels are from where the image begins, which kernels count in 32 bits: also those that a thread would load
// for its results behind a row's last one.
inline Reason UnsupportedReach(const ConvProblem& p, const GatherTile& tile, const GatherWindow& w) {
  constexpr const char* kTooFar = "windows reach 2^31 bytes or more from where the image begins";
  int64_t farthest = 0;
  for (int d = 0; d < kSpatial; ++d) {
    if (w.apart[d] < 1) return "taps that are not apart";
    const int64_t more = d == kSpatial - 1 ? tile.cols - 1 : 0;
    const int64_t reach = (w.taps[d] - 1 + more) * w.apart[d], last = (p.dst_size[d] - 1) * p.step[d];
    const int64_t pixels = std::abs(int64_t{w.first[d]}) + reach + last;
    if (pixels > INT32_MAX) return kTooFar;
    farthest += pixels * p.src.spatial[d] * static_cast<int64_t>(ElementBytes(p.src_type));
    if (farthest > INT32_MAX) return kTooFar;
  }
  return std::nullopt;
}

inline Reason UnsupportedTile(const ConvProblem& p, const GatherTile& tile, const GatherWindow& w) {
  const auto other = [&] {
    return "the tile is for " + tile.window() + ", the window has " + std::to_string(w.taps[0] * w.taps[1]) +
           " rows of " + std::to_string(w.taps[2]) + " taps";
  };
  if (tile.height > 0 && (w.taps[0] != 1 || w.taps[1] != tile.height)) return other();
  if (tile.width > 0 && w.taps[2] != tile.width) return other();
  // Neighbouring results then share all pixels but one.
  if (tile.cols > 1 && p.step[2] != w.apart[2]) {
    return "windows move by " + std::to_string(p.step[2]) + " columns, taps are " + std::to_string(w.apart[2]) +
           " apart";
  }
  return std::nullopt;
}

// Threads of a supported call.
inline int64_t Threads(const ConvProblem& p, const GatherTile& tile) {
  const int64_t vectors = p.groups / TraitsOf(p.src_type).vector();
  return p.batch * p.dst_size[0] * p.dst_size[1] * CeilDiv(p.dst_size[2], tile.cols) * vectors;
}
inline int64_t ThreadBlocks(const ConvProblem& p, const GatherTile& tile) {
  return CeilDiv(Threads(p, tile), kGatherThreads);
}

// What kernels count in 32 bits: bytes of an image, and threads.
inline Reason UnsupportedSizes(const ConvProblem& p, const GatherTile& tile) {
  const auto extent = [&](const TensorStrides& s, const int64_t (&size)[kSpatial]) {
    const int64_t image = size[0] * s.spatial[0] + size[1] * s.spatial[1] + size[2] * s.spatial[2] + p.groups;
    return std::max(image, s.batch) * static_cast<int64_t>(ElementBytes(p.src_type));
  };
  if (std::max(extent(p.src, p.src_size), extent(p.dst, p.dst_size)) > INT32_MAX) return "images of 2^31 bytes or more";
  return ThreadBlocks(p, tile) * kGatherThreads > INT32_MAX ? Reason("2^31 threads or more") : std::nullopt;
}

inline Reason UnsupportedSettings(const ConvProblem& p, Pass pass, const GatherSettings& s) {
  if (Reason why = UnsupportedSplit(s, Pass::kConv)) return why;
  if (ResultElements(p, pass) == 0) return std::nullopt;
  if (Reason why = UnsupportedProblem(p, pass)) return why;
  const GatherTile& tile = kGatherTiles[s.tile];
  const GatherWindow window = s.window();
  if (Reason why = UnsupportedTaps(p, window)) return why;
  if (Reason why = UnsupportedReach(p, tile, window)) return why;
  if (Reason why = UnsupportedTile(p, tile, window)) return why;
  return UnsupportedSizes(p, tile);
}

inline size_t SharedBytes(const ConvProblem&, Pass, const GatherSettings&) { return 0; }

inline constexpr Rules<GatherSettings> kRules{UnsupportedSettings, SplitWorkspace, SharedBytes};

}  // namespace jaxconv::gather
