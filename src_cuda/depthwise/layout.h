// How a call of the depthwise family is laid out: from its problem and its Stream to what its kernel is launched with.
// Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/fast_division.h"
#include "common/product.h"
#include "common/types.h"
#include "conv_problem.h"
#include "depthwise/config.h"
#include "depthwise/params.h"
#include "depthwise/settings.h"

namespace jaxconv::depthwise {

// A problem as kernels move its activations: two neighbouring channels of int8 are an element of 16 bits. Numbers of
// the filter are read one by one, and stay as they are.
inline ConvProblem InElements(ConvProblem p) {
  if (p.src_type != DType::kS8) return p;
  p.src_type = p.dst_type = DType::kF16;
  p.groups /= 2;
  for (TensorStrides* s : {&p.src, &p.dst}) {
    s->batch /= 2;
    for (int64_t& stride : s->spatial) stride /= 2;
  }
  return p;
}

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

// Whether the rows of all images may follow each other as rows of one image: no tap leaves its row, and the window has
// one window part along rows.
inline bool CanJoinImages(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  const auto is_dense = [](const TensorStrides& s, const int64_t (&size)[kSpatial]) {
    return size[1] == 1 || s.batch == size[1] * s.spatial[1];
  };
  return tile.slots() == 1 && stream.window_parts[1] == 1 && stream.first[1] == 0 && IsFlat(p) &&
         p.src_size[1] == p.dst_size[1] && is_dense(p.src, p.src_size) && is_dense(p.dst, p.dst_size);
}

// Bytes of a conv's table of taps, or of what a wgrad has in shared memory behind the last step.
inline int64_t OtherBytes(const DepthwiseShape& d, const DepthwiseTile& tile, Pass pass) {
  if (tile.on_cuda_cores()) {
    const int64_t taps = static_cast<int64_t>(tile.slots()) * tile.width;
    return taps * 4 * (pass == Pass::kConv ? d.window_parts * tile.period : kDepthwiseThreads);
  }
  const int64_t slots = tile.slots();
  if (tile.by_tma && pass == Pass::kWgrad) return 0;  // lanes add them
  if (pass == Pass::kWgrad) {
    return (slots * tile.pixels() * kStripCols + kSumsGap) * 4 * tile.channels * tile.warps();
  }
  const auto element = static_cast<int64_t>(ElementBytes(d.problem.src_type));
  const int64_t pixels = d.window_parts * slots * d.problem.period[2] * tile.pixels() + d.zeros_before_taps;
  return pixels * (d.channels + tile.table_gap()) * element;
}

// Bytes of a box of pixels in shared memory. Each box begins a turn of its swizzle.
inline int64_t BoxBytes(int64_t pixels) { return CeilDiv(pixels * kBoxPixelBytes, kBoxTurnBytes) * kBoxTurnBytes; }

// The offsets in a thread block's shared memory.
inline DepthwiseOffsets MakeOffsets(const DepthwiseShape& d, const DepthwiseTile& tile, Pass pass) {
  const int64_t images = d.images;
  const int64_t row = tile.by_tma ? BoxBytes(images * d.src_width + d.src_behind) : int64_t{d.copies} * d.batch;
  const int64_t result_row = tile.by_tma ? BoxBytes(images * d.strips_pitch) : int64_t{StripVectors(tile)} * d.batch;
  const int64_t stage = tile.box_rows() * (tile.sources() * row + (pass == Pass::kWgrad ? result_row : 0));
  const int64_t other = CeilDiv(OtherBytes(d, tile, pass), 128) * 128;
  const bool is_conv = pass == Pass::kConv;
  DepthwiseOffsets offsets{};
  int64_t at = 0;
  const auto allocate = [&](int32_t& offset, int64_t bytes) { offset = static_cast<int32_t>(at), at += bytes; };
  offsets.stage = static_cast<int32_t>(stage);
  offsets.row = static_cast<int32_t>(row);
  at = std::max(tile.stages() * stage, is_conv ? 0 : other);
  offsets.result_row = static_cast<int32_t>(result_row);
  if (is_conv) allocate(offsets.results, tile.results() * tile.period * result_row);
  if (is_conv) allocate(offsets.taps, other);
  const int64_t row_sums = tile.row_sums() * 4 * kDepthwiseThreads;
  if (is_conv && tile.in_parts) allocate(offsets.sums, d.rows * row_sums);
  const int64_t taps_bytes = tile.by_tma ? tile.lags * kTapCols * 4 : int64_t{d.problem.tap_count} * kStoredTapBytes;
  if (tile.has_producers && !is_conv) allocate(offsets.taps, taps_bytes);
  if (tile.has_producers) allocate(offsets.barriers, kBarrierBytes);
  offsets.end = static_cast<int32_t>(std::min<int64_t>(at, INT32_MAX));
  return offsets;
}

// Bytes from a thread's vector of a row to its next one.
inline int32_t BatchBytes(const DepthwiseShape& d, const DepthwiseTile& tile) {
  const bool has_gaps = !tile.on_cuda_cores() && !Exchanges(tile);
  return kBatchBytes + (has_gaps ? (kDepthwiseThreads >> d.log_vectors >> d.log_gap) * kVectorBytes : 0);
}

// Rows of a plane's output, in positions of a residue class. For a dilated window: rows of each of the interleaved
// outputs.
inline int32_t AllRows(const ConvProblem& p, const Stream& stream) {
  return static_cast<int32_t>(CeilDiv(p.dst_size[1], p.period[1] * stream.apart[0]));
}

// Source pixels of a window part: as many as keep its taps within what a strip reads.
inline int32_t PartCols(const ConvProblem& p, const DepthwiseTile& tile) {
  return static_cast<int32_t>(tile.pixels() - (kStripCols - 1) / p.period[2] * p.step[2]);
}

// Source pixels from a strip to the next.
inline int32_t StripStep(const ConvProblem& p) { return static_cast<int32_t>(kStripCols * p.step[2] / p.period[2]); }

// Pixels that strips of an image, or plane, read of its source row.
inline int32_t SourceWidth(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  return (stream.cols / kStripCols - 1) * StripStep(p) + tile.pixels();
}

// Vectors of a source row that each thread copies.
inline int32_t CopiesOf(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  const int64_t pixels = int64_t{std::max(1, stream.images)} * SourceWidth(p, tile, stream);
  const int64_t vectors = pixels * stream.channels * ElementBytes(p.src_type) / kVectorBytes;
  return static_cast<int32_t>(std::min<int64_t>(CeilDiv(vectors, kDepthwiseThreads), INT16_MAX));
}

// Takes fewer images, until the threads can copy what the strips of a row read.
inline void FitImages(const ConvProblem& p, const DepthwiseTile& tile, Stream* stream) {
  while (stream->images > 1 && CopiesOf(p, tile, *stream) > MostCopies(tile)) --stream->images;
}

// Pixels from an image's row in a box to the next image's. A warp reads neighbouring strips at once, which are of
// neighbouring images. The pitch spreads these reads over as many banks as the channels have. A conv reads every other
// pixel, and pairs of rows read one pixel of each image. A wgrad reads four neighbours of strips of four images, or of
// two images with two strips each.
inline int32_t BoxPitch(int32_t width, const DepthwiseTile& tile, const Stream& stream, Pass pass) {
  if (pass == Pass::kConv || tile.in_pairs) return width | 1;
  if (stream.images < 4) return (width + 3) / 8 * 8 + 4;
  const int32_t even = (width + 1) / 2 * 2;
  return even % 8 == 0 ? even + 2 : even;
}

// The same for a source row. The zeros before an image serve as the zeros after the one before. Its row ends with its
// last pixel, or where strips read nothing but those zeros. A wgrad may also read pixels of the next image: they reach
// only taps that do not exist, or outputs whose gradient is zero. Pairs of rows have no zeros.
inline int32_t SourcePitch(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream, Pass pass) {
  const auto pitch = [&](int64_t width) { return BoxPitch(static_cast<int32_t>(width), tile, stream, pass); };
  if (tile.in_pairs) return pitch(std::max(p.src_size[2], p.dst_size[2]));
  const int64_t width = SourceWidth(p, tile, stream);
  const int64_t taken = pass == Pass::kConv ? width : std::min(width, p.dst_size[2] + tile.pixels() - kStripCols);
  const int64_t zeros = std::min(std::max(-int64_t{stream.first[2]}, int64_t{0}), taken);
  return pitch(std::max(std::min(zeros + p.src_size[2], taken), taken - zeros));
}

// Everything but the operands and the workers. The problem is InElements, and UnsupportedStream accepts the stream.
inline DepthwiseShape MakeShape(const ConvProblem& problem, Pass pass, const DepthwiseTile& tile,
                                const Stream& stream) {
  DepthwiseShape d{};
  d.problem = problem;
  if (stream.images == 0) JoinImages(&d.problem);
  const ConvProblem& p = d.problem;
  d.first_depth = stream.first[0];
  d.first_row = stream.first[1];
  d.first_col = stream.first[2];
  d.row_parts = stream.window_parts[1];
  d.col_parts = stream.window_parts[2];
  d.window_parts = stream.window_parts[0] * d.row_parts * d.col_parts;
  d.part_cols = PartCols(p, tile);
  d.row_apart = stream.apart[0];
  d.col_apart = stream.apart[1];
  d.row_inverse = FastDivisor16Of(d.row_apart);
  d.col_inverse = FastDivisor16Of(d.col_apart);
  const int32_t channel_bytes = stream.channels * static_cast<int32_t>(ElementBytes(p.src_type));
  d.channels = stream.channels;
  d.log_channels = std::bit_width(static_cast<uint32_t>(stream.channels)) - 1;
  d.sets = MostChannelBytes(tile) / channel_bytes;
  d.log_vectors = std::bit_width(static_cast<uint32_t>(channel_bytes / kVectorBytes)) - 1;
  d.tile_strips = MostStrips(tile, channel_bytes);
  d.planes = static_cast<int32_t>(std::min<int64_t>(p.batch * p.dst_size[0], INT32_MAX));
  d.images = std::max(1, stream.images);
  d.strips = stream.cols / kStripCols;
  d.strip_step = StripStep(p);
  d.zeros_before_taps = d.strip_step - static_cast<int32_t>(p.step[2]);
  d.images_first = d.images > 1 && (d.strips % 2 == 0 || d.strips == 1);
  d.strip_inverse = d.images == 1 ? 0 : FastDivisor16Of(d.images_first ? d.images : d.strips);
  d.src_width = tile.by_tma ? SourcePitch(p, tile, stream, pass) : SourceWidth(p, tile, stream);
  d.src_behind = tile.in_pairs ? 0 : std::max(0, SourceWidth(p, tile, stream) - d.src_width);
  d.strips_pitch = tile.in_pairs ? d.src_width : BoxPitch(stream.cols, tile, stream, pass);
  d.width_inverse = d.images == 1 ? 0 : FastDivisor16Of(d.src_width);
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
  d.all_rows_divmod = FastDivisorOf(d.all_rows);
  d.channel_tiles_divmod = FastDivisorOf(d.channel_tiles);
  d.column_tiles_divmod = FastDivisorOf(d.column_tiles);
  d.log_col_period = std::bit_width(static_cast<uint32_t>(p.period[2])) - 1;
  d.offsets = MakeOffsets(d, tile, pass);
  return d;
}

// Tiles of a channel tile, one below the other. Thread blocks share them.
inline int64_t Tiles(const DepthwiseShape& d) { return CeilDiv(d.stream_rows, d.rows); }

// Thread blocks, if `workers` share each channel tile. A conv's take the window parts one after the other. A wgrad
// has others for each window part.
inline int64_t ThreadBlocks(const DepthwiseShape& d, Pass pass, int64_t workers) {
  return workers * d.channel_tiles * (pass == Pass::kWgrad ? d.window_parts : 1);
}

// The most that the registers of an SM hold.
inline int MaxCtasPerSm(const DepthwiseTile& tile, Pass pass) {
  return pass == Pass::kConv ? tile.conv_ctas_per_sm() : tile.wgrad_ctas_per_sm();
}

}  // namespace jaxconv::depthwise
