// What becomes of a warpgroup's sums of one work after the other.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "wgmma/dealer.cuh"
#include "wgmma/params.cuh"
#include "wgmma/scheduler.cuh"
#include "wgmma/stores.cuh"

namespace jaxconv {

// The epilogue of a warpgroup's sums, in its registers, where each lane has sums of some channels alone. A tile may
// have more columns than there are channels: sums of those that there are none of, which are not stored, take another
// one's epilogue, so that loads are behind no branch, and in flight together. Channels come in eights, of which there
// are all or none.
template <WgmmaTile kTile>
class WgmmaSumsEpilogue {
 public:
  // Of columns from one on.
  __device__ WgmmaSumsEpilogue(const WgmmaParams& p, int32_t first_col)
      : epilogue_(p.epilogue, 0),
        bias_(static_cast<const float*>(p.epilogue.bias)),
        first_col_(first_col),
        last_eight_(static_cast<int32_t>(p.problem.out_channels) - 8) {}

  // Brings the columns' operands to L2. To be called by a warpgroup, before the sums are there.
  __device__ __forceinline__ void Prefetch() const {
    static_assert(kTile.cols <= 128 * 2, "each thread has two columns");
    const auto col = static_cast<int32_t>(threadIdx.x % 128 * 2);
    ptx::Prefetch(bias_ + min(first_col_ + col, last_eight_));
  }

  // Makes results of sums. The loop over what shares a channel is inside, so that few operands are held at a time.
  template <int kBlocks, int kAcross>
  __device__ __forceinline__ void Apply(float (&sums)[kBlocks][kAcross][4]) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32), warp = static_cast<int32_t>(threadIdx.x / 32 % 4);
    if constexpr (kTile.transposed) {
#pragma unroll
      for (int eight = 0; eight < 2 * kBlocks; ++eight) {
        const int block = eight / 2, first = eight % 2 * 2;
        const int32_t channel = Eight(block * 64 + warp * 16 + eight % 2 * 8) + lane / 4;
#pragma unroll
        for (auto& four : sums[block]) End(four[first], channel), End(four[first + 1], channel);
      }
    } else {
#pragma unroll
      for (int across = 0; across < kAcross; ++across) {
        const int32_t channel = Eight(across * 8) + lane % 4 * 2;
#pragma unroll
        for (auto& block : sums) {
#pragma unroll
          for (int i = 0; i < 4; ++i) End(block[across][i], channel + i % 2);
        }
      }
    }
  }

 private:
  __device__ __forceinline__ int32_t Eight(int32_t col) const { return min(first_col_ + col, last_eight_); }
  __device__ __forceinline__ void End(float& sum, int32_t channel) const { sum = epilogue_(sum, channel); }

  EpilogueOf<float, true> epilogue_;
  const float* bias_;
  int32_t first_col_;
  int32_t last_eight_;
};

// Of the large tiles, results are left in registers, rounded, and stored piece by piece, each behind the beginning of
// another of the next work's multiplications, which keep the tensor cores busy meanwhile. Smaller tiles' steps are too
// short for that, or another block multiplies; larger ones lack registers.
template <typename T, WgmmaTile kTile, bool kHasEpilogue, typename Sums>
class WgmmaEpilogue {
  using Stores = WgmmaStores<T, kTile>;
  static constexpr bool kLeaves = kTile.rows * kTile.cols == 128 * 256 && kTile.resident == 1;
  static constexpr int kBlocks = Stores::kPieceBlocks, kOfBlock = Sums::kAcross / (8 * kBlocks);
  static constexpr int kPieces = Sums::kBlocks * kOfBlock;
  static_assert(Sums::kAcross % (8 * kBlocks) == 0, "pieces share out the sums");

 public:
  static constexpr int kLeft = kLeaves ? kPieces : 0;  // pieces that are stored later

  // `buffers`: this warpgroup's.
  __device__ WgmmaEpilogue(const WgmmaParams& p, uint32_t buffers) : params_(p), stores_(p, buffers) {}

  // To be called before a work is multiplied.
  __device__ __forceinline__ void Begin(const WgmmaTold& work) const {
    if constexpr (kHasEpilogue) WgmmaSumsEpilogue<kTile>(params_, work.first_col()).Prefetch();
  }

  // Stores a work's results, or leaves them. They take the place of its sums.
  __device__ __forceinline__ void Take(Sums& sums, const WgmmaTold& work) {
    if constexpr (kHasEpilogue) {
      WgmmaSumsEpilogue<kTile>(params_, work.first_col() + Sums::FirstCol()).Apply(sums.All());
    }
    if (!params_.has_out_maps) return StoreUnrounded(sums, work.All());
    if constexpr (kLeaves) {
      left_of_ = work;
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) Round(sums, piece, left_[piece]);
      is_left_ = true;
    } else {
      const int32_t residue = work.residue(), first_col = work.first_col();
      stores_.FindPlaces(residue, work.first_row());
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        typename Stores::Piece rounded;
        Round(sums, piece, rounded);
        Store(rounded, piece, residue, first_col);
      }
    }
  }

  // Stores a piece of what is left, if anything is.
  template <int kPiece>
  __device__ __forceinline__ void StorePiece() {
    if (!is_left_) return;
    if constexpr (kPiece == 0) stores_.FindPlaces(left_of_.residue(), left_of_.first_row());
    Store(left_[kPiece], kPiece, left_of_.residue(), left_of_.first_col());
    is_left_ = kPiece + 1 < kPieces;
  }

  __device__ __forceinline__ void Finish() {
    StoreFrom<0>();
    stores_.Finish();
  }

 private:
  template <int kFirst>
  __device__ __forceinline__ void StoreFrom() {
    if constexpr (kFirst < kLeft) {
      StorePiece<kFirst>();
      StoreFrom<kFirst + 1>();
    }
  }

  __device__ __forceinline__ void StoreUnrounded(const Sums& sums, const WgmmaWork& work) const {
    const int32_t row = work.first_row + Sums::FirstRow(), col = work.first_col + Sums::FirstCol();
#pragma unroll
    for (int i = 0; i < Sums::kBlocks; ++i) {
      if constexpr (kTile.transposed) {
        stores_.StoreColumns(sums.At(i), work, row, col + i * 64);
      } else {
        stores_.StoreRows(sums.At(i), work, row + i * 64, col);
      }
    }
  }

  static __device__ __forceinline__ void Round(const Sums& sums, int piece, typename Stores::Piece& to) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float (&four)[4] = sums.At(piece / kOfBlock)[piece % kOfBlock * kBlocks + block];
      to[block][0] = RoundPair<T>(four[0], four[1]), to[block][1] = RoundPair<T>(four[2], four[3]);
    }
  }

  __device__ __forceinline__ void Store(const typename Stores::Piece& rounded, int piece, int32_t residue,
                                        int32_t first_col) {
    const int32_t along = piece / kOfBlock * 64, across = piece % kOfBlock * kBlocks * 8;
    const int32_t row = Sums::FirstRow() + (kTile.transposed ? across : along);
    const int32_t col = first_col + Sums::FirstCol() + (kTile.transposed ? along : across);
    stores_.StorePiece(rounded, residue, row, col);
  }

  const WgmmaParams& params_;
  Stores stores_;
  typename Stores::Piece left_[kLeaves ? kPieces : 1];
  bool is_left_ = false;
  WgmmaTold left_of_;
};

// In its place where there is one work.
struct NothingLeft {
  static constexpr int kLeft = 0;
};

}  // namespace jaxconv
