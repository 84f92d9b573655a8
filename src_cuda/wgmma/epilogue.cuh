// From a warpgroup's sums to results, one tile after the other.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "operand_traits.h"
#include "wgmma/params.cuh"
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

// The same for the residual, by one of several threads: of so many rows, and of columns from one on. offset_of(row) is
// the row's in the result; less than 0: there is none. T: of operands.
template <typename T, typename F>
__device__ __forceinline__ void PrefetchResidual(const WgmmaParams& p, int thread, int threads, int rows,
                                                 int32_t first_col, int cols, const F& offset_of) {
  const DType type = p.epilogue.residual_type;  // the table of traits is the host's
  const int bytes = type == DType::kF32 ? 4 : type == DType::kBF16 || type == DType::kF16 ? 2 : 1;
  const int32_t end_col = min(first_col + cols, p.out_channels);
  const bool has_blocks = std::is_same_v<T, int8_t> && p.problem.dst.block != 0;
  const int32_t at_once = has_blocks ? kBlockChannels : ptx::kLineBytes / bytes;
#pragma unroll 1
  for (int row = thread; row < rows; row += threads) {
    const int64_t offset = offset_of(row);
    if (offset < 0) continue;
    const char* const line = static_cast<const char*>(p.epilogue.residual) + offset * bytes;
    for (int32_t col = first_col; col < end_col; col += at_once) ptx::Prefetch(line + ColOffset<T>(p, col) * bytes);
  }
}

// Loads without branches: bits, or zeros if they are not there.
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

// The residual of int8 operands, of any type of results.
template <>
class Residual<int8_t> {
 public:
  __device__ __forceinline__ explicit Residual(const Epilogue& epilogue)
      : data_(static_cast<const char*>(epilogue.residual)), type_(epilogue.residual_type) {}

  __device__ __forceinline__ float2 Pair(bool is_there, int64_t at) const {
    const bool is_bytes = type_ == DType::kS8, is_wide = type_ == DType::kF32;
    const char* const from = data_ + at * (is_wide ? 4 : 2);
    const uint32_t bytes = LoadHalfIf(is_there && is_bytes, data_ + at);
    const uint32_t first = LoadWordIf(is_there && !is_bytes, from), second = LoadWordIf(is_there && is_wide, from + 4);
    if (is_bytes) {
      return {static_cast<float>(static_cast<int8_t>(bytes)), static_cast<float>(static_cast<int8_t>(bytes >> 8))};
    }
    if (is_wide) return {__uint_as_float(first), __uint_as_float(second)};
    if (type_ == DType::kBF16) return {__uint_as_float(first << 16), __uint_as_float(first & 0xffff0000)};
    return __half22float2(reinterpret_cast<const __half2&>(first));
  }

 private:
  const char* data_;
  DType type_;
};

__device__ __forceinline__ float ResidualScale(const Epilogue& epilogue) {
  return epilogue.residual_scale ? __ldg(static_cast<const float*>(epilogue.residual_scale)) : 1;
}

// Adds the residual to a warpgroup's sums of columns up to an end, row by row.
template <typename T, WgmmaTile kTile, typename Sum, int kBlocks, int kAcross, typename F>
__device__ __forceinline__ void AddResidual(const WgmmaParams& p, int32_t first_col, int32_t end_col,
                                            Sum (&sums)[kBlocks][kAcross][4], const F& offset_of) {
  constexpr bool kSwaps = kTile.swap_ab;
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int32_t cols = end_col - first_col;
  const float scale = ResidualScale(p.epilogue);
  const Residual<T> residual(p.epilogue);
  const auto add = [&](Sum& sum, float one) { SetResult(sum, ResultIn(sum) + scale * one); };
#pragma unroll
  for (int i = 0; i < (kSwaps ? 2 * kAcross : 2 * kBlocks); ++i) {  // rows of a lane
    const int64_t offset = offset_of(i);
    if constexpr (kSwaps) {
#pragma unroll
      for (int j = 0; j < 2 * kBlocks; ++j) {
        const int32_t col = j / 2 * 64 + warp * 16 + j % 2 * 8 + lane / 4;
        add(sums[j / 2][i / 2][j % 2 * 2 + i % 2], residual.One(offset >= 0 && col < cols, offset + first_col + col));
      }
    } else {
#pragma unroll
      for (int j = 0; j < kAcross; ++j) {
        const int32_t col = j * 8 + lane % 4 * 2;
        const int64_t at = std::is_integral_v<T> ? offset + ColOffset<T>(p, first_col + col) : offset + first_col + col;
        const float2 pair = residual.Pair(offset >= 0 && col < cols, at);
        add(sums[i / 2][j][i % 2 * 2], pair.x);
        add(sums[i / 2][j][i % 2 * 2 + 1], pair.y);
      }
    }
  }
}

