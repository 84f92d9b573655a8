// The filter of the direct family's conv in shared memory.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "direct/params.cuh"
#include "direct/tables.cuh"

namespace jaxconv {

// The filter's matrices of eight output channels by a vector of source channels, in the order of multiplications: two
// entries, for each block of output channels, for each two entries of a row of taps, for each row, for each
// channel part. Zeros stand between groups, and where an entry is missing.
template <typename T, DirectTile kTile>
class FilterMatrices {
  static constexpr int kThreads = 32 * kTile.warps;
  static constexpr bool kPacked = kTile.packed > 0;
  static constexpr bool kOfHalves = kTile.of_halves();
  static_assert(kTile.vector() == kVector<T>, "the tile is of the type's operands");

  using Row = FilterRow<T>;

 public:
  // Whether rows are transposed behind it. Row streaming reads them once, and does it then.
  static constexpr bool kTransposes = !kTile.streams_rows() && kOfHalves;

  // To be called by all threads, before a barrier.
  static __device__ __forceinline__ void Fill(const DirectParams& p, const DirectBlock& block, const HaloOrigin& origin,
                                              const FilterSteps& steps, Row* rows) {
    constexpr int kSetCols = kTile.set * 8;
    if constexpr (!kOfHalves) {
      if (p.filter_order == FilterOrder::kOuts) return FillFours(p, block, steps, rows);
    }
    const FilterOffsets offsets(p, block.channels, p.block_groups > 0);
    const FastDivmod<int32_t> by_blocks(p.col_blocks), by_all(steps.all), by_row(steps.of_row),
        by_vectors(p.entry_vectors);
    const T* from = static_cast<const T*>(p.rhs);
#pragma unroll 1  // instructions come from far away, too
    for (int row = threadIdx.x; row < p.channel_parts * steps.all * p.col_blocks * 16; row += kThreads) {
      int32_t col_block, step, vector;
      const int32_t channel_part = by_all.Divide(by_blocks.Divide(row / 16, &col_block), &step);
      const int32_t tap_row = by_row.Divide(step, &step), entry = step * 2 + row / 8 % 2;
      if (entry >= steps.entries) {
        ptx::CopyAsync(ptx::SharedAddress(rows + row), from, false);
        continue;
      }
      const int32_t tap_of_row = by_vectors.Divide(entry, &vector);
      if constexpr (kPacked) {
        const Tap* first_tap = p.taps + block.residue().first_tap + tap_row * steps.taps + tap_of_row * p.tile.packed;
        FillPackedRow(p, block, origin, first_tap, vector * kVector<T> - origin.PackedSkip(p), col_block * 8, row % 8,
                      rows + row);
        continue;
      }
      const T* tap = from + p.taps[block.residue().first_tap + tap_row * steps.taps + tap_of_row].filter_delta;
      vector += FirstVector<T>(p, col_block * 8 / kSetCols * kSetCols) + channel_part * p.src_pixel.vectors;
      FillRow(p, offsets, tap, vector * kVector<T>, col_block * 8, row % 8, rows + row);
    }
    ptx::CommitCopies();
    ptx::WaitForCopies<0>();
  }

  // A row for each source channel becomes a row for each output channel, in their place. For tiles that read them again
  // and again. To be called by all threads, after the barrier.
  static __device__ __forceinline__ void Transpose(const DirectParams& p, const FilterSteps& steps, Row* rows) {
    static_assert(kTraits<T>.bytes == 2 || !kTransposes, "ldmatrix transposes elements of 16 bits");
    const int matrices = p.channel_parts * steps.all * p.col_blocks * 2, lane = threadIdx.x % 32;
    for (int first = threadIdx.x / 32 * 4; first < matrices; first += kThreads / 8) {
      uint32_t four[4];
      ptx::LoadMatrices<true>(four, ptx::SharedAddress(rows + min(first + lane / 8, matrices - 1) * 8 + lane % 8));
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4 && first + i < matrices; ++i) {
        reinterpret_cast<uint32_t*>(rows + (first + i) * 8 + lane / 4)[lane % 4] = four[i];
      }
    }
  }

 private:
  // Of int8 and float32, if output channels are contiguous. ldmatrix transposes neither, so they are transposed here: a
  // thread reads four output channels of a vector's source channels. Of int8 they are columns of two blocks.
  static __device__ __forceinline__ void FillFours(const DirectParams& p, const DirectBlock& block,
                                                   const FilterSteps& steps, Row* rows) {
    constexpr int kBlocks = kInFours<SumOf<T>> ? 2 : 1, kUnits = 2 * kBlocks;  // that share channels; threads for them
    static_assert(kTile.set % kBlocks == 0);
    constexpr int kSetCols = kTile.set * 8;
    const FilterOffsets offsets(p, block.channels, p.block_groups > 0);
    const FastDivmod<int32_t> by_units(p.col_blocks / kBlocks), by_all(steps.all), by_row(steps.of_row),
        by_vectors(p.entry_vectors);
#pragma unroll 1
    for (int at = threadIdx.x; at < p.channel_parts * steps.all * p.col_blocks * 4; at += kThreads) {
      int32_t blocks, step, vector;
      const int32_t channel_part = by_all.Divide(by_units.Divide(at / (2 * kUnits), &blocks), &step);
      const int32_t out = (blocks * kUnits + at % kUnits) * 4;
      const int32_t tap_row = by_row.Divide(step, &step), entry = step * 2 + at / kUnits % 2;
      Pack<T, 4> of_ins[kVector<T>] = {};
      if (entry < steps.entries) {
        const int32_t tap = tap_row * steps.taps + by_vectors.Divide(entry, &vector);
        vector += FirstVector<T>(p, out / kSetCols * kSetCols) + channel_part * p.src_pixel.vectors;
        const FilterOffset col = offsets.OfOut(out);
        const T* from = static_cast<const T*>(p.rhs) + p.taps[block.residue().first_tap + tap].filter_delta + col.at;
#pragma unroll
        for (int i = 0; i < kVector<T>; ++i) {
          const FilterOffset in = offsets.OfIn(vector * kVector<T> + i);
          if (in.group == col.group) of_ins[i] = *reinterpret_cast<const Pack<T, 4>*>(from + in.at);
        }
      }
      Row of_outs[4];
      Transpose(of_ins, of_outs);
      Row* to = rows + at / (2 * kUnits) * (16 * kBlocks) + at / kUnits % 2 * 8;
#pragma unroll
      for (int i = 0; i < 4; ++i) to[RowOfChannel(at % kUnits, i)] = of_outs[i];
    }
  }

