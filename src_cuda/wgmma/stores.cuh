// Stores a warpgroup's results: through shared memory by TMA, while the next tile is multiplied, or from registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/points.cuh"
#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/shared_tile.cuh"
#include "wgmma/config.h"
#include "wgmma/params.cuh"
#include "wgmma/tile_order.cuh"

namespace jaxconv {

// What TMA stores of a kernel for operands of type T: see TypeStoredByTma.
template <typename T, WgmmaEpilogueKind kEpilogueKind>
using WgmmaResult = std::conditional_t<
    sizeof(T) != 1, T,
    std::conditional_t<
        kEpilogueKind == WgmmaEpilogueKind::kBytes || kEpilogueKind == WgmmaEpilogueKind::kBlocks,
        std::conditional_t<kIsFloat8<T>, __nv_fp8_e4m3, int8_t>,
        std::conditional_t<kEpilogueKind == WgmmaEpilogueKind::kNone && !kIsFloat8<T>, int32_t, __nv_bfloat16>>>;

// A register with a sum, or with its result. That of an int32 has it as bits: its register is needed.
__device__ __forceinline__ float ResultIn(float sum) { return sum; }
__device__ __forceinline__ float ResultIn(int32_t sum) { return __int_as_float(sum); }
__device__ __forceinline__ void SetResult(float& sum, float result) { sum = result; }
__device__ __forceinline__ void SetResult(int32_t& sum, float result) { sum = __float_as_int(result); }

// Elements from a row's first result to a column's. T: of operands, or of results that TMA stores. Those of int8 may
// have channels in blocks.
template <typename T>
__device__ __forceinline__ int64_t ColOffset(const WgmmaParams& p, int32_t col) {
  return std::is_integral_v<T> ? ChannelOffset(p.problem.dst, col) : col;
}

// T: of results that TMA stores, or threads, where they have channels in blocks. kAnyFloat: an epilogue's may also be
// of any type that float32 holds.
template <typename T, WgmmaTile kTile, WgmmaEpilogueKind kEpilogueKind, bool kAnyFloat = false>
class WgmmaStores {
  static constexpr bool kHasEpilogue = kEpilogueKind != WgmmaEpilogueKind::kNone,
                        kInBlocks = kEpilogueKind == WgmmaEpilogueKind::kBlocks;

 public:
  static constexpr int kCols = ResultCols(kTile, sizeof(T));
  // Fragments of eight columns, or with swapped operands of eight rows, that are stored at once. A lane has two rows'
  // words of each.
  static constexpr int kSubtileBlocks = (kTile.swap_ab ? kSwizzleBytes / static_cast<int>(sizeof(T)) : kCols) / 8;
  static constexpr int kWords = sizeof(T);
  using Subtile = uint32_t[kSubtileBlocks][kWords];
  // Whether the last rows are fewer than a subtile's.
  static constexpr bool kIsLastShort = kTile.swap_ab && kTile.rows % (kSubtileBlocks * 8) != 0;

  // `buffers`: this warpgroup's. `barriers`: this warp's, of the copies of residuals to each buffer.
  __device__ WgmmaStores(const WgmmaParams& p, uint32_t buffers, uint32_t barriers = 0)
      : params_(p),
        rows_(p),
        buffers_(buffers),
        barriers_(barriers),
        lane_(threadIdx.x % 32),
        warp_(threadIdx.x / 32 % 4) {}