// The next three have an operand's numbers for a lane's columns: of two neighbours, so many columns behind the lane's
// first. This one has one number for all columns.
struct NumberForAll {
  float number;

  __device__ __forceinline__ float2 Pair(int32_t) const { return {number, number}; }
};

// A number for each column, which are all channels. `at`: of the lane's first.
struct NumberForEach {
  const float* at;

  __device__ __forceinline__ float2 Pair(int32_t apart) const {
    return __ldg(reinterpret_cast<const float2*>(at + apart));
  }
};

// Either, of columns up to an end. Where there is no number, there is the one that changes nothing.
class NumberIfThere {
 public:
  __device__ __forceinline__ NumberIfThere(const PerChannel& operand, int32_t col, int32_t end_col, float without) {
    const auto* const data = static_cast<const float*>(operand.data);
    for_all_ = without;
    if (data != nullptr && operand.stride == 0) for_all_ = __ldg(data);
    cols_ = operand.stride == 0 ? 0 : end_col - col;
    at_ = data + col;
  }

  // Of two neighbouring columns. Channels are whole 16-byte vectors, so both are channels, or none. Without branches,
  // so that the compiler keeps many loads in flight.
  __device__ __forceinline__ float2 Pair(int32_t apart) const {
    float2 pair;
    asm("{ .reg .pred p; setp.lt.s32 p, %3, %4; mov.f32 %0, %5; mov.f32 %1, %5; @p ld.global.nc.v2.f32 {%0, %1}, [%2]; "
        "}"
        : "=&f"(pair.x), "=&f"(pair.y)
        : "l"(at_ + apart), "r"(apart), "r"(cols_), "f"(for_all_));
    return pair;
  }
  // Of one column.
  __device__ __forceinline__ float One(int32_t apart) const {
    float number;
    asm("{ .reg .pred p; setp.lt.s32 p, %2, %3; mov.f32 %0, %4; @p ld.global.nc.f32 %0, [%1]; }"
        : "=&f"(number)
        : "l"(at_ + apart), "r"(apart), "r"(cols_), "f"(for_all_));
    return number;
  }

 private:
  const float* at_;
  int32_t cols_;
  float for_all_;
};

// A lane's columns of a warpgroup's sums: the first one, and the end of those that are channels.
template <WgmmaTile kTile>
struct LaneCols {
  int32_t col, end;
  bool are_all_channels;

  // Of so many columns from one on, up to an end.
  __device__ __forceinline__ LaneCols(const WgmmaParams& p, int32_t first_col, int32_t end_col, int cols) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    col = first_col + (kTile.swap_ab ? warp * 16 + lane / 4 : lane % 4 * 2);
    end = min(end_col, p.out_channels);
    are_all_channels = first_col + cols <= end;
  }

  // Calls f(numbers) with an operand's. Usual ones have code of their own, which is half as long.
  template <typename F>
  __device__ __forceinline__ void WithNumbers(const PerChannel& operand, float without, const F& f) const {
    if (!are_all_channels) return f(NumberIfThere(operand, col, end, without));
    const auto* const data = static_cast<const float*>(operand.data);
    if (operand.stride != 0) return f(NumberForEach{data + col});
    f(NumberForAll{data != nullptr ? __ldg(data) : without});
  }
};

