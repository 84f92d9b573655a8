// From a warpgroup's sums to results, one tile after the other.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "operand_traits.h"
#include "wgmma/params.cuh"
#include "wgmma/residual.cuh"
#include "wgmma/results.cuh"
#include "wgmma/stores.cuh"
#include "wgmma/tile_order.cuh"
#include "wgmma/tile_scheduler.cuh"

namespace jaxconv {

// Brings what the epilogue reads of a tile's columns to L1. One warp does it for all, before the sums are there.
// `unread`: kUnreadBytes of shared memory.
template <WgmmaTile kTile>
__device__ __forceinline__ void BringEpilogue(const WgmmaParams& p, int32_t first_col, uint32_t unread) {
  constexpr int kSector = 32 / sizeof(float);  // columns that a lane brings
  static_assert(kTile.cols <= 32 * kSector, "a warp brings all columns");
  const auto in_tile = static_cast<int32_t>(threadIdx.x) * kSector, col = first_col + in_tile;
  if (threadIdx.x >= 32 || in_tile >= kTile.cols || col >= p.out_channels) return;
  const auto bring = [&](const PerChannel& operand, int number) {
    const auto* const data = static_cast<const float*>(operand.data);
    if (operand.stride != 0) ptx::BringToL1(unread + (number * 32 + threadIdx.x) * 4, data + col);
  };
  bring(p.epilogue.scale, 0), bring(p.epilogue.bias, 1), bring(p.epilogue.out_scale, 2);
}

// Large tiles leave their results in registers, rounded. Each subtile is stored behind the beginning of another step of
// the next tile, which keeps the tensor cores busy meanwhile. The steps of smaller tiles are too short for that, or
// another block multiplies. Larger tiles, and float32, lack registers.
//
// So the steps of EndSums are in two parts here: End has those that come before clipping, Round the others, subtile by
// subtile.
template <typename T, WgmmaTile kTile, WgmmaEpilogueKind kEpilogueKind, typename Sums>
class WgmmaEpilogue {
  static constexpr bool kHasEpilogue = kEpilogueKind != WgmmaEpilogueKind::kNone,
                        kInBlocks = kEpilogueKind == WgmmaEpilogueKind::kBlocks;
  using Out = WgmmaResult<T, kEpilogueKind>;
  using Stores = WgmmaStores<Out, kTile, kEpilogueKind, sizeof(T) == 1 && sizeof(Out) != 1>;
  static constexpr bool kLeaves =
      !kIsFloat8<T> && sizeof(Out) <= 2 && kTile.rows * kTile.cols == 128 * 256 && kTile.ctas_per_sm == 1;
  static constexpr int kBlocks = Stores::kSubtileBlocks, kAcross = Sums::kAcross / 8;
  static constexpr int kOfBlock = static_cast<int>(CeilDiv(kAcross, kBlocks)), kSubtiles = Sums::kBlocks * kOfBlock;
  static constexpr bool kIsLastShort = Stores::kIsLastShort;
  static_assert(kIsLastShort == (kAcross % kBlocks != 0), "only the last rows may be fewer than a subtile's");
  static_assert(!kIsLastShort || !std::is_integral_v<SumOf<T>>, "steps that end whole subtiles are for integers");
  static constexpr int kFirstFetched = kSubtiles < ResultBuffers(kTile) ? kSubtiles : ResultBuffers(kTile);
  using Fragments = typename Sums::Sum[kBlocks][4];
  static constexpr bool kFetchesLate = std::is_same_v<T, float>;  // sums that are computed again fetch none
  // Scale and bias are read once for all sums of a column. Integers lack the registers, as they are converted besides.
  // With two CTAs an SM, results of one byte spill less at once than subtile by subtile.
  static constexpr bool kScalesAtOnce =
      !std::is_integral_v<SumOf<T>> || (kTile.ctas_per_sm == 2 && kEpilogueKind == WgmmaEpilogueKind::kBytes);
  // Integers that become wider floats spill less if a subtile ends before the next one begins. Small tiles spill
  // little.
  static constexpr bool kEndsBySubtile = std::is_integral_v<SumOf<T>> && kEpilogueKind == WgmmaEpilogueKind::kPlain &&
                                         (kTile.ctas_per_sm == 1 || kTile.halo);

