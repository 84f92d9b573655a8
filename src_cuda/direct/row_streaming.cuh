// The direct family's conv with row streaming: a warp keeps the filter in registers and goes down the rows of the
// source, a stream. It reads a source row once, and multiplies it with all rows of taps that meet it. Each is for
// another destination row, whose sums are under way. Other kernels read the source anew for each row of taps.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "direct/filter.cuh"
#include "direct/params.cuh"
#include "direct/pipeline.cuh"
#include "direct/results.cuh"
#include "direct/tables.cuh"

namespace jaxconv {

// Where a stream finds the source rows of its steps: in a halo tile, so many bytes apart.
class HaloRows {
 public:
  __device__ __forceinline__ HaloRows(const DirectPipeline& read, uint32_t stages, uint32_t stage_bytes, uint32_t apart)
      : first_(stages + read.stage() * stage_bytes), apart_(apart) {}

  // The row of the first step, and the row behind a step's.
  __device__ __forceinline__ uint32_t First() const { return first_; }
  __device__ __forceinline__ uint32_t Next(uint32_t row) const { return row + apart_; }
  // The end of a step.
  __device__ __forceinline__ void Pass() {}

 private:
  uint32_t first_;
  uint32_t apart_;
};

// The same where stages are rows. The warp waits for each, and releases it.
class StagedRows {
 public:
  __device__ __forceinline__ StagedRows(RowPipeline& read, uint32_t stages, uint32_t stage_bytes, uint32_t)
      : read_(read), stages_(stages), stage_bytes_(stage_bytes) {}

  __device__ __forceinline__ uint32_t First() const { return Wait(read_); }
  __device__ __forceinline__ uint32_t Next(uint32_t) const {
    RowPipeline next = read_;
    next.Advance();
    return Wait(next);
  }
  __device__ __forceinline__ void Pass() { read_.Release(); }

 private:
  __device__ __forceinline__ uint32_t Wait(const RowPipeline& pipeline) const {
    pipeline.WaitUntilFull();
    return stages_ + pipeline.stage() * stage_bytes_;
  }

  RowPipeline& read_;
  uint32_t stages_;
  uint32_t stage_bytes_;
};

template <typename T, DirectTile kTile, bool kOdd>
class RowStreaming {
  static constexpr int kPositions = kTile.positions, kBlocks = kTile.col_blocks(), kSet = kTile.set;
  static constexpr int kTapRows = kTile.row_stream.rows, kStep = kTile.row_stream.step, kLags = kTile.row_stream.lags();
  static constexpr int kRowSteps = kTile.row_stream.steps;
  static constexpr bool kPacked = kTile.packed > 0;
  static_assert(!kPacked || (kTile.sets == 1 && (kTile.packed + 1) / 2 == kRowSteps && kTile.packed > 1),
                "a row's steps take two vectors each, and only the last may have one alone");
  using Sum = SumOf<T>;
  static constexpr bool kMayLackRow = kTile.row_stream.least_rows() < kTapRows;
  static constexpr int kRowReads = kTile.sets * kRowSteps, kReads = kStep * kRowReads;  // of a source row, of a step
  // Reads of the source ahead: as many as registers allow beside the filter. Of eight warps a lane has the most.
  static constexpr int kAhead = kReads == 2 || kReads == 5                      ? kReads
                                : kReads == 6 && kTile.of_bytes()               ? 2
                                : kReads > 6 && !kTile.row_stream.stages_rows() ? 2
                                : kReads % 4 == 0                               ? 4
                                                                                : 3;
  static_assert(kReads % kAhead == 0 || (kReads % kAhead == 1 && kAhead == 2), "reads go round among their registers");
  // Whether registers also allow to store the results of a row while the next one is multiplied.
  static constexpr bool kDelays = kTile.of_bytes() ? kReads == 2 : kAhead > 2;
  static_assert(kBlocks <= 2, "a lane stores pairs of channels of one or two blocks");
  static constexpr bool kHoldsScales = kTile.holds_scales();
  // Whether a lane has four neighbouring channels, of two blocks.
  static constexpr bool kFours = kInFours<Sum>;
  static_assert(!kFours || kBlocks == 2);
  static_assert(!kTile.row_stream.stages_rows() || (kStep == 1 && !kPacked),
                "a stage has a row of pixels of each stream");

