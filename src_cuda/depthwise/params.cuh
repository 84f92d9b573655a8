// What a kernel of the depthwise family is launched with, and a thread block's part of it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "common/epilogue.cuh"
#include "common/family.h"
#include "common/fast_division.h"
#include "depthwise/params.h"

namespace jaxconv {

struct DepthwiseParams : DepthwiseShape {
  Epilogue epilogue;     // of a conv
  float* gradient_sums;  // of a wgrad: those of each worker, by channels; null: of none
};

// The TMA descriptors of the operands.
struct DepthwiseMaps {
  CUtensorMap source;
  CUtensorMap strips;    // the destination, or its gradient
  CUtensorMap residual;  // if there is one
};

// A number of a tile's rows, as rows of an image. Strided rows have no distance.
__device__ __forceinline__ int32_t RowsApart(const DepthwiseParams& p, const DepthwiseTile& tile, int32_t rows) {
  return tile.step == 1 && tile.period == 1 ? rows * p.row_apart : rows;
}

// The rows of the stream that a thread block has: as many as the others, or one less.
struct DepthwiseRange {
  int32_t begin;
  int32_t end;

  __device__ __forceinline__ DepthwiseRange(const DepthwiseParams& p, int32_t worker) {
    begin = worker * p.worker_rows + min(worker, p.longer_workers);
    end = begin + p.worker_rows + (worker < p.longer_workers);
  }
};

// What a tile takes of the window at a time: all of it, or a window part that begins at this tap.
struct WindowPart {
  int32_t number = 0;
  int32_t depth = 0;  // planes
  int32_t step = 0;   // steps of rows
  int32_t col = 0;    // source pixels

  WindowPart() = default;
  __device__ __forceinline__ WindowPart(const DepthwiseParams& p, const DepthwiseTile& tile, int32_t n) {
    if (!tile.in_parts) return;
    const int32_t rows = n / p.col_parts;
    number = n;
    depth = rows / p.row_parts;
    step = rows % p.row_parts * tile.lags;
    col = n % p.col_parts * p.part_cols;
  }

  // The next one, without divisions.
  __device__ __forceinline__ WindowPart Next(const DepthwiseParams& p, const DepthwiseTile& tile) const {
    WindowPart next = *this;
    ++next.number;
    next.col += p.part_cols;
    if (next.col == p.col_parts * p.part_cols) next.col = 0, next.step += tile.lags;
    if (next.step == p.row_parts * tile.lags) next.step = 0, ++next.depth;
    return next;
  }
};

// The source plane of a depth of the window for a plane of the destination, or -1. Of a dilated input, depths count the
// source's planes, and in them the phases that see them.
__device__ __forceinline__ int32_t SourceDepth(const DepthwiseParams& p, int32_t dst_depth, int32_t depth) {
  const ConvProblem& q = p.problem;
  const int32_t period = static_cast<int32_t>(q.period[0]);
  if (period > 1) {
    if (dst_depth % period != depth % period) return -1;
    dst_depth /= period, depth /= period;
  }
  const int32_t at = dst_depth * static_cast<int32_t>(q.step[0]) + depth + p.first_depth;
  return at >= 0 && at < q.src_size[0] ? at : -1;
}

// A tile's coordinates. It begins at a row of the stream and ends before a thread block's end.
struct DepthwiseTileCoord {
  int32_t image;      // or the first plane
  int32_t images;     // that exist; 0: of no tile
  int32_t first_row;  // and the row behind the last, of a class's positions that are apart
  int32_t last_row;
  int32_t row_phase;  // of them: the first row of the destination
  int32_t col;        // of the destination

  DepthwiseTileCoord() = default;
  __device__ __forceinline__ DepthwiseTileCoord(const DepthwiseParams& p, const DepthwiseTile& tile, int32_t begin,
                                                int32_t end) {
    const int32_t column = Quotient(begin, p.all_rows, p.all_rows_divmod);
    // Boxes are of whole rows.
    const bool is_whole = tile.by_tma;
    const int32_t images_before = is_whole ? column : Quotient(column, p.column_tiles, p.column_tiles_divmod);
    image = images_before * p.images;
    images = min(p.images, p.planes - image);
    first_row = begin - column * p.all_rows;
    last_row = min(first_row + min(p.rows, end - begin), p.all_rows);
    const int32_t number = column - images_before * p.column_tiles;  // first come those of neighbouring columns
    const int32_t rows = Quotient(number, p.col_apart, p.col_inverse);
    const int32_t cols = Quotient(rows, p.row_apart, p.row_inverse);
    row_phase = is_whole ? 0 : rows - cols * p.row_apart;
    col = is_whole ? 0 : (cols * p.strips * kStripCols - rows) * p.col_apart + number;
  }