// scale * sum + bias, of columns from one on, up to an end. There may be more columns than channels: they are not
// stored.
template <WgmmaTile kTile, typename Sum, int kBlocks, int kFragments>
__device__ __forceinline__ void ScaleAndAddBias(const WgmmaParams& p, int32_t first_col, int32_t end_col,
                                                Sum (&sums)[kBlocks][kFragments][4]) {
  const PerChannel &scale = p.epilogue.scale, &bias = p.epilogue.bias;
  if constexpr (std::is_integral_v<Sum>) {
#pragma unroll
    for (int i = 0; i < kBlocks * kFragments * 4; ++i) {
      ptx::ConvertInPlace(sums[i / (kFragments * 4)][i / 4 % kFragments][i % 4]);
    }
  }
  const auto end = [](Sum& sum, float scale, float bias) { SetResult(sum, fmaf(ResultIn(sum), scale, bias)); };
  if constexpr (kTile.swap_ab) {
    const LaneCols<kTile> cols(p, first_col, end_col, kBlocks * 64);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int32_t col = cols.col + block * 64;
      const NumberIfThere scales(scale, col, cols.end, 1), biases(bias, col, cols.end, 0);
      const float scale_of[] = {scales.One(0), scales.One(8)}, bias_of[] = {biases.One(0), biases.One(8)};
#pragma unroll
      for (int i = 0; i < kFragments * 4; ++i) end(sums[block][i / 4][i % 4], scale_of[i / 2 % 2], bias_of[i / 2 % 2]);
    }
  } else {
    const LaneCols<kTile> cols(p, first_col, end_col, kFragments * 8);
    const auto end_all = [&](const auto& scales, const auto& biases) {
#pragma unroll
      for (int j = 0; j < kFragments; ++j) {
        const float2 scale_of = scales.Pair(j * 8), bias_of = biases.Pair(j * 8);
#pragma unroll
        for (int i = 0; i < kBlocks * 4; ++i) {
          end(sums[i / 4][j][i % 4], i % 2 ? scale_of.y : scale_of.x, i % 2 ? bias_of.y : bias_of.x);
        }
      }
    };
    if (!cols.are_all_channels) {
      return end_all(NumberIfThere(scale, cols.col, cols.end, 1), NumberIfThere(bias, cols.col, cols.end, 0));
    }
    cols.WithNumbers(scale, 1, [&](const auto& scales) {
      cols.WithNumbers(bias, 0, [&](const auto& biases) { end_all(scales, biases); });
    });
  }
}

template <typename Sum, int kCount, typename F>
__device__ __forceinline__ void ForEachSum(Sum (&sums)[kCount], const F& f) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) SetResult(sums[i], f(ResultIn(sums[i])));
}

// Element i of words of type T as a float. A byte's conversion takes as long as eight other instructions: so it becomes
// the last byte of 2^23 + 128 + the byte, which is a float.
template <typename T>
__device__ __forceinline__ float FloatOf(const uint32_t* words, int i) {
  if constexpr (std::is_same_v<T, int8_t>) {
    constexpr uint32_t kExponent = 0x4b000000;  // of 2^23
    const uint32_t number = __byte_perm(words[i / 4] ^ 0x80808080, kExponent, 0x7540 + i % 4);
    return __uint_as_float(number) - (8388608.f + 128);
  } else {
    return static_cast<float>(ElementOf<T>(words, i));
  }
}

// Bends fragments. Most activations do not, so that the code of the others is apart.
template <typename Sum, int kFragments>
__device__ __forceinline__ void BendAll(const WgmmaParams& p, Sum (&sums)[kFragments][4]) {
  if (!p.epilogue.of_floats.bends) [[likely]] {
    return;
  }
  auto& all = reinterpret_cast<Sum(&)[kFragments * 4]>(sums);
  const Epilogue& epilogue = p.epilogue;
  const auto first = static_cast<float>(epilogue.numbers[0]), second = static_cast<float>(epilogue.numbers[1]);
  if (epilogue.activation == Activation::kSigmoid) {
    ForEachSum(all, [&](float z) { return Sigmoid(first, second, z); });
  } else if (epilogue.activation == Activation::kHardSigmoid) {
    ForEachSum(all, [&](float z) { return HardSigmoid(z); });
  } else {
    ForEachSum(all, [&](float z) { return z < 0 ? first * z : z; });
  }
}

