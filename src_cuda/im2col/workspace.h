// The workspace of the im2col family: the sums come first, then rows of the column matrix.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/product.h"
#include "im2col/config.h"
#include "im2col/settings.h"

namespace jaxconv {

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

inline int64_t Im2colWorkspace(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  return SumsBytes(p, pass, s) + s.chunk * MatrixRowBytes(p);
}

}  // namespace jaxconv
