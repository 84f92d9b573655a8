// What a kernel of the depthwise family is launched with, and a thread block's part of it.
//
// A strip is eight neighbouring output columns of a row. What its row of the filter takes from a source row is a band
// matrix, of some source pixels by eight outputs, in which each diagonal is a tap: tensor cores multiply it with the
// source pixels of sixteen strips at a time, of one channel. A thread block has some channels and a tile of strips, and
// lets the rows of the source pass by, one step after the other: nothing is read twice along a column.
#pragma once

#include <bit>
#include <cstdint>

#include "common/family.h"
#include "common/points.cuh"
#include "conv_problem.h"
#include "depthwise/config.h"

namespace jaxconv {

inline constexpr int kStripCols = 8;       // the columns of a multiplication
inline constexpr int kMostPeriod = 4;      // of columns: a strip then begins at an even pixel
inline constexpr int kMultiplied = 16;     // strips, its rows
inline constexpr int kDepthwiseWarps = 4;  // that copy, and multiply, where no others do
inline constexpr int kDepthwiseThreads = 32 * kDepthwiseWarps;
inline constexpr int kPieceBytes = 16;                    // which are copied at once
inline constexpr int kBoxPixelBytes = 64;                 // that TMA copies of each pixel
inline constexpr int kBoxTurnBytes = 8 * kBoxPixelBytes;  // after which their pieces are exchanged alike again
inline constexpr int kBarrierBytes = 256;                 // of a tile with copiers
inline constexpr int kStoredTapBytes = 8;
inline constexpr int kTapCols = 8;  // of a window whose sums' diagonals lanes add
inline constexpr int kSumsGap = 2;  // behind a channel's sums of a reduce, in shared memory
inline constexpr int kBatchBytes = kDepthwiseThreads * kPieceBytes;

// The threads that multiply: all, or those behind the ones that copy.
constexpr int Multipliers(const DepthwiseTile& tile) { return 32 * tile.warps(); }
constexpr int FirstMultiplier(const DepthwiseTile& tile) {
  return tile.has_copiers ? (tile.by_tma ? 1 : 2) * kDepthwiseThreads : 0;
}
constexpr int BlockThreads(const DepthwiseTile& tile) { return FirstMultiplier(tile) + Multipliers(tile); }

// Strips of a tile in which each channel has one set of warps, or of lanes.
constexpr int SetStrips(const DepthwiseTile& tile) { return tile.on_cuda_cores() ? kDepthwiseWarps : kMultiplied; }
// A thread block's channels then, in bytes.
constexpr int MostChannelBytes(const DepthwiseTile& tile) {
  return tile.on_cuda_cores() ? 32 * 4 : tile.warps() * tile.channels * 2;
}
// Of a thread: pieces of its tile's row of the destination, and of a source row, at most.
constexpr int StripPieces(const DepthwiseTile& tile) {
  return SetStrips(tile) * kStripCols * MostChannelBytes(tile) / kBatchBytes;
}
constexpr int MostCopies(const DepthwiseTile& tile) { return 2 * StripPieces(tile) + 1; }
// Whether pieces are exchanged in shared memory, or else left out, so that what a warp reads at once is in as many
// banks as there are for its channels: see PiecePlace.
constexpr bool Exchanges(const DepthwiseTile& tile) { return tile.channels == 4; }
// Whether source rows that are not there are left out. A gather's sums must move on then: on tensor cores, zeros are
// multiplied as fast, unless a row has many pixels.
constexpr bool LeavesOutRows(const DepthwiseTile& tile) {
  return tile.step == 1 && (tile.on_cuda_cores() || (tile.has_pieces && tile.blocks > 1));
}
// Bytes from the beginning of shared memory, or of a stage.
struct DepthwisePlaces {
  int32_t stage;    // bytes of each: the source rows of a step and, in a reduce, a row of the gradient behind them
  int32_t row;      // bytes of a source row
  int32_t results;  // of a gather: some steps' rows
  int32_t result_row;
  int32_t taps;  // of a gather: a table of the filter; of a reduce of a tile with copiers: where its taps are, or go
  int32_t sums;  // of a gather in pieces: the sums of those before
  int32_t barriers;  // of a tile with copiers
  int32_t end;
};

// What n is multiplied with, and the upper half shifted by, for n / divisor, 0 <= n < 2^31 and 1 < divisor; of smaller
// ones nothing.
struct LongInverse {
  uint32_t factor;
  int32_t shift;
};

struct DepthwiseParams {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;       // the filter, or the destination's gradient
  void* out;             // the result, or the slices in the scratch
  int64_t out_elements;  // of one slice
  DType out_type;
  DepthwisePlaces places;
  int32_t first_depth;  // source plane of the first position's first tap
  int32_t first_row;    // likewise the row
  int32_t first_col;    // and the column
  int32_t pieces;       // of the window
  int32_t row_pieces;   // along its rows
  int32_t col_pieces;
  int32_t piece_cols;  // of each, in source pixels
  // From each of a tile's rows, and columns, to the next: as far as a dilated window's taps are apart. An image is then
  // as many interleaved ones, which have nothing to do with each other.
  int32_t row_apart;
  int32_t col_apart;
  uint32_t row_inverse;  // InverseOf them
  uint32_t col_inverse;
  int32_t sets;      // of warps, or of lanes, that have the same channels, and other strips
  int32_t channels;  // of a thread block: a power of two
  int32_t log_channels;
  int32_t log_pieces;      // and the pieces of a pixel that they are
  int32_t log_gap;         // in shared memory, the pixels behind which a piece is left out, if any is
  int32_t batch;           // bytes in shared memory from a thread's pixel to its next one
  int32_t planes;          // of all images
  int32_t images;          // of a tile, or planes
  int32_t strips;          // of each image's row
  bool images_first;       // whether neighbouring strips of a tile are of neighbouring images, of which there are some
  uint32_t strip_inverse;  // InverseOf images, or else of strips; 0 of one image
  int32_t tile_strips;     // of all images, with those behind the last that make whole multiplications
  int32_t strip_step;      // source pixels between neighbouring strips
  int32_t band_begin;      // source pixels from a strip's first output to its last: zeros before a gather's taps
  int32_t src_width;       // source pixels of an image's row in shared memory; by TMA to the next one's
  uint32_t width_inverse;  // InverseOf it; 0 of one image
  int32_t src_behind;      // by TMA: zeros behind a box, that strips of the last image read
  int32_t copies;          // of a thread, of a source row
  int32_t rows;            // of a tile at most, in the destination's positions of one class
  int32_t all_rows;
  int32_t unseen_rows;  // whose steps have no source row, as those are above the image
  int32_t seen_rows;    // behind which steps have none, as those are below it
  int32_t all_channels;
  int32_t channel_tiles;
  int32_t column_tiles;  // of an image, or of all that it is interleaved of
  int32_t stream_rows;   // of all tiles, one below the other, of a channel tile
  LongInverse all_rows_inverse;
  LongInverse channel_tiles_inverse;
  LongInverse column_tiles_inverse;
  int32_t log_col_period;
  int32_t workers;         // thread blocks that share the stream's rows out
  int32_t worker_rows;     // of each at least
  int32_t longer_workers;  // the first ones, which have one more
  int32_t strips_pitch;    // by TMA: from an image's row of strips in shared memory to the next, in pixels
};

// What n is multiplied with for n / divisor to be the upper half of the product, 0 <= n < 2^16 and 1 < divisor < 2^16.
constexpr uint32_t InverseOf(int32_t divisor) { return UINT32_MAX / static_cast<uint32_t>(divisor) + 1; }

constexpr LongInverse LongInverseOf(int32_t divisor) {
  if (divisor <= 1) return {};
  const int32_t shift = std::bit_width(static_cast<uint32_t>(divisor - 1)) - 1;
  return {static_cast<uint32_t>(((uint64_t{1} << (32 + shift)) + divisor - 1) / divisor), shift};
}

// n / divisor, of which InverseOf is the inverse, or which is 1.
__device__ __forceinline__ int32_t Quotient(int32_t n, int32_t divisor, uint32_t inverse) {
  return divisor == 1 ? n : static_cast<int32_t>(__umulhi(n, inverse));
}

__device__ __forceinline__ int32_t Quotient(int32_t n, int32_t divisor, LongInverse inverse) {
  return divisor == 1 ? n : static_cast<int32_t>(__umulhi(n, inverse.factor) >> inverse.shift);
}

// So many of a tile's rows, in rows of an image: strided ones are not apart.
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

// What a tile takes of the window at a time: all of it, or a piece of which this is the first tap.
struct WindowPiece {
  int32_t number = 0;
  int32_t depth = 0;  // planes
  int32_t step = 0;   // steps of rows
  int32_t col = 0;    // source pixels