 public:
  static constexpr int kLeft = kLeaves ? kSubtiles : 0;  // subtiles that are stored later
  // Whether results, or the sums of split-K, may have channels in blocks.
  static constexpr bool kTakesBlocks = kInBlocks || (std::is_same_v<T, int8_t> && !kHasEpilogue);

  // `buffers`, `barriers`: see WgmmaStores; `unread`: see BringEpilogue.
  __device__ WgmmaEpilogue(const WgmmaParams& p, uint32_t buffers, uint32_t barriers, uint32_t unread)
      : params_(p), stores_(p, buffers, barriers), unread_(unread) {}

  // To be called before a tile is multiplied.
  __device__ __forceinline__ void Begin(const WgmmaReceivedTile& tile) const {
    if constexpr (kHasEpilogue) BringEpilogue<kTile>(params_, tile.first_col(), unread_);
  }

  // To be called while a tile's last step is multiplied. Tiles whose sums may be computed again fetch nothing yet.
  __device__ __forceinline__ void EndSoon(const WgmmaReceivedTile& tile) {
    if constexpr (!kLeaves) stores_.FindPositions(tile.residue(), tile.first_row());
    if constexpr (kHasEpilogue && !kFetchesLate) {
      if (HasResidual()) FetchFirst(tile);
    }
  }

  // Stores a tile's results, or leaves them. They take the place of its sums.
  __device__ __forceinline__ void Take(Sums& sums, const WgmmaReceivedTile& tile) {
    if constexpr (kHasEpilogue) End(sums, tile);
    if (!kInBlocks && !params_.has_out_maps) {
      if constexpr (kHasEpilogue) EndUnrounded(sums, tile);
      return StoreUnrounded(sums, tile.All());
    }
    if constexpr (kLeaves) {
      left_of_ = tile;
#pragma unroll
      for (int subtile = 0; subtile < kSubtiles; ++subtile) Round(sums, subtile, tile, left_[subtile]);
      is_left_ = true;
    } else {
#pragma unroll
      for (int subtile = 0; subtile < kSubtiles; ++subtile) {
        typename Stores::Subtile rounded;
        Round(sums, subtile, tile, rounded);
        Store(rounded, subtile, tile);
      }
    }
  }

