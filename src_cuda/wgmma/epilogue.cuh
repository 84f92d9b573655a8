// From a warpgroup's sums to results, one tile after the other.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "operand_traits.h"
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
  const auto prefetch = [&](const PerChannel& operand) {
    if (operand.data) ptx::Prefetch(static_cast<const float*>(operand.data) + min(col, last) * operand.stride);
  };
  prefetch(p.epilogue.scale);
  prefetch(p.epilogue.bias);
}

// The same for the residual, by one of several threads: of so many rows, and of columns from one on. offset_of(row) is
// the row's in the result; less than 0: there is none.
template <typename F>
__device__ __forceinline__ void PrefetchResidual(const WgmmaParams& p, int thread, int threads, int rows,
                                                 int32_t first_col, int cols, const F& offset_of) {
  const int bytes = p.epilogue.residual_type == DType::kF32 ? 4 : 2;  // the table of traits is the host's
  const int32_t end_col = min(first_col + cols, static_cast<int32_t>(p.problem.out_channels));
#pragma unroll 1
  for (int row = thread; row < rows; row += threads) {
    const int64_t offset = offset_of(row);
    if (offset < 0) continue;
    const char* const line = static_cast<const char*>(p.epilogue.residual) + offset * bytes;
    for (int32_t col = first_col; col < end_col; col += ptx::kLineBytes / bytes) ptx::Prefetch(line + col * bytes);
  }
}

// Loads without branches, so that the compiler keeps many in flight: a number, or `without` if the address is null; and
// bits, or zeros if there are none.
__device__ __forceinline__ float LoadOr(const float* at, float without) {
  float number;
  asm volatile("{ .reg .pred p; setp.ne.u64 p, %1, 0; mov.f32 %0, %2; @p ld.global.nc.f32 %0, [%1]; }"
               : "=f"(number)
               : "l"(at), "f"(without));
  return number;
}
__device__ __forceinline__ uint32_t LoadWordIf(bool is_there, const void* at) {
  uint32_t word;
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1]; }"
      : "=r"(word)
      : "l"(at), "r"(static_cast<uint32_t>(is_there)));
  return word;
}
__device__ __forceinline__ uint16_t LoadHalfIf(bool is_there, const void* at) {
  uint16_t half;
  asm("{ .reg .pred p; setp.ne.u32 p, %2, 0; mov.b16 %0, 0; @p ld.global.nc.b16 %0, [%1]; }"
      : "=h"(half)
      : "l"(at), "r"(static_cast<uint32_t>(is_there)));
  return half;
}

// The residual of type T, or of float32.
template <typename T>
class Residual {
 public:
  __device__ __forceinline__ explicit Residual(const Epilogue& epilogue)
      : data_(static_cast<const char*>(epilogue.residual)), is_wide_(epilogue.residual_type == DType::kF32) {}

  // Elements `at` and `at + 1`, or zeros.
  __device__ __forceinline__ float2 Pair(bool is_there, int64_t at) const {
    const char* const from = data_ + at * (is_wide_ ? 4 : sizeof(T));
    const uint32_t first = LoadWordIf(is_there, from), second = LoadWordIf(is_there && is_wide_, from + 4);
    if constexpr (sizeof(T) == 2) {
      const auto& halves = reinterpret_cast<const Pack<T, 2>&>(first);
      return {is_wide_ ? __uint_as_float(first) : static_cast<float>(halves.v[0]),
              is_wide_ ? __uint_as_float(second) : static_cast<float>(halves.v[1])};
    } else {
      return {__uint_as_float(first), __uint_as_float(second)};
    }
  }

  // Element `at`, or zero.
  __device__ __forceinline__ float One(bool is_there, int64_t at) const {
    const float wide = __uint_as_float(LoadWordIf(is_there && is_wide_, data_ + at * 4));
    if constexpr (sizeof(T) == 4) return wide;
    const uint16_t half = LoadHalfIf(is_there && !is_wide_, data_ + at * sizeof(T));
    return is_wide_ ? wide : static_cast<float>(reinterpret_cast<const T&>(half));
  }

 private:
  const char* data_;
  bool is_wide_;
};

