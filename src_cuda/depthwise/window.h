// Where a problem's taps reach, as the depthwise family's planning sees it. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include "common/planning.h"
#include "common/product.h"
#include "common/tap_reach.h"
#include "conv_problem.h"
#include "depthwise/config.h"
#include "depthwise/layout.h"
#include "depthwise/params.h"
#include "depthwise/support.h"

namespace jaxconv::depthwise {

using Three = std::array<int64_t, kSpatial>;

// Where taps reach from the first position: their first source depth, row and column, and how far.
struct Window {
  Three first;
  int64_t depths;      // source planes, each as often as there are phases
  double depths_seen;  // of them, in which a plane of the output has a source, on average
  int64_t rows, cols;  // of the source
  int64_t pixels;      // source pixels that a strip reads
  int64_t apart[2];    // rows, and columns, between taps of a dilated window. The output is as many interleaved ones,
                       // and so is the source: rows, cols and pixels are of one
};

// The last source pixel of the first strip.
inline int64_t StripEnd(const Product& product) {
  const ConvProblem& p = product.conv;
  int64_t end = std::numeric_limits<int64_t>::min();
  ForEachSeenTap(product, [&](const Tap& tap, const ResidueClass& c) {
    const int64_t strip = c.phase[2] < kStripCols ? (kStripCols - 1 - c.phase[2]) / p.period[2] * p.step[2] : 0;
    end = std::max(end, tap.shift[2] + strip);
  });
  return end;
}

// The depths of a window where a plane of the output has a source, on average. Of a dilated input, depths count the
// source's planes, and in them the phases that see them: see SourceDepth of params.cuh.
inline double DepthsSeen(const ConvProblem& p, int64_t first, int64_t depths) {
  const int64_t period = p.period[0], step = p.step[0];
  int64_t seen = 0;
  for (int64_t depth = 0; depth < depths; ++depth) {
    const int64_t phase = depth % period, at = depth / period + first;  // of the phase's first plane
    const int64_t planes = std::max<int64_t>(0, CeilDiv(p.dst_size[0] - phase, period));
    const int64_t before = std::clamp<int64_t>(CeilDiv(std::max<int64_t>(0, -at), step), 0, planes);
    const int64_t until = std::clamp<int64_t>(CeilDiv(std::max<int64_t>(0, p.src_size[0] - at), step), 0, planes);
    seen += std::max<int64_t>(0, until - before);
  }
  return static_cast<double>(seen) / p.dst_size[0];
}

// None if no position sees a tap.
inline std::optional<Window> FindWindow(const Product& product) {
  const ConvProblem& p = product.conv;
  const TapReach reach(product);
  if (reach.is_empty()) return std::nullopt;
  // As far as kernels can count.
  const auto apart = [&](int d) {
    const bool is_strided = p.step[d] != 1 || p.period[d] != 1;
    return is_strided || reach.size(d) > kMostApart ? 1 : std::max<int64_t>(1, reach.apart[d]);
  };
  Window w{.first = reach.least, .depths = reach.size(0) * p.period[0], .apart = {apart(1), apart(2)}};
  w.depths_seen = DepthsSeen(p, w.first[0], w.depths);
  w.rows = CeilDiv(reach.size(1), w.apart[0]);
  w.cols = CeilDiv(reach.size(2), w.apart[1]);
  w.pixels = w.apart[1] > 1 ? w.cols + kStripCols - 1 : StripEnd(product) - w.first[2] + 1;
  return w;
}

// Of a window, along each dimension.
inline Three WindowPartsOf(const Window& w, const ConvProblem& p, const DepthwiseTile& tile) {
  if (!tile.in_parts) return {1, 1, 1};
  const int64_t cols = w.pixels <= tile.pixels() ? 1 : CeilDiv(w.cols, PartCols(p, tile));
  return {w.depths, CeilDiv(w.rows, tile.step * tile.lags), cols};
}

// Why a tile does not take the window.
inline Reason UnsupportedReach(const Window& w, const ConvProblem& p, Pass pass, const DepthwiseTile& tile) {
  if (!tile.in_parts && w.depths > tile.depths) return "taps in " + std::to_string(w.depths) + " planes";
  if (!tile.in_parts && CeilDiv(w.rows, tile.step) > tile.lags) return "taps in " + std::to_string(w.rows) + " rows";
  if (w.pixels > tile.pixels() && !(tile.in_parts && PartCols(p, tile) > 0)) {
    return std::to_string(w.pixels) + " source pixels of " + std::to_string(kStripCols) + " outputs";
  }
  if (pass == Pass::kWgrad && tile.by_tma && w.cols > kTapCols) {
    return "taps in " + std::to_string(w.cols) + " columns";
  }
  return std::nullopt;
}

}  // namespace jaxconv::depthwise