 public:
  // To be called when the tables and the filter are in shared memory.
  __device__ __forceinline__ RowStreaming(const DirectParams& p, const DirectBlock& block, const HaloOrigin& origin,
                                          const FilterSteps& steps, const char* shared, int first_position,
                                          int first_col)
      : first_col_(first_col),
        cols_(block.channels.dst_count - first_col),
        dilation_(p.row_dilation),
        is_odd_(threadIdx.x % 2),
        lacks_row_(steps.rows < kTapRows),
        row_bytes_((p.row_dilation * p.tile.halo[2] << p.src_pixel.pitch) * 16),
        half_bytes_(8 * p.position_elements * kTraits<T>.bytes),
        positions_(reinterpret_cast<const Position*>(shared + p.offsets.positions) + first_position) {
    ptx::Keep(is_odd_);
    const uint32_t base = ptx::SharedAddress(shared), lane = threadIdx.x % 32;
    const int32_t first_row = origin.RowOfTaps(p, block.residue(), steps.rows, 0);
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      const int position = first_position + i * 16;
      if constexpr (kTile.row_stream.stages_rows()) {
        from_[i] = RowPixelOf(p, position + lane % 16);
      } else {
        from_[i] = kPacked ? PackedOf<true>(p, position + lane / 4) : PixelOf<true>(p, position + lane % 16);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowReads; ++r) {
      if constexpr (kPacked) {
        entry_[r] = ReadEntry(base + p.offsets.entries, first_row * steps.entries) + r * 32;
        continue;
      }
      const int32_t entry = min(r % kRowSteps * 2 + static_cast<int32_t>(lane / 16), steps.entries - 1);
      entry_[r] = ReadEntry(base + p.offsets.entries, first_row * steps.entries + entry) ^
                  FirstVector<T>(p, first_col + r / kRowSteps * kSet * 8) * 16;
    }
#pragma unroll
    for (int at = 0; at < kTapRows; ++at) {
      const int32_t row = at < steps.rows ? origin.RowOfTaps(p, block.residue(), steps.rows, at) : -1;
#pragma unroll
      for (int r = 0; r < kRowReads; ++r) ReadFilter(p, base + p.offsets.filter, steps, row, r, filter_[at][r]);
    }
  }

  // Bytes of a halo tile from a step's first source row to the next one's.
  __device__ __forceinline__ uint32_t StepBytes() const { return kStep * row_bytes_; }

  // Computes an output tile. `rows`: HaloRows or StagedRows.
  template <typename Out, bool kHasEpilogue, typename Rows>
  __device__ __forceinline__ void Compute(const DirectParams& p, const Channels& channels, const TileEnd& end,
                                          const EpilogueOf<Sum, kHasEpilogue>& epilogue, Rows& rows) {
    const int32_t stream_rows = p.tile.stream, row_apart = dilation_ * p.dst_apart[1];
    Ends ends;
    Begin<Out>(end, ends);
    Out* out = static_cast<Out*>(p.out) + end.to + first_col_;
    uint32_t source[kAhead][kPositions][4], row = rows.First();
#pragma unroll
    for (int r = 0; r < kAhead; ++r) Read(row, r, source[r]);
    Rounded<Out> rounded;
    const std::conditional_t<kFours && kHasEpilogue, EpilogueOfFour<Sum, Out>, NoEpilogue> epilogue_of_four(
        p.epilogue, channels.dst + FirstOfFour(channels.dst_count));
    HeldScales<Out> scales;
    if constexpr (kHasEpilogue && kHoldsScales) scales.Load(epilogue, first_col_, first_col_ + cols_);
    const auto round = [&] {
      if constexpr (kFours) {
        RoundFours<Out, kHasEpilogue>(epilogue_of_four, end.to, ends, rounded);
      } else {
        Round(epilogue, scales, end.to, ends, rounded);
      }
    };
    const auto step = [&](auto first_lag, auto last_lag, auto next_first_lag, int32_t at) {
      const bool has_results = at >= (kDelays ? kLags : kLags - 1);
      if (kDelays && has_results) round();
      const uint32_t next = next_first_lag < kLags ? rows.Next(row) : row;
      MultiplyStep<first_lag, last_lag, next_first_lag>(row, next, source);
      rows.Pass();
      row = next;
      if (!kDelays && has_results) round();
      if (has_results) Store(rounded, out, row_apart, ends);
    };
    // At a stream's beginning and end some lags have no destination row.
    static_assert(kLags > 1, "a stream ends with steps without the first lag");
    constexpr std::make_integer_sequence<int, kLags - 1> kEdges;
    [&]<int... kAt>(std::integer_sequence<int, kAt...>) { (step(Lag<0>(), Lag<kAt>(), Lag<0>(), kAt), ...); }(kEdges);
#pragma unroll 1
    for (int32_t at = kLags - 1; at < stream_rows; ++at) step(Lag<0>(), Lag<kLags - 1>(), Lag<0>(), at);
    [&]<int... kAt>(std::integer_sequence<int, kAt...>) {
      (step(Lag<kAt + 1>(), Lag<kLags - 1>(), Lag<kAt + 2>(), stream_rows + kAt), ...);
    }(kEdges);
    if (!kDelays) return;
    round();
    Store(rounded, out, row_apart, ends);
  }

