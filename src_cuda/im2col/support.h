// What the kernels of the im2col family do not take, and why; and what they need: for planning and launches. Host-only:
// without CUDA.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/product.h"
#include "common/rules.h"
#include "common/tile.h"
#include "common/types.h"
#include "conv_problem.h"
#include "im2col/config.h"
#include "im2col/settings.h"

namespace jaxconv::im2col {

// Rows of the column matrix, in whole tiles for each residue class.
inline int64_t MatrixRows(const ConvProblem& p, const Im2colSettings& s) {
  const int tile_rows = kIm2colTiles[s.tile].block_m;
  return RowTiles(p, Positions(p), tile_rows) * tile_rows;
}

// Bytes of such a row: all (tap, channel) of a position, of all groups.
inline int64_t MatrixRowBytes(const ConvProblem& p) { return p.groups * ChannelTaps(p) * ElementBytes(p.src_type); }

inline int64_t Chunks(const ConvProblem& p, const Im2colSettings& s) {
  return std::max<int64_t>(1, CeilDiv(MatrixRows(p, s), s.chunk));
}

// Whether the workspace holds sums: those of earlier chunks, or the slices of split-K.
inline bool KeepsSums(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  return s.split > 1 || (pass == Pass::kWgrad && Chunks(p, s) > 1);
}

inline int64_t SumsBytes(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  constexpr int64_t kAlignment = 16;
  const int64_t bytes = SliceBytes(p, pass, s.split);
  return KeepsSums(p, pass, s) ? CeilDiv(bytes, kAlignment) * kAlignment : 0;
}

// The sums come first, then rows of the column matrix.
inline size_t WorkspaceBytes(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  return SumsBytes(p, pass, s) + s.chunk * MatrixRowBytes(p);
}

inline int64_t Im2colBlocks(const ConvProblem& p, const Im2colSettings& s) {
  return CeilDiv(s.chunk, kIm2colRows) * p.groups * CeilDiv(ChannelTaps(p), kIm2colSteps);
}

inline int64_t GemmRowTiles(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  const int tile_rows = kIm2colTiles[s.tile].block_m;
  return pass == Pass::kConv ? s.chunk / tile_rows : RowTiles(p, ChannelTaps(p), tile_rows);
}

inline int64_t GemmBlocks(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  return GridBlocks(p, GemmRowTiles(p, pass, s), s.split, kIm2colTiles[s.tile].block_n);
}

inline Reason UnsupportedChunk(const Im2colSettings& s) {
  const int64_t rows = kIm2colTiles[s.tile].block_m;
  if (s.chunk >= 1 && s.chunk % rows == 0) return std::nullopt;
  return "a chunk of " + std::to_string(s.chunk) + " rows, not whole tiles of " + std::to_string(rows);
}

inline Reason UnsupportedSettings(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  if (Reason why = UnsupportedTile(p, s)) return why;
  if (RoundsFloatsToInt8(p)) return "results of int8 from operands of " + Name(p.src_type);
  if (p.dst.block != 0) return kBlocks;
  if (Reason why = UnsupportedChunk(s)) return why;
  return UnsupportedBlocks(std::max(Im2colBlocks(p, s), GemmBlocks(p, pass, s)));
}

inline size_t SharedBytes(const ConvProblem& p, Pass, const Im2colSettings& s) {
  return kIm2colTiles[s.tile].shared_bytes(ElementBytes(SumType(p)));
}

inline constexpr Rules<Im2colSettings> kRules{UnsupportedSettings, WorkspaceBytes, SharedBytes};

}  // namespace jaxconv::im2col