  WindowPiece() = default;
  __device__ __forceinline__ WindowPiece(const DepthwiseParams& p, const DepthwiseTile& tile, int32_t n) {
    if (!tile.has_pieces) return;
    const int32_t rows = n / p.col_pieces;
    number = n;
    depth = rows / p.row_pieces;
    step = rows % p.row_pieces * tile.lags;
    col = n % p.col_pieces * p.piece_cols;
  }

  // The next one, without divisions.
  __device__ __forceinline__ WindowPiece Next(const DepthwiseParams& p, const DepthwiseTile& tile) const {
    WindowPiece next = *this;
    ++next.number;
    next.col += p.piece_cols;
    if (next.col == p.col_pieces * p.piece_cols) next.col = 0, next.step += tile.lags;
    if (next.step == p.row_pieces * tile.lags) next.step = 0, ++next.depth;
    return next;
  }
};

// The plane of the source in which a depth of the window lies for one of the destination, or -1. Of a dilated input's
// planes, depths are numbered by the source's, and by the phases that see them.
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

// A tile's place, which begins at a row of the stream and goes no further than a thread block's end.
struct DepthwiseTilePlace {
  int32_t image;      // or the first plane
  int32_t images;     // that there are; 0: no tile's
  int32_t first_row;  // and the row behind the last, of a class's positions that are apart
  int32_t last_row;
  int32_t row_phase;  // of them: the first row of the destination
  int32_t col;        // of the destination

