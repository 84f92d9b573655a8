// What an area takes a multiprocessor, in the direct family: by what its multiplications read of shared memory, by
// their number, and by its box. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/planning.h"
#include "direct/layout.h"

namespace jaxconv::direct {

inline constexpr double kSharedBytesPerClock = 128;
inline constexpr double kMultiplicationClocks = 1.5;  // of 16 x 8 results by 16 steps
// Of shared memory, that a multiplication's operands take, or take as long as. Those of a run are read by four
// instructions, not by one, and by eight if positions are an odd number of elements apart.
inline constexpr int64_t kSourceBytes = 512, kRunBytes = 768, kOddRunBytes = 1536, kFilterBytes = 256;

inline int64_t SourceBytes(const DirectChannels& d) {
  if (d.run == 0) return kSourceBytes;
  return d.has_odd_positions() ? kOddRunBytes : kRunBytes;
}

// Blocks of 16 rows of a multiplication; of a warp that walks, at a time.
inline int64_t RowBlocks(const DirectLayout& d) {
  return (d.has_taps_across() ? d.pixels_held() : int64_t{d.positions}) / 16;
}

// Where warps walk: the source's rows that a walk reads, and a row of taps' entries that a warp multiplies.
inline int64_t SourceRows(const DirectLayout& d) {
  return (d.area.walk + d.tile.walk.lags() - 1) * int64_t{d.tile.walk.step};
}
inline int64_t RowEntries(const DirectChannels& d) { return d.tile.run > 0 ? d.tile.run : 2 * d.tile.walk.steps; }

// That multiplications read of shared memory. Where warps walk, the filter is in registers.
inline int64_t OperandBytes(const DirectLayout& d) {
  const DirectTile& tile = d.tile;
  const int64_t blocks = RowBlocks(d), source = SourceBytes(d), taps = d.taps;
  if (d.walks()) return SourceRows(d) * blocks * (RowEntries(d) * d.sets() * source / 2);
  if (!d.is_conv()) return blocks * d.items * (tile.filter_rows * source + tile.set * kFilterBytes);
  const int64_t steps = d.steps().all, filters = tile.warps * tile.col_blocks() * kFilterBytes;
  if (!d.has_taps_across()) return steps * (blocks * d.sets() * source + filters);
  // Products are written, and each position reads those of its taps, and their places.
  const int64_t products = d.product_bytes() + d.positions * d.problem.out_channels * taps * 8;
  return steps * (blocks * source + filters) + products / d.chunks;
}

inline double Multiplications(const DirectLayout& d) {
  if (!d.is_conv()) return static_cast<double>(RowBlocks(d)) * d.items * d.tile.filter_rows * d.tile.set;
  const double steps = d.walks() ? d.tile.walk.rows * RowEntries(d) / 2.0 : d.steps().all;
  return static_cast<double>(RowBlocks(d)) * d.area.walk * steps * d.col_blocks;
}

// That are copied into shared memory: of walks whose source passes by all rows, and a gradient's area.
inline int64_t CopiedBytes(const DirectLayout& d) {
  const int64_t pixels = d.streams() ? SourceRows(d) * d.walks_abreast() * d.area.box[2] : BoxPixels(d.area);
  const int64_t gradient = d.is_conv() ? 0 : int64_t{d.positions} * d.col_blocks;
  return (pixels * d.src_pixel.pieces + gradient) * 16;
}

// Of an area, of a chunk of the source channels.
inline double AreaClocks(const DirectLayout& d, const Numbers& costs) {
  const double reads = OperandBytes(d) / kSharedBytesPerClock;
  const double multiplications = Multiplications(d) * kMultiplicationClocks;
  const double rows = d.walks() ? SourceRows(d) * d.tile.warps * costs["row_clocks"] : 0;
  return std::max(reads, multiplications) + 0.5 * std::min(reads, multiplications) +
         CopiedBytes(d) / costs["box_bytes_per_clock"] + costs["area_clocks"] + rows;
}

}  // namespace jaxconv::direct
