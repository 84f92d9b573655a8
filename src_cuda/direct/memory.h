// What a thread block of the direct family has in shared memory: for host and device, without CUDA.
#pragma once

#include <cstdint>

namespace jaxconv {

// Runs have elements of 16 bits: a lane reads words of two, as multiplications take them.
inline constexpr int kRunElementBytes = 2;
inline constexpr int kRunVector = 16 / kRunElementBytes;
inline constexpr int kColBlock = 8;  // output channels of a multiplication
inline constexpr int kRun = 8;       // neighbouring positions along the last dimension: such a matrix's rows
inline constexpr int kColBlockBytes = 2 * 8 * 16;  // of the filter: two entries' matrices, of eight output channels
inline constexpr int kWgradWarps = 8;              // of a thread block

inline constexpr int kDirectStages = 2;
inline constexpr int kRowStages = 8;  // of walks whose source passes by: of a row each

// Pixels in shared memory, 1 << pitch pieces apart. Pieces are exchanged by the pixel's number, as TMA does it, so that
// those of eight neighbours are in different banks.
struct PixelLayout {
  int32_t pieces;
  int32_t pitch;

  // The place of a piece, which is exchanged with another one.
  constexpr int32_t Exchange(int32_t piece, int32_t pixel) const {
    return piece ^ (pixel >> (3 - pitch) & ((1 << pitch) - 1));
  }
};

// Where taps are across: floats from a column's products of so many pixels to the next's, four banks further than a
// multiple of 16.
constexpr int32_t ProductPitch(int32_t pixels) { return (pixels + 11) / 16 * 16 + 4; }

// Bytes from the beginning of shared memory.
struct DirectPlaces {
  int32_t stage;     // bytes of each: a box and, in a wgrad, the gradient's area behind it; or walks' rows
  int32_t gradient;  // from the stage
  int32_t barriers;
  int32_t filter;           // of a conv, in the order in which it is multiplied
  int32_t entries;          // where taps are across: columns' places among the products
  int32_t positions;        // of the area
  int32_t position_pixels;  // of a wgrad: bytes to their pixels in the box
  int32_t sums;             // of a wgrad: ResultPlaces of each item's sums
  int32_t results;          // of a conv's warps that neither walk nor have taps across
  int32_t zeros;
  int32_t end;
};

// The steps of a conv: two entries each, of the same row of taps, if warps walk along rows.
struct FilterSteps {
  int32_t rows;     // of taps; one of all, if no warp walks
  int32_t taps;     // of a row
  int32_t entries;  // of a row
  int32_t of_row;
  int32_t all;

  // `run`: taps that share entries.
  constexpr FilterSteps(int32_t tap_count, int32_t entry_pieces, int32_t row_taps, int32_t run)
      : rows(row_taps > 0 ? tap_count / row_taps : 1),
        taps(row_taps > 0 ? row_taps : tap_count),
        entries((run > 0 ? taps / run : taps) * entry_pieces),
        of_row((entries + 1) / 2),
        all(of_row * rows) {}
};

}  // namespace jaxconv
