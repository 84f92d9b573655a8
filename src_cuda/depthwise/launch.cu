// The depthwise family: convolution of each channel on its own, as products with the band matrices of its filter's rows
// on tensor cores; in float32 on CUDA cores.
#include "depthwise/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>

#include "common/enqueue.cuh"
#include "common/layout.h"
#include "common/persistent.h"
#include "common/product.h"
#include "common/types.h"
#include "common/unaligned.h"
#include "depthwise/config.h"
#include "depthwise/maps.h"
#include "families.h"

namespace jaxconv {
namespace {

// Whether an activation's channels are last, in whole pieces.
bool HasPieces(const TensorStrides& s, int64_t channels, int64_t piece) {
  return s.group == 1 && channels % piece == 0 && s.batch % piece == 0 && s.spatial[0] % piece == 0 &&
         s.spatial[1] % piece == 0 && s.spatial[2] % piece == 0;
}

constexpr int kMostPieces = 1 << 10;  // of a window
constexpr int kMostReach = 1 << 30;   // of it, in rows or columns
constexpr int kMostApart = 1 << 16;   // of a dilated one's taps, or tiles of an image

// What does not depend on the plan.
const char* WhyNotProblem(const ConvProblem& p, Pass pass) {
  if (p.in_channels != 1 || p.out_channels != 1) return "depthwise is for groups of one channel";
  const bool has_kernels = p.src_type == DType::kBF16 || p.src_type == DType::kF16 || p.src_type == DType::kF32;
  if (!has_kernels || p.src_type != RhsType(p, pass) || p.src_type != ResultType(p, pass)) {
    return "operands and result are all of bfloat16, of float16 or of float32 here";
  }
  if (p.tap_count == 0 || p.class_count == 0) return "there are no taps";  // of which kernels read the first
  const int64_t piece = kPieceBytes / ElementBytes(p.src_type);
  const bool has_pieces = HasPieces(p.src, p.groups, piece) && HasPieces(p.dst, p.groups, piece);
  return has_pieces ? nullptr : "channels are not last, in pieces of 16 bytes";
}

// Makes the images' rows those of one image.
void JoinImages(ConvProblem* p) {
  const auto join = [&](TensorStrides* s, int64_t* size) {
    s->spatial[1] = size[1] > 1 ? s->spatial[1] : s->batch;
    size[1] *= p->batch;
  };
  join(&p->src, p->src_size);
  join(&p->dst, p->dst_size);
  p->batch = 1;
}

// Whether images are planes, as those of two dimensions are.
bool IsFlat(const ConvProblem& p) { return p.src_size[0] == 1 && p.dst_size[0] == 1; }

bool CanJoinImages(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  const auto is_dense = [](const TensorStrides& s, const int64_t (&size)[kSpatial]) {
    return size[1] == 1 || s.batch == size[1] * s.spatial[1];
  };
  return tile.slots() == 1 && stream.first[1] == 0 && IsFlat(p) && p.src_size[1] == p.dst_size[1] &&
         is_dense(p.src, p.src_size) && is_dense(p.dst, p.dst_size);
}

// Bytes of a gather's table of taps, or of what a reduce has in shared memory behind the last step.
int64_t OtherBytes(const DepthwiseParams& d, const DepthwiseTile& tile, Pass pass) {
  if (tile.on_cuda_cores()) {
    const int64_t taps = static_cast<int64_t>(tile.slots()) * tile.width;
    return taps * 4 * (pass == Pass::kGather ? d.pieces * tile.period : kDepthwiseThreads);
  }
  const int64_t slots = tile.slots();
  if (tile.by_tma && pass == Pass::kReduce) return 0;  // lanes add them
  if (pass == Pass::kReduce) {
    return (slots * tile.pixels() * kStripCols + kSumsGap) * 4 * tile.channels * tile.warps();
  }
  const auto element = static_cast<int64_t>(ElementBytes(d.problem.src_type));
  const int64_t pixels = d.pieces * slots * d.problem.period[2] * tile.pixels() + d.band_begin;
  return pixels * (d.channels + tile.table_gap()) * element;
}

// Bytes of a box of pixels in shared memory, each of which begins a turn of its swizzle.
int64_t BoxBytes(int64_t pixels) { return CeilDiv(pixels * kBoxPixelBytes, kBoxTurnBytes) * kBoxTurnBytes; }

DepthwisePlaces MakePlaces(const DepthwiseParams& d, const DepthwiseTile& tile, Pass pass) {
  const int64_t images = d.images;
  const int64_t row = tile.by_tma ? BoxBytes(images * d.src_width + d.src_behind) : int64_t{d.copies} * d.batch;
  const int64_t result_row = tile.by_tma ? BoxBytes(images * d.strips_pitch) : int64_t{StripPieces(tile)} * d.batch;
  const int64_t stage = tile.box_rows() * (tile.sources() * row + (pass == Pass::kReduce ? result_row : 0));
  const int64_t other = CeilDiv(OtherBytes(d, tile, pass), 128) * 128;
  const bool gathers = pass == Pass::kGather;
  DepthwisePlaces places{};
  int64_t at = 0;
  const auto place = [&](int32_t& where, int64_t bytes) { where = static_cast<int32_t>(at), at += bytes; };
  places.stage = static_cast<int32_t>(stage);
  places.row = static_cast<int32_t>(row);
  at = std::max(tile.stages() * stage, gathers ? 0 : other);
  places.result_row = static_cast<int32_t>(result_row);
  if (gathers) place(places.results, tile.results() * tile.period * result_row);
  if (gathers) place(places.taps, other);
  const int64_t row_sums = tile.row_sums() * 4 * kDepthwiseThreads;
  if (gathers && tile.has_pieces) place(places.sums, d.rows * row_sums);
  const int64_t places_bytes = tile.by_tma ? tile.lags * kTapCols * 4 : int64_t{d.problem.tap_count} * kStoredTapBytes;
  if (tile.has_copiers && !gathers) place(places.taps, places_bytes);
  if (tile.has_copiers) place(places.barriers, kBarrierBytes);
  places.end = static_cast<int32_t>(std::min<int64_t>(at, INT32_MAX));
  return places;
}

// Of a thread's pieces of a row, the bytes from one to the next.
int32_t BatchBytes(const DepthwiseParams& d, const DepthwiseTile& tile) {
  const bool has_gaps = !tile.on_cuda_cores() && !Exchanges(tile);
  return kBatchBytes + (has_gaps ? (kDepthwiseThreads >> d.log_pieces >> d.log_gap) * kPieceBytes : 0);
}

// Source pixels from a strip to the next.
int32_t StripStep(const ConvProblem& p) { return static_cast<int32_t>(kStripCols * p.step[2] / p.period[2]); }

// Pixels that strips of an image, or plane, read of its source row.
int32_t SourceWidth(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  return (stream.cols / kStripCols - 1) * StripStep(p) + tile.pixels();
}

// Pieces of a source row that each thread copies.
int32_t CopiesOf(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream) {
  const int64_t pixels = int64_t{std::max(1, stream.images)} * SourceWidth(p, tile, stream);
  const int64_t pieces = pixels * stream.channels * ElementBytes(p.src_type) / kPieceBytes;
  return static_cast<int32_t>(std::min<int64_t>(CeilDiv(pieces, kDepthwiseThreads), INT16_MAX));
}

// From an image's row in a box to the next one's, in pixels: what a warp reads at once of neighbouring strips, which
// are of neighbouring images, is then in as many banks as there are for its channels. In a gather that is every other
// pixel, or in pairs one of each image; else in a reduce four neighbours, of strips of four images, or of two that have
// two each.
int32_t BoxPitch(int32_t width, const DepthwiseTile& tile, const Stream& stream, Pass pass) {
  if (pass == Pass::kGather || tile.in_pairs) return width | 1;
  if (stream.images < 4) return (width + 3) / 8 * 8 + 4;
  const int32_t even = (width + 1) / 2 * 2;
  return even % 8 == 0 ? even + 2 : even;
}

// The same of a source row. Zeros in front of an image are those behind the one before, too: its row ends with its last
// pixel, or where strips read nothing but those zeros. A reduce's may also read pixels of the next image, but only for
// taps that there are none of, or outputs whose gradient is zero. In pairs there are no zeros.
int32_t SourcePitch(const ConvProblem& p, const DepthwiseTile& tile, const Stream& stream, Pass pass) {
  const auto pitch = [&](int64_t width) { return BoxPitch(static_cast<int32_t>(width), tile, stream, pass); };
  if (tile.in_pairs) return pitch(std::max(p.src_size[2], p.dst_size[2]));
  const int64_t width = SourceWidth(p, tile, stream);
  const int64_t taken = pass == Pass::kGather ? width : std::min(width, p.dst_size[2] + tile.pixels() - kStripCols);
  const int64_t zeros = std::min(std::max(-int64_t{stream.first[2]}, int64_t{0}), taken);
  return pitch(std::max(std::min(zeros + p.src_size[2], taken), taken - zeros));
}

// Everything but the operands and the workers, of a plan whose stream is one.
DepthwiseParams MakeShape(const ConvProblem& problem, Pass pass, const Plan& plan) {
  const DepthwiseTile& tile = kDepthwiseTiles[plan.tile];
  const Stream stream = plan.stream();
  DepthwiseParams d{};
  d.problem = problem;
  if (stream.images == 0) JoinImages(&d.problem);
  const ConvProblem& p = d.problem;
  d.first_depth = stream.first[0];
  d.first_row = stream.first[1];
  d.first_col = stream.first[2];
  d.row_pieces = stream.pieces[1];
  d.col_pieces = stream.pieces[2];
  d.pieces = stream.pieces[0] * d.row_pieces * d.col_pieces;
  d.piece_cols = static_cast<int32_t>(tile.pixels() - (kStripCols - 1) / p.period[2] * p.step[2]);
  d.row_apart = stream.apart[0];
  d.col_apart = stream.apart[1];
  d.row_inverse = InverseOf(d.row_apart);
  d.col_inverse = InverseOf(d.col_apart);
  const int32_t channel_bytes = stream.channels * static_cast<int32_t>(ElementBytes(p.src_type));
  d.channels = stream.channels;
  d.log_channels = std::bit_width(static_cast<uint32_t>(stream.channels)) - 1;
  d.sets = MostChannelBytes(tile) / channel_bytes;
  d.log_pieces = std::bit_width(static_cast<uint32_t>(channel_bytes / kPieceBytes)) - 1;
  d.tile_strips = d.sets * SetStrips(tile);
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
  d.log_gap = pass == Pass::kGather && tile.channels == 8 ? 1 : 3;
  d.batch = BatchBytes(d, tile);
  d.all_channels = static_cast<int32_t>(p.groups);
  d.all_rows = static_cast<int32_t>(CeilDiv(p.dst_size[1], p.period[1] * d.row_apart));
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

DepthwiseKernel Find(DType type, int tile, Pass pass) {
  switch (type) {
    case DType::kBF16: return FindDepthwise<__nv_bfloat16>(tile, pass);
    case DType::kF16: return FindDepthwise<__half>(tile, pass);
    default: return FindDepthwise<float>(tile, pass);
  }
}

DepthwiseTmaKernel FindByTma(DType type, int tile, Pass pass) {
  return type == DType::kBF16 ? FindDepthwiseByTma<__nv_bfloat16>(tile, pass) : FindDepthwiseByTma<__half>(tile, pass);
}

Plan WithTile(Plan plan, const DepthwiseTile& tile) {
  plan.tile = DepthwiseTileIndex(tile);
  return plan;
}

// The plan that runs on this device. Where no warps do nothing but copy, the same tile is without them: thread blocks
// have half the channels, or half the strips, and as many as the fewer threads copy.
Plan PlanHere(const ConvProblem& p, const Plan& plan) {
  const DepthwiseTile tile = WithoutCopiers(kDepthwiseTiles[plan.tile]);
  if (tile == kDepthwiseTiles[plan.tile] || DeviceHasWgmma()) return plan;
  constexpr int kElementBytes = 2, kFewest = kPieceBytes / kElementBytes;
  Plan here = WithTile(plan, tile);
  int32_t &cols = here.shape[1], &channels = here.shape[2], &images = here.shape[3];
  channels = std::max(channels / 2, kFewest);
  const int most_strips = MostChannelBytes(tile) / (channels * kElementBytes) * kMultiplied;
  cols = std::min(cols, most_strips * kStripCols);
  images = std::min(images, most_strips / std::max(1, cols / kStripCols));
  while (CopiesOf(p, tile, here.stream()) > MostCopies(tile) && std::max(images, cols / kStripCols) > 1) {
    images > 1 ? --images : cols -= kStripCols;
  }
  return here;
}

const char* WhyNot(const ConvProblem& p, Pass pass, const Plan& planned) {
  if (const char* why = WhyNotPersistentPlan(planned, std::size(kDepthwiseTiles), pass)) return why;
  if (ResultElements(p, pass) == 0) return nullptr;
  if (const char* why = WhyNotProblem(p, pass)) return why;
  const Plan plan = PlanHere(p, planned);
  const DepthwiseTile& tile = kDepthwiseTiles[plan.tile];
  const Stream stream = plan.stream();
  if (pass == Pass::kReduce && !tile.reduces()) return "the tile has no reduce";
  if (pass == Pass::kGather && !tile.gathers()) return "the tile has no gather";
  if (tile.in_pairs && std::max(p.src_size[2], p.dst_size[2]) > kStripCols) return "rows have more than eight columns";
  const bool in_f32 = p.src_type == DType::kF32;
  if (in_f32 != tile.on_cuda_cores()) return "the tile is compiled for other types";
  if (p.step[1] != tile.step || p.period[1] != tile.period) return "rows are of other strides than the tile's";
  if (in_f32 && (p.step[2] != tile.step || p.period[2] != tile.period)) return "columns have not the rows' strides";
  if (kMostPeriod % p.period[2] != 0) return "columns' period is not 1, 2 or 4";
  const int64_t channel_bytes = stream.channels * static_cast<int64_t>(ElementBytes(p.src_type));
  if (channel_bytes < kPieceBytes || channel_bytes > MostChannelBytes(tile) ||
      !std::has_single_bit(static_cast<uint32_t>(stream.channels))) {
    return "no such channels of a thread block";
  }
  if (!IsFlat(p) && !tile.has_planes()) return "the tile is for one or two spatial dimensions";
  for (int d = 0; d < kSpatial; ++d) {
    if (p.src_size[d] == 0) return "the source is empty";
    if (std::abs(int64_t{stream.first[d]}) > kMostReach) return "windows begin too far from the image";
  }
  int64_t pieces = 1;
  for (const int32_t along : stream.pieces) {
    if (along < 1 || (along > 1 && !tile.has_pieces) || along > kMostPieces) return "no such pieces of the window";
    pieces *= along;
  }
  for (int i = 0; i < 2; ++i) {
    const int64_t taps = i == 0 ? tile.step * tile.lags : tile.pixels();
    const bool is_strided = p.step[i + 1] != 1 || p.period[i + 1] != 1;
    const int64_t apart = stream.apart[i];
    if (apart < 1 || apart >= kMostApart || stream.pieces[i + 1] * taps * apart > kMostReach) {
      return "no such distances between taps";
    }
    if (apart > 1 && is_strided) return "rows or columns of a dilated window are strided";
  }
  constexpr int kMostStrips = kMultiplied * kDepthwiseWarps, kMostRows = 1 << 16;
  if (stream.rows < 1 || stream.cols < kStripCols || stream.cols % kStripCols != 0 || stream.images < 0 ||
      stream.cols > kMostStrips * kStripCols || stream.images > kMostStrips || pieces > kMostPieces ||
      (tile.has_pieces && stream.rows > kMostRows)) {
    return "no such tile of strips";
  }
  if (stream.images == 0 && !CanJoinImages(p, tile, stream)) return "the images' rows are not one image's";
  const int64_t planes = p.batch * p.dst_size[0];
  if (planes * std::max(p.src_size[1], p.dst_size[1]) >= INT32_MAX) return "rows do not fit 32 bits";
  // A tile's planes are of so many volumes.
  const int64_t volumes = (std::max(1, stream.images) + 2 * p.dst_size[0] - 2) / p.dst_size[0];
  const auto extent = [&](const TensorStrides& s, const int64_t (&size)[kSpatial]) {
    const int64_t within = std::max({size[0] * s.spatial[0], size[1] * s.spatial[1], size[2] * s.spatial[2]});
    return std::max(volumes * s.batch, within);
  };
  if (std::max(extent(p.src, p.src_size), extent(p.dst, p.dst_size)) >= INT32_MAX) {
    return "elements of a tile's images do not fit 32 bits";
  }
  const DepthwiseParams d = MakeShape(p, pass, plan);
  if (d.images * d.strips > d.tile_strips) return "a tile has more strips than the warps";
  if (tile.by_tma) {
    if (channel_bytes != kBoxPixelBytes) return "boxes have 64 bytes of each pixel";
    if (d.images * d.strips != d.tile_strips || !d.images_first) return "boxes are of as many strips as the warps";
    if (tile.in_pairs && d.strips != 1) return "pairs are of rows of one strip";
    if (d.column_tiles != 1 || std::max(stream.apart[0], stream.apart[1]) > 1) return "boxes are of whole rows";
    if (p.step[2] != 1 || p.period[2] != 1) return "boxes are of neighbouring columns";
  }
  if (d.copies > MostCopies(tile)) return "a row has more pixels than the threads copy";
  if (d.stream_rows == INT32_MAX) return "there are too many rows";
  if (std::max(d.row_apart, d.col_apart) > 1 && d.column_tiles >= kMostApart) return "an image has too many tiles";
  return nullptr;
}

size_t SharedBytes(const ConvProblem& p, Pass pass, const Plan& plan) {
  return ResultElements(p, pass) == 0 ? 0 : MakeShape(p, pass, PlanHere(p, plan)).places.end;
}

cudaError_t Launch(const ConvCall& call, const Plan& planned, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  if (ResultElements(p, call.pass) == 0) return cudaSuccess;
  const Plan plan = PlanHere(p, planned);
  const DepthwiseTile& tile = kDepthwiseTiles[plan.tile];
  const bool reduce = call.pass == Pass::kReduce;
  DepthwiseParams d = MakeShape(p, call.pass, plan);
  SetOperands(call, plan, &d);
  // The filter, or its gradient, is read or written an element at a time.
  if (!AreAligned({d.src, reduce ? d.rhs : d.out})) return LaunchUnaligned(call, plan, stream);
  // A gather's blocks stay as long as there are rows.
  d.workers = reduce ? plan.split
                     : Workers(d.places.end, tile.gather_blocks(), d.channel_tiles, CeilDiv(d.stream_rows, d.rows));
  d.worker_rows = d.stream_rows / d.workers;
  d.longer_workers = d.stream_rows % d.workers;
  const int64_t blocks = static_cast<int64_t>(d.workers) * d.channel_tiles * (reduce ? d.pieces : 1);
  const auto enqueue = [&](auto* kernel, const auto&... maps) {
    return EnqueueShared(kernel, blocks, BlockThreads(tile), d.places.end, stream, d, maps...);
  };
  DepthwiseMaps maps;
  if (tile.by_tma && !EncodeMaps(call, d, &maps)) return Launch(call, WithTile(plan, WithoutTma(tile)), stream);
  const cudaError_t status = tile.by_tma ? enqueue(FindByTma(p.src_type, plan.tile, call.pass), maps)
                                         : enqueue(Find(p.src_type, plan.tile, call.pass));
  if (status != cudaSuccess || plan.split == 1) return status;
  return AddSlices<float>(call, plan, stream);
}

}  // namespace

const KernelFamily kDepthwise = {WhyNot, SplitBytes, SharedBytes, Launch};

}  // namespace jaxconv