  // Stores a subtile of what is left, if anything is.
  template <int kSubtile>
  __device__ __forceinline__ void StoreSubtile() {
    if (!is_left_) return;
    if constexpr (kSubtile == 0) stores_.FindPositions(left_of_.residue(), left_of_.first_row());
    Store(left_[kSubtile], kSubtile, left_of_);
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

  // Clips results, and rounds them.
  __device__ __forceinline__ void Round(Sums& sums, int subtile, const WgmmaReceivedTile& tile,
                                        typename Stores::Subtile& to) const {
    Fragments& fragments = OfSubtile(sums, subtile);
    if constexpr (sizeof(Out) == 1) {
      RoundToBytes(fragments, tile.first_col() + FirstCol(subtile), to);
    } else if constexpr (sizeof(Out) == 2) {
      RoundToPairs(fragments, Count(subtile), to);
    } else {
#pragma unroll
      for (int i = 0; i < kBlocks * 4; ++i) {
        if (kIsLastShort && i / 4 >= Count(subtile)) {
          to[i / 4][i % 4] = 0;
          continue;
        }
        const auto& sum = fragments[i / 4][i % 4];
        if constexpr (kHasEpilogue) {
          to[i / 4][i % 4] = BitsOf(Clip(params_.epilogue.of_floats, ResultIn(sum)));
        } else {
          to[i / 4][i % 4] = BitsOf(sum);
        }
      }
    }
  }

  // Four at once become one register: were all clipped first, there would be no registers for them.
  __device__ __forceinline__ void RoundToBytes(const Fragments& fragments, int32_t first_col,
                                               typename Stores::Subtile& to) const {
    const LaneCols<kTile> cols(params_, first_col, first_col + kTile.cols, kBlocks * 8);
    const FloatActivation& activation = params_.epilogue.of_floats;
    cols.WithNumbers(params_.epilogue.out_scale, 1, [&](const auto& numbers) {
      const auto pack = [&](const auto& clip, const auto& clip_bytes) {
#pragma unroll
        for (int block = 0; block < kBlocks; ++block) {
          const float2 scales = numbers.Pair(block * 8);
          float four[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) four[i] = clip(ResultIn(fragments[block][i])) * (i % 2 ? scales.y : scales.x);
          to[block][0] = clip_bytes(PackBytes<Out>(four));
        }
      };
      if constexpr (!kLeaves && std::is_same_v<decltype(numbers), const NumberForAll&>) {
        const ByteClip<Out> clip(activation, numbers.number);
        if (clip.is_enough()) return pack([](float z) { return z; }, clip);
      }
      pack([&](float z) { return Clip(activation, z); }, [](uint32_t bytes) { return bytes; });
    });
  }

  // Where there is an epilogue, rounded pairs are clipped: two at once. Rounding keeps the order of numbers, so that
  // rounded bounds give the same results.
  __device__ __forceinline__ void RoundToPairs(const Fragments& fragments, int count,
                                               typename Stores::Subtile& to) const {
    const FloatActivation& bounds = params_.epilogue.of_floats;
    const uint32_t low = RoundPair<Out>(bounds.low, bounds.low), high = RoundPair<Out>(bounds.high, bounds.high);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      if (kIsLastShort && block >= count) {
        to[block][0] = to[block][1] = 0;
        continue;
      }
      const auto& four = fragments[block];
      to[block][0] = RoundPair<Out>(ResultIn(four[0]), ResultIn(four[1]));
      to[block][1] = RoundPair<Out>(ResultIn(four[2]), ResultIn(four[3]));
      if constexpr (kHasEpilogue) {
        for (uint32_t& pair : to[block]) pair = ptx::ClipPair<Out>(pair, low, high);
      }
    }
  }

  // What results that are stored from registers lack.
  __device__ __forceinline__ void EndUnrounded(Sums& sums, const WgmmaReceivedTile& tile) const {
#pragma unroll
    for (int subtile = 0; subtile < kSubtiles; ++subtile) {
      ClipAll(params_.epilogue.of_floats, OfSubtile(sums, subtile), Count(subtile));
      const int32_t first_col = tile.first_col() + FirstCol(subtile);
      if constexpr (sizeof(Out) == 1) {
        ScaleResults<kTile>(params_, first_col, first_col + kTile.cols, OfSubtile(sums, subtile));
      }
    }
  }

  __device__ __forceinline__ void ScaleSubtile(Sums& sums, int subtile, const WgmmaReceivedTile& tile) const {
    const int32_t first_col = tile.first_col() + FirstCol(subtile);
    auto& fragments = reinterpret_cast<Fragments(&)[1]>(OfSubtile(sums, subtile));
    ScaleAndAddBias<kTile>(params_, first_col, first_col + kTile.cols, fragments);
  }

  // The launch sees to it that a call with a residual has maps.
  __device__ __forceinline__ bool HasResidual() const { return params_.epilogue.residual != nullptr; }

  __device__ __forceinline__ void FetchFirst(const WgmmaReceivedTile& tile) {
    if constexpr (kLeaves) stores_.FindPositions(tile.residue(), tile.first_row());
#pragma unroll
    for (int subtile = 0; subtile < kFirstFetched; ++subtile) Fetch(subtile, tile);
  }

  // From sums to results that are neither clipped nor rounded. What most calls do not have is behind one branch.
  __device__ __forceinline__ void End(Sums& sums, const WgmmaReceivedTile& tile) {
    if constexpr (kEndsBySubtile) return EndBySubtile(sums, tile);
    if constexpr (kScalesAtOnce) {
      const int32_t first_col = tile.first_col() + Sums::FirstCol();
      ScaleAndAddBias<kTile>(params_, first_col, first_col + kTile.cols, sums.All());
    } else {
#pragma unroll
      for (int subtile = 0; subtile < kSubtiles; ++subtile) ScaleSubtile(sums, subtile, tile);
    }
    if (HasResidual()) AddResiduals(sums, tile);
    BendAll(params_, sums.All());
  }