  __device__ __forceinline__ int32_t rows() const { return last_row - first_row; }
  // The first of them, in rows of an image.
  __device__ __forceinline__ int32_t Row(const DepthwiseParams& p, const DepthwiseTile& tile) const {
    return RowsApart(p, tile, first_row) + row_phase;
  }

  // A conv's first step. It skips steps without a source row: rows that are still to receive others would get nothing
  // from them. A wgrad of pairs of rows does the same. Of a window part, rows that receive nothing are
  // left to the next window part, whose source is further down.
  __device__ __forceinline__ int32_t FirstStep(const DepthwiseParams& p, const DepthwiseTile& tile,
                                               const WindowPart& window_part) const {
    const int32_t unseen = p.unseen_rows - first_row - window_part.step;
    if (tile.in_pairs) return max(0, min(unseen / 2, tile.late_steps()));
    if (!tile.in_parts) return max(0, min(unseen, tile.lags - 1));
    const bool has_next = window_part.step + tile.lags < p.row_parts * tile.lags;
    return has_next ? max(0, unseen - (tile.lags - 1)) : 0;
  }
  // The end of a conv's steps: after the last one its rows are complete.
  __device__ __forceinline__ int32_t ConvSteps(const DepthwiseTile& tile) const { return rows() + tile.lags - 1; }
  // The same for kernels that store rows as soon as no source row is below them.
  __device__ __forceinline__ int32_t SeenConvSteps(const DepthwiseParams& p, const DepthwiseTile& tile) const {
    return max(rows(), min(ConvSteps(tile), p.seen_rows - first_row));
  }
  // The end of a wgrad's steps. Without a source row there is nothing to do.
  __device__ __forceinline__ int32_t WgradSteps(const DepthwiseParams& p, const DepthwiseTile& tile,
                                                const WindowPart& window_part) const {
    if (tile.in_pairs) return (rows() + 1) / 2 + tile.late_steps();
    if (tile.in_parts && !HasSource(p, tile, window_part)) return 1;
    return max(1, min(ConvSteps(tile), p.seen_rows - first_row - window_part.step));
  }

  // A conv's first window part, and the next one. Parts without a source are skipped, unless all are.
  // The end is p.window_parts.
  __device__ __forceinline__ WindowPart FirstWindowPart(const DepthwiseParams& p, const DepthwiseTile& tile) const {
    WindowPart window_part;
    while (tile.in_parts && window_part.number < p.window_parts - 1 && !HasSource(p, tile, window_part))
      window_part = window_part.Next(p, tile);
    return window_part;
  }
  __device__ __forceinline__ WindowPart NextWindowPart(const DepthwiseParams& p, const DepthwiseTile& tile,
                                                       WindowPart window_part) const {
    do {
      window_part = window_part.Next(p, tile);
    } while (tile.in_parts && window_part.number < p.window_parts && !HasSource(p, tile, window_part));
    return window_part;
  }

 private:
  __device__ __forceinline__ bool HasSource(const DepthwiseParams& p, const DepthwiseTile& tile,
                                            const WindowPart& window_part) const {
    const int32_t step = first_row + window_part.step;
    if (step >= p.seen_rows || step + ConvSteps(tile) <= p.unseen_rows) return false;
    const int32_t planes = static_cast<int32_t>(p.problem.dst_size[0]);
    for (int32_t i = 0, depth = planes > 1 ? image % planes : 0; i < images; ++i) {
      if (SourceDepth(p, depth, window_part.depth) >= 0) return true;
      if (++depth == planes) depth = 0;
    }
    return false;
  }
};

// This thread block's number among those of its channel tile. Neighbouring thread blocks have different channel tiles.
__device__ __forceinline__ int32_t BlockOfChannels(const DepthwiseParams& p) {
  return Quotient(static_cast<int32_t>(blockIdx.x), p.channel_tiles, p.channel_tiles_divmod);
}

__device__ __forceinline__ int32_t FirstChannel(const DepthwiseParams& p) {
  return (static_cast<int32_t>(blockIdx.x) - BlockOfChannels(p) * p.channel_tiles) * p.channels;
}

// This thread's number among the consumers.
__device__ __forceinline__ uint32_t ConsumerThread(const DepthwiseTile& tile) {
  return threadIdx.x - FirstConsumer(tile);
}

// A consumer thread's channel, and its number among those of the same channel. Neighbouring threads have neighbouring
// channels.
struct DepthwiseLane {
  int32_t channel;  // of the thread block's
  int32_t number;
  int32_t all;  // threads of the channel

  __device__ __forceinline__ DepthwiseLane(const DepthwiseParams& p, const DepthwiseTile& tile)
      : channel(ConsumerThread(tile) & (p.channels - 1)),
        number(ConsumerThread(tile) >> p.log_channels),
        all(ConsumerThreads(tile) >> p.log_channels) {}
};

// Which of a tile's strips one is.
struct StripCoord {
  int32_t image;
  int32_t strip;  // of the image's row

