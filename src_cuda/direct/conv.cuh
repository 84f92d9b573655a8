// The direct family's conv on tensor cores: M is positions, N output channels, K entries.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "direct/filter.cuh"
#include "direct/halo_tiles.cuh"
#include "direct/params.cuh"
#include "direct/pipeline.cuh"
#include "direct/results.cuh"
#include "direct/row_streaming.cuh"
#include "direct/tables.cuh"

namespace jaxconv {

// A warp's sums: kPositions blocks of 16 positions by kBlocks of eight output channels.
template <typename T, DirectTile kTile, bool kOdd>
class DirectSums {
  static constexpr int kPositions = kTile.positions, kBlocks = kTile.col_blocks();
  static constexpr bool kPacked = kTile.packed > 0;
  using Sum = SumOf<T>;
  static_assert(kTraits<T>.mma_depth == 2 * kVector<T>, "a multiplication takes the vectors of two entries");
  static_assert(!kPacked || kVector<T> == kPackedVector, "a word of a packed row is two elements of 16 bits");

 public:
  __device__ __forceinline__ DirectSums(const DirectParams& p, int first_position, int first_col)
      : first_position_(first_position),
        first_col_(first_col),
        half_bytes_(8 * p.position_elements * kTraits<T>.bytes) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const int position = first_position + i * 16;
      from_[i] = kPacked ? PackedOf<false>(p, position + lane / 4) : PixelOf<false>(p, position + lane % 16);
    }
#pragma unroll
    for (int s = 0; s < kTile.sets; ++s) first_vector_[s] = FirstVector<T>(p, first_col + s * kTile.set * 8) * 16;
  }

  __device__ __forceinline__ void Clear() { ClearSums(sum_); }

  // False if a source pixel became infinite when it was rounded. Such a pixel makes the sums of all columns that read
  // it infinite, so one column of each set is enough to look at.
  __device__ __forceinline__ bool AreFinite() const {
    float all = 0;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int s = 0; s < kTile.sets; ++s) all += sum_[i][s * kTile.set][0] + sum_[i][s * kTile.set][2];
    }
    return isfinite(all);
  }

  // Adds the products of a channel part's entries. While two are multiplied for a set, the next ones are read.
  // kFinite: no number of float32 becomes infinite where it is rounded, which takes more instructions.
  template <bool kFinite = false>
  __device__ __forceinline__ void Multiply(const DirectParams& p, uint32_t entries, uint32_t box, uint32_t filter,
                                           int steps) {
    if (steps == 0) return;
    constexpr int kSets = kTile.sets;
    static_assert(kSets <= 2, "operands are read alternately to two places");
    const int step_bytes = p.col_blocks * kColBlockBytes, count = steps * kSets;
    filter += first_col_ / 8 * kColBlockBytes + threadIdx.x % 32 * 16;
    if (!kPacked) entries += threadIdx.x % 32 / 16 * kEntryBytes;
    Operands first, second;
    uint32_t from = ReadEntry(entries, 0) + box, next = ReadEntry(entries, min(1, steps - 1) * 2) + box;
    int read = 1;  // steps whose entries have been read, less one
    const auto read_second = [&] {
      if constexpr (kSets == 2) return Read(1, from, filter, second);
      filter += step_bytes;
      Read(0, next, filter, second);
      from = ReadEntry(entries, min(++read, steps - 1) * 2) + box;
    };
    const auto read_first = [&] {
      filter += step_bytes;
      if constexpr (kSets == 2) from = next;
      Read(0, from, filter, first);
      next = ReadEntry(entries, min(++read, steps - 1) * 2) + box;
    };
    Read(0, from, filter, first);
    int at = 0;
#pragma unroll 1
    for (; at + 2 < count; at += 2) {
      read_second();
      MultiplyAdd<kFinite>(0, first);
      read_first();
      MultiplyAdd<kFinite>(kSets - 1, second);
    }
    if (at + 1 == count) return MultiplyAdd<kFinite>(0, first);
    read_second();
    MultiplyAdd<kFinite>(0, first);
    MultiplyAdd<kFinite>(kSets - 1, second);
  }

  // Turns complete sums into results. Those of integers are float32, whose bits take the sums' place.
  template <bool kHasEpilogue>
  __device__ __forceinline__ void End(const DirectParams& p, const char* shared, const TileEnd& end,
                                      const EpilogueOf<Sum, kHasEpilogue>& epilogue, int32_t dst_count) {
    if constexpr (kHasEpilogue && std::is_same_v<Sum, float>) {
      EndAs(p, shared, end, epilogue, dst_count, sum_);
    } else if constexpr (kHasEpilogue) {
      Results results;
      EndAs(p, shared, end, epilogue, dst_count, results);
#pragma unroll
      for (int at = 0; at < kPositions * kBlocks * 4; ++at) {
        const int i = at / (kBlocks * 4), j = at / 4 % kBlocks;
        sum_[i][j][at % 4] = FromBits<Sum>(BitsOf(results[i][j][at % 4]));
      }
    }
  }

  // Rounds the sums, or the results of type Result in their place, and stores them. `results` is the warp's part of
  // shared memory.
  template <typename Result, typename Out>
  __device__ __forceinline__ void Store(const DirectParams& p, const char* shared, Out* results, const TileEnd& end,
                                        int dst_count) const {
    using Rows = ResultRows<Out, kBlocks, kInFours<Sum>>;
    const Position* positions = reinterpret_cast<const Position*>(shared + p.offsets.positions) + first_position_;
    Out* out = static_cast<Out*>(p.out) + end.to + first_col_;
    Position all[kPositions][Rows::kVectors];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int v = 0; v < Rows::kVectors; ++v) all[i][v] = positions[i * 16 + Rows::Row(v)];
    }
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      __syncwarp();
      Rows::template Write<Result>(sum_[i], results);
      __syncwarp();