  DepthwiseTilePlace() = default;
  __device__ __forceinline__ DepthwiseTilePlace(const DepthwiseParams& p, const DepthwiseTile& tile, int32_t begin,
                                                int32_t end) {
    const int32_t column = Quotient(begin, p.all_rows, p.all_rows_inverse);
    // Boxes are of whole rows.
    const bool is_whole = tile.by_tma;
    const int32_t images_before = is_whole ? column : Quotient(column, p.column_tiles, p.column_tiles_inverse);
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

  // A gather's first step: those without a source row would give nothing to rows that are still to receive others. So
  // it is with a reduce's in pairs. Of a piece, rows that receive nothing are left to the next one, whose source is
  // further down.
  __device__ __forceinline__ int32_t FirstStep(const DepthwiseParams& p, const DepthwiseTile& tile,
                                               const WindowPiece& piece) const {
    const int32_t unseen = p.unseen_rows - first_row - piece.step;
    if (tile.in_pairs) return max(0, min(unseen / 2, tile.late_steps()));
    if (!tile.has_pieces) return max(0, min(unseen, tile.lags - 1));
    const bool has_next = piece.step + tile.lags < p.row_pieces * tile.lags;
    return has_next ? max(0, unseen - (tile.lags - 1)) : 0;
  }
  // The step behind a gather's last: its rows are then complete.
  __device__ __forceinline__ int32_t GatherSteps(const DepthwiseTile& tile) const { return rows() + tile.lags - 1; }
  // The same where rows that are complete earlier, as no source row is below them, need no further steps.
  __device__ __forceinline__ int32_t SeenGatherSteps(const DepthwiseParams& p, const DepthwiseTile& tile) const {
    return max(rows(), min(GatherSteps(tile), p.seen_rows - first_row));
  }
  // And behind a reduce's, which has nothing to do without a source row.
  __device__ __forceinline__ int32_t ReduceSteps(const DepthwiseParams& p, const DepthwiseTile& tile,
                                                 const WindowPiece& piece) const {
    if (tile.in_pairs) return (rows() + 1) / 2 + tile.late_steps();
    if (tile.has_pieces && !HasSource(p, tile, piece)) return 1;
    return max(1, min(GatherSteps(tile), p.seen_rows - first_row - piece.step));
  }

  // A gather's first piece of the window, and the one behind another: those without a source are left out, if there is
  // one with some. Behind the last there are p.pieces.
  __device__ __forceinline__ WindowPiece FirstPiece(const DepthwiseParams& p, const DepthwiseTile& tile) const {
    WindowPiece piece;
    while (tile.has_pieces && piece.number < p.pieces - 1 && !HasSource(p, tile, piece)) piece = piece.Next(p, tile);
    return piece;
  }
  __device__ __forceinline__ WindowPiece NextPiece(const DepthwiseParams& p, const DepthwiseTile& tile,
                                                   WindowPiece piece) const {
    do {
      piece = piece.Next(p, tile);
    } while (tile.has_pieces && piece.number < p.pieces && !HasSource(p, tile, piece));
    return piece;
  }

 private:
  __device__ __forceinline__ bool HasSource(const DepthwiseParams& p, const DepthwiseTile& tile,
                                            const WindowPiece& piece) const {
    const int32_t step = first_row + piece.step;
    if (step >= p.seen_rows || step + GatherSteps(tile) <= p.unseen_rows) return false;
    const int32_t planes = static_cast<int32_t>(p.problem.dst_size[0]);
    for (int32_t i = 0, depth = planes > 1 ? image % planes : 0; i < images; ++i) {
      if (SourceDepth(p, depth, piece.depth) >= 0) return true;
      if (++depth == planes) depth = 0;
    }
    return false;
  }
};

// This thread block's number among those of a channel tile, which go from one to the next.
__device__ __forceinline__ int32_t BlockOfChannels(const DepthwiseParams& p) {
  return Quotient(static_cast<int32_t>(blockIdx.x), p.channel_tiles, p.channel_tiles_inverse);
}

__device__ __forceinline__ int32_t FirstChannel(const DepthwiseParams& p) {
  return (static_cast<int32_t>(blockIdx.x) - BlockOfChannels(p) * p.channel_tiles) * p.channels;
}

// This thread's number among those that multiply.
__device__ __forceinline__ uint32_t Multiplier(const DepthwiseTile& tile) {
  return threadIdx.x - FirstMultiplier(tile);
}

// A multiplying thread's channel and number among those that have the same, where threads go from channel to channel.
struct DepthwiseLane {
  int32_t channel;  // of the thread block's
  int32_t number;
  int32_t all;  // threads of the channel