// Adds the residual to a warpgroup's sums of columns up to an end, row by row.
template <typename T, WgmmaTile kTile, int kBlocks, int kAcross, typename F>
__device__ __forceinline__ void AddResidual(const WgmmaParams& p, int32_t first_col, int32_t end_col,
                                            float (&sums)[kBlocks][kAcross][4], const F& offset_of) {
  constexpr bool kSwaps = kTile.swap_ab;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int32_t cols = end_col - first_col;
  const float scale = LoadOr(static_cast<const float*>(p.epilogue.residual_scale), 1);
  const Residual<T> residual(p.epilogue);
#pragma unroll
  for (int i = 0; i < (kSwaps ? 2 * kAcross : 2 * kBlocks); ++i) {  // rows of a lane
    const int64_t offset = offset_of(i);
    if constexpr (kSwaps) {
#pragma unroll
      for (int j = 0; j < 2 * kBlocks; ++j) {
        const int32_t col = j / 2 * 64 + warp * 16 + j % 2 * 8 + lane / 4;
        sums[j / 2][i / 2][j % 2 * 2 + i % 2] +=
            scale * residual.One(offset >= 0 && col < cols, offset + first_col + col);
      }
    } else {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const int32_t col = j * 8 + lane % 4 * 2;
        const float2 pair = residual.Pair(offset >= 0 && col < cols, offset + first_col + col);
        sums[i / 2][j][i % 2 * 2] += scale * pair.x;
        sums[i / 2][j][i % 2 * 2 + 1] += scale * pair.y;
      }
    }
  }
}

// Makes results of a warpgroup's sums, in its registers: of channels from one on, up to an end. There may be more
// columns of sums than that. They are not stored: here they take the epilogue of others. Channels are whole 16-byte
// vectors, so a lane's pair of columns are both channels, or none. Scale and bias come column by column, so that a lane
// holds few of them at a time. offset_of(i) is where the lane's i-th row is in the result. The compiler
// must not see that conditions belong together: it would compile the code between them once for each case.
template <typename T, WgmmaTile kTile, int kBlocks, int kAcross, typename F>
__device__ __forceinline__ void ApplyEpilogue(const WgmmaParams& p, int32_t first_col, int32_t end_col,
                                              float (&sums)[kBlocks][kAcross][4], const F& offset_of) {
  constexpr bool kSwaps = kTile.swap_ab;
  end_col = min(end_col, static_cast<int32_t>(p.problem.out_channels));
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, last = end_col - (kSwaps ? 1 : 2);
  const auto of_channel = [](const PerChannel& operand, int32_t channel, float without) {
    const int32_t element = operand.stride == 0 ? 0 : channel;
    return LoadOr(static_cast<const float*>(operand.data) + element, without);
  };
#pragma unroll
  for (int eight = 0; eight < (kSwaps ? 2 * kBlocks : kAcross); ++eight) {
    const int32_t col = kSwaps ? eight / 2 * 64 + warp * 16 + eight % 2 * 8 + lane / 4 : eight * 8 + lane % 4 * 2;
    const int32_t channel = min(first_col + col, last), next = channel + (kSwaps ? 0 : 1);
    const float scales[] = {of_channel(p.epilogue.scale, channel, 1), of_channel(p.epilogue.scale, next, 1)};
    const float biases[] = {of_channel(p.epilogue.bias, channel, 0), of_channel(p.epilogue.bias, next, 0)};
#pragma unroll
    for (int i = 0; i < (kSwaps ? 2 * kAcross : 4 * kBlocks); ++i) {
      float& sum = kSwaps ? sums[eight / 2][i / 2][eight % 2 * 2 + i % 2] : sums[i / 4][eight][i % 4];
      sum = fmaf(sum, scales[i % 2], biases[i % 2]);
    }
  }
  int32_t has_residual = p.epilogue.residual != nullptr, activation = static_cast<int32_t>(p.epilogue.activation);
  ptx::Keep(has_residual);
  if (has_residual) AddResidual<T, kTile>(p, first_col, end_col, sums, offset_of);
  ptx::Keep(activation);
  if (activation == 0) return;
  float (&all)[kBlocks * kAcross * 4] = reinterpret_cast<float (&)[kBlocks * kAcross * 4]>(sums);
  if (activation == static_cast<int32_t>(Activation::kPiecewise)) {
#pragma unroll
    for (float& sum : all) sum = Piecewise(p.epilogue, sum);
  } else {
#pragma unroll
    for (float& sum : all) sum = Smooth(p.epilogue, sum);
  }
}

// One result, whose residual is of type T, also without a call.
template <typename T>
__device__ __forceinline__ float ResultOf(const WgmmaParams& p, float sum, int32_t channel, int64_t element) {
  const EpilogueOf<float, true> epilogue(p.epilogue, 0);
  float z = epilogue.Of(channel).Scaled(sum);
  if (epilogue.HasResidual()) z += epilogue.ResidualScale() * Residual<T>(p.epilogue).One(true, element);
  if (p.epilogue.activation == Activation::kNone) return z;
  return p.epilogue.activation == Activation::kPiecewise ? Piecewise(p.epilogue, z) : Smooth(p.epilogue, z);
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
    if constexpr (kHasEpilogue) {
      const WgmmaWorkTile all = tile.All();
      const int32_t first_col = all.first_col + Sums::FirstCol();
      ApplyEpilogue<T, kTile>(params_, first_col, first_col + kTile.cols, sums.All(),
                              [&](int i) { return stores_.OffsetOfLane(all, all.first_row + Sums::FirstRow(), i); });
    }
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
