// The tiles of the direct family.
#pragma once

#include <string>

namespace jaxconv {

// Filters along whose rows a warp walks that keeps the filter in registers: how many rows of taps they have at most,
// source rows from one row of the destination to the next, and multiplications of 16 (tap, source channel)s that a row
// of taps has at most. No rows: it does not walk.
struct Walk {
  int rows;
  int step;
  int steps;

  constexpr bool operator==(const Walk&) const = default;
  // Rows of the destination that are under way: those that a step's source rows meet.
  constexpr int lags() const { return rows == 0 ? 1 : (rows + step - 1) / step; }
  // Whether the source passes by in shared memory, a row of each walk at a time, instead of being there in boxes: of
  // large pixels boxes have few rows, and walks are short, at whose ends few rows of taps meet a row of the source.
  constexpr bool streams() const { return step == 1 && rows > 3; }
  // Such tiles are for the residue classes of a dilated input, of which some have one row of taps less.
  constexpr int least_rows() const { return streams() ? rows - 1 : rows; }
  std::string name() const {
    const std::string moving = step > 1 ? ":" + std::to_string(step) : "";
    return std::to_string(rows) + moving + " rows of " + std::to_string(16 * steps);
  }
};

// What a warp of the direct family has, in multiplications of 16 x 8 results. A set is of blocks of eight output
// channels that read the same source channels.
struct DirectTile {
  int set;          // blocks of eight output channels
  int sets;         // in a conv
  int positions;    // blocks of 16, in a conv
  int warps;        // of a conv's thread block, that multiply
  int pieces;       // of eight source channels in shared memory, at most; and blocks of eight output channels
  int filter_rows;  // blocks of 16 (tap, source channel)s, in a wgrad
  Walk walk;        // of a conv
  // For few channels: a row's (tap, channel)s are read as they lie in the source, one behind the other. If a conv
  // walks, so many pieces of eight at most. 0: pixels are whole pieces.
  int run = 0;
  // Of a conv to few channels: columns are (tap, output channel)s, positions are source pixels.
  bool taps_across = false;

  constexpr int col_blocks() const { return set * sets; }
  constexpr bool walks() const { return walk.rows > 0; }
  // Of a conv's thread block: where the source passes by, one more, which copies it.
  constexpr int conv_warps() const { return warps + walk.streams(); }

  // Thread blocks that a multiprocessor is to hold: as registers allow.
  constexpr int conv_blocks() const { return warps <= 4 ? 3 : warps <= 8 && walk.rows <= 3 ? 2 : 1; }
  constexpr int wgrad_blocks() const { return filter_rows * set <= 20 ? 2 : 1; }

  // Sets by their columns, of as many channels at most, by positions or, in a wgrad, rows of the filter.
  std::string name() const {
    const std::string columns = std::to_string(sets) + "x" + std::to_string(8 * set) + (taps_across ? " of taps" : "");
    const std::string how = (walks() ? " along " + walk.name() : "") + (run > 0 ? " in runs" : "");
    return columns + " of " + std::to_string(8 * pieces) + " by " + std::to_string(16 * positions) + how + " or " +
           std::to_string(16 * filter_rows);
  }
};

inline constexpr DirectTile kDirectTiles[] = {
    {1, 2, 4, 8, 4, 5, {}},          {1, 2, 4, 8, 4, 13, {}},        {2, 1, 4, 8, 4, 9, {}},
    {4, 1, 4, 4, 4, 5, {}},          {6, 1, 2, 4, 8, 4, {}},         {8, 1, 2, 8, 8, 4, {}},
    {1, 1, 4, 8, 4, 9, {}},          {1, 2, 1, 16, 8, 5, {3, 1, 2}}, {2, 1, 1, 8, 8, 9, {3, 1, 3}},
    {2, 1, 1, 4, 4, 5, {3, 1, 6}},   {2, 1, 1, 12, 8, 4, {3, 1, 9}}, {2, 1, 1, 12, 8, 9, {7, 2, 2}},
    {1, 1, 1, 7, 8, 9, {4, 1, 16}},  {8, 1, 2, 8, 8, 2, {}},         {2, 1, 1, 12, 8, 9, {7, 2, 2}, 3},
    {8, 1, 2, 8, 8, 3, {}, 1},       {4, 1, 4, 4, 4, 5, {}, 1},      {1, 4, 3, 8, 8, 9, {}, 0, true},
    {1, 5, 3, 8, 8, 9, {}, 0, true},
};

}  // namespace jaxconv
