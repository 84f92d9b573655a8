// The rules of a family. Planning and the handlers ask the same functions. Handlers also ask whether the stand-in takes
// a call. Host-only: without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/product.h"
#include "conv_problem.h"
#include "reason.h"

namespace jaxconv {

template <typename Settings>
struct Rules {
  // Why no GPU runs a call with the settings.
  Reason (*unsupported_reason)(const ConvProblem&, Pass, const Settings&);
  // Bytes of workspace for a supported call.
  size_t (*workspace_bytes)(const ConvProblem&, Pass, const Settings&);
  // Bytes of shared memory for a CTA.
  size_t (*shared_bytes)(const ConvProblem&, Pass, const Settings&);
};

// For a family whose conv has no split-K.
template <typename Settings>
Reason UnsupportedSplit(const Settings& s, Pass pass) {
  if (pass == Pass::kConv && s.split != 1) return "a split of " + std::to_string(s.split) + ": its conv has none";
  return UnsupportedSplit(s);
}

// CTAs that compute so many tiles along M, with all tiles of `cols` columns.
inline int64_t GridBlocks(const ConvProblem& p, int64_t row_tiles, int64_t split, int cols) {
  return row_tiles * CeilDiv(p.out_channels, cols) * split * p.groups;
}

// CTAs that compute a product in tiles of rows x cols, with those that have none: see RowTiles.
inline int64_t GridBlocks(const ConvProblem& p, Pass pass, int64_t split, int rows, int cols) {
  return GridBlocks(p, RowTiles(p, Rows(p, pass), rows), split, cols);
}

}  // namespace jaxconv
