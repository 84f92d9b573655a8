// The sums over positions of the output's gradient, for each output channel: what a bias's gradient is. Consumers of
// weight gradients add up the gradient in shared memory, where wgmma reads it, while tensor cores multiply.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "wgmma/config.h"
#include "wgmma/params.cuh"
#include "wgmma/wgrad_operands.cuh"
#include "wgmma/wgrad_tiles.cuh"

namespace jaxconv {

// A warp's part of a tile's sums: every n-th position of 64 channels. A lane has two of these. n warps have the same
// channels. They add their parts through shared memory.
template <typename T, WgmmaTile kTile>
class GradientSums {
 public:
  using Gradient = WgradGradient<T, kTile>;
  static constexpr int kChannels = Gradient::kBlocks * kBlockRows, kParts = ConsumerWarps(kTile) / Gradient::kBlocks;
  static_assert(kReadsMnMajor<T>, "a position's channels are a swizzled row");
  static_assert(kParts > 0, "each 64 channels have a warp");

  // All tiles of the same columns and slice read the same gradient. Each adds up every n-th step: were it one tile that
  // adds up all, the others would wait for it, as shared memory has no clocks to spare.
  __device__ __forceinline__ GradientSums(const WgmmaParams& p, const WgradWorkTile& tile)
      : until_next_(p.gradient_sums ? RowTile(tile) : INT32_MAX) {}

  // To be called with each stage in turn, which is full and not yet released.
  __device__ __forceinline__ void Add(const WgmmaParams& p, uint32_t stage) {
    if (--until_next_ >= 0) return;
    until_next_ = p.gradient_row_tiles - 1;
    if (Part() >= kParts) return;
    const uint32_t block = stage + Block() * Gradient::kBlockBytes;
#pragma unroll 4
    for (int i = 0; i < kOfPart; ++i) {
      const int position = Part() + i * kParts;
      if (kPositions % kParts != 0 && position >= kPositions) break;
      const uint32_t vector = threadIdx.x % 32 / 4 ^ position % 8;  // of 16 bytes, in a swizzled row
      const uint32_t pair = ptx::LoadWord(block + position * kSwizzleBytes + vector * 16 + threadIdx.x % 4 * 4);
      sums_[0] += FirstOf<T>(pair), sums_[1] += SecondOf<T>(pair);
    }
    __syncwarp();  // a lane releases the stage for all
  }

  // Stores the tile's sums. To be called by all consumers of a tile.
  __device__ __forceinline__ void Store(const WgmmaParams& p, const WgradWorkTile& tile,
                                        float (&parts)[kParts][kChannels]) const {
    if (p.gradient_sums == nullptr) return;
    if (Part() < kParts) {
      float* const of_lane = &parts[Part()][Block() * kBlockRows + threadIdx.x % 32 * 2];
      of_lane[0] = sums_[0], of_lane[1] = sums_[1];
    }
    constexpr int kThreads = 32 * ConsumerWarps(kTile);
    static_assert(kTile.cols <= kThreads, "a thread adds the parts of a channel");
    ptx::NamedBarrierSync<kThreads>();
    const auto col = static_cast<int32_t>(threadIdx.x), channel = tile.first_col + col;
    if (col < kTile.cols && channel < p.out_channels) {
      float sum = parts[0][col];
#pragma unroll
      for (int part = 1; part < kParts; ++part) sum += parts[part][col];
      const int64_t slice = tile.slice * p.wgrad_parts + WgradPart<kTile>(p);
      p.gradient_sums[(slice * p.gradient_row_tiles + RowTile(tile)) * p.gradient_channels + channel] = sum;
    }
    ptx::NamedBarrierSync<kThreads>();  // the next tile's parts come here
  }

 private:
  static constexpr int kPositions = Gradient::kPositions;
  static constexpr int kOfPart = static_cast<int>(CeilDiv(kPositions, kParts));

  static __device__ __forceinline__ int32_t RowTile(const WgradWorkTile& tile) {
    return tile.first_unit / (kTile.rows / WgradUnit(kTile));
  }
  static __device__ __forceinline__ int Block() { return threadIdx.x / 32 % Gradient::kBlocks; }
  static __device__ __forceinline__ int Part() { return threadIdx.x / 32 / Gradient::kBlocks; }

  int32_t until_next_;  // steps
  float sums_[2] = {};
};

// In shared memory. Kernels of other types have none.
template <typename T, WgmmaTile kTile, bool kAdds = kReadsMnMajor<T>>
struct GradientParts {};
template <typename T, WgmmaTile kTile>
struct GradientParts<T, kTile, true> {
  float of[GradientSums<T, kTile>::kParts][GradientSums<T, kTile>::kChannels];
};

}  // namespace jaxconv