 private:
  template <int kLag>
  using Lag = std::integral_constant<int, kLag>;

  // Where the lane's results of a row go, and how many of the output tile's rows are left from there on.
  struct StreamEnd {
    int32_t to;
    int32_t rows;
  };
  using Ends = StreamEnd[kPositions][2];

  template <typename Out>
  __device__ __forceinline__ void Begin(const TileEnd& tile, Ends& ends) const {
    const int col = StoredCol<Out>();
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Position at = positions_[i * 16 + half * 8 + threadIdx.x % 32 / 4];
        const bool is_there = at.column < tile.cols && col < cols_;
        ends[i][half] = {at.to + col, is_there ? tile.rows - at.row : 0};
      }
    }
  }

  // The first of the columns that the lane stores.
  template <typename Out>
  __device__ __forceinline__ int32_t StoredCol() const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 4);
    if (kFours) return lane * 4;
    return kExchanges<Out> ? is_odd_ * 8 + lane / 2 * 4 : lane * 2;
  }

  // Two matrices for each block of output channels, read as they are multiplied. Zeros where there is no such row of
  // taps, or no such step.
  __device__ __forceinline__ void ReadFilter(const DirectParams& p, uint32_t filter, const FilterSteps& steps,
                                             int32_t row, int r, uint32_t (&to)[kSet][2]) const {
#pragma unroll
    for (auto& pair : to) pair[0] = pair[1] = 0;
    if (row < 0 || r % kRowSteps >= steps.of_row) return;
    const int32_t step = row * steps.of_row + r % kRowSteps, block = first_col_ / 8 + r / kRowSteps * kSet;
    filter += (step * p.col_blocks + block) * kColBlockBytes + threadIdx.x % 32 * 16;
#pragma unroll
    for (int j = 0; j < kSet; ++j) {
      if (kTraits<T>.bytes == 2 && p.filter_order == FilterOrder::kOuts) {
        ptx::LoadTwoMatrices<true>(to[j][0], to[j][1], filter + j * kColBlockBytes);
      } else {
        ptx::LoadTwoMatrices<false>(to[j][0], to[j][1], filter + j * kColBlockBytes);
      }
    }
  }

  // Of the step whose first source row is given.
  __device__ __forceinline__ void Read(uint32_t row, int r, uint32_t (&to)[kPositions][4]) const {
    const uint32_t from = row + r / kRowReads * row_bytes_ + entry_[r % kRowReads];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      if constexpr (kPacked) {
        PackedLane<kOdd>(from_[i]).LoadTwo(to[i], from, half_bytes_, IsHalf(r));
      } else {
        ptx::LoadMatrices<false>(to[i], from + from_[i]);
      }
    }
  }

  // What is read once is multiplied several times, so it is rounded to finite numbers at once.
  static __device__ __forceinline__ void Round(uint32_t (&words)[kPositions][4]) {
#pragma unroll
    for (auto& four : words) {
#pragma unroll
      for (uint32_t& word : four) word = ptx::RoundToFiniteTf32(__uint_as_float(word));
    }
  }

  // Whether a step of a row of taps has one vector alone.
  static constexpr bool IsHalf(int r) { return kPacked && kTile.packed % 2 == 1 && r % kRowSteps == kRowSteps - 1; }

  // Adds the products of a step's source rows to the sums of all its lags. Each lag's sums become the next one's: the
  // first multiplication reads them there. When a read has been multiplied, its registers take the next, of this step
  // or of the next step. Source rows that no row of taps meets any more are not read: they may be behind the halo tile.
  template <int kFirstLag, int kLastLag, int kNextFirstLag>
  __device__ __forceinline__ void MultiplyStep(uint32_t row, uint32_t next, uint32_t (&source)[kAhead][kPositions][4]) {
#pragma unroll
    for (int r = 0; r < kReads; ++r) {
      if constexpr (kTile.of_floats()) Round(source[r % kAhead]);
#pragma unroll
      for (int lag = kLastLag; lag >= kFirstLag; --lag) MultiplyAdd(lag, r, source[r % kAhead]);
      const bool is_next = r + kAhead >= kReads;
      const int ahead = (r + kAhead) % kReads, first_lag = is_next ? kNextFirstLag : kFirstLag;
      if (first_lag * kStep + ahead / kRowReads < kTapRows) Read(is_next ? next : row, ahead, source[r % kAhead]);
    }
    if constexpr (kReads % kAhead == 1) {  // the next step's first read is in source[1]
      static_assert(kAhead == 2);
#pragma unroll
      for (int i = 0; i < kPositions; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const uint32_t first = source[1][i][k];
          source[1][i][k] = source[0][i][k], source[0][i][k] = first;
        }
      }
    }
  }

  __device__ __forceinline__ void MultiplyAdd(int lag, int r, const uint32_t (&source)[kPositions][4]) {
    constexpr Sum kZeros[4] = {};
    const int tap_row = lag * kStep + r / kRowReads, set = r % kRowReads / kRowSteps;
    const bool is_first = r < kRowReads && r % kRowSteps == 0;  // of these blocks
    if (tap_row >= kTapRows) return;
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int j = 0; j < kSet; ++j) {
        const int block = set * kSet + j;
        Sum(&sum)[4] = sum_[lag][i][block];
        const uint32_t (&filter)[2] = filter_[tap_row][r % kRowReads][j];
        const bool is_half = IsHalf(r % kRowReads);
        if (kMayLackRow && tap_row == kTapRows - 1 && lacks_row_) {  // what is not finite would make zeros NaN
#pragma unroll
          for (int k = 0; k < 4 && is_first; ++k) sum[k] = sum_[lag - 1][i][block][k];
        } else if (is_half) {
          ptx::MultiplyAddHalf<T>(sum, source[i], filter[0]);
        } else if (!is_first) {
          ptx::MultiplyAdd<T>(sum, source[i], filter[0], filter[1]);
        } else if (lag > 0) {
          ptx::MultiplyAdd<T>(sum, sum_[lag - 1][i][block], source[i], filter[0], filter[1]);
        } else {
          ptx::MultiplyAdd<T>(sum, kZeros, source[i], filter[0], filter[1]);
        }
      }
    }
  }

  // A lane's results of a row: two positions of each block of 16, pairs of channels of each block of eight. With two
  // blocks of results of up to 16 bits a lane exchanges one pair with its neighbour, and has four channels: four lanes
  // store a sector of memory. Of int8, it has four channels of the two blocks.
  template <typename Out>
  struct Rounded {
    std::conditional_t<kFours, Pack<uint32_t, kTraits<Out>.bytes>, Pack<Out, 2>> pairs[kPositions][2]
                                                                                      [kFours ? 1 : kBlocks];
  };
  template <typename Out>
  static constexpr bool kExchanges = !kFours && kBlocks == 2 && kTraits<Out>.bytes <= 2;

  // The first of a lane's four channels. Lanes without channels get the last four that exist.
  __device__ __forceinline__ int32_t FirstOfFour(int32_t count) const {
    return min(first_col_ + static_cast<int32_t>(threadIdx.x % 4) * 4, count - 4);
  }
  // Scale, bias, and that of results of one byte, of a lane's channels.
  template <typename Out>
  struct HeldScales {
    PairScales<Sum> of_sums[kBlocks];
    float of_bytes[kBlocks][2];

    __device__ __forceinline__ void Load(const EpilogueOf<Sum, true>& epilogue, int32_t first_col, int32_t end_col) {
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        const int64_t channel = LaneChannel<Sum>(first_col, j, end_col);
        of_sums[j].Load(epilogue, channel);
        if constexpr (sizeof(Out) == 1) {
          of_bytes[j][0] = epilogue.OutScale(channel), of_bytes[j][1] = epilogue.OutScale(channel + 1);
        }
      }
    }
    __device__ __forceinline__ void ScaleBytes(float (&results)[kPositions][kBlocks][4]) const {
      static_assert(kHoldsScales, "of these tiles alone results of floats are of one byte");
#pragma unroll
      for (int at = 0; at < kPositions * kBlocks * 4; ++at) {
        const int j = at / 4 % kBlocks;
        results[at / (kBlocks * 4)][j][at % 4] *= of_bytes[j][at % 2];
      }
    }
  };
  struct NoEpilogue {
    __device__ __forceinline__ NoEpilogue(const Epilogue&, int64_t) {}
  };

  template <typename Out>
  __device__ __forceinline__ void Scale(const EpilogueOf<Sum, true>& epilogue, const HeldScales<Out>& scales,
                                        int32_t dst_count, float (&results)[kPositions][kBlocks][4]) const {
    if constexpr (kHoldsScales) {
#pragma unroll
      for (int at = 0; at < kPositions * kBlocks; ++at) {
        float (&four)[4] = results[at / kBlocks][at % kBlocks];
        scales.of_sums[at % kBlocks].Scale(four, four);
      }
    } else {
      ScaleSums(epilogue, first_col_, dst_count, results, results);
    }
  }

  template <typename Out>
  __device__ __forceinline__ void AddResidual(const EpilogueOf<Sum, true>& epilogue, int64_t origin, const Ends& ends,
                                              int32_t dst_count, float (&results)[kPositions][kBlocks][4]) const {
    const Out* const residual = epilogue.template ResidualAs<Out>() + origin - StoredCol<Out>();
    const ResidualAdder<float> add = epilogue.Adder();
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        bool has_position = ends[i][half].rows > 0;  // an odd lane may store columns that do not exist
        if (kExchanges<Out>) has_position = __shfl_sync(0xffffffff, has_position, threadIdx.x % 32 & ~1);
        if (!has_position) continue;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const Out* const of_pair = residual + ends[i][half].to + LaneChannel<Sum>(first_col_, j, dst_count);
          float* const pair = results[i][j] + 2 * half;
#pragma unroll
          for (int k = 0; k < 2; ++k) pair[k] = add(pair[k], static_cast<float>(of_pair[k]));
        }
      }
    }
  }

  // The results of a stream's row. `origin`: of the output tile.
  template <typename Out, bool kHasEpilogue>
  __device__ __forceinline__ void Round(const EpilogueOf<Sum, kHasEpilogue>& epilogue, const HeldScales<Out>& scales,
                                        int64_t origin, const Ends& ends, Rounded<Out>& rounded) const {
    int32_t dst_count = first_col_ + cols_;
    if constexpr (kHasEpilogue) ptx::Keep(dst_count);  // or the compiler would hold the bias's address, too
    float results[kPositions][kBlocks][4];
#pragma unroll
    for (int at = 0; at < kPositions * kBlocks * 4; ++at) {
      const int i = at / (kBlocks * 4), j = at / 4 % kBlocks;
      results[i][j][at % 4] = sum_[kLags - 1][i][j][at % 4];
    }
    if constexpr (kHasEpilogue) {
      EndSums([&] { Scale(epilogue, scales, dst_count, results); },
              [&] {
                if (epilogue.HasResidual()) AddResidual<Out>(epilogue, origin, ends, dst_count, results);
              },
              [&] { epilogue.ActivateAll(reinterpret_cast<float (&)[kPositions * kBlocks * 4]>(results)); },
              [&] {
                if constexpr (sizeof(Out) == 1) scales.ScaleBytes(results);
              });
    }
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Pack<Out, 2>(&pairs)[kBlocks] = rounded.pairs[i][half];
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          const float* const pair = results[i][j] + 2 * half;
          pairs[j] = {RoundTo<Out>(pair[0]), RoundTo<Out>(pair[1])};
        }
        if constexpr (kExchanges<Out>) {
          const uint32_t other = __shfl_xor_sync(0xffffffff, is_odd_ ? Word(pairs[0]) : Word(pairs[1]), 1);
          (is_odd_ ? pairs[0] : pairs[1]) = *reinterpret_cast<const Pack<Out, 2>*>(&other);
        }
      }
    }
  }

  // The same of a lane's four channels. `epilogue`: EpilogueOfFour, if there is an epilogue.
  template <typename Out, bool kHasEpilogue, typename Epilogue>
  __device__ __forceinline__ void RoundFours(const Epilogue& epilogue, int64_t origin, const Ends& ends,
                                             Rounded<Out>& rounded) const {
    constexpr int kRows = kPositions * 2;
    Sum sums[kRows][4];
#pragma unroll
    for (int at = 0; at < kRows * 4; ++at) {
      sums[at / 4][at % 4] = sum_[kLags - 1][at / 8][at % 4 / 2][at / 4 % 2 * 2 + at % 2];
    }
    if constexpr (kHasEpilogue) {
      float results[kRows][4];
      epilogue(sums, results, [&](int row) {
        const StreamEnd& end = ends[row / 2][row % 2];
        return end.rows > 0 ? origin + first_col_ + end.to : -1;
      });
#pragma unroll
      for (int row = 0; row < kRows; ++row) rounded.pairs[row / 2][row % 2][0] = RoundFour<Out>(results[row]);
    } else {
#pragma unroll
      for (int row = 0; row < kRows; ++row) rounded.pairs[row / 2][row % 2][0] = RoundFour<Out>(sums[row]);
    }
  }

  // The next row of each stream.
  template <typename Out>
  __device__ __forceinline__ void Store(const Rounded<Out>& rounded, Out* out, int32_t row_apart, Ends& ends) const {
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto& pairs = rounded.pairs[i][half];
        StreamEnd& end = ends[i][half];
        if constexpr (kFours) {
          using Words = Pack<uint32_t, kTraits<Out>.bytes>;
          if (end.rows > 0) *reinterpret_cast<Words*>(out + end.to) = pairs[0];
        } else if constexpr (kExchanges<Out>) {
          const Pack<Out, 4> four{pairs[0].v[0], pairs[0].v[1], pairs[1].v[0], pairs[1].v[1]};
          if (end.rows > 0) *reinterpret_cast<Pack<Out, 4>*>(out + end.to) = four;
        } else {
#pragma unroll
          for (int j = 0; j < kBlocks; ++j) {
            const bool is_there = end.rows > 0 && (j == 0 || cols_ > 8);
            if (is_there) *reinterpret_cast<Pack<Out, 2>*>(out + end.to + j * 8) = pairs[j];
          }
        }
        end.to += row_apart;
        end.rows -= dilation_;
      }
    }
  }

  template <typename Out>
  static __device__ __forceinline__ uint32_t Word(const Pack<Out, 2>& pair) {
    return *reinterpret_cast<const PairBits<Out>*>(&pair);
  }

  int first_col_;
  int cols_;  // from the first one on
  int32_t dilation_;
  int32_t is_odd_;       // whether the lane is
  bool lacks_row_;       // whether the class has one row of taps less than the tile
  uint32_t row_bytes_;   // from a source row to the next that this stream reads
  uint32_t half_bytes_;  // with packed K: from a position to the eighth after it
  const Position* positions_;
  int32_t from_[kPositions];  // of the lane's position in each block
  uint32_t entry_[kRowReads];
  uint32_t filter_[kTapRows][kRowReads][kSet][2];
  Sum sum_[kLags][kPositions][kBlocks][4];
};

}  // namespace jaxconv
