// From a warpgroup's sums to the result: through shared memory by TMA, while the next tile is multiplied, or from
// registers.
#pragma once

#include <cstdint>

#include "device/convert.cuh"
#include "device/ptx.cuh"
#include "device/ptx_barrier.cuh"
#include "device/ptx_cluster.cuh"
#include "device/shared_tile.cuh"
#include "device/wgmma_params.cuh"
#include "device/wgmma_scheduler.cuh"

namespace jaxconv {

inline constexpr int kResultBytes = kResultRows * 64 * 2;
// Of each warp: one is filled while the other is stored, or, where there are two blocks, what the other block does.
constexpr int ResultBuffers(const WgmmaTile& tile) { return tile.resident == 1 ? 2 : 1; }

template <typename T, WgmmaTile kTile>
class WgmmaStores {
 public:
  // `buffers`: this warp's.
  __device__ WgmmaStores(const WgmmaParams& p, uint32_t buffers)
      : params_(p), rows_(p), buffers_(buffers), lane_(threadIdx.x % 32), warp_(threadIdx.x / 32 % 4) {}

  // Stores 64 rows of a work's sums, or some columns of them, from registers.
  template <int kBlocks>
  __device__ __forceinline__ void StoreRows(const float (&sums)[kBlocks][4], const WgmmaWork& work, int32_t first_row,
                                            int32_t first_col) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t offset = RowOffset(work, first_row + warp_ * kResultRows, half);
      if (offset < 0) continue;
      StoreRow(sums, 2 * half, work.slice * params_.slice_elements + offset, first_col, first_col + kBlocks * 8);
    }
  }

  // From the result's origin to a row of this lane's, the first of a warp's 16 or the one eight further; or less than
  // nothing, if there is no such row.
  __device__ __forceinline__ int64_t RowOffset(const WgmmaWork& work, int32_t first_row, int half) const {
    const ConvProblem& q = params_.problem;
    const ptx::PixelPlace at = InPixels(rows_.At(first_row + half * 8 + lane_ / 4), q.period,
                                        params_.classes[work.residue].phase);
    if (at.image >= q.batch || at.d >= q.dst_size[0] || at.h >= q.dst_size[1] || at.w >= q.dst_size[2]) return -1;
    return at.image * q.dst.batch + at.d * q.dst.spatial[0] + at.h * q.dst.spatial[1] + at.w * q.dst.spatial[2];
  }

  // Stores a row's columns, if there are so many, of which this lane has the pairs that begin at sums[block][first].
  template <int kBlocks>
  __device__ __forceinline__ void StoreRow(const float (&sums)[kBlocks][4], int first, int64_t offset,
                                           int32_t first_col, int32_t end_col) const {
    end_col = min(end_col, static_cast<int32_t>(params_.problem.out_channels));
    WithType<float>(params_.out_type, [&](auto type) {
      using Out = decltype(type);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const int32_t col = first_col + block * 8 + lane_ % 4 * 2;
        if (col >= end_col) continue;
        *reinterpret_cast<Pack<Out, 2>*>(static_cast<Out*>(params_.out) + offset + col) = {
            static_cast<Out>(sums[block][first]), static_cast<Out>(sums[block][first + 1])};
      }
    });
  }

  // Stores 64 rows of a class's results, rounded, or some columns of them.
  template <int kBlocks>
  __device__ __forceinline__ void StoreByTma(const uint32_t (&pairs)[kBlocks][2], int32_t residue, int32_t first_row,
                                             int32_t first_col) {
    const ptx::PixelPlace at = InPixels(rows_.At(first_row + warp_ * kResultRows), params_.problem.period,
                                        params_.classes[residue].phase);
#pragma unroll
    for (int block = 0; block < kBlocks * 8 / kCols; ++block) {
      const int32_t col = first_col + block * kCols;
      if (col >= params_.problem.out_channels) return;
      const uint32_t buffer = buffers_ + buffer_ * kResultBytes;
      if (lane_ == 0) ptx::WaitForStores<ResultBuffers(kTile) - 1>();
      __syncwarp();
#pragma unroll
      for (int piece = 0; piece < kCols / 8; piece += 2) {
        const auto& left = pairs[block * kCols / 8 + piece];
        const auto& right = pairs[block * kCols / 8 + piece + 1];
        // Lane 8 m + r has the address of row r of matrix m: of 16 rows by two pieces of eight columns.
        ptx::StoreMatrices(buffer + Results::Offset(lane_ % 16, (piece + lane_ / 16) * 8), left[0],
                           left[1], right[0], right[1]);
      }
      ptx::FenceForTma();
      __syncwarp();
      if (lane_ == 0) {
        if constexpr (kTile.boxed) {
          ptx::StoreBox(params_.out_maps[residue], buffer, col, at);
        } else {
          ptx::StorePixels(params_.rank, params_.out_maps[residue], buffer, col, at);
        }
        ptx::CommitStores();
      }
      buffer_ = (buffer_ + 1) % ResultBuffers(kTile);
    }
  }

  // Shared memory must be there until it has been read.
  __device__ __forceinline__ void Finish() const {
    if (lane_ == 0) ptx::WaitForStores<0>();
  }

 private:
  static constexpr int kCols = ResultCols(kTile);
  using Results = SharedTile<T, kResultRows, kCols, true>;
  static_assert(Results::kBytes <= kResultBytes, "a buffer holds them");

  const WgmmaParams& params_;
  RowPlaces<kTile> rows_;
  uint32_t buffers_;
  int lane_;
  int warp_;
  int buffer_ = 0;
};

