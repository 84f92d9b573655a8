// Results of residue classes that see no tap, as a stride leaves where it is larger than the filter: zeros, which a
// warp stores by TMA beside what others multiply, as memory is all that they take.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "wgmma/dealer.cuh"
#include "wgmma/params.cuh"
#include "wgmma/stores.cuh"

namespace jaxconv {

// A store's worth of them in shared memory. To be used by a warp.
template <WgmmaTile kTile>
class WgmmaZeros {
 public:
  static constexpr int kBytes = StoresZeros(kTile) ? kResultBytes : 16;  // none would not be an array

  // `order`: of the classes, by their taps; `zeros`: room for them.
  __device__ WgmmaZeros(const WgmmaParams& p, const int32_t (&order)[kMostWgmmaClasses], char* zeros)
      : params_(p), order_(order), rows_(p), zeros_(ptx::SharedAddress(zeros)), lane_(threadIdx.x % 32) {
    for (int at = lane_ * 16; at < kBytes; at += 32 * 16) *reinterpret_cast<int4*>(zeros + at) = int4{};
    ptx::FenceForTma();
    __syncwarp();
  }

  // Of a work: the same tile of each class without taps, whose pixels are neighbours of the work's.
  __device__ __forceinline__ void Store(const WgmmaTold& work) const {
    const int32_t residue = work.residue(), first_row = work.first_row(), first_col = work.first_col();
    if (residue != order_[0] || lane_ >= kTile.rows / kResultRows) return;
    const ptx::PixelPlace row = rows_.At(first_row + lane_ * kResultRows);
    for (int32_t c = params_.live_classes - params_.empty_classes; c < params_.live_classes; ++c) {
      const auto at = InPixels(row, params_.problem.period, params_.classes[order_[c]].phase);
      const int32_t end = min(first_col + kTile.cols, static_cast<int32_t>(params_.problem.out_channels));
#pragma unroll 1
      for (int32_t col = first_col; col < end; col += ResultCols(kTile)) {
        ptx::StorePixels(params_.rank, params_.out_maps[order_[c]], zeros_, col, at);
      }
    }
    ptx::CommitStores();
  }

  // Shared memory must be there until it has been read.
  __device__ __forceinline__ void Finish() const { ptx::WaitForStores<0>(); }

 private:
  const WgmmaParams& params_;
  const int32_t (&order_)[kMostWgmmaClasses];
  RowPlaces<kTile> rows_;
  uint32_t zeros_;
  int lane_;
};

}  // namespace jaxconv