  __device__ __forceinline__ void EndBySubtile(Sums& sums, const WgmmaReceivedTile& tile) {
    const ResidualAdder<float> add(params_.epilogue);
#pragma unroll
    for (int subtile = 0; subtile < kSubtiles; ++subtile) {
      ScaleSubtile(sums, subtile, tile);
      if (HasResidual()) AddResidual(sums, subtile, tile, add);
      BendAll(params_, reinterpret_cast<Fragments(&)[1]>(OfSubtile(sums, subtile)));
    }
  }

  __device__ __forceinline__ void AddResiduals(Sums& sums, const WgmmaReceivedTile& tile) {
    if constexpr (kFetchesLate) FetchFirst(tile);
    const ResidualAdder<float> add(params_.epilogue);
#pragma unroll
    for (int subtile = 0; subtile < kSubtiles; ++subtile) AddResidual(sums, subtile, tile, add);
  }

  // Residuals come subtile by subtile. What has been read makes room for the one after the next.
  __device__ __forceinline__ void AddResidual(Sums& sums, int subtile, const WgmmaReceivedTile& tile,
                                              const ResidualAdder<float>& add) {
    if (tile.first_col() + FirstCol(subtile) < params_.out_channels) {
      Fragments& fragments = OfSubtile(sums, subtile);
      typename Stores::Subtile words;
      stores_.ReadResidual(words);
#pragma unroll
      for (int i = 0; i < Count(subtile) * 4; ++i) {
        const float residual = FloatOf<Out>(words[i / 4], i % 4);
        SetResult(fragments[i / 4][i % 4], add(ResultIn(fragments[i / 4][i % 4]), residual));
      }
    }
    if (subtile + ResultBuffers(kTile) < kSubtiles) Fetch(subtile + ResultBuffers(kTile), tile);
  }

  static __device__ __forceinline__ Fragments& OfSubtile(Sums& sums, int subtile) {
    return reinterpret_cast<Fragments&>(sums.All()[subtile / kOfBlock][subtile % kOfBlock * kBlocks]);
  }

  // Fragments that a subtile has.
  static constexpr int Count(int subtile) {
    if constexpr (!kIsLastShort) return kBlocks;
    const int left = kAcross - subtile % kOfBlock * kBlocks;
    return left < kBlocks ? left : kBlocks;
  }

  // A subtile's first row, and column, of the tile.
  static __device__ __forceinline__ int32_t FirstRow(int subtile) {
    return Sums::FirstRow() + (kTile.swap_ab ? subtile % kOfBlock * kBlocks * 8 : subtile / kOfBlock * 64);
  }
  static __device__ __forceinline__ int32_t FirstCol(int subtile) {
    return Sums::FirstCol() + (kTile.swap_ab ? subtile / kOfBlock * 64 : subtile % kOfBlock * kBlocks * 8);
  }

  __device__ __forceinline__ void Fetch(int subtile, const WgmmaReceivedTile& tile) {
    stores_.FetchResidual(tile.residue(), FirstRow(subtile), tile.first_col() + FirstCol(subtile));
  }

  __device__ __forceinline__ void Store(const typename Stores::Subtile& rounded, int subtile,
                                        const WgmmaReceivedTile& tile) {
    stores_.StoreSubtile(rounded, tile.residue(), FirstRow(subtile), tile.first_col() + FirstCol(subtile));
  }

  const WgmmaParams& params_;
  Stores stores_;
  uint32_t unread_;
  typename Stores::Subtile left_[kLeaves ? kSubtiles : 1];
  bool is_left_ = false;
  WgmmaReceivedTile left_of_;
};

// In its place, for a block of one tile.
struct NothingLeft {
  static constexpr int kLeft = 0;
  static constexpr bool kTakesBlocks = true;
};

}  // namespace jaxconv
