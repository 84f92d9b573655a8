// From a warpgroup's sums to results, one tile after the other.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "wgmma/params.cuh"
#include "wgmma/stores.cuh"
#include "wgmma/tile_order.cuh"
#include "wgmma/tile_scheduler.cuh"

namespace jaxconv {

// Brings what the epilogue reads of a tile's columns to L2. To be called by a warpgroup, before the sums are there.
template <WgmmaTile kTile>
__device__ __forceinline__ void PrefetchEpilogue(const WgmmaParams& p, int32_t first_col) {
  static_assert(kTile.cols <= 128 * 2, "each thread has two columns");
  const int32_t col = first_col + threadIdx.x % 128 * 2, last = p.problem.out_channels - 1;
  ptx::Prefetch(static_cast<const float*>(p.epilogue.bias) + min(col, last));
}

// Makes results of a warpgroup's sums, in its registers: of columns from one on. A tile may have more columns than
// there are channels. Columns that are no channels are not stored: here they take the epilogue of others, so that no
// branch keeps loads from being in flight together. Channels are whole 16-byte vectors, so a lane's pair of columns are
// both channels, or none. The inner loop is over the sums of eight columns, so that a lane holds few operands at a
// time.
template <WgmmaTile kTile, int kBlocks, int kAcross>
__device__ __forceinline__ void ApplyEpilogue(const WgmmaParams& p, int32_t first_col,
                                              float (&sums)[kBlocks][kAcross][4]) {
  constexpr bool kSwaps = kTile.swap_ab;
  const EpilogueOf<float, true> epilogue(p.epilogue, 0);
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, last = p.problem.out_channels - (kSwaps ? 1 : 2);
#pragma unroll
  for (int eight = 0; eight < (kSwaps ? 2 * kBlocks : kAcross); ++eight) {
    const int32_t col = kSwaps ? eight / 2 * 64 + warp * 16 + eight % 2 * 8 : eight * 8;
    const int32_t channel = min(first_col + col + (kSwaps ? lane / 4 : lane % 4 * 2), last);
#pragma unroll
    for (int i = 0; i < (kSwaps ? 2 * kAcross : 4 * kBlocks); ++i) {
      float& sum = kSwaps ? sums[eight / 2][i / 2][eight % 2 * 2 + i % 2] : sums[i / 4][eight][i % 4];
      sum = epilogue(sum, kSwaps ? channel : channel + i % 2);
    }
  }
}

// Large tiles leave their results in registers, rounded. Each subtile is stored behind the beginning of another step of
// the next tile, which keeps the tensor cores busy meanwhile. The steps of smaller tiles are too short for that, or
// another block multiplies. Larger tiles, and float32, lack registers.
template <typename T, WgmmaTile kTile, bool kHasEpilogue, typename Sums>
class WgmmaEpilogue {
  using Stores = WgmmaStores<T, kTile, kHasEpilogue>;
  static constexpr bool kLeaves = sizeof(T) == 2 && kTile.rows * kTile.cols == 128 * 256 && kTile.ctas_per_sm == 1;
  static constexpr int kBlocks = Stores::kSubtileBlocks, kOfBlock = Sums::kAcross / (8 * kBlocks);
  static constexpr int kSubtiles = Sums::kBlocks * kOfBlock;
  static_assert(Sums::kAcross % (8 * kBlocks) == 0, "subtiles share out the sums");

 public:
  static constexpr int kLeft = kLeaves ? kSubtiles : 0;  // subtiles that are stored later

  // `buffers`: this warpgroup's.
  __device__ WgmmaEpilogue(const WgmmaParams& p, uint32_t buffers) : params_(p), stores_(p, buffers) {}

  // To be called before a tile is multiplied.
  __device__ __forceinline__ void Begin(const WgmmaReceivedTile& tile) const {
    if constexpr (kHasEpilogue) PrefetchEpilogue<kTile>(params_, tile.first_col());
  }

  // Stores a tile's results, or leaves them. They take the place of its sums.
  __device__ __forceinline__ void Take(Sums& sums, const WgmmaReceivedTile& tile) {
    if constexpr (kHasEpilogue) ApplyEpilogue<kTile>(params_, tile.first_col() + Sums::FirstCol(), sums.All());
    if (!params_.has_out_maps) return StoreUnrounded(sums, tile.All());
    if constexpr (kLeaves) {
      left_of_ = tile;
#pragma unroll
      for (int subtile = 0; subtile < kSubtiles; ++subtile) Round(sums, subtile, left_[subtile]);
      is_left_ = true;
    } else {
      const int32_t residue = tile.residue(), first_col = tile.first_col();
      stores_.FindPositions(residue, tile.first_row());
#pragma unroll
      for (int subtile = 0; subtile < kSubtiles; ++subtile) {
        typename Stores::Subtile rounded;
        Round(sums, subtile, rounded);
        Store(rounded, subtile, residue, first_col);
      }
    }
  }

  // Stores a subtile of what is left, if anything is.
  template <int kSubtile>
  __device__ __forceinline__ void StoreSubtile() {
    if (!is_left_) return;
    if constexpr (kSubtile == 0) stores_.FindPositions(left_of_.residue(), left_of_.first_row());
    Store(left_[kSubtile], kSubtile, left_of_.residue(), left_of_.first_col());
    is_left_ = kSubtile + 1 < kSubtiles;
  }

  __device__ __forceinline__ void Finish() {
    StoreFrom<0>();
    stores_.Finish();
  }

 private:
  template <int kFirst>
  __device__ __forceinline__ void StoreFrom() {
    if constexpr (kFirst < kLeft) {
      StoreSubtile<kFirst>();
      StoreFrom<kFirst + 1>();
    }
  }

  __device__ __forceinline__ void StoreUnrounded(const Sums& sums, const WgmmaWorkTile& tile) const {
    const int32_t row = tile.first_row + Sums::FirstRow(), col = tile.first_col + Sums::FirstCol();
#pragma unroll
    for (int i = 0; i < Sums::kBlocks; ++i) {
      if constexpr (kTile.swap_ab) {
        stores_.StoreColumns(sums.At(i), tile, row, col + i * 64);
      } else {
        stores_.StoreRows(sums.At(i), tile, row + i * 64, col);
      }
    }
  }

  static __device__ __forceinline__ void Round(const Sums& sums, int subtile, typename Stores::Subtile& to) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float (&four)[4] = sums.At(subtile / kOfBlock)[subtile % kOfBlock * kBlocks + block];
      if constexpr (sizeof(T) == 2) {
        to[block][0] = RoundPair<T>(four[0], four[1]), to[block][1] = RoundPair<T>(four[2], four[3]);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[block][i] = __float_as_uint(four[i]);
      }
    }
  }

  __device__ __forceinline__ void Store(const typename Stores::Subtile& rounded, int subtile, int32_t residue,
                                        int32_t first_col) {
    const int32_t along = subtile / kOfBlock * 64, across = subtile % kOfBlock * kBlocks * 8;
    const int32_t row = Sums::FirstRow() + (kTile.swap_ab ? across : along);
    const int32_t col = first_col + Sums::FirstCol() + (kTile.swap_ab ? along : across);
    stores_.StoreSubtile(rounded, residue, row, col);
  }

  const WgmmaParams& params_;
  Stores stores_;
  typename Stores::Subtile left_[kLeaves ? kSubtiles : 1];
  bool is_left_ = false;
  WgmmaReceivedTile left_of_;
};

// In its place, for a block of one tile.
struct NothingLeft {
  static constexpr int kLeft = 0;
};

}  // namespace jaxconv