  __device__ __forceinline__ DepthwiseLane(const DepthwiseParams& p, const DepthwiseTile& tile)
      : channel(Multiplier(tile) & (p.channels - 1)),
        number(Multiplier(tile) >> p.log_channels),
        all(Multipliers(tile) >> p.log_channels) {}
};

// Which of a tile's strips one is.
struct StripPlace {
  int32_t image;
  int32_t strip;  // of the image's row

  __device__ __forceinline__ StripPlace(const DepthwiseParams& p, int32_t n) {
    const int32_t quotient = static_cast<int32_t>(__umulhi(n, p.strip_inverse));
    const int32_t rest = n - quotient * (p.images_first ? p.images : p.strips);
    image = p.images_first ? rest : quotient;
    strip = p.images_first ? quotient : rest;
  }
};

// What a warp has on tensor cores: a part of a thread block's channels, of one set of strips.
struct DepthwiseWarp {
  int32_t part;
  int32_t set;
  int32_t channel;  // the first

  __device__ __forceinline__ DepthwiseWarp(const DepthwiseParams& p, const DepthwiseTile& tile) {
    const uint32_t warp = Multiplier(tile) / 32, sets = tile.by_tma ? 1 : p.sets;
    part = warp / sets;
    set = warp % sets;
    channel = FirstChannel(p) + part * tile.channels;
  }
};

}  // namespace jaxconv
