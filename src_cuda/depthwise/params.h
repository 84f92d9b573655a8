// How a call of the depthwise family is laid out, for its kernels. Host-only: without CUDA.
//
// A strip is eight neighbouring output columns of a row. A row of the filter makes a Toeplitz (band) matrix of source
// pixels by eight outputs, where each diagonal is a tap. Tensor cores multiply it with the source pixels of sixteen
// strips at a time, for one channel. A thread block has some channels and a tile of strips. It streams the rows of the
// source, one step after the other, so it reads nothing twice along a column.
#pragma once

#include <cstdint>

#include "common/fast_division.h"
#include "common/types.h"
#include "conv_problem.h"
#include "depthwise/config.h"

namespace jaxconv {

inline constexpr int kMostPeriod = 4;      // of columns: a strip then begins at an even pixel
inline constexpr int kDepthwiseWarps = 4;  // that copy, and multiply, where no others do
inline constexpr int kDepthwiseThreads = 32 * kDepthwiseWarps;
inline constexpr int kBoxPixelBytes = 64;                 // that TMA copies of each pixel
inline constexpr int kBoxTurnBytes = 8 * kBoxPixelBytes;  // after which their vectors are exchanged alike again
inline constexpr int kBarrierBytes = 256;                 // of a tile with producers
inline constexpr int kStoredTapBytes = 8;
inline constexpr int kTapCols = 8;  // of a window whose sums' diagonals lanes add
inline constexpr int kSumsGap = 2;  // behind a channel's sums of a wgrad, in shared memory
inline constexpr int kBatchBytes = kDepthwiseThreads * kVectorBytes;

// Threads of the consumers: all threads, or those after the producers.
constexpr int ConsumerThreads(const DepthwiseTile& tile) { return 32 * tile.warps(); }
constexpr int FirstConsumer(const DepthwiseTile& tile) {
  return tile.has_producers ? (tile.by_tma ? 1 : 2) * kDepthwiseThreads : 0;
}
constexpr int BlockThreads(const DepthwiseTile& tile) { return FirstConsumer(tile) + ConsumerThreads(tile); }

// Strips of a tile where each channel has one set of warps, or of lanes.
constexpr int SetStrips(const DepthwiseTile& tile) { return tile.on_cuda_cores() ? kDepthwiseWarps : kMultiplied; }
// A thread block's channels then, in bytes.
constexpr int MostChannelBytes(const DepthwiseTile& tile) {
  return (tile.on_cuda_cores() ? 32 : tile.warps() * tile.channels) * tile.element_bytes();
}
// Strips of a tile if a thread block has that many bytes of channels.
constexpr int MostStrips(const DepthwiseTile& tile, int channel_bytes) {
  return MostChannelBytes(tile) / channel_bytes * SetStrips(tile);
}
// The most vectors that a thread copies: of its tile's row of the destination, and of a source row.
constexpr int StripVectors(const DepthwiseTile& tile) {
  return SetStrips(tile) * kStripCols * MostChannelBytes(tile) / kBatchBytes;
}
constexpr int MostCopies(const DepthwiseTile& tile) { return 2 * StripVectors(tile) + 1; }
// Whether vectors are exchanged in shared memory, or else gaps are left between them. Both keep what a warp reads at
// once in different banks: see VectorOffset.
constexpr bool Exchanges(const DepthwiseTile& tile) { return tile.channels == 4; }
// Whether steps skip source rows that do not exist. A conv must move its sums on instead. Tensor cores multiply zeros
// as fast as that, unless a row has many pixels.
constexpr bool LeavesOutRows(const DepthwiseTile& tile) {
  return tile.step == 1 && (tile.on_cuda_cores() || (tile.in_parts && tile.blocks > 1));
}
// Bytes from the beginning of shared memory, or of a stage.
struct DepthwiseOffsets {
  int32_t stage;    // bytes of each: the source rows of a step and, in a wgrad, a row of the gradient behind them
  int32_t row;      // bytes of a source row
  int32_t results;  // of a conv: some steps' rows
  int32_t result_row;
  int32_t taps;      // of a conv: a table of the filter; of a wgrad of a tile with producers: where its taps are, or go
  int32_t sums;      // of a conv in parts: the sums of those before
  int32_t barriers;  // of a tile with producers
  int32_t end;
};

// The epilogue of a conv's kernel. A residual has kernels of its own: code for it would cost the others time.
enum class DepthwiseEpilogueKind { kNone, kPlain, kResidual };

// What planning asks for, too. Operands are only known at launch.
struct DepthwiseShape {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;       // the filter, or the destination's gradient
  void* out;             // the result, or the slices in the workspace
  int64_t out_elements;  // of one slice
  DType out_type;
  DepthwiseOffsets offsets;
  int32_t first_depth;   // source plane of the first position's first tap
  int32_t first_row;     // likewise the row
  int32_t first_col;     // and the column
  int32_t window_parts;  // of the window
  int32_t row_parts;     // along its rows
  int32_t col_parts;
  int32_t part_cols;  // of each, in source pixels
  // From each of a tile's rows, and columns, to the next: the distance between a dilated window's taps. An image is
  // then that many interleaved images, which are independent of each other.
  int32_t row_apart;
  int32_t col_apart;
  uint32_t row_inverse;  // FastDivisor16Of them
  uint32_t col_inverse;
  int32_t sets;      // of warps, or of lanes, that have the same channels, and other strips
  int32_t channels;  // of a thread block: a power of two
  int32_t log_channels;
  int32_t log_vectors;        // and the vectors of a pixel that they are
  int32_t log_gap;            // in shared memory, the pixels behind which a vector is left out, if any is
  int32_t batch;              // bytes in shared memory from a thread's pixel to its next one
  int32_t planes;             // of all images
  int32_t images;             // of a tile, or planes
  int32_t strips;             // of each image's row
  bool images_first;          // whether neighbouring strips of a tile are of neighbouring images, if it has several
  uint32_t strip_inverse;     // FastDivisor16Of images, or else of strips; 0 of one image
  int32_t tile_strips;        // of all images, with those behind the last that make whole multiplications
  int32_t strip_step;         // source pixels between neighbouring strips
  int32_t zeros_before_taps;  // source pixels from a strip's first output to its last: zeros before a conv's taps
  int32_t src_width;          // source pixels of an image's row in shared memory; by TMA to the next one's
  uint32_t width_inverse;     // FastDivisor16Of it; 0 of one image
  int32_t src_behind;         // by TMA: zeros behind a box, that strips of the last image read
  int32_t copies;             // of a thread, of a source row
  int32_t rows;               // of a tile at most, in the destination's positions of one class
  int32_t all_rows;
  int32_t unseen_rows;  // whose steps have no source row, as those are above the image
  int32_t seen_rows;    // behind which steps have none, as those are below it
  int32_t all_channels;
  int32_t channel_tiles;
  int32_t column_tiles;  // of an image, or of all that it is interleaved of
  int32_t stream_rows;   // of all tiles, one below the other, of a channel tile
  FastDivisor all_rows_divmod;
  FastDivisor channel_tiles_divmod;
  FastDivisor column_tiles_divmod;
  int32_t log_col_period;
  int32_t workers;         // thread blocks that share the stream's rows out
  int32_t worker_rows;     // of each at least
  int32_t longer_workers;  // the first ones, which have one more
  int32_t strips_pitch;    // by TMA: from an image's row of strips in shared memory to the next, in pixels
};

}  // namespace jaxconv