// What becomes of a warpgroup's sums of one work after the other. Of the large tiles, results are left in registers,
// rounded, and stored behind the beginning of the next work's multiplications, which keep the tensor cores busy
// meanwhile. Smaller tiles' steps are too short for that, or another block multiplies; larger ones lack registers.
template <typename T, WgmmaTile kTile, typename Sums>
class WgmmaEpilogue {
 public:
  // `buffers`: this warp's; `first_row`: of the tile, this warpgroup's.
  __device__ WgmmaEpilogue(const WgmmaParams& p, uint32_t buffers, int first_row)
      : params_(p), stores_(p, buffers), first_row_(first_row) {}

  // Stores a work's sums, or leaves them.
  __device__ __forceinline__ void Take(const Sums& sums, const WgmmaWork& work) {
    residue_ = work.residue, row_ = work.first_row + first_row_, col_ = work.first_col;
#pragma unroll
    for (int i = 0; i < Sums::kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < Sums::kColBlocks; ++j) {
        if (!params_.has_out_maps) {
          stores_.StoreRows(sums.At(i, j), work, row_ + i * 64, col_ + j * Sums::kColsAtOnce);
        } else if constexpr (kLeaves) {
          Round(sums.At(i, j), left_[i][j]);
        } else {
          Rounded rounded;
          Round(sums.At(i, j), rounded);
          stores_.StoreByTma(rounded, residue_, row_ + i * 64, col_ + j * Sums::kColsAtOnce);
        }
      }
    }
    is_left_ = kLeaves && params_.has_out_maps;
  }

  // Stores what the last work left.
  __device__ __forceinline__ void StoreLeft() {
    if (!is_left_) return;
    is_left_ = false;
#pragma unroll
    for (int i = 0; i < Sums::kRowBlocks; ++i) {
#pragma unroll
      for (int j = 0; j < Sums::kColBlocks; ++j) {
        stores_.StoreByTma(left_[i][j], residue_, row_ + i * 64, col_ + j * Sums::kColsAtOnce);
      }
    }
  }

  __device__ __forceinline__ void Finish() {
    StoreLeft();
    stores_.Finish();
  }

 private:
  static constexpr bool kLeaves =
      kTile.rows * kTile.cols == 128 * 256 && kTile.warpgroups() == 2 && kTile.resident == 1;
  using Rounded = uint32_t[Sums::kColsAtOnce / 8][2];

  static __device__ __forceinline__ void Round(const float (&sums)[Sums::kColsAtOnce / 8][4], Rounded& to) {
#pragma unroll
    for (int block = 0; block < Sums::kColsAtOnce / 8; ++block) {
      to[block][0] = RoundPair<T>(sums[block][0], sums[block][1]);
      to[block][1] = RoundPair<T>(sums[block][2], sums[block][3]);
    }
  }

  const WgmmaParams& params_;
  WgmmaStores<T, kTile> stores_;
  int32_t first_row_;
  Rounded left_[Sums::kRowBlocks][Sums::kColBlocks];
  bool is_left_ = false;
  int32_t residue_, row_, col_;  // of what is left
};

// In its place where there is one work.
struct NothingLeft {
  __device__ __forceinline__ void StoreLeft() const {}
};

}  // namespace jaxconv