template <typename Sum, int kFragments>
__device__ __forceinline__ void ClipAll(const FloatActivation& activation, Sum (&sums)[kFragments][4]) {
  ForEachSum(reinterpret_cast<Sum(&)[kFragments * 4]>(sums), [&](float z) { return Clip(activation, z); });
}

// Results of one byte are scaled before they are rounded.
template <WgmmaTile kTile, typename Sum, int kFragments>
__device__ __forceinline__ void ScaleResults(const WgmmaParams& p, int32_t first_col, int32_t end_col,
                                             Sum (&sums)[kFragments][4]) {
  static_assert(!kTile.swap_ab, "tiles with swap_ab have no results of one byte");
  const LaneCols<kTile> cols(p, first_col, end_col, kFragments * 8);
  cols.WithNumbers(p.epilogue.out_scale, 1, [&](const auto& numbers) {
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      const float2 scales = numbers.Pair(j * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) SetResult(sums[j][i], ResultIn(sums[j][i]) * (i % 2 ? scales.y : scales.x));
    }
  });
}

// One result, whose residual is of type T, also without a call.
template <typename T>
__device__ __forceinline__ float ResultOf(const WgmmaParams& p, float sum, int32_t channel, int64_t element) {
  const EpilogueOf<float, true> epilogue(p.epilogue, 0);
  float z = epilogue.Of(channel).Scaled(sum);
  if (epilogue.HasResidual()) z += epilogue.ResidualScale() * Residual<T>(p.epilogue).One(true, element);
  if (p.epilogue.of_floats.bends)
    z = p.epilogue.activation == Activation::kPiecewise ? Slope(p.epilogue, z) : Smooth(p.epilogue, z);
  return Clip(p.epilogue.of_floats, z);
}

// Four results, rounded to one byte and packed into one register.
template <typename T>
__device__ __forceinline__ uint32_t PackBytes(const float (&four)[4]) {
  if constexpr (std::is_same_v<T, int8_t>) return ptx::PackInt8(four);
  const Pack<T, 4> bytes{RoundTo<T>(four[0]), RoundTo<T>(four[1]), RoundTo<T>(four[2]), RoundTo<T>(four[3])};
  return *reinterpret_cast<const uint32_t*>(&bytes);
}

