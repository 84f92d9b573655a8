// The zeros of residue classes without taps, which a stride larger than the filter leaves. They take memory alone: a
// warp stores them by TMA while others multiply.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "wgmma/params.cuh"
#include "wgmma/stores.cuh"
#include "wgmma/tile_scheduler.cuh"

namespace jaxconv {

// Zeros in shared memory, enough for a store. To be used by a warp. T: of the results.
template <typename T, WgmmaTile kTile>
class WgmmaZeros {
 public:
  static constexpr int kBytes = StoresZeros(kTile) ? kResultBytes : kUnreadBytes;

  // `order`: of the classes, see WgmmaTileOrder; `zeros`: room for them.
  __device__ WgmmaZeros(const WgmmaParams& p, const int32_t (&order)[kMostWgmmaClasses], char* zeros)
      : params_(p), order_(order), rows_(p), zeros_(ptx::SharedAddress(zeros)), lane_(threadIdx.x % 32) {
    for (int at = lane_ * 16; at < kBytes; at += 32 * 16) *reinterpret_cast<int4*>(zeros + at) = int4{};
    ptx::FenceForTma();
    __syncwarp();
  }

  // The same tile of each class without taps: its pixels are neighbours of the tile's.
  __device__ __forceinline__ void Store(const WgmmaReceivedTile& tile) const {
    const int32_t residue = tile.residue(), first_row = tile.first_row(), first_col = tile.first_col();
    if (residue != order_[0] || lane_ >= kTile.rows / kResultRows) return;
    const ptx::PixelCoord row = rows_.At(first_row + lane_ * kResultRows);
    for (int32_t c = params_.live_classes - params_.empty_classes; c < params_.live_classes; ++c) {
      const auto at = InPixels(row, params_.problem.period, params_.classes[order_[c]].phase);
      const int32_t end = min(first_col + kTile.cols, params_.out_channels);
#pragma unroll 1
      for (int32_t col = first_col; col < end; col += ResultCols(kTile, sizeof(T))) {
        ptx::StorePixels(params_.rank, params_.out_maps[order_[c]], zeros_, col, at);
      }
    }
    ptx::CommitStores();
  }

  // Waits until TMA has read shared memory, which ends with the block.
  __device__ __forceinline__ void Finish() const { ptx::WaitForStores<0>(); }

 private:
  const WgmmaParams& params_;
  const int32_t (&order_)[kMostWgmmaClasses];
  RowPositions<kTile> rows_;
  uint32_t zeros_;
  int lane_;
};

}  // namespace jaxconv