#pragma unroll
      for (int v = 0; v < Rows::kVectors; ++v) {
        const bool is_there = end.Has(all[i][v]) && first_col_ + Rows::Col(v) < dst_count;
        Rows::Store(results, v, is_there, out + all[i][v].to);
      }
    }
  }

 private:
  using Results = float[kPositions][kBlocks][4];

  __device__ __forceinline__ void EndAs(const DirectParams& p, const char* shared, const TileEnd& end,
                                        const EpilogueOf<Sum, true>& epilogue, int32_t dst_count,
                                        Results& results) const {
    ptx::Keep(dst_count);  // or the compiler would hold the bias in registers that sums need
    EndSums([&] { ScaleSums(epilogue, first_col_, dst_count, sum_, results); },
            [&] {
              if (!epilogue.HasResidual()) return;
              WithResultType<T, true, kRoundsToInt8<T, kTile>>(p.out_type, [&](auto type) {
                AddResidual<decltype(type)>(p, shared, end, epilogue, dst_count, results);
              });
            },
            [&] { epilogue.ActivateAll(reinterpret_cast<float (&)[kPositions * kBlocks * 4]>(results)); },
            [&] {
              if constexpr (kTile.of_bytes() || kRoundsToInt8<T, kTile>) {
                if (p.out_type == DType::kS8) ScaleResults(epilogue, first_col_, dst_count, results);
              }
            });
  }

  template <typename Out>
  __device__ __forceinline__ void AddResidual(const DirectParams& p, const char* shared, const TileEnd& end,
                                              const EpilogueOf<Sum, true>& epilogue, int32_t dst_count,
                                              Results& results) const {
    const Position* positions = reinterpret_cast<const Position*>(shared + p.offsets.positions) + first_position_;
    const Out* const residual = epilogue.template ResidualAs<Out>() + end.to;
    const ResidualAdder<float> add = epilogue.Adder();
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Position at = positions[i * 16 + half * 8 + threadIdx.x % 32 / 4];
        if (!end.Has(at)) continue;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const Out* const of_pair = residual + at.to + LaneChannel<Sum>(first_col_, j, dst_count);
          float* const pair = &results[i][j][2 * half];
#pragma unroll
          for (int k = 0; k < 2; ++k) pair[k] = add(pair[k], static_cast<float>(of_pair[k]));
        }
      }
    }
  }

  // Of two entries, for a set.
  struct Operands {
    uint32_t a[kPositions][4];
    uint32_t b[kTile.set][2];
  };

  __device__ __forceinline__ void Read(int set, uint32_t from, uint32_t filter, Operands& to) const {
    filter += set * kTile.set * kColBlockBytes;
    if constexpr (kTile.set == 1) {
      ptx::LoadTwoMatrices<false>(to.b[0][0], to.b[0][1], filter);
    } else {
      static_assert(kTile.set % 2 == 0);
#pragma unroll
      for (int j = 0; j < kTile.set; j += 2) {
        uint32_t four[4];
        ptx::LoadMatrices<false>(four, filter + j * kColBlockBytes);
        to.b[j][0] = four[0], to.b[j][1] = four[1], to.b[j + 1][0] = four[2], to.b[j + 1][1] = four[3];
      }
    }
    from ^= first_vector_[set];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      if constexpr (kPacked) {
        PackedLane<kOdd>(from_[i]).LoadTwo(to.a[i], from, half_bytes_, false);
      } else {
        ptx::LoadMatrices<false>(to.a[i], from + from_[i]);
      }
    }
  }

  // The filter has been rounded in shared memory.
  template <bool kFinite>
  __device__ __forceinline__ void MultiplyAdd(int set, Operands& of) {
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      if constexpr (kTile.of_floats()) {
#pragma unroll
        for (uint32_t& word : of.a[i]) {
          const float number = __uint_as_float(word);
          word = kFinite ? ptx::RoundToFiniteTf32(number) : ptx::RoundToTf32(number);
        }
      }
#pragma unroll
      for (int j = 0; j < kTile.set; ++j) {
        ptx::MultiplyAdd<T>(sum_[i][set * kTile.set + j], of.a[i], of.b[j][0], of.b[j][1]);
      }
    }
  }

  int first_position_;
  int first_col_;
  uint32_t half_bytes_;                // with packed K: from a position to the eighth after it
  int32_t from_[kPositions];           // of the lane's position in each block
  uint32_t first_vector_[kTile.sets];  // bytes
  Sum sum_[kPositions][kBlocks][4];
};

