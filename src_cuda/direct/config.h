// The tiles of the direct family.
#pragma once

#include <string>

#include "conv_problem.h"
#include "operand_traits.h"

namespace jaxconv {

// Filters for which a warp streams rows: it keeps the filter in registers and goes down the rows of the source. `rows`:
// rows of taps at most; 0 if the tile does not stream. `step`: source rows from one destination row to the next.
// `steps`: multiplications of 32 bytes of (tap, source channel)s for a row of taps at most.
struct RowStream {
  int rows = 0;
  int step = rows > 0 ? 1 : 0;
  int steps = 0;

  constexpr bool operator==(const RowStream&) const = default;
  // Destination rows that are under way: a step's source rows meet all of them.
  constexpr int lags() const { return rows == 0 ? 1 : (rows + step - 1) / step; }
  // Whether a stage has one source row of each stream, not a halo tile. Halo tiles of large pixels have few rows.
  // Streams would be short, and at their ends few rows of taps meet a source row.
  constexpr bool stages_rows() const { return step == 1 && rows > 3; }
  // Some residue classes of a dilated input have one row of taps less. These tiles take them too.
  constexpr int least_rows() const { return stages_rows() ? rows - 1 : rows; }
  std::string name(int depth) const {
    const std::string moving = step > 1 ? ":" + std::to_string(step) : "";
    return std::to_string(rows) + moving + " rows of " + std::to_string(depth * steps);
  }
};

// What a tile multiplies: operands of 16 bits, int8, or float32 as tf32. Only those of 16 bits have wgrads.
enum class DirectOperands { kHalves, kBytes, kFloats };

// What a warp of the direct family has, in multiplications of 16 x 8 results. A set is blocks of eight output channels
// that read the same source channels.
struct DirectTile {
  int set = 1;                // blocks of eight output channels
  int sets = 1;               // in a conv
  int positions = 1;          // blocks of 16, in a conv
  int warps;                  // consumers of a conv's thread block
  int vectors;                // of 16 bytes: a pixel's in shared memory at most; and blocks of eight output channels
  int filter_rows = 0;        // blocks of 16 (tap, source channel)s, in a wgrad
  RowStream row_stream = {};  // of a conv
  // Packed K, for few channels: the (tap, channel)s of a row of taps lie one behind the other, as in the source. With
  // row streaming: 16-byte vectors of a row of taps at most. 0: a pixel is whole vectors.
  int packed = 0;
  // Taps in N, for a conv to few channels: N is (tap, output channel), and M is source pixels.
  bool taps_in_n = false;
  DirectOperands operands = DirectOperands::kHalves;

  constexpr bool of_bytes() const { return operands == DirectOperands::kBytes; }
  constexpr bool of_floats() const { return operands == DirectOperands::kFloats; }
  constexpr bool of_halves() const { return operands == DirectOperands::kHalves; }
  constexpr bool has_wgrad() const { return of_halves(); }
  // Whether a conv also rounds sums of bfloat16 to int8: those of the first layer, of few channels, of a network in
  // int8.
  constexpr bool rounds_to_int8() const { return packed > 0; }
  // The operands' type, or one of two that have 16 bits.
  constexpr DType type() const { return of_bytes() ? DType::kS8 : of_floats() ? DType::kF32 : DType::kBF16; }
  constexpr bool IsFor(DType dtype) const { return dtype == type() || (of_halves() && dtype == DType::kF16); }
  // Source channels of a 16-byte vector.
  constexpr int vector() const { return TraitsOf(type()).vector(); }
  constexpr int col_blocks() const { return set * sets; }
  constexpr bool streams_rows() const { return row_stream.rows > 0; }
  // Whether the registers of a conv of packed K hold the scale and bias of a lane's channels. Others, but for those of
  // bytes, load them for each row.
  constexpr bool holds_scales() const { return streams_rows() && packed > 0; }
  // Of a conv's thread block, with the producer warp if stages are rows.
  constexpr int conv_warps() const { return warps + row_stream.stages_rows(); }

  // CTAs per SM, as registers allow.
  constexpr int conv_blocks() const { return warps <= 4 ? 3 : warps <= 8 && row_stream.rows <= 3 ? 2 : 1; }
  constexpr int wgrad_blocks() const { return filter_rows * set <= 20 ? 2 : 1; }

