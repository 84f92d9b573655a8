// What the kernels of the simt family do not take, and why: for planning and launches. Host-only: without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/product.h"
#include "common/rules.h"
#include "common/tile.h"
#include "common/types.h"
#include "conv_problem.h"
#include "simt/config.h"
#include "simt/settings.h"

namespace jaxconv::simt {

// Whether an array has one byte an element, and sums are float32.
inline bool HasBytesOfFloats(const ConvProblem& p) { return HasFloat8(p) || RoundsFloatsToInt8(p); }

// Of a problem without channels in blocks.
inline int64_t ThreadBlocks(const ConvProblem& p, Pass pass, const SimtSettings& s) {
  const Tile& tile = kSimtTiles[s.tile];
  return GridBlocks(p, pass, s.split, tile.block_m, tile.block_n);
}

inline Reason UnsupportedSettings(const ConvProblem& p, Pass pass, const SimtSettings& s) {
  if (Reason why = UnsupportedTile(p, s)) return why;
  if (s.tile != kStandInTile && HasBytesOfFloats(p)) return "a tile that is not for float8, or for int8 of floats";
  return UnsupportedBlocks(ThreadBlocks(BlocksAsGroups(p), pass, s));
}

inline size_t SharedBytes(const ConvProblem& p, Pass, const SimtSettings& s) {
  return kSimtTiles[s.tile].shared_bytes(ElementBytes(SumType(p)));
}

inline constexpr Rules<SimtSettings> kRules{UnsupportedSettings, SplitWorkspace, SharedBytes};

}  // namespace jaxconv::simt
