// The filter's tile of the wgmma family: a block of K's channels of a tap by columns, as they lie in memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "common/ptx_cluster.cuh"
#include "common/shared_tile.cuh"
#include "wgmma/cluster.cuh"
#include "wgmma/config.h"
#include "wgmma/params.cuh"

namespace jaxconv {

// Whether wgmma reads operands of a type that are MN-major: those of 16 bits.
template <typename T>
inline constexpr bool kReadsMnMajor = sizeof(T) == 2;

// Of a filter that is K-major, or MN-major. In parts, these follow each other.
template <typename T, WgmmaTile kTile, bool kKMajor>
struct WgmmaFilter {
  using Element = std::conditional_t<kTile.bf16x6, __nv_bfloat16, T>;
  static constexpr int kCols = FilterCols(kTile, kKMajor), kParts = kTile.bf16x6 ? kBF16Parts : 1;
  using Tile = SharedTile<Element, kCols, kBlockK<T>, kKMajor>;
  static constexpr int kMmaDepth = kTraits<Element>.mma_depth;
  static constexpr int kBytes = kParts * Tile::kBytes, kElementBytes = kParts * sizeof(Element);
  static_assert(kKMajor || kReadsMnMajor<Element>, "wgmma reads MN-major operands of 16-bit types alone");
  static_assert(Tile::kRowBytes == kSwizzleBytes || kKMajor, "TMA swizzles rows of so many bytes");
  static_assert(Tile::kBytes % 1024 == 0, "each tile begins a turn of its swizzle");
  static_assert(kBytes == FilterBytes(kTile, kKMajor), "planning knows how much shared memory it takes");

  // Copies a tap's tile. Blocks of neighbouring rows copy a share each, to all of them.
  static __device__ __forceinline__ void Copy(const WgmmaParams& p, uint32_t to, uint32_t barrier, int32_t channel,
                                              int32_t col, int32_t tap, const ClusterCoord<kTile>& coord) {
    if constexpr (kParts == 1) return CopyPart(p, to, barrier, channel, col, tap, coord);
    const int32_t apart = tap < p.filter_taps ? p.filter_taps : 0;
    if (apart == 0) tap *= kParts;  // none of any part
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      CopyPart(p, to + part * Tile::kBytes, barrier, channel, col, tap + part * apart, coord);
    }
  }

 private:
  static __device__ __forceinline__ void CopyPart(const WgmmaParams& p, uint32_t to, uint32_t barrier, int32_t channel,
                                                  int32_t col, int32_t tap, const ClusterCoord<kTile>& coord) {
    constexpr bool kMulticast = kTile.row_blocks > 1;
    const auto share = static_cast<int32_t>(coord.row);
    const uint16_t sharers = coord.SharersOfFilter();
    if constexpr (kKMajor) {
      constexpr int kShare = kTile.cols / kTile.row_blocks;
      static_assert(kShare % 8 == 0, "a share begins a turn of the swizzle");
      ptx::CopyMatrix<kMulticast>(to + share * kShare * Tile::kRowBytes, p.rhs_map, barrier, channel,
                                  col + share * kShare, tap, sharers);
    } else {
      const int32_t rows = p.block_k / kTile.row_blocks;
      static_assert(kBlockK<T> / 2 / kTile.row_blocks % 8 == 0, "a share begins a turn of the swizzle");
      constexpr int kRow = kTraits<Element>.swizzle_row();  // columns of a swizzled row
#pragma unroll
      for (int block = 0; block < kCols / kRow; ++block) {
        ptx::CopyMatrix<kMulticast>(to + (block * kBlockK<T> + share * rows) * kSwizzleBytes, p.rhs_map, barrier,
                                    col + block * kRow, channel + share * rows, tap, sharers);
      }
    }
  }
};

}  // namespace jaxconv
