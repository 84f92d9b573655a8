// An operand's tile in shared memory as tensor cores read it: lines by steps, swizzled.
//
// It lies as in device memory, along the steps or along the lines, so that it is copied in pieces of 16 bytes. Rows are
// of 128 bytes at most, longer ones are cut: so wgmma finds one of its own layouts, and for it as for ldmatrix pieces
// are exchanged within a row so that neither writing nor reading meets a bank twice.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"

namespace jaxconv {

template <typename T, int kTileLines, int kTileDepth, bool kTileAlongSteps>
struct SharedTile {
  static constexpr int kLines = kTileLines;
  static constexpr int kDepth = kTileDepth;
  static constexpr bool kAlongSteps = kTileAlongSteps;
  static constexpr int kPiece = 16 / sizeof(T);                   // elements
  static constexpr bool kWords = !kAlongSteps && sizeof(T) == 4;  // ldmatrix transposes 16-bit elements alone
  static constexpr int kFastBytes = (kAlongSteps ? kDepth : kLines) * sizeof(T);
  static constexpr int kRowBytes = kWords || kFastBytes < 128 ? kFastBytes : 128;
  static constexpr int kRows = kAlongSteps ? kLines : kDepth;
  static constexpr int kBytes = kLines * kDepth * sizeof(T);
  static_assert(kRowBytes >= 32 && (kRowBytes & (kRowBytes - 1)) == 0, "rows are powers of two of at least two pieces");

  // Bytes from the tile's origin to an element.
  static __device__ __forceinline__ int Offset(int line, int step) {
    const int row = kAlongSteps ? line : step;
    const int byte = (kAlongSteps ? step : line) * static_cast<int>(sizeof(T));
    return (byte / kRowBytes * kRows + row) * kRowBytes + ((byte % kRowBytes / 16 ^ Exchange(row)) * 16) + byte % 16;
  }

  // The offset of the element that lies `rows` rows further, where the bits of `rows` are none of the row's.
  static __device__ __forceinline__ int Further(int offset, int rows) {
    return (offset ^ Exchange(rows) * 16) + rows * kRowBytes;
  }

 private:
  static __device__ __forceinline__ int Exchange(int row) {
    constexpr int kPieces = kRowBytes / 16;
    if constexpr (kWords) return row % 4 * 2 % kPieces;  // lanes read words of 4 rows by 2 pieces
    constexpr int kRowsOfBanks = kRowBytes < 128 ? 128 / kRowBytes : 1;
    return row / kRowsOfBanks % (kPieces < 8 ? kPieces : 8);
  }
};

// What a lane reads of 16 lines by 32 bytes of steps, at the places that MultiplyAdd wants. Of the source: lines g and
// g + 8 by the first half of the steps, then by the second. Of the operand with columns: line g by both halves, then
// line g + 8, as a multiplication takes eight columns, in neighbouring registers.
template <typename Tile, typename T, bool kOfColumns>
class Fragments {
 public:
  static constexpr int kSteps = 32 / sizeof(T);
  static constexpr int kLines = 16;

  // `first_line`: of the warp.
  __device__ explicit Fragments(int first_line) {
    const int lane = threadIdx.x % 32;
    const int matrix = lane / 8, line_half = kOfColumns ? matrix / 2 : matrix % 2;
    const int step_half = kOfColumns ? matrix % 2 : matrix / 2;
    if constexpr (Tile::kWords) {
      origin_ = Tile::Offset(first_line + Line(0, lane / 4), lane % 4);
    } else if constexpr (Tile::kAlongSteps) {
      origin_ = Tile::Offset(first_line + line_half * 8 + lane % 8, step_half * Tile::kPiece);
    } else {
      origin_ = Tile::Offset(first_line + line_half * 8, step_half * 8 + lane % 8);
    }
  }

  // The line of 16 that lane group g has first or second. Words of the source are read in pairs of neighbours, which
  // are neighbouring registers of a multiplication.
  static __device__ __forceinline__ int Line(int half, int g) { return kPairs ? 2 * g + half : half * 8 + g; }

  // The block-th 16 lines of the warp, the k-th steps. Swizzling is by exclusive or, and so is what is added to an
  // offset within a row.
  __device__ __forceinline__ void Load(uint32_t (&out)[4], uint32_t tile, int block, int k) const {
    if constexpr (kPairs) {
#pragma unroll
      for (int step_half = 0; step_half < 2; ++step_half) {
        const int step = k * kSteps + step_half * 4;
        ptx::LoadPair(out[2 * step_half], out[2 * step_half + 1],
                      tile + (origin_ ^ block * kLines * 4) + step * Tile::kRowBytes);
      }
    } else if constexpr (Tile::kWords) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int line_half = kOfColumns ? i / 2 : i % 2, step_half = kOfColumns ? i % 2 : i / 2;
        const int line_bytes = (block * kLines + line_half * 8) * 4, step = k * kSteps + step_half * 4;
        out[i] = ptx::LoadWord(tile + (origin_ ^ line_bytes) + step * Tile::kRowBytes);
      }
    } else if constexpr (Tile::kAlongSteps) {
      ptx::LoadMatrices<false>(out, tile + (origin_ ^ k * 32) + block * kLines * Tile::kRowBytes);
    } else {
      ptx::LoadMatrices<true>(out, tile + (origin_ ^ block * 32) + k * kSteps * Tile::kRowBytes);
    }
  }

 private:
  static constexpr bool kPairs = Tile::kWords && !kOfColumns;

  int origin_;
};

}  // namespace jaxconv