  // The row of a thread's i-th channel.
  static __device__ __forceinline__ int32_t RowOfChannel(int32_t unit, int i) {
    static_assert(ChannelOfCol<int32_t>(2) == 4 && ChannelOfCol<int32_t>(8) == 2 && ChannelOfCol<int32_t>(9) == 3);
    return kInFours<SumOf<T>> ? i / 2 * 16 + unit * 2 + i % 2 : unit * 4 + i;
  }

  static __device__ __forceinline__ void Transpose(const Pack<T, 4> (&of_ins)[kVector<T>], Row (&of_outs)[4]) {
    if constexpr (kTraits<T>.bytes == 1) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = *reinterpret_cast<const uint32_t*>(&of_ins[i * 4 + j]);
        TransposeBytes(words);
#pragma unroll
        for (int j = 0; j < 4; ++j) reinterpret_cast<uint32_t*>(&of_outs[j])[i] = words[j];
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVector<T>; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) of_outs[j].v[i] = Multiplied(of_ins[i].v[j]);
      }
    }
  }

  // As it is multiplied: no finite number becomes infinite.
  static __device__ __forceinline__ T Multiplied(T number) {
    if constexpr (std::is_same_v<T, float>) {
      return __uint_as_float(ptx::RoundToFiniteTf32(number));
    } else {
      return number;
    }
  }

  // A vector of an output channel's source channels; the other way round, if output channels are contiguous.
  static __device__ __forceinline__ void FillRow(const DirectParams& p, const FilterOffsets& offsets, const T* tap,
                                                 int32_t in, int32_t out, int32_t row, Row* to) {
    if constexpr (!kOfHalves) return FillChannel(p, offsets, tap, in, ChannelOfCol<SumOf<T>>(out + row), to);
    if (p.filter_order == FilterOrder::kNone) {
#pragma unroll 1
      for (int i = 0; i < kVector<T>; ++i) {
        const int64_t at = offsets.Of(in + i, out + row);
        reinterpret_cast<T*>(to)[i] = at < 0 ? T(0.0f) : tap[at];
      }
      return;
    }
    int32_t first = 0, last = kVector<T>;
    const int64_t at =
        p.filter_order == FilterOrder::kIns ? offsets.Of(in, out + row) : offsets.OfRow(in + row, out, &first, &last);
    if (at < 0 || (first <= 0 && last >= kVector<T>)) {
      ptx::CopyAsync(ptx::SharedAddress(to), at < 0 ? tap : tap + at, at >= 0);
      return;
    }
    Row pack = *reinterpret_cast<const Row*>(tap + at);
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      if (i < first || i >= last) pack.v[i] = T(0.0f);
    }
    *to = pack;
  }

  // A vector of an output channel's source channels, of int8 or float32.
  static __device__ __forceinline__ void FillChannel(const DirectParams& p, const FilterOffsets& offsets, const T* tap,
                                                     int32_t in, int32_t out, Row* to) {
    Row pack;
    if (p.filter_order == FilterOrder::kIns) {
      const int64_t at = offsets.Of(in, out);
      pack = at < 0 ? Row{} : *reinterpret_cast<const Row*>(tap + at);
    } else {
#pragma unroll
      for (int i = 0; i < kVector<T>; ++i) {  // all loads are under way
        const int64_t at = offsets.Of(in + i, out);
        pack.v[i] = at < 0 ? T{} : tap[at];
      }
    }
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) pack.v[i] = Multiplied(pack.v[i]);
    *to = pack;
  }

  // The same with packed K, which has one group: from a (tap, channel) on. Zeros where there are none.
  static __device__ __forceinline__ void FillPackedRow(const DirectParams& p, const DirectBlock& block,
                                                       const HaloOrigin& origin, const Tap* first_tap, int32_t first,
                                                       int32_t out, int32_t row, Row* to) {
    const FilterStrides& strides = p.problem.filter;
    const int32_t channels = static_cast<int32_t>(p.problem.in_channels);
    const auto exists = [&](int32_t at, int32_t col) {
      return at >= 0 && at < p.tile.packed * channels && col < block.channels.dst_count;
    };
    const auto address = [&](int32_t at, int32_t col) {
      const Tap& tap = first_tap[origin.TapOfPacked(p, first_tap, at / channels)];
      return static_cast<const T*>(p.rhs) + tap.filter_delta + at % channels * strides.in +
             (block.channels.dst + col) * strides.out;
    };
    if (p.filter_order == FilterOrder::kOuts) {
      const bool is_there = exists(first + row, out);
      ptx::CopyAsync(ptx::SharedAddress(to), is_there ? address(first + row, out) : p.rhs, is_there);
      return;
    }
    Row pack;
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      pack.v[i] = exists(first + i, out + row) ? *address(first + i, out + row) : T(0.0f);
    }
    *to = pack;
  }
};

}  // namespace jaxconv
