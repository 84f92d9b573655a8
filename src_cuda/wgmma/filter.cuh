// The filter's tile of the wgmma family: a block of K's channels of a tap by columns, as they lie in memory.
#pragma once

#include <cstdint>

#include "common/ptx_cluster.cuh"
#include "common/shared_tile.cuh"
#include "wgmma/config.h"
#include "wgmma/params.cuh"

namespace jaxconv {

// Whether wgmma reads operands of a type that are MN-major: those of 16 bits.
template <typename T>
inline constexpr bool kReadsMnMajor = sizeof(T) == 2;

// Of a filter that is K-major, or MN-major.
template <typename T, WgmmaTile kTile, bool kKMajor>
struct WgmmaFilter {
  static constexpr int kCols = FilterCols(kTile, kKMajor);
  using Tile = SharedTile<T, kCols, kBlockK<T>, kKMajor>;
  static_assert(kKMajor || kReadsMnMajor<T>, "wgmma reads MN-major operands of 16-bit types alone");
  static_assert(Tile::kRowBytes == kSwizzleBytes, "TMA swizzles rows of so many bytes");
  static_assert(Tile::kBytes % 1024 == 0, "each tile begins a turn of its swizzle");

  // Copies a tap's tile. Blocks of neighbouring rows copy a part each, to all of them. `rank`: this block's.
  static __device__ __forceinline__ void Copy(const WgmmaParams& p, uint32_t to, uint32_t barrier, int32_t channel,
                                              int32_t col, int32_t tap, uint32_t rank) {
    constexpr bool kMulticast = kTile.row_blocks > 1;
    const auto part = static_cast<int32_t>(kMulticast ? rank : 0);
    if constexpr (kKMajor) {
      constexpr int kPart = kTile.cols / kTile.row_blocks;
      static_assert(kPart % 8 == 0, "a part begins a turn of the swizzle");
      ptx::CopyMatrix<kMulticast>(to + part * kPart * kSwizzleBytes, p.rhs_map, barrier, channel, col + part * kPart,
                                  tap, kAll);
    } else {
      const int32_t rows = p.block_k / kTile.row_blocks;
      static_assert(kBlockK<T> / 4 / kTile.row_blocks % 8 == 0, "a part begins a turn of the swizzle");
      constexpr int kRow = kTraits<T>.swizzle_row();  // columns of a swizzled row
#pragma unroll
      for (int block = 0; block < kCols / kRow; ++block) {
        ptx::CopyMatrix<kMulticast>(to + (block * kBlockK<T> + part * rows) * kSwizzleBytes, p.rhs_map, barrier,
                                    col + block * kRow, channel + part * rows, tap, kAll);
      }
    }
  }

  static constexpr auto kAll = static_cast<uint16_t>((1 << kTile.cluster()) - 1);
};

}  // namespace jaxconv
