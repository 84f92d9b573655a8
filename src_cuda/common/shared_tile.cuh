// The tile of an operand in shared memory, swizzled as tensor cores read it.
//
// The tile is K-major or MN-major, as the operand is in device memory, so that it can be copied in 16-byte vectors. A
// row has at most 128 bytes, and longer ones are split, because these are the layouts that wgmma reads. The vectors of
// a row are permuted (swizzled), so that writes and reads, also by ldmatrix, have no bank conflicts.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"

namespace jaxconv {

template <typename T, int kTileMn, int kTileK, bool kTileKMajor>
struct SharedTile {
  static constexpr int kMn = kTileMn;
  static constexpr int kBlockK = kTileK;
  static constexpr bool kKMajor = kTileKMajor;
  static constexpr int kVector = 16 / sizeof(T);                   // elements
  static constexpr bool kReadsWords = !kKMajor && sizeof(T) == 4;  // ldmatrix can transpose only 16-bit elements
  static constexpr int kFastBytes = (kKMajor ? kBlockK : kMn) * sizeof(T);
  static constexpr int kRowBytes = kReadsWords || kFastBytes < 128 ? kFastBytes : 128;
  static constexpr int kRows = kKMajor ? kMn : kBlockK;
  static constexpr int kBytes = kMn * kBlockK * sizeof(T);
  static_assert(kRowBytes >= 32 && (kRowBytes & (kRowBytes - 1)) == 0,
                "rows are powers of two of at least two vectors");

  // The offset of an element in the tile, in bytes.
  static __device__ __forceinline__ int Offset(int mn, int k) {
    const int row = kKMajor ? mn : k;
    const int byte = (kKMajor ? k : mn) * static_cast<int>(sizeof(T));
    return (byte / kRowBytes * kRows + row) * kRowBytes + ((byte % kRowBytes / 16 ^ Swizzle(row)) * 16) + byte % 16;
  }

  // The offset of the element `rows` rows further. The row and `rows` must have no bit in common.
  static __device__ __forceinline__ int Advance(int offset, int rows) {
    return (offset ^ Swizzle(rows) * 16) + rows * kRowBytes;
  }

 private:
  static __device__ __forceinline__ int Swizzle(int row) {
    constexpr int kVectors = kRowBytes / 16;
    if constexpr (kReadsWords) return row % 4 * 2 % kVectors;  // a warp reads words of 4 rows by 2 vectors
    constexpr int kRowsOfBanks = kRowBytes < 128 ? 128 / kRowBytes : 1;
    return row / kRowsOfBanks % (kVectors < 8 ? kVectors : 8);
  }
};

// Loads fragments for ptx::MultiplyAdd from a tile: 16 indices of MN by 32 bytes of K. With g = lane / 4, the registers
// of A are rows g and g + 8 in the first half of K, then in the second. Those of B are column g in both halves of K,
// then column g + 8: a multiplication takes eight columns, and its registers should be neighbours.
template <typename Tile, typename T, bool kIsB>
class Fragments {
 public:
  static constexpr int kSteps = 32 / sizeof(T);
  static constexpr int kMn = 16;

  // `first`: the warp's first index of MN.
  __device__ explicit Fragments(int first) {
    const int lane = threadIdx.x % 32;
    const int matrix = lane / 8, mn_half = kIsB ? matrix / 2 : matrix % 2;
    const int k_half = kIsB ? matrix % 2 : matrix / 2;
    if constexpr (Tile::kReadsWords) {
      origin_ = Tile::Offset(first + Mn(0, lane / 4), lane % 4);
    } else if constexpr (Tile::kKMajor) {
      origin_ = Tile::Offset(first + mn_half * 8 + lane % 8, k_half * Tile::kVector);
    } else {
      origin_ = Tile::Offset(first + mn_half * 8, k_half * 8 + lane % 8);
    }
  }

  // The first or second of the 16 indices of MN that the lanes of g have. Words of A are read in pairs: adjacent
  // indices become adjacent registers.
  static __device__ __forceinline__ int Mn(int half, int g) { return kPairs ? 2 * g + half : half * 8 + g; }

  // Loads the k-th 32 bytes of K of the block-th 16 indices of MN. The swizzle is an exclusive or, so advancing within
  // a row is one, too.
  __device__ __forceinline__ void Load(uint32_t (&out)[4], uint32_t tile, int block, int k) const {
    if constexpr (kPairs) {
#pragma unroll
      for (int k_half = 0; k_half < 2; ++k_half) {
        const int step = k * kSteps + k_half * 4;
        ptx::LoadPair(out[2 * k_half], out[2 * k_half + 1],
                      tile + (origin_ ^ block * kMn * 4) + step * Tile::kRowBytes);
      }
    } else if constexpr (Tile::kReadsWords) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int mn_half = kIsB ? i / 2 : i % 2, k_half = kIsB ? i % 2 : i / 2;
        const int mn_bytes = (block * kMn + mn_half * 8) * 4, step = k * kSteps + k_half * 4;
        out[i] = ptx::LoadWord(tile + (origin_ ^ mn_bytes) + step * Tile::kRowBytes);
      }
    } else if constexpr (Tile::kKMajor) {
      ptx::LoadMatrices<false>(out, tile + (origin_ ^ k * 32) + block * kMn * Tile::kRowBytes);
    } else {
      ptx::LoadMatrices<true>(out, tile + (origin_ ^ block * 32) + k * kSteps * Tile::kRowBytes);
    }
  }

 private:
  static constexpr bool kPairs = Tile::kReadsWords && !kIsB;

  int origin_;
};

}  // namespace jaxconv
