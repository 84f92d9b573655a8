// How a call of the depthwise family is laid out: from its problem and its Stream to what its kernel is launched with.
// Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/product.h"
#include "common/types.h"
#include "conv_problem.h"
#include "depthwise/config.h"
#include "depthwise/params.h"
#include "depthwise/settings.h"

namespace jaxconv::depthwise {

// Makes the images' rows those of one image.
inline void JoinImages(ConvProblem* p) {
  const auto join = [&](TensorStrides* s, int64_t* size) {
    s->spatial[1] = size[1] > 1 ? s->spatial[1] : s->batch;
    size[1] *= p->batch;
  };
  join(&p->src, p->src_size);
  join(&p->dst, p->dst_size);
  p->batch = 1;
}

// Whether images are planes, as those of two dimensions are.
inline bool IsFlat(const ConvProblem& p) { return p.src_size[0] == 1 && p.dst_size[0] == 1; }

// Whether all images' rows may follow each other as one's: no tap leaves its row, of which pieces of a window could
// have several.
inline bool CanJoinImages(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  const auto is_dense = [](const TensorStrides& s, const int64_t (&size)[kSpatial]) {
    return size[1] == 1 || s.batch == size[1] * s.spatial[1];
  };
  return tile.slots() == 1 && stream.pieces[1] == 1 && stream.first[1] == 0 && IsFlat(p) &&
         p.src_size[1] == p.dst_size[1] && is_dense(p.src, p.src_size) && is_dense(p.dst, p.dst_size);
}

// Bytes of a conv's table of taps, or of what a wgrad has in shared memory behind the last step.
inline int64_t OtherBytes(const DepthwiseShape& d, const DepthwiseTile& tile, Pass pass) {
  if (tile.on_cuda_cores()) {
    const int64_t taps = static_cast<int64_t>(tile.slots()) * tile.width;
    return taps * 4 * (pass == Pass::kConv ? d.pieces * tile.period : kDepthwiseThreads);
  }
  const int64_t slots = tile.slots();
  if (tile.by_tma && pass == Pass::kWgrad) return 0;  // lanes add them
  if (pass == Pass::kWgrad) {
    return (slots * tile.pixels() * kStripCols + kSumsGap) * 4 * tile.channels * tile.warps();
  }
  const auto element = static_cast<int64_t>(ElementBytes(d.problem.src_type));
  const int64_t pixels = d.pieces * slots * d.problem.period[2] * tile.pixels() + d.band_begin;
  return pixels * (d.channels + tile.table_gap()) * element;
}

// Bytes of a box of pixels in shared memory, each of which begins a turn of its swizzle.
inline int64_t BoxBytes(int64_t pixels) { return CeilDiv(pixels * kBoxPixelBytes, kBoxTurnBytes) * kBoxTurnBytes; }

// Where a thread block has what in shared memory.
inline DepthwisePlaces MakePlaces(const DepthwiseShape& d, const DepthwiseTile& tile, Pass pass) {
  const int64_t images = d.images;
  const int64_t row = tile.by_tma ? BoxBytes(images * d.src_width + d.src_behind) : int64_t{d.copies} * d.batch;
  const int64_t result_row = tile.by_tma ? BoxBytes(images * d.strips_pitch) : int64_t{StripPieces(tile)} * d.batch;
  const int64_t stage = tile.box_rows() * (tile.sources() * row + (pass == Pass::kWgrad ? result_row : 0));
  const int64_t other = CeilDiv(OtherBytes(d, tile, pass), 128) * 128;
  const bool is_conv = pass == Pass::kConv;
  DepthwisePlaces places{};
  int64_t at = 0;
  const auto place = [&](int32_t& where, int64_t bytes) { where = static_cast<int32_t>(at), at += bytes; };
  places.stage = static_cast<int32_t>(stage);
  places.row = static_cast<int32_t>(row);
  at = std::max(tile.stages() * stage, is_conv ? 0 : other);
  places.result_row = static_cast<int32_t>(result_row);
  if (is_conv) place(places.results, tile.results() * tile.period * result_row);
  if (is_conv) place(places.taps, other);
  const int64_t row_sums = tile.row_sums() * 4 * kDepthwiseThreads;
  if (is_conv && tile.has_pieces) place(places.sums, d.rows * row_sums);
  const int64_t places_bytes = tile.by_tma ? tile.lags * kTapCols * 4 : int64_t{d.problem.tap_count} * kStoredTapBytes;
  if (tile.has_copiers && !is_conv) place(places.taps, places_bytes);
  if (tile.has_copiers) place(places.barriers, kBarrierBytes);
  places.end = static_cast<int32_t>(std::min<int64_t>(at, INT32_MAX));
  return places;
}

// Of a thread's pieces of a row, the bytes from one to the next.
inline int32_t BatchBytes(const DepthwiseShape& d, const DepthwiseTile& tile) {
  const bool has_gaps = !tile.on_cuda_cores() && !Exchanges(tile);
  return kBatchBytes + (has_gaps ? (kDepthwiseThreads >> d.log_pieces >> d.log_gap) * kPieceBytes : 0);
}

// Rows of a plane's output, in positions of a residue class, or of each that a dilated window's is interleaved of.
inline int32_t AllRows(const ConvProblem& p, const Stream& stream) {
  return static_cast<int32_t>(CeilDiv(p.dst_size[1], p.period[1] * stream.apart[0]));
}

// Source pixels of a piece of the window: its taps then reach no further than a strip's.
inline int32_t PieceCols(const ConvProblem& p, const DepthwiseTile& tile) {
  return static_cast<int32_t>(tile.pixels() - (kStripCols - 1) / p.period[2] * p.step[2]);
}

// Source pixels from a strip to the next.
inline int32_t StripStep(const ConvProblem& p) { return static_cast<int32_t>(kStripCols * p.step[2] / p.period[2]); }

// Pixels that strips of an image, or plane, read of its source row.
inline int32_t SourceWidth(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  return (stream.cols / kStripCols - 1) * StripStep(p) + tile.pixels();
}

// Pieces of a source row that each thread copies.
inline int32_t CopiesOf(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  const int64_t pixels = int64_t{std::max(1, stream.images)} * SourceWidth(p, tile, stream);
  const int64_t pieces = pixels * stream.channels * ElementBytes(p.src_type) / kPieceBytes;
  return static_cast<int32_t>(std::min<int64_t>(CeilDiv(pieces, kDepthwiseThreads), INT16_MAX));
}

// Takes fewer images, until the threads copy what the strips of a row read.
inline void FitImages(const ConvProblem& p, const DepthwiseTile& tile, Stream* stream) {
  while (stream->images > 1 && CopiesOf(p, tile, *stream) > MostCopies(tile)) --stream->images;
}

// From an image's row in a box to the next one's, in pixels: what a warp reads at once of neighbouring strips, which
// are of neighbouring images, is then in as many banks as there are for its channels. In a conv that is every other
// pixel, or in pairs one of each image; else in a wgrad four neighbours, of strips of four images, or of two that have
// two each.
inline int32_t BoxPitch(int32_t width, const DepthwiseTile& tile, const Stream& stream, Pass pass) {
  if (pass == Pass::kConv || tile.in_pairs) return width | 1;
  if (stream.images < 4) return (width + 3) / 8 * 8 + 4;
  const int32_t even = (width + 1) / 2 * 2;
  return even % 8 == 0 ? even + 2 : even;
}

// The same of a source row. Zeros in front of an image are those behind the one before, too: its row ends with its last
// pixel, or where strips read nothing but those zeros. A wgrad's may also read pixels of the next image, but only for
// taps that there are none of, or outputs whose gradient is zero. In pairs there are no zeros.
inline int32_t SourcePitch(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream, Pass pass) {
  const auto pitch = [&](int64_t width) { return BoxPitch(static_cast<int32_t>(width), tile, stream, pass); };
  if (tile.in_pairs) return pitch(std::max(p.src_size[2], p.dst_size[2]));
  const int64_t width = SourceWidth(p, tile, stream);
  const int64_t taken = pass == Pass::kConv ? width : std::min(width, p.dst_size[2] + tile.pixels() - kStripCols);
  const int64_t zeros = std::min(std::max(-int64_t{stream.first[2]}, int64_t{0}), taken);
  return pitch(std::max(std::min(zeros + p.src_size[2], taken), taken - zeros));
}

// Everything but the operands and the workers, of a stream that UnsupportedStream takes.
inline DepthwiseShape MakeShape(const ConvProblem& problem, Pass pass, const DepthwiseTile& tile,
                                const Stream& stream) {
  DepthwiseShape d{};
  d.problem = problem;
  if (stream.images == 0) JoinImages(&d.problem);
  const ConvProblem& p = d.problem;
  d.first_depth = stream.first[0];
  d.first_row = stream.first[1];
  d.first_col = stream.first[2];
  d.row_pieces = stream.pieces[1];
  d.col_pieces = stream.pieces[2];
  d.pieces = stream.pieces[0] * d.row_pieces * d.col_pieces;
  d.piece_cols = PieceCols(p, tile);
  d.row_apart = stream.apart[0];
  d.col_apart = stream.apart[1];
  d.row_inverse = InverseOf(d.row_apart);
  d.col_inverse = InverseOf(d.col_apart);
  const int32_t channel_bytes = stream.channels * static_cast<int32_t>(ElementBytes(p.src_type));
  d.channels = stream.channels;
  d.log_channels = std::bit_width(static_cast<uint32_t>(stream.channels)) - 1;
  d.sets = MostChannelBytes(tile) / channel_bytes;
  d.log_pieces = std::bit_width(static_cast<uint32_t>(channel_bytes / kPieceBytes)) - 1;
  d.tile_strips = MostStrips(tile, channel_bytes);
  d.planes = static_cast<int32_t>(std::min<int64_t>(p.batch * p.dst_size[0], INT32_MAX));
  d.images = std::max(1, stream.images);
  d.strips = stream.cols / kStripCols;
  d.strip_step = StripStep(p);
  d.band_begin = d.strip_step - static_cast<int32_t>(p.step[2]);
  d.images_first = d.images > 1 && (d.strips % 2 == 0 || d.strips == 1);
  d.strip_inverse = d.images == 1 ? 0 : InverseOf(d.images_first ? d.images : d.strips);
  d.src_width = tile.by_tma ? SourcePitch(p, tile, stream, pass) : SourceWidth(p, tile, stream);
  d.src_behind = tile.in_pairs ? 0 : std::max(0, SourceWidth(p, tile, stream) - d.src_width);
  d.strips_pitch = tile.in_pairs ? d.src_width : BoxPitch(stream.cols, tile, stream, pass);
  d.width_inverse = d.images == 1 ? 0 : InverseOf(d.src_width);
  d.copies = CopiesOf(p, tile, stream);
  d.log_gap = pass == Pass::kConv && tile.channels == 8 ? 1 : 3;
  d.batch = BatchBytes(d, tile);
  d.all_channels = static_cast<int32_t>(p.groups);
  d.all_rows = AllRows(p, stream);
  d.rows = std::max(1, std::min(stream.rows, d.all_rows));
  d.unseen_rows = std::max(0, -d.first_row / (tile.step * d.row_apart));
  const int64_t seen_rows = CeilDiv(p.src_size[1] - d.first_row, tile.step * d.row_apart);
  d.seen_rows = static_cast<int32_t>(std::min<int64_t>(seen_rows, INT32_MAX));
  d.channel_tiles = static_cast<int32_t>(CeilDiv(p.groups, d.channels));
  const int64_t column_tiles = CeilDiv(p.dst_size[2], stream.cols * d.col_apart) * d.row_apart * d.col_apart;
  d.column_tiles = static_cast<int32_t>(std::min<int64_t>(column_tiles, INT32_MAX));
  const int64_t stream_rows = CeilDiv(d.planes, d.images) * column_tiles * d.all_rows;
  d.stream_rows = static_cast<int32_t>(std::min<int64_t>(stream_rows, INT32_MAX));
  d.all_rows_inverse = LongInverseOf(d.all_rows);
  d.channel_tiles_inverse = LongInverseOf(d.channel_tiles);
  d.column_tiles_inverse = LongInverseOf(d.column_tiles);
  d.log_col_period = std::bit_width(static_cast<uint32_t>(p.period[2])) - 1;
  d.places = MakePlaces(d, tile, pass);
  return d;
}

// Tiles of a channel tile, one below the other, which thread blocks share out.
inline int64_t Tiles(const DepthwiseShape& d) { return CeilDiv(d.stream_rows, d.rows); }

// Thread blocks, if so many share a channel tile out. A conv's take the window's pieces one after the other; of a
// wgrad's pieces each is others'.
inline int64_t ThreadBlocks(const DepthwiseShape& d, Pass pass, int64_t workers) {
  return workers * d.channel_tiles * (pass == Pass::kWgrad ? d.pieces : 1);
}

// Those that a multiprocessor's registers hold.
inline int MostResident(const DepthwiseTile& tile, Pass pass) {
  return pass == Pass::kConv ? tile.conv_blocks() : tile.wgrad_blocks();
}

}  // namespace jaxconv::depthwise