  // Stores 64 rows of a tile from registers.
  template <typename Sum, int kBlocks>
  __device__ __forceinline__ void StoreRows(const Sum (&sums)[kBlocks][4], const WgmmaWorkTile& tile, int32_t first_row,
                                            int32_t first_col) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t offset = LaneOffset(tile, first_row + warp_ * kResultRows, half);
      if (offset < 0) continue;
      StoreRow(sums, 2 * half, tile.slice * params_.slice_elements + offset, first_col, first_col + kBlocks * 8);
    }
  }

  // Stores 64 columns of a tile with swapped operands. Each lane finds where a row begins, for all lanes. Lanes of
  // eight neighbouring columns store their elements side by side.
  template <typename Sum, int kBlocks>
  __device__ __forceinline__ void StoreColumns(const Sum (&sums)[kBlocks][4], const WgmmaWorkTile& tile,
                                               int32_t first_row, int32_t first_col) const {
    const int32_t col = first_col + warp_ * 16 + lane_ / 4, end_col = params_.out_channels;
    WithStored([&](auto type) {
      using Stored = decltype(type);
      Stored* const first = static_cast<Stored*>(params_.out) + tile.slice * params_.slice_elements + col;
#pragma unroll
      for (int block = 0; block < kBlocks; block += 4) {
        const int64_t offsets = RowOffset(tile, first_row + block * 8 + lane_);
#pragma unroll
        for (int i = 0; i < 8 && block + i / 2 < kBlocks; ++i) {
          const int64_t offset = __shfl_sync(0xffffffff, offsets, i / 2 * 8 + lane_ % 4 * 2 + i % 2);
          const auto& four = sums[block + i / 2];  // of a row, this lane has two columns eight apart
          StoreApart(offset >= 0 && col < end_col, offset >= 0 && col + 8 < end_col, first + offset, four[i % 2],
                     four[i % 2 + 2]);
        }
      }
    });
  }

  // Elements from the result's origin to a row of this lane's: the first of a warp's 16, or the one eight further. Less
  // than 0: there is no such row.
  __device__ __forceinline__ int64_t LaneOffset(const WgmmaWorkTile& tile, int32_t first_row, int half) const {
    return RowOffset(tile, first_row + half * 8 + lane_ / 4);
  }

  // Elements from the result's origin to a row. Less than 0: there is no such row.
  __device__ __forceinline__ int64_t RowOffset(const WgmmaWorkTile& tile, int32_t row) const {
    return RowOffset(tile.residue, row);
  }
  __device__ __forceinline__ int64_t RowOffset(int32_t residue, int32_t row) const {
    const ConvProblem& q = params_.problem;
    const ptx::PixelCoord at = CoordOf(residue, row);
    if (at.image >= q.batch || at.d >= q.dst_size[0] || at.h >= q.dst_size[1] || at.w >= q.dst_size[2]) return -1;
    return at.image * q.dst.batch + at.d * q.dst.spatial[0] + at.h * q.dst.spatial[1] + at.w * q.dst.spatial[2];
  }

  // Stores a row's columns that are channels. This lane has the pairs that begin at sums[block][first].
  template <typename Sum, int kBlocks>
  __device__ __forceinline__ void StoreRow(const Sum (&sums)[kBlocks][4], int first, int64_t offset, int32_t first_col,
                                           int32_t end_col) const {
    end_col = min(end_col, params_.out_channels);
    const int32_t lane_col = first_col + lane_ % 4 * 2;
    WithStored([&](auto type) {
      using Stored = decltype(type);
      Stored* const row = static_cast<Stored*>(params_.out) + offset;
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const int32_t col = lane_col + block * 8;
        Stored* const to = kMayBeInBlocks ? row + ColOffset<T>(params_, col) : row + lane_col + block * 8;
        StorePair(col < end_col, to, sums[block][first], sums[block][first + 1]);
      }
    });
  }

  // To be called before a tile's subtiles are stored. Each lane finds where 16 of the tile's rows begin, for all lanes;
  // of blocks of channels, it is the tile's first row.
  __device__ __forceinline__ void FindPositions(int32_t residue, int32_t first_row) {
    static_assert(kTile.rows <= 32 * kResultRows, "each 16 rows have a lane");
    const int32_t row = first_row + lane_ * kResultRows;
    if (kInBlocks) {
      position_ = {first_row, 0, 0, 0};
    } else if (HasWholeRows()) {
      position_ = {row, 0, 0, 0};
    } else {
      position_ = CoordOf(residue, row);
    }
  }

  // Begins to copy the residual of a subtile to the buffer that its results will take. To be called in the order of
  // subtiles, for as many ahead as there are buffers.
  __device__ __forceinline__ void FetchResidual(int32_t residue, int32_t row, int32_t col) {
    if (col >= params_.out_channels) return;
    if constexpr (kInBlocks) return FetchBlocks(residue, row, col);
    const ptx::PixelCoord at = CoordOfWarp(row);
    if constexpr (kSharesCols) col += warp_ / 2 * kCols;
    const uint32_t part = buffers_ + fetched_ * 4 * kResultBytes + warp_ * kResultBytes;
    const uint32_t barrier = barriers_ + fetched_ * 8;
    fetched_ = (fetched_ + 1) % ResultBuffers(kTile);
    if (!ptx::ElectOne()) return;
    const bool is_there = (!kSharesCols || col < params_.out_channels) && (!kIsLastShort || HasRows(row));
    ptx::WaitForStores<0>();
    ptx::ArriveExpecting(barrier, is_there ? kResultRows * kCols * static_cast<int>(sizeof(T)) : 0);
    if (!is_there) return;
    if constexpr (kTile.halo) {
      ptx::CopyBoxByTma(part, params_.residual_maps[residue], barrier, col, at.w, at.h, at.d, at.image);
    } else {
      ptx::CopyPixels<false>(params_.rank, part, params_.residual_maps[residue], barrier, col, at, 0, 0, 0, 0);
    }
  }

  // Waits for the next subtile's residual, and reads it. It lies as results do. Then its buffer is free.
  __device__ __forceinline__ void ReadResidual(Subtile& pairs) {
    const uint32_t buffer = buffers_ + read_ * 4 * kResultBytes;
    if constexpr (kInBlocks) {
      WaitForBlocks();
    } else {
      ptx::Wait(barriers_ + read_ * 8, phases_ >> read_ & 1);
      if constexpr (sizeof(T) == 1) ptx::ConvergeWarp();  // others are read by instructions that say so
      phases_ ^= 1 << read_;
    }
    read_ = (read_ + 1) % ResultBuffers(kTile);
    if constexpr (kTile.swap_ab) {
      ptx::SyncWarpgroup();
      ReadColumns(pairs, buffer);
      ptx::SyncWarpgroup();
    } else {
      ReadRows(pairs, buffer + warp_ * kResultBytes);
      __syncwarp();
    }
  }

  // Stores a subtile, rounded: 64 of the tile's rows by some columns, or with swapped operands some rows by 64.
  __device__ __forceinline__ void StoreSubtile(const Subtile& pairs, int32_t residue, int32_t row, int32_t col) {
    if (col >= params_.out_channels) return;
    if constexpr (kInBlocks) return StoreBlocks(pairs, residue, row, col);
    const ptx::PixelCoord at = CoordOfWarp(row);
    if constexpr (kSharesCols) col += warp_ / 2 * kCols;
    const uint32_t buffer = BeginBuffer(), part = buffer + warp_ * kResultBytes;
    if constexpr (kTile.swap_ab) {  // a warp has 16 channels of all rows, and stores 16 rows
      ptx::SyncWarpgroup();
      WriteColumns(pairs, buffer);
      ptx::SyncWarpgroup();
    } else {
      __syncwarp();
      HasWholeRows() ? WriteWholeRows(pairs, part) : WriteRows(pairs, part);
      __syncwarp();
    }
    if (ptx::ElectOne()) {
      // TMA must see all lanes' writes. This lane has waited for them, so its fence is enough: the others need not
      // wait.
      ptx::FenceForTma();
      if (HasWholeRows()) {
        StoreWholeRows(part, at.w);
      } else if constexpr (kTile.halo) {
        ptx::StoreBox(params_.out_maps[residue], part, col, at);
      } else if ((!kSharesCols || col < params_.out_channels) && (!kIsLastShort || HasRows(row))) {
        ptx::StorePixels(params_.rank, params_.out_maps[residue], part, col, at);
      }
      ptx::CommitStores();  // also of no store: BeginBuffer counts buffers by groups
    }
  }

  // Waits until TMA has read shared memory, which ends with the block.
  __device__ __forceinline__ void Finish() const {
    if (ptx::ElectOne()) ptx::WaitForStores<0>();
  }

 private:
  static constexpr bool kSharesCols = kTile.swap_ab && kCols < 64;  // two warps store the same 16 rows
  static_assert(!kTile.swap_ab || kTile.ctas_per_sm == 1, "a warpgroup's barrier takes all 16 that a block has");
  static constexpr bool kHasMatrices = sizeof(T) == 2;  // stmatrix writes elements of 16 bits
  using Rows = SharedTile<T, kResultRows, kCols, true>;
  using Columns = SharedTile<T, kSubtileBlocks * 8, kCols, true>;  // of 64 channels: one, or two of half
  static_assert(!StoresWholeRows(kTile, sizeof(T)) || kResultRows * (kCols - 8) * sizeof(T) + 16 <= kResultBytes,
                "a buffer holds whole rows of fewer columns, and a vector behind them");
  static_assert(!kTile.swap_ab || kCols == 64 || kSubtileBlocks * 8 == 2 * kResultRows, "warps share out the rows");
  static_assert(Rows::kBytes <= kResultBytes && (!kTile.swap_ab || 64 / kCols * Columns::kBytes == 4 * kResultBytes),
                "a buffer holds them");

  // Of results that are stored from registers, those of split-K, in a cluster or not, may be in blocks.
  static constexpr bool kMayBeInBlocks = std::is_same_v<T, int32_t> || kTile.cluster_split > 0;
  // Whether results may be of any type that float32 holds: else they are of type T, or of that of sums.
  static constexpr bool kTakesAnyFloat = !std::is_same_v<T, int32_t> && (!kHasEpilogue || kAnyFloat);

  // Calls f(Stored{}) for results that are stored from registers: with the type of sums, or an unsigned integer as
  // large as a result. Code for each type, not each size, would take longer to compile.
  template <typename F>
  __device__ __forceinline__ void WithStored(const F& f) const {
    if constexpr (sizeof(T) == 1 && !kTakesAnyFloat) {
      return f(uint8_t{});
    } else if constexpr (kTakesAnyFloat || sizeof(T) == 2) {
      if (params_.out_type != DType::kF32) return f(uint16_t{});
    }
    f(std::conditional_t<std::is_same_v<T, int32_t>, int32_t, float>{});
  }

  template <typename Stored, typename Sum>
  __device__ __forceinline__ void StorePair(bool condition, Stored* to, Sum first, Sum second) const {
    if constexpr (sizeof(Stored) == 4) {
      ptx::StoreIf(condition, to, Result(first), Result(second));
    } else if constexpr (sizeof(Stored) == 2) {
      ptx::StoreIf(condition, to, RoundedPair(Result(first), Result(second)));
    } else {
      ptx::StoreIf(condition, to, PairOfBytes(Result(first), Result(second)));
    }
  }

  // Stores a result, and another eight columns behind it, each if its condition holds.
  template <typename Stored, typename Sum>
  __device__ __forceinline__ void StoreApart(bool condition, bool other, Stored* to, Sum first, Sum second) const {
    static_assert(sizeof(Stored) != 1, "tiles with swap_ab have no results of one byte");
    if constexpr (sizeof(Stored) == 4) {
      ptx::StoreIf(condition, to, Result(first));
      ptx::StoreIf(other, to + 8, Result(second));
    } else {
      const uint32_t pair = RoundedPair(Result(first), Result(second));
      ptx::StoreIf(condition, to, static_cast<uint16_t>(pair));
      ptx::StoreIf(other, to + 8, static_cast<uint16_t>(pair >> 16));
    }
  }

  // To the type of results, which has 16 bits.
  __device__ __forceinline__ uint32_t RoundedPair(float first, float second) const {
    const bool is_bf16 = kTakesAnyFloat ? params_.out_type == DType::kBF16 : std::is_same_v<T, __nv_bfloat16>;
    return is_bf16 ? RoundPair<__nv_bfloat16>(first, second) : RoundPair<__half>(first, second);
  }

  // The same to 8 bits. TMA stores one kind of float8; the other one is rounded here.
  __device__ __forceinline__ uint16_t PairOfBytes(float first, float second) const {
    if constexpr (kIsFloat8<T>) {
      if (params_.out_type == DType::kE5M2) return RoundPair<__nv_fp8_e5m2>(first, second);
    }
    return RoundPair<T>(first, second);
  }

  // A row's coordinates in the result. The row may be behind the last one.
  __device__ __forceinline__ ptx::PixelCoord CoordOf(int32_t residue, int32_t row) const {
    if constexpr (kTile.halo) return rows_.At(row);  // neighbouring results are of one class
    if (params_.rank == 2) return {row, 0, 0, 0};
    return InPixels(rows_.At(row), params_.problem.period, ClassPhase(params_, residue).of);
  }

  // The first of the 16 rows that this warp stores of a subtile. All lanes must call it.
  __device__ __forceinline__ ptx::PixelCoord CoordOfWarp(int32_t row) const {
    return ptx::CoordOfLane(position_, row / kResultRows + WarpOfRows());
  }
  // Whether the tile has them.
  __device__ __forceinline__ bool HasRows(int32_t row) const { return row + WarpOfRows() * kResultRows < kTile.rows; }
  __device__ __forceinline__ int WarpOfRows() const { return kSharesCols ? warp_ % 2 : warp_; }

  template <typename Sum>
  static __device__ __forceinline__ auto Result(Sum sum) {
    if constexpr (kHasEpilogue) {
      return ResultIn(sum);
    } else {
      return sum;
    }
  }

  // A buffer of the warpgroup that TMA has read this warp's part of.
  __device__ __forceinline__ uint32_t BeginBuffer() {
    if (ptx::ElectOne()) ptx::WaitForStores<ResultBuffers(kTile) - 1>();
    const uint32_t buffer = buffers_ + buffer_ * 4 * kResultBytes;
    buffer_ = (buffer_ + 1) % ResultBuffers(kTile);
    return buffer;
  }

  // Calls f(vector in a buffer, element of the result) for this lane's vectors of the warp's 16 rows: two lanes have a
  // row's of a block.
  template <typename F>
  __device__ __forceinline__ void ForEachVector(uint32_t part, int32_t residue, int32_t row, int32_t col,
                                                const F& f) const {
    constexpr int kVector = 16 / sizeof(T), kLanes = kBlockChannels / kVector;
    static_assert(kLanes * kResultRows == 32 && kCols % kBlockChannels == 0,
                  "a warp has the vectors of 16 rows of a block");
    const int32_t in_part = lane_ / kLanes, in_block = lane_ % kLanes * kVector;
    const int64_t offset = RowOffset(residue, position_.w + row + warp_ * kResultRows + in_part);
    if (offset < 0) return;
    const auto channels = params_.out_channels;
#pragma unroll
    for (int at = 0; at < kCols; at += kBlockChannels) {
      if (col + at >= channels) break;
      f(part + Rows::Offset(in_part, at + in_block), offset + ColOffset<T>(params_, col + at) + in_block);
    }
  }

  // Blocks of a row are apart, and TMA would swizzle each as a row of its own: so threads copy them.
  __device__ __forceinline__ void StoreBlocks(const Subtile& pairs, int32_t residue, int32_t row, int32_t col) {
    const uint32_t part = buffers_ + buffer_ * 4 * kResultBytes + warp_ * kResultBytes;
    buffer_ = (buffer_ + 1) % ResultBuffers(kTile);
    __syncwarp();
    WriteRows(pairs, part);
    __syncwarp();
    ForEachVector(part, residue, row, col, [&](uint32_t from, int64_t element) {
      *reinterpret_cast<int4*>(static_cast<T*>(params_.out) + element) = ptx::LoadVector(from);
    });
  }

  // FetchResidual and the wait for it. Copies are two ahead at most.
  __device__ __forceinline__ void FetchBlocks(int32_t residue, int32_t row, int32_t col) {
    const uint32_t part = buffers_ + fetched_ * 4 * kResultBytes + warp_ * kResultBytes;
    fetched_ = (fetched_ + 1) % ResultBuffers(kTile);
    __syncwarp();  // all lanes have stored what was in the buffer
    ForEachVector(part, residue, row, col, [&](uint32_t to, int64_t element) {
      ptx::CopyAsync(to, static_cast<const T*>(params_.epilogue.residual) + element, true);
    });
    ptx::CommitCopies();
    ++ahead_;
  }
  __device__ __forceinline__ void WaitForBlocks() {
    if (--ahead_ > 0) {
      ptx::WaitForCopies<1>();
    } else {
      ptx::WaitForCopies<0>();
    }
    __syncwarp();
  }

  // Lane 8 m + r has the address of row r of matrix m: of 16 rows by two times eight columns. Words are written by the
  // lanes that have them. Where a lane of an even row writes a fragment, one of an odd row writes the second next one:
  // so a half-warp's four rows are in all banks.
  __device__ __forceinline__ void WriteRows(const Subtile& pairs, uint32_t part) const {
    if constexpr (sizeof(T) == 1) {
      WriteRowsOfBytes(pairs, part);
    } else if constexpr (!kHasMatrices) {
      const bool is_odd = lane_ / 4 % 2 != 0;
#pragma unroll
      for (int i = 0; i < kCols / 8 * 2; ++i) {
        const int half = i % 2, row = half * 8 + lane_ / 4, col = lane_ % 4 * 2;
        const int block = i / 2, other = block ^ 2;
        const uint32_t first = is_odd ? pairs[other][2 * half] : pairs[block][2 * half];
        const uint32_t second = is_odd ? pairs[other][2 * half + 1] : pairs[block][2 * half + 1];
        ptx::StoreTwoWords(part + Rows::Offset(row, (is_odd ? other : block) * 8 + col), first, second);
      }
    } else {
#pragma unroll
      for (int block = 0; block < kCols / 8; block += 2) {
        ptx::StoreMatrices<false>(part + Rows::Offset(lane_ % 16, (block + lane_ / 16) * 8), pairs[block][0],
                                  pairs[block][1], pairs[block + 1][0], pairs[block + 1][1]);
      }
    }
  }

  // The same of bytes: a lane writes the pairs that it has. To exchange them for words first takes more instructions.
  __device__ __forceinline__ void WriteRowsOfBytes(const Subtile& pairs, uint32_t part) const {
#pragma unroll
    for (int block = 0; block < kCols / 8; ++block) {
      const uint32_t pair = part + Rows::Offset(lane_ / 4, block * 8 + lane_ % 4 * 2);
      ptx::StoreHalf(pair, static_cast<uint16_t>(pairs[block][0]));
      ptx::StoreHalf(pair + 8 * Rows::kRowBytes, static_cast<uint16_t>(pairs[block][0] >> 16));
    }
  }

  // Reads what lies as WriteRows writes it.
  __device__ __forceinline__ void ReadRows(Subtile& pairs, uint32_t part) const {
    if constexpr (sizeof(T) == 1) {
      ReadRowsOfBytes(pairs, part);
    } else if constexpr (!kHasMatrices) {
      const bool is_odd = lane_ / 4 % 2 != 0;
#pragma unroll
      for (int i = 0; i < kCols / 8 * 2; ++i) {
        const int half = i % 2, row = half * 8 + lane_ / 4, block = i / 2;
        if (block & 2) continue;
        const auto read = [&](int at, uint32_t& first, uint32_t& second) {
          ptx::LoadPair(first, second, part + Rows::Offset(row, at * 8 + lane_ % 4 * 2));
        };
        uint32_t one[2], two[2];
        read(is_odd ? block + 2 : block, one[0], one[1]);
        read(is_odd ? block : block + 2, two[0], two[1]);
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          pairs[block][2 * half + word] = is_odd ? two[word] : one[word];
          pairs[block + 2][2 * half + word] = is_odd ? one[word] : two[word];
        }
      }
    } else {
#pragma unroll
      for (int block = 0; block < kCols / 8; block += 2) {
        uint32_t four[4];
        ptx::LoadMatrices<false>(four, part + Rows::Offset(lane_ % 16, (block + lane_ / 16) * 8));
        pairs[block][0] = four[0], pairs[block][1] = four[1];
        pairs[block + 1][0] = four[2], pairs[block + 1][1] = four[3];
      }
    }
  }
  __device__ __forceinline__ void ReadRowsOfBytes(Subtile& pairs, uint32_t part) const {
#pragma unroll
    for (int block = 0; block < kCols / 8; ++block) {
      const uint32_t pair = part + Rows::Offset(lane_ / 4, block * 8 + lane_ % 4 * 2);
      pairs[block][0] = ptx::LoadHalf(pair) | static_cast<uint32_t>(ptx::LoadHalf(pair + 8 * Rows::kRowBytes)) << 16;
    }
  }

  // The same of WriteColumns.
  __device__ __forceinline__ void ReadColumns(Subtile& pairs, uint32_t buffer) const {
    if constexpr (!kHasMatrices) {
#pragma unroll
      for (int i = 0; i < kSubtileBlocks * 4; ++i) {
        const int row = i / 4 * 8 + lane_ % 4 * 2 + i % 2, col = warp_ * 16 + i / 2 % 2 * 8 + lane_ / 4;
        pairs[i / 4][i % 4] = ptx::LoadWord(buffer + col / kCols * Columns::kBytes + Columns::Offset(row, col % kCols));
      }
    } else {
#pragma unroll
      for (int block = 0; block < 64 / 8; block += 2) {
        const int row = (block + lane_ / 16) * 8 + lane_ % 8, col = warp_ * 16 + lane_ / 8 % 2 * 8;
        uint32_t four[4];
        ptx::LoadMatrices<true>(four, buffer + Columns::Offset(row, col));
        pairs[block][0] = four[0], pairs[block][1] = four[1];
        pairs[block + 1][0] = four[2], pairs[block + 1][1] = four[3];
      }
    }
  }

  __device__ __forceinline__ bool HasWholeRows() const {
    return StoresWholeRows(kTile, sizeof(T)) && params_.whole_rows > 0;
  }

  // The same without gaps between rows. Columns that are no channels go behind them.
  __device__ __forceinline__ void WriteWholeRows(const Subtile& pairs, uint32_t part) const {
    const auto channels = params_.out_channels;
#pragma unroll
    for (int block = 0; block < kCols / 8; block += 2) {
      if (block * 8 >= channels) break;
      const int32_t col = (block + lane_ / 16) * 8;
      const int32_t element = col < channels ? lane_ % 16 * channels + col : kResultRows * channels;
      ptx::StoreMatrices<false>(part + element * sizeof(T), pairs[block][0], pairs[block][1], pairs[block + 1][0],
                                pairs[block + 1][1]);
    }
  }

  // A warp's rows, from one on. To be called by one lane.
  __device__ __forceinline__ void StoreWholeRows(uint32_t part, int32_t first_row) const {
    const auto channels = params_.out_channels;
    const int32_t rows = min(kResultRows, params_.whole_rows - first_row);
    if (rows <= 0) return;
    ptx::StoreBytes(static_cast<T*>(params_.out) + int64_t{first_row} * channels, part, rows * channels * sizeof(T));
  }

  // Here a matrix is eight columns by eight rows.
  __device__ __forceinline__ void WriteColumns(const Subtile& pairs, uint32_t buffer) const {
    if constexpr (!kHasMatrices) {
#pragma unroll
      for (int i = 0; i < kSubtileBlocks * 4; ++i) {
        const int row = i / 4 * 8 + lane_ % 4 * 2 + i % 2, col = warp_ * 16 + i / 2 % 2 * 8 + lane_ / 4;
        ptx::StoreWord(buffer + col / kCols * Columns::kBytes + Columns::Offset(row, col % kCols), pairs[i / 4][i % 4]);
      }
    } else {
#pragma unroll
      for (int block = 0; block < 64 / 8; block += 2) {
        const int row = (block + lane_ / 16) * 8 + lane_ % 8, col = warp_ * 16 + lane_ / 8 % 2 * 8;
        ptx::StoreMatrices<true>(buffer + Columns::Offset(row, col), pairs[block][0], pairs[block][1],
                                 pairs[block + 1][0], pairs[block + 1][1]);
      }
    }
  }

  const WgmmaParams& params_;
  RowPositions<kTile> rows_;
  uint32_t buffers_;
  uint32_t barriers_;
  int lane_;
  int warp_;
  int buffer_ = 0;
  int fetched_ = 0;      // the buffer of the residual that is copied next
  int read_ = 0;         // of the one that is read next
  int ahead_ = 0;        // copies of residuals in blocks that were not waited for
  uint32_t phases_ = 0;  // of the barriers, a bit each
  ptx::PixelCoord position_;
};

}  // namespace jaxconv