// kOdd: with packed K, positions are an odd number of elements apart.
template <typename T, bool kHasEpilogue, int kTileIndex, bool kOdd>
__global__ void __launch_bounds__(32 * kDirectTiles[kTileIndex].conv_warps(), kDirectTiles[kTileIndex].conv_blocks())
    DirectConv(const __grid_constant__ DirectParams p) {
  constexpr DirectTile kTile = kDirectTiles[kTileIndex];
  constexpr int kThreads = 32 * kTile.warps;  // consumers
  constexpr bool kStagesRows = kTile.row_stream.stages_rows();
  extern __shared__ __align__(1024) char shared[];
  const ConvProblem& q = p.problem;
  PrefetchTables(p, q.tap_count * q.groups * q.in_channels * q.out_channels * kTraits<T>.bytes);
  const Box box = SourceBox(p, kTile.of_halves() && p.has_rows);
  box.Prefetch();
  const DirectBlock block(p, 1, kVector<T>);
  if (block.worker >= block.tiles) return;
  const uint32_t base = ptx::SharedAddress(shared);
  const HaloOrigin origin(p, block.residue());
  std::conditional_t<kStagesRows, RowPipeline, DirectPipeline> read(base + p.offsets.barriers);
  if (threadIdx.x == 0) read.Init(kBoxArrivals, kTile.warps);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  HaloTiles<T, (kTile.packed > 0)> halo_tiles(block, DirectPipeline(base + p.offsets.barriers));
  const auto copy = [&] { halo_tiles.CopyNext(p, block, origin, box, base); };
  __syncthreads();
  if constexpr (kStagesRows) {  // a consumer that copies, too, would be late, and all others would wait for it
    if (warp == kTile.warps) return CopyStreamedRows<T>(p, block, origin, box, read, base);
  } else if (warp == 0) {
    copy();
  }
  const FilterSteps steps(block.residue().tap_count, p.entry_vectors, p.row_taps, p.tile.packed);
  if (kTile.streams_rows()) CheckRowsOfTaps(p, block.residue(), origin, steps, kTile.row_stream);
  if (kTile.packed > 0) CheckPacked(p, block.residue(), origin);
  FillTables<kThreads, kTile.streams_rows(), (kTile.packed > 0)>(p, block.residue(), origin, shared);
  auto* filter = reinterpret_cast<FilterRow<T>*>(shared + p.offsets.filter);
  FilterMatrices<T, kTile>::Fill(p, block, origin, steps, filter);
  ptx::NamedBarrierSync<kThreads>();
  if (FilterMatrices<T, kTile>::kTransposes && p.filter_order == FilterOrder::kOuts) {
    FilterMatrices<T, kTile>::Transpose(p, steps, filter);
    ptx::NamedBarrierSync<kThreads>();
  }

  const int warps_across = p.col_blocks / kTile.col_blocks();
  const int first_position = warp / warps_across * kTile.positions * 16;
  const int first_col = warp % warps_across * kTile.col_blocks() * 8;
  const EpilogueOf<SumOf<T>, kHasEpilogue> epilogue(p.epilogue, block.channels.dst);
  if constexpr (kTile.streams_rows()) {
    RowStreaming<T, kTile, kOdd> streaming(p, block, origin, steps, shared, first_position, first_col);
    if (!kStagesRows) {
      ptx::FenceForTma();  // the filter's place is the second stage's
      ptx::NamedBarrierSync<kThreads>();
    }
#pragma unroll 1
    for (int32_t tile = block.worker; tile < block.tiles; tile += p.workers) {
      if (!kStagesRows) {
        if (warp == 0) copy();
        read.WaitUntilFull();
      }
      const TileEnd end(p, block, block.CoordOf(p, tile));
      std::conditional_t<kStagesRows, StagedRows, HaloRows> rows(read, base, p.offsets.stage, streaming.StepBytes());
      const auto compute = [&](auto type) {
        streaming.template Compute<decltype(type)>(p, block.channels, end, epilogue, rows);
      };
      WithResultType<T, kHasEpilogue, kRoundsToInt8<T, kTile>>(p.out_type, compute);
      if (!kStagesRows) read.Release();
    }
  } else {
    DirectSums<T, kTile, kOdd> sums(p, first_position, first_col);
    const int part_bytes = steps.all * p.col_blocks * kColBlockBytes;
#pragma unroll 1
    for (int32_t tile = block.worker; tile < block.tiles; tile += p.workers) {
      sums.Clear();
#pragma unroll 1
      for (int channel_part = 0; channel_part < p.channel_parts; ++channel_part) {
        if (warp == 0) copy();
        read.WaitUntilFull();
        const uint32_t entries = base + p.offsets.entries, stage = base + read.stage() * p.offsets.stage,
                       matrices = base + p.offsets.filter + channel_part * part_bytes;
        sums.Multiply(p, entries, stage, matrices, steps.all);
        if constexpr (kTile.of_floats()) {  // there is one channel part
          if (!__all_sync(0xffffffff, sums.AreFinite())) {
            sums.Clear();
            sums.template Multiply<true>(p, entries, stage, matrices, steps.all);
          }
        }
        read.Release();
      }
      const TileEnd end(p, block, block.CoordOf(p, tile));
      sums.End(p, shared, end, epilogue, block.channels.dst_count);
      using Sum = SumOf<T>;
      WithResultType<T, kHasEpilogue, kRoundsToInt8<T, kTile>>(p.out_type, [&](auto type) {
        using Out = decltype(type);
        using Result = typename EpilogueOf<Sum, kHasEpilogue>::Result;
        Out* results = reinterpret_cast<Out*>(shared + p.offsets.results);
        sums.template Store<Result>(p, shared,
                                    results + warp * ResultRows<Out, kTile.col_blocks(), kInFours<Sum>>::kElements, end,
                                    block.channels.dst_count);
      });
    }
  }
}

}  // namespace jaxconv
