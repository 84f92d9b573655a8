// What a thread block of the direct family has in shared memory: for host and device, without CUDA.
#pragma once

#include <cstdint>

namespace jaxconv {

// Packed K has elements of 16 bits: a lane reads words of two, as multiplications take them.
inline constexpr int kPackedBytes = 2;
inline constexpr int kPackedVector = 16 / kPackedBytes;
inline constexpr int kColBlock = 8;    // output channels of a multiplication, its N
inline constexpr int kMatrixRows = 8;  // of an ldmatrix matrix: neighbouring positions along the last dimension
inline constexpr int kColBlockBytes = 2 * 8 * 16;  // of the filter: two entries' matrices, of eight output channels
inline constexpr int kWgradWarps = 8;              // of a thread block

inline constexpr int kDirectStages = 2;
inline constexpr int kRowStages = 8;  // where a stage has a row of each stream

// Pixels in shared memory, 1 << pitch vectors apart. Vectors are swizzled by the pixel's number, as TMA does it: those
// of eight neighbours are in different banks.
struct PixelLayout {
  int32_t vectors;
  int32_t pitch;

  // The index at which a vector lies. The vector of that index lies at this one's.
  constexpr int32_t Exchange(int32_t vector, int32_t pixel) const {
    return vector ^ (pixel >> (3 - pitch) & ((1 << pitch) - 1));
  }
};

// With taps in N: floats from the products of one column to those of the next, for so many pixels. They are four banks
// further than a multiple of 16.
constexpr int32_t ProductPitch(int32_t pixels) { return (pixels + 11) / 16 * 16 + 4; }

// Bytes from the beginning of shared memory.
struct DirectOffsets {
  int32_t stage;  // bytes of each: a halo tile and, in a wgrad, the gradient's tile behind it; or a row of each stream
  int32_t gradient;  // from the stage
  int32_t barriers;
  int32_t filter;           // of a conv, in the order in which it is multiplied
  int32_t entries;          // with taps in N: columns' offsets among the products
  int32_t positions;        // of the output tile
  int32_t position_pixels;  // of a wgrad: bytes to their pixels in the halo tile
  int32_t sums;             // of a wgrad: ResultOffsets of each item's sums
  int32_t gradient_sums;    // of a wgrad: of each warp's columns
  int32_t results;          // of a conv without row streaming and taps in N
  int32_t zeros;
  int32_t end;
};

// The steps of a conv: two entries each. With row streaming both are of one row of taps.
struct FilterSteps {
  int32_t rows;     // of taps; without row streaming one of all
  int32_t taps;     // of a row
  int32_t entries;  // of a row
  int32_t of_row;
  int32_t all;

  // `packed`: taps that share entries.
  constexpr FilterSteps(int32_t tap_count, int32_t entry_vectors, int32_t row_taps, int32_t packed)
      : rows(row_taps > 0 ? tap_count / row_taps : 1),
        taps(row_taps > 0 ? row_taps : tap_count),
        entries((packed > 0 ? taps / packed : taps) * entry_vectors),
        of_row((entries + 1) / 2),
        all(of_row * rows) {}
};

}  // namespace jaxconv