  __device__ __forceinline__ StripCoord(const DepthwiseParams& p, int32_t n) {
    const int32_t quotient = Quotient(n, p.strip_inverse);
    const int32_t rest = n - quotient * (p.images_first ? p.images : p.strips);
    image = p.images_first ? rest : quotient;
    strip = p.images_first ? quotient : rest;
  }
};

// What a warp has on tensor cores: a part of a thread block's channels, for one set of strips.
struct DepthwiseWarp {
  int32_t part;
  int32_t set;
  int32_t channel;  // the first

  __device__ __forceinline__ DepthwiseWarp(const DepthwiseParams& p, const DepthwiseTile& tile) {
    const uint32_t warp = ConsumerThread(tile) / 32, sets = tile.by_tma ? 1 : p.sets;
    part = warp / sets;
    set = warp % sets;
    channel = FirstChannel(p) + part * tile.channels;
  }
};

// Sums of int8 are integers.
template <DepthwiseTile kTile>
using DepthwiseSum = std::conditional_t<kTile.of_bytes, int32_t, float>;

// The epilogue of a thread's sums: of its warp's channels on tensor cores, of its own one on CUDA cores. A thread has
// the same channels in all rows, so it reads the operands once, unless its registers are full. Channels come in whole
// vectors, so either all of a warp's exist or none. If none do, it takes the last ones instead: the results go nowhere.
template <DepthwiseTile kTile, DepthwiseEpilogueKind kEpilogueKind>
class DepthwiseEpilogue {
  static constexpr bool kHasEpilogue = kEpilogueKind != DepthwiseEpilogueKind::kNone;
  using Sum = DepthwiseSum<kTile>;
  static constexpr int kChannels = kTile.on_cuda_cores() ? 1 : kTile.summed_channels();

 public:
  __device__ __forceinline__ explicit DepthwiseEpilogue(const DepthwiseParams& p)
      : epilogue_(p.epilogue, kHasEpilogue ? First(p) : 0) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) channels_[c] = epilogue_.Of(c);
#pragma unroll
    for (int c = 0; c < kChannels && kTile.of_bytes; ++c) out_scales_[c] = epilogue_.OutScale(c);
  }

  static constexpr bool kHasResidual = kEpilogueKind == DepthwiseEpilogueKind::kResidual;

  // Of as many sums of each channel, with one branch for the activation of all. residual(i) gives the channels' numbers
  // of the residual, if there is one.
  template <int kCount, typename Residual>
  __device__ __forceinline__ void operator()(const Sum (&sums)[kChannels][kCount], float (&results)[kChannels][kCount],
                                             const Residual& residual) const {
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int at = 0; at < kChannels * kCount; ++at) f(results[at / kCount][at % kCount], at / kCount, at % kCount);
    };
    EndSums([&] { each([&](float& z, int c, int i) { z = Scaled(sums[c][i], c); }); },
            [&] {
              if constexpr (kHasResidual) AddResidual(results, residual);
            },
            [&] {
              if constexpr (kHasEpilogue) {
                epilogue_.ActivateAll(reinterpret_cast<float (&)[kChannels * kCount]>(results));
              }
            },
            [&] {
              if constexpr (kTile.of_bytes) each([&](float& z, int c, int) { z *= out_scales_[c]; });
            });
  }

 private:
  template <int kCount, typename Residual>
  __device__ __forceinline__ void AddResidual(float (&results)[kChannels][kCount], const Residual& residual) const {
    const ResidualAdder<float> add = epilogue_.Adder();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const Pack<float, kChannels> added = residual(i);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) results[c][i] = add(results[c][i], added.v[c]);
    }
  }

  __device__ __forceinline__ float Scaled(Sum sum, int channel) const {
    constexpr int kFull = 192;  // of the 255 registers of a thread
    if constexpr (!kHasEpilogue) return sum;
    return kTile.conv_registers() < kFull ? channels_[channel].Scaled(sum) : epilogue_.Of(channel).Scaled(sum);
  }

  static __device__ __forceinline__ int32_t First(const DepthwiseParams& p) {
    constexpr int kOfElement = kTile.of_bytes ? 2 : 1;
    const int32_t first =
        kTile.on_cuda_cores() ? FirstChannel(p) + DepthwiseLane(p, kTile).channel : DepthwiseWarp(p, kTile).channel;
    return min(first * kOfElement, p.all_channels * kOfElement - kChannels);
  }

  EpilogueOf<Sum, kHasEpilogue> epilogue_;
  EpilogueOfChannel<Sum> channels_[kChannels];
  float out_scales_[kChannels];  // of bytes
};

}  // namespace jaxconv
