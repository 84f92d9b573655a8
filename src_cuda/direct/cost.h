// What an output tile takes an SM, in the direct family: by what multiplications read of shared memory, by their
// number, and by the halo tile. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/planning.h"
#include "direct/layout.h"

namespace jaxconv::direct {

// Bytes of shared memory that a multiplication's operands take, or take as long as. Packed K is read by four
// instructions, not by one, and by eight if positions are an odd number of elements apart.
// Numbers of float32 are rounded, each time that they are read.
inline constexpr int64_t kSourceBytes = 512, kRoundedSourceBytes = 576, kPackedSourceBytes = 768,
                         kOddPackedSourceBytes = 1536, kFilterBytes = 256;

inline int64_t SourceBytes(const DirectChannels& d) {
  if (d.tile.of_floats()) return kRoundedSourceBytes;
  if (d.packed == 0) return kSourceBytes;
  return d.has_odd_positions() ? kOddPackedSourceBytes : kPackedSourceBytes;
}

// Blocks of 16 rows of a multiplication. With row streaming: at a time.
inline int64_t RowBlocks(const DirectLayout& d) {
  return (d.taps_in_n() ? d.pixels_held() : int64_t{d.positions}) / 16;
}

// With row streaming: source rows that a stream reads, and entries of a row of taps that a warp multiplies.
inline int64_t SourceRows(const DirectLayout& d) {
  return (d.out_tile.stream + d.tile.row_stream.lags() - 1) * int64_t{d.tile.row_stream.step};
}
inline int64_t RowEntries(const DirectChannels& d) {
  return d.tile.packed > 0 ? d.tile.packed : 2 * d.tile.row_stream.steps;
}

// What multiplications read of shared memory. With row streaming the filter is in registers.
inline int64_t OperandBytes(const DirectLayout& d) {
  const DirectTile& tile = d.tile;
  const int64_t blocks = RowBlocks(d), source = SourceBytes(d), taps = d.taps;
  if (d.streams_rows()) return SourceRows(d) * blocks * (RowEntries(d) * d.sets() * source / 2);
  if (!d.is_conv()) return blocks * d.items * (tile.filter_rows * source + tile.set * kFilterBytes);
  const int64_t steps = d.steps().all, filters = tile.warps * tile.col_blocks() * kFilterBytes;
  if (!d.taps_in_n()) return steps * (blocks * d.sets() * source + filters);
  // Products are written. Each position reads those of its taps, and their offsets.
  const int64_t products = d.product_bytes() + d.positions * d.problem.out_channels * taps * 8;
  return steps * (blocks * source + filters) + products / d.channel_parts;
}

// Of 16 x 8 results by 32 bytes of steps.
inline double Multiplications(const DirectLayout& d) {
  if (!d.is_conv()) return static_cast<double>(RowBlocks(d)) * d.items * d.tile.filter_rows * d.tile.set;
  const double steps = d.streams_rows() ? d.tile.row_stream.rows * RowEntries(d) / 2.0 : d.steps().all;
  return static_cast<double>(RowBlocks(d)) * d.out_tile.stream * steps * d.col_blocks;
}

// What is copied into shared memory: where stages are rows all rows of the streams, and the tile of a gradient.
inline int64_t CopiedBytes(const DirectLayout& d) {
  const int64_t pixels =
      d.stages_rows() ? SourceRows(d) * d.streams_abreast() * d.out_tile.halo[2] : HaloPixels(d.out_tile);
  const int64_t gradient = d.is_conv() ? 0 : int64_t{d.positions} * d.col_blocks;
  return (pixels * d.src_pixel.vectors + gradient) * 16;
}

// Of an output tile, of a part of the source channels: without copies.
inline double WorkClocks(const DirectLayout& d, const Device& device, const Numbers& costs) {
  const double reads = OperandBytes(d) / device.shared_bytes_per_clock;
  const double multiplications = Multiplications(d) * costs["multiplication_clocks"];
  return std::max(reads, multiplications) + 0.5 * std::min(reads, multiplications);
}

inline double ConvTileClocks(const DirectLayout& d, const Device& device, const Numbers& costs) {
  const double rows = d.streams_rows() ? SourceRows(d) * d.tile.warps * costs["row_clocks"] : 0;
  return WorkClocks(d, device, costs) + CopiedBytes(d) / costs["halo_bytes_per_clock"] + costs["output_tile_clocks"] +
         rows;
}

// side_by_side: thread blocks that an SM has. Of a block, items * parts warps multiply. Warps wait for their own
// multiplications, and other blocks use that time.
inline double WgradTileClocks(const DirectLayout& d, const Device& device, const Numbers& costs, int64_t side_by_side) {
  return WorkClocks(d, device, costs) * kWgradWarps / (d.items * d.parts * side_by_side) +
         CopiedBytes(d) / costs["wgrad_halo_bytes_per_clock"] + costs["wgrad_output_tile_clocks"];
}

}  // namespace jaxconv::direct
