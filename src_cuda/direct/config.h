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
  int rows;
  int step;
  int steps;

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
  int set;               // blocks of eight output channels
  int sets;              // in a conv
  int positions;         // blocks of 16, in a conv
  int warps;             // consumers of a conv's thread block
  int vectors;           // of 16 bytes: a pixel's in shared memory at most; and blocks of eight output channels
  int filter_rows;       // blocks of 16 (tap, source channel)s, in a wgrad
  RowStream row_stream;  // of a conv
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
  // The operands' type, or one of two that have 16 bits.
  constexpr DType type() const { return of_bytes() ? DType::kS8 : of_floats() ? DType::kF32 : DType::kBF16; }
  constexpr bool IsFor(DType operands) const { return operands == type() || (of_halves() && operands == DType::kF16); }
  // Source channels of a 16-byte vector.
  constexpr int vector() const { return TraitsOf(type()).vector(); }
  constexpr int col_blocks() const { return set * sets; }
  constexpr bool streams_rows() const { return row_stream.rows > 0; }
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

constexpr DirectTile DirectOfBytes(DirectTile tile) {
  tile.operands = DirectOperands::kBytes;
  return tile;
}
constexpr DirectTile DirectOfFloats(DirectTile tile) {
  tile.operands = DirectOperands::kFloats;
  return tile;
}

inline constexpr DirectTile kDirectTiles[] = {
    {1, 2, 4, 8, 4, 5, {}},
    {1, 2, 4, 8, 4, 13, {}},
    {2, 1, 4, 8, 4, 9, {}},
    {4, 1, 4, 4, 4, 5, {}},
    {6, 1, 2, 4, 8, 4, {}},
    {8, 1, 2, 8, 8, 4, {}},
    {1, 1, 4, 8, 4, 9, {}},
    {1, 2, 1, 16, 8, 5, {3, 1, 2}},
    {2, 1, 1, 8, 8, 9, {3, 1, 3}},
    {2, 1, 1, 4, 4, 5, {3, 1, 6}},
    {2, 1, 1, 12, 8, 4, {3, 1, 9}},
    {2, 1, 1, 12, 8, 9, {7, 2, 2}},
    {1, 1, 1, 7, 8, 9, {4, 1, 16}},
    {8, 1, 2, 8, 8, 2, {}},
    {2, 1, 1, 12, 8, 9, {7, 2, 2}, 3},
    {8, 1, 2, 8, 8, 3, {}, 1},
    {4, 1, 4, 4, 4, 5, {}, 1},
    {1, 4, 3, 8, 8, 9, {}, 0, true},
    {1, 5, 3, 8, 8, 9, {}, 0, true},
    DirectOfBytes({2, 1, 4, 8, 4, 0, {}}),
    DirectOfBytes({4, 1, 4, 4, 4, 0, {}}),
    DirectOfBytes({8, 1, 2, 8, 4, 0, {}}),
    DirectOfBytes({2, 1, 1, 16, 4, 0, {3, 1, 2}}),
    DirectOfBytes({2, 1, 1, 8, 4, 0, {3, 1, 3}}),
    DirectOfBytes({2, 1, 1, 12, 4, 0, {3, 1, 5}}),
    DirectOfBytes({2, 1, 1, 12, 4, 0, {3, 1, 6}}),
    DirectOfFloats({1, 2, 4, 8, 8, 0, {}}),
    DirectOfFloats({2, 1, 4, 8, 8, 0, {}}),
    DirectOfFloats({4, 1, 4, 4, 8, 0, {}}),
    DirectOfFloats({8, 1, 2, 8, 8, 0, {}}),
    DirectOfFloats({6, 1, 2, 4, 8, 0, {}}),
    DirectOfFloats({1, 2, 1, 16, 8, 0, {3, 1, 3}}),
    DirectOfFloats({2, 1, 1, 4, 8, 0, {3, 1, 6}}),
};

}  // namespace jaxconv