// Large tiles leave their results in registers, rounded. Each subtile is stored behind the beginning of another step of
// the next tile, which keeps the tensor cores busy meanwhile. The steps of smaller tiles are too short for that, or
// another block multiplies. Larger tiles, and float32, lack registers.
template <typename T, WgmmaTile kTile, WgmmaEnd kEnd, typename Sums>
class WgmmaEpilogue {
  static constexpr bool kHasEpilogue = kEnd != WgmmaEnd::kSums, kInBlocks = kEnd == WgmmaEnd::kBlocks;
  using Out = WgmmaResult<T, kEnd>;
  using Stores = WgmmaStores<Out, kTile, kEnd, sizeof(T) == 1 && sizeof(Out) != 1>;
  static constexpr bool kLeaves =
      !kIsFloat8<T> && sizeof(Out) <= 2 && kTile.rows * kTile.cols == 128 * 256 && kTile.ctas_per_sm == 1;
  static constexpr int kBlocks = Stores::kSubtileBlocks, kOfBlock = Sums::kAcross / (8 * kBlocks);
  static constexpr int kSubtiles = Sums::kBlocks * kOfBlock;
  static_assert(Sums::kAcross % (8 * kBlocks) == 0, "subtiles share out the sums");
  static constexpr int kFirstFetched = kSubtiles < ResultBuffers(kTile) ? kSubtiles : ResultBuffers(kTile);
  using Fragments = typename Sums::Sum[kBlocks][4];
  static constexpr bool kFetchesLate = std::is_same_v<T, float>;  // sums that are computed again fetch none
  // Scale and bias are read once for all sums of a column. Integers lack the registers, as they are converted besides.
  // With two CTAs an SM, results of one byte spill less at once than subtile by subtile.
  static constexpr bool kScalesAtOnce =
      !std::is_integral_v<SumOf<T>> || (kTile.ctas_per_sm == 2 && kEnd == WgmmaEnd::kBytes);

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
    if constexpr (kHasEpilogue) {
      const int32_t first_col = tile.first_col() + Sums::FirstCol();
      if constexpr (kScalesAtOnce) {
        ScaleAndAddBias<kTile>(params_, first_col, first_col + kTile.cols, sums.All());
      }
      if (HasResidual()) return TakeWithResidual(sums, tile);
#pragma unroll
      for (int subtile = 0; subtile < kSubtiles; ++subtile) {
        if constexpr (!kScalesAtOnce) ScaleSubtile(sums, subtile, tile);
        BendAll(params_, OfSubtile(sums, subtile));
      }
    }
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
      RoundToPairs(fragments, to);
    } else {
#pragma unroll
      for (int i = 0; i < kBlocks * 4; ++i) {
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
    cols.WithNumbers(params_.epilogue.out_scale, 1, [&](const auto& numbers) {
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const float2 scales = numbers.Pair(block * 8);
        float four[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          four[i] = Clip(params_.epilogue.of_floats, ResultIn(fragments[block][i])) * (i % 2 ? scales.y : scales.x);
        }
        to[block][0] = PackBytes<Out>(four);
      }
    });
  }

  // Where there is an epilogue, rounded pairs are clipped: two at once. Rounding keeps the order of numbers, so that
  // rounded bounds give the same results.
  __device__ __forceinline__ void RoundToPairs(const Fragments& fragments, typename Stores::Subtile& to) const {
    const FloatActivation& bounds = params_.epilogue.of_floats;
    const uint32_t low = RoundPair<Out>(bounds.low, bounds.low), high = RoundPair<Out>(bounds.high, bounds.high);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
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
      ClipAll(params_.epilogue.of_floats, OfSubtile(sums, subtile));
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

  // Subtile by subtile, as residuals come. Nothing is left for later.
  __device__ __forceinline__ void TakeWithResidual(Sums& sums, const WgmmaReceivedTile& tile) {
    const float scale = ResidualScale(params_.epilogue);
    if constexpr (kFetchesLate) FetchFirst(tile);
#pragma unroll
    for (int subtile = 0; subtile < kSubtiles; ++subtile) {
      if (tile.first_col() + FirstCol(subtile) < params_.out_channels) EndWithResidual(sums, subtile, tile, scale);
      if (subtile + ResultBuffers(kTile) < kSubtiles) Fetch(subtile + ResultBuffers(kTile), tile);
    }
  }

  __device__ __forceinline__ void EndWithResidual(Sums& sums, int subtile, const WgmmaReceivedTile& tile, float scale) {
    Fragments& fragments = OfSubtile(sums, subtile);
    if constexpr (!kScalesAtOnce) ScaleSubtile(sums, subtile, tile);
    typename Stores::Subtile words;
    stores_.ReadResidual(words);
#pragma unroll
    for (int i = 0; i < kBlocks * 4; ++i) {
      const float residual = FloatOf<Out>(words[i / 4], i % 4);
      SetResult(fragments[i / 4][i % 4], ResultIn(fragments[i / 4][i % 4]) + scale * residual);
    }
    BendAll(params_, fragments);
    Round(sums, subtile, tile, words);
    Store(words, subtile, tile);
  }

  static __device__ __forceinline__ Fragments& OfSubtile(Sums& sums, int subtile) {
    return reinterpret_cast<Fragments&>(sums.All()[subtile / kOfBlock][subtile % kOfBlock * kBlocks]);
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
