// The tiles of the gather family.
#pragma once

#include <string>

#include "conv_problem.h"
#include "operand_traits.h"

namespace jaxconv {

inline constexpr int kGatherThreads = 128;  // of a thread block
inline constexpr int kGatherTaps = 4;       // of a row of any window, whose operands a thread loads at once

// What a thread of the gather family computes: neighbouring results along a row, of a vector of channels.
struct GatherTile {
  int cols;        // results
  int width = 0;   // taps of a row of the window; 0: any number
  int height = 0;  // rows of the window, which then has one plane; 0: any number, of any number of planes

  // Taps, and pixels, whose vectors a thread loads at once.
  constexpr int taps() const { return width > 0 ? width : kGatherTaps; }
  constexpr int pixels() const { return taps() + cols - 1; }
  // Sets of them that are in registers at the same time: those of all rows, or of one row and of the next.
  constexpr int sets() const { return height > 0 ? height : 2; }
  // Registers of a thread: of vectors, sums and addresses, and of an epilogue's operands. A loop has some of its own.
  constexpr int registers(bool has_epilogue) const {
    const int of_epilogue = has_epilogue ? 24 + 4 * cols : 0;
    return sets() * (taps() + pixels()) * 4 + cols * 8 + (height > 0 ? 20 : 32) + of_epilogue;
  }
  // CTAs per SM, which has 65536 registers.
  constexpr int ctas_per_sm(bool has_epilogue) const { return (1 << 16) / kGatherThreads / registers(has_epilogue); }

  std::string window() const {
    if (height > 0) return std::to_string(height) + "x" + std::to_string(width);
    return width > 0 ? "rows of " + std::to_string(width) : "any window";
  }
  std::string name() const { return window() + " by " + std::to_string(cols); }
};

// The types that all tiles are compiled for.
constexpr bool GatherIsFor(DType type) { return type == DType::kF32 || type == DType::kBF16 || type == DType::kF16; }

inline constexpr GatherTile kGatherTiles[] = {
    {.cols = 1, .width = 3, .height = 3},
    {.cols = 2, .width = 3, .height = 3},
    {.cols = 4, .width = 3, .height = 3},
    {.cols = 1, .width = 5},
    {.cols = 2, .width = 5},
    {.cols = 4, .width = 5},
    {.cols = 1, .width = 7},
    {.cols = 2, .width = 7},
    {.cols = 4, .width = 7},
    {.cols = 1},
    {.cols = 2},
    {.cols = 4},
};

}  // namespace jaxconv