  // Sets by columns, of at most so many channels, by positions; or, in a wgrad, rows of the filter.
  std::string name() const {
    const std::string columns = std::to_string(sets) + "x" + std::to_string(8 * set) + (taps_in_n ? " of taps" : "");
    const std::string how =
        (streams_rows() ? " along " + row_stream.name(2 * vector()) : "") + (packed > 0 ? " of packed taps" : "");
    const std::string conv =
        columns + " of " + std::to_string(vector() * vectors) + " by " + std::to_string(16 * positions) + how;
    return conv + (of_bytes() ? " of bytes" : of_floats() ? " of floats" : " or " + std::to_string(16 * filter_rows));
  }
};

inline constexpr DirectTile kDirectTiles[] = {
    {.sets = 2, .positions = 4, .warps = 8, .vectors = 4, .filter_rows = 5},
    {.sets = 2, .positions = 4, .warps = 8, .vectors = 4, .filter_rows = 13},
    {.set = 2, .positions = 4, .warps = 8, .vectors = 4, .filter_rows = 9},
    {.set = 4, .positions = 4, .warps = 4, .vectors = 4, .filter_rows = 5},
    {.set = 6, .positions = 2, .warps = 4, .vectors = 8, .filter_rows = 4},
    {.set = 8, .positions = 2, .warps = 8, .vectors = 8, .filter_rows = 4},
    {.positions = 4, .warps = 8, .vectors = 4, .filter_rows = 9},
    {.sets = 2, .warps = 16, .vectors = 8, .filter_rows = 5, .row_stream = {.rows = 3, .steps = 2}},
    {.set = 2, .warps = 8, .vectors = 8, .filter_rows = 9, .row_stream = {.rows = 3, .steps = 3}},
    {.set = 2, .warps = 4, .vectors = 4, .filter_rows = 5, .row_stream = {.rows = 3, .steps = 6}},
    {.set = 2, .warps = 12, .vectors = 8, .filter_rows = 4, .row_stream = {.rows = 3, .steps = 9}},
    {.set = 2, .warps = 12, .vectors = 8, .filter_rows = 9, .row_stream = {.rows = 7, .step = 2, .steps = 2}},
    {.warps = 7, .vectors = 8, .filter_rows = 9, .row_stream = {.rows = 4, .steps = 16}},
    {.set = 8, .positions = 2, .warps = 8, .vectors = 8, .filter_rows = 2},
    {.set = 2,
     .warps = 12,
     .vectors = 8,
     .filter_rows = 9,
     .row_stream = {.rows = 7, .step = 2, .steps = 2},
     .packed = 3},
    {.set = 8, .positions = 2, .warps = 8, .vectors = 8, .filter_rows = 3, .packed = 1},
    {.set = 4, .positions = 4, .warps = 4, .vectors = 4, .filter_rows = 5, .packed = 1},
    {.sets = 4, .positions = 3, .warps = 8, .vectors = 8, .filter_rows = 9, .taps_in_n = true},
    {.sets = 5, .positions = 3, .warps = 8, .vectors = 8, .filter_rows = 9, .taps_in_n = true},
    {.set = 2, .positions = 4, .warps = 8, .vectors = 4, .operands = DirectOperands::kBytes},
    {.set = 4, .positions = 4, .warps = 4, .vectors = 4, .operands = DirectOperands::kBytes},
    {.set = 8, .positions = 2, .warps = 8, .vectors = 4, .operands = DirectOperands::kBytes},
    {.set = 2, .warps = 16, .vectors = 4, .row_stream = {.rows = 3, .steps = 2}, .operands = DirectOperands::kBytes},
    {.set = 2, .warps = 8, .vectors = 4, .row_stream = {.rows = 3, .steps = 3}, .operands = DirectOperands::kBytes},
    {.set = 2, .warps = 12, .vectors = 4, .row_stream = {.rows = 3, .steps = 5}, .operands = DirectOperands::kBytes},
    {.set = 2, .warps = 12, .vectors = 4, .row_stream = {.rows = 3, .steps = 6}, .operands = DirectOperands::kBytes},
    {.sets = 2, .positions = 4, .warps = 8, .vectors = 8, .operands = DirectOperands::kFloats},
    {.set = 2, .positions = 4, .warps = 8, .vectors = 8, .operands = DirectOperands::kFloats},
    {.set = 4, .positions = 4, .warps = 4, .vectors = 8, .operands = DirectOperands::kFloats},
    {.set = 8, .positions = 2, .warps = 8, .vectors = 8, .operands = DirectOperands::kFloats},
    {.set = 6, .positions = 2, .warps = 4, .vectors = 8, .operands = DirectOperands::kFloats},
    {.sets = 2, .warps = 16, .vectors = 8, .row_stream = {.rows = 3, .steps = 3}, .operands = DirectOperands::kFloats},
    {.set = 2, .warps = 4, .vectors = 8, .row_stream = {.rows = 3, .steps = 6}, .operands = DirectOperands::kFloats},
};

}  // namespace jaxconv
