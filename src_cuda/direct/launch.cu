// The direct family: convolution on tensor cores from a box of source pixels in shared memory, which serves all taps.
// For channels that tiles of a matrix product are too large for: narrow groups, depthwise, stems, few outputs.
#include "direct/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <numeric>

#include "common/device_attribute.h"
#include "common/enqueue.cuh"
#include "common/layout.h"
#include "common/persistent.h"
#include "common/product.h"
#include "common/types.h"
#include "common/unaligned.h"
#include "direct/config.h"
#include "direct/tensor_map.h"
#include "families.h"

namespace jaxconv {
namespace {

// How many groups a channel block has: the most that a tile's pieces hold, whole ones of source and output channels,
// equally many in each block as far as that goes; 0 where they do not.
int32_t BlockGroups(const ConvProblem& p, const DirectTile& tile) {
  const auto whole = [](int64_t channels) { return kPieceChannels / std::gcd<int64_t>(channels, kPieceChannels); };
  const int64_t least = std::lcm(whole(p.in_channels), whole(p.out_channels));
  const int64_t most = tile.pieces * kPieceChannels / std::max(p.in_channels, p.out_channels) / least * least;
  if (most == 0) return 0;
  const int64_t blocks = CeilDiv(p.groups, most);
  return static_cast<int32_t>(CeilDiv(CeilDiv(p.groups, blocks), least) * least);
}

// Whether columns are (tap, output channel)s.
bool HasTapsAcross(const DirectTile& tile, Pass pass) { return pass == Pass::kGather && tile.taps_across; }

// Whether the source passes by, a row of each walk at a time. All warps have the same output channels then.
bool Streams(const DirectTile& tile, Pass pass) { return pass == Pass::kGather && tile.walk.streams(); }

int64_t BoxPixels(const Area& area) { return static_cast<int64_t>(area.box[0]) * area.box[1] * area.box[2]; }

PixelLayout Layout(int64_t pieces) {
  return {static_cast<int32_t>(pieces), static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(pieces) - 1))};
}

// The pieces of source channels that a set of output channels reads: a power of two, at whose multiples each set's
// begin, if that is less than all.
int32_t EntryPieces(const ConvProblem& p, int32_t groups, int32_t set_cols) {
  const int64_t all = groups * p.in_channels / kPieceChannels;
  int64_t pieces = 1;
  for (int64_t col = 0; col < groups * p.out_channels; col += set_cols) {
    const int64_t last = std::min(col + set_cols, groups * p.out_channels) - 1;
    const int64_t first_piece = col / p.out_channels * p.in_channels / kPieceChannels;
    const int64_t last_piece = ((last / p.out_channels + 1) * p.in_channels - 1) / kPieceChannels;
    while (first_piece / pieces != last_piece / pieces) pieces *= 2;
  }
  return static_cast<int32_t>(all % pieces == 0 ? pieces : all);
}

// Pieces of a run: (tap, channel)s of a row of taps, which may begin with an element that is none of them. By twos in a
// gather whose warps do not walk: a multiplication's are one behind the other.
int32_t RunPieces(const ConvProblem& p, Pass pass, const Area& area, const DirectTile& tile) {
  const int64_t elements = area.run * p.in_channels + p.in_channels % 2;
  const int64_t pieces = CeilDiv(elements, kPieceChannels);
  return static_cast<int32_t>(tile.walks() || pass == Pass::kReduce ? pieces : CeilDiv(pieces, 2) * 2);
}

// The thread blocks' channels, and how they lie in shared memory.
void SetChannels(DirectParams& d, const DirectTile& tile, Pass pass) {
  const ConvProblem& p = d.problem;
  const int warp_cols = (pass == Pass::kGather ? tile.col_blocks() : tile.set) * 8;
  int64_t cols;  // of a channel block
  if (p.groups > 1) {
    d.block_groups = BlockGroups(p, tile);
    d.channel_blocks = static_cast<int32_t>(CeilDiv(p.groups, d.block_groups));
    d.chunks = 1;
    d.src_pixel = Layout(d.block_groups * p.in_channels / kPieceChannels);
    d.entry_pieces = EntryPieces(p, d.block_groups, tile.set * 8);
    cols = CeilDiv(d.block_groups * p.out_channels, warp_cols) * warp_cols;
  } else {
    const int64_t pieces = d.area.run > 0 ? 1 : p.in_channels / kPieceChannels;
    d.block_groups = 0;
    d.chunks = static_cast<int32_t>(CeilDiv(pieces, tile.pieces));
    d.src_pixel = Layout(CeilDiv(pieces, d.chunks));
    d.entry_pieces = d.area.run > 0 ? RunPieces(p, pass, d.area, tile) : d.src_pixel.pieces;
    const int64_t most = Streams(tile, pass) ? 1 : std::max(1, tile.pieces * kPieceChannels / warp_cols);
    cols = std::min(CeilDiv(p.out_channels, warp_cols), most) * warp_cols;
    d.channel_blocks = static_cast<int32_t>(CeilDiv(p.out_channels, cols));
  }
  d.col_blocks = static_cast<int32_t>(cols / 8);
  d.dst_pixel = Layout(d.col_blocks);
}

// Of a gather: the warps that share out an area's positions.
int WarpsDown(const DirectParams& d, const DirectTile& tile) { return tile.warps / (d.col_blocks / tile.col_blocks()); }

// Of a reduce: sets of output channels by parts of the entries.
int Items(const DirectParams& d, const DirectTile& tile) {
  const FilterSteps steps(d.area.taps, d.entry_pieces, 0, d.area.run);
  const int64_t rows = CeilDiv(steps.entries, 2);
  return static_cast<int>(std::max<int64_t>(1, CeilDiv(rows, tile.filter_rows))) * d.col_blocks / tile.set;
}

int64_t AreaPositions(const DirectParams& d, const DirectTile& tile, Pass pass) {
  if (HasTapsAcross(tile, pass)) return static_cast<int64_t>(d.area.rows) * d.area.cols;
  if (pass == Pass::kGather) return WarpsDown(d, tile) * tile.positions * 16;
  return CeilDiv(d.area.rows * d.area.cols, 32) * 32;
}

DirectPlaces MakePlaces(const DirectParams& d, const DirectTile& tile, Pass pass, DType out_type) {
  constexpr int64_t kAlignment = 128;
  const auto turn = [](int64_t bytes) { return CeilDiv(bytes, 1024) * 1024; };  // of TMA's exchange of pieces
  const auto whole = [](int64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; };
  const int64_t box = BoxPixels(d.area), positions = d.positions, cols = d.col_blocks * 8;
  const int64_t products = HasTapsAcross(tile, pass) ? cols * ProductPitch(static_cast<int32_t>(box)) * 4 : 0;
  const int64_t pixels = Streams(tile, pass) ? int64_t{d.area.rows} / d.area.walk * d.area.box[2] : box;
  const int64_t box_bytes = turn(std::max((pixels << d.src_pixel.pitch) * 16, products));
  const int64_t out_bytes = static_cast<int64_t>(ElementBytes(out_type));
  int64_t at = 0;
  DirectPlaces places{};
  const auto place = [&](int32_t& where, int64_t bytes) { where = static_cast<int32_t>(at), at += whole(bytes); };
  places.gradient = static_cast<int32_t>(box_bytes);
  places.stage = static_cast<int32_t>(box_bytes);
  if (pass == Pass::kReduce) places.stage += static_cast<int32_t>(turn((positions << d.dst_pixel.pitch) * 16));
  const int stages = Streams(tile, pass) ? kRowStages : kDirectStages;
  at = stages * int64_t{places.stage};
  const FilterSteps steps(HasTapsAcross(tile, pass) ? 1 : d.area.taps, d.entry_pieces, d.row_taps, d.area.run);
  const int64_t entries = FilterSteps(d.area.taps, d.entry_pieces, 0, d.area.run).entries;
  const int64_t filter = d.chunks * int64_t{steps.all} * d.col_blocks * kColBlockBytes;
  if (pass == Pass::kGather && tile.walks() && stages == kDirectStages) {  // it is in registers before the second area
    places.filter = places.stage;
    at = std::max(at, places.stage + whole(filter));
  } else if (pass == Pass::kGather) {
    place(places.filter, filter);
  }
  const int64_t exchange = tile.filter_rows * tile.set * 4 * 32 * 4 * int64_t{d.items} * d.parts;  // of all warps' sums
  if (pass == Pass::kReduce) at = std::max(at, exchange);
  place(places.entries, HasTapsAcross(tile, pass) ? cols * 4 : (entries + 1) * kRun * 4);
  place(places.positions, positions * 8);
  if (pass == Pass::kReduce) {
    place(places.position_pixels, positions * 4);
    place(places.sums, int64_t{d.items} * (tile.filter_rows * 16 + tile.set * 8) * 8);
  }
  place(places.zeros, 16);
  place(places.barriers, stages * 16);
  if (pass == Pass::kGather && !tile.walks() && !tile.taps_across) {
    place(places.results, tile.warps * 16 * (tile.col_blocks() * 8 * out_bytes + 16));
  }
  places.end = static_cast<int32_t>(std::min<int64_t>(at, INT32_MAX));
  return places;
}

// Everything but the operands.
DirectParams MakeShape(const ConvProblem& p, Pass pass, const Plan& plan) {
  const DirectTile& tile = kDirectTiles[plan.tile];
  DirectParams d{};
  d.problem = p;
  d.area = plan.area();
  SetChannels(d, tile, pass);
  for (int i = 0; i < kSpatial; ++i) {
    d.dst_apart[i] = static_cast<int32_t>(p.period[i] * p.dst.spatial[i]);
  }
  d.positions = static_cast<int32_t>(AreaPositions(d, tile, pass));
  d.position_elements = static_cast<int32_t>(p.step[2] * p.in_channels);
  d.items = pass == Pass::kReduce ? Items(d, tile) : 1;
  d.parts = std::max(1, kReduceWarps / d.items);
  if (pass == Pass::kGather && tile.walks()) {
    d.row_taps = d.area.taps / tile.walk.rows;
    d.row_dilation = (d.area.box[1] - (d.area.rows - 1) * static_cast<int32_t>(p.step[1]) - 1) / (tile.walk.rows - 1);
  }
  std::copy_n(d.area.box, kSpatial, d.copied);
  if (Streams(tile, pass)) d.copied[1] = 1;
  d.places = MakePlaces(d, tile, pass, StoredType(p, pass, plan));
  return d;
}

// Whether pixels are whole vectors of a unit of channels.
bool HasPixels(const TensorStrides& s, int64_t groups, int64_t channels, int unit) {
  return s.channel == 1 && (groups == 1 || s.group == channels) && s.batch % unit == 0 && s.spatial[0] % unit == 0 &&
         s.spatial[1] % unit == 0 && s.spatial[2] % unit == 0 && groups * channels % unit == 0;
}

// Output channels that are stored at once.
int OutUnit(const DirectTile& tile, Pass pass) {
  if (HasTapsAcross(tile, pass)) return 1;
  return pass == Pass::kGather && tile.walks() && tile.col_blocks() == 1 ? 2 : kPieceChannels;
}

// Rows of a source that is read in runs: of neighbouring elements, two at a time, which TMA takes for pieces.
bool HasRuns(const ConvProblem& p) {
  const TensorStrides& s = p.src;
  return p.groups == 1 && p.class_count == 1 && s.channel == 1 && s.spatial[2] == p.in_channels &&
         s.batch % kPieceChannels == 0 && s.spatial[0] % kPieceChannels == 0 && s.spatial[1] % kPieceChannels == 0 &&
         p.src_size[2] * p.in_channels % kPieceChannels == 0;
}

const char* WhyNotProblem(const ConvProblem& p, Pass pass, const DirectTile& tile) {
  const bool is_short = p.src_type == DType::kBF16 || p.src_type == DType::kF16;
  if (!is_short || p.src_type != RhsType(p, pass)) return "operands are of bfloat16 or float16 here";
  if (SumType(p) != DType::kF32) return "tensor cores sum in float32 here";
  if (tile.run > 0 && !HasRuns(p)) return "no runs are read here";
  if ((tile.run == 0 && !HasPixels(p.src, p.groups, p.in_channels, kPieceChannels)) ||
      !HasPixels(p.dst, p.groups, p.out_channels, OutUnit(tile, pass))) {
    return "channels are not last, in pieces of eight";
  }
  return nullptr;
}

// The taps are looked at by the kernel. A warp reads whole multiplications' pieces, also behind a run's end.
const char* WhyNotRun(const DirectParams& d, const DirectTile& tile, bool walks) {
  const Area& area = d.area;
  if (area.run == 0) return nullptr;
  if (area.taps != d.problem.tap_count || area.taps % area.run || area.cols % 16) return "no such runs";
  if (walks && (d.row_taps != area.run || d.entry_pieces > tile.run)) return "its warps do not hold a run";
  const int64_t pieces = walks ? tile.run : d.entry_pieces;
  // Elements in front of the first one that is read, at most, and the word behind what begins in the middle of one.
  const int64_t around = kPieceChannels - 2 + d.position_elements % 2 * 2;
  const int64_t elements = around + (area.cols - 1) * int64_t{d.position_elements} + pieces * kPieceChannels;
  return elements <= int64_t{area.box[2]} * kPieceChannels && area.box[2] <= kMostBoxExtent / kPieceChannels
             ? nullptr
             : "no such box of runs";
}

// The taps are looked at by the kernel.
const char* WhyNotWalk(const DirectParams& d, const DirectTile& tile) {
  const ConvProblem& p = d.problem;
  if (p.dst_type != DType::kF32 && p.dst_type != p.src_type) return "results are of the operands' type or float32 here";
  const Walk& walk = tile.walk;
  const int32_t rows = d.area.rows, last_row = (rows - 1) * walk.step + (walk.rows - 1) * d.row_dilation;
  if (p.step[1] != walk.step || d.row_taps < 1 || d.area.taps % walk.rows || p.tap_count % d.row_taps) {
    return "rows do not follow each other";
  }
  const bool is_dense = walk.step > 1 || walk.streams();
  if (d.row_dilation < 1 || (is_dense && d.row_dilation > 1) || d.area.box[1] != last_row + 1 ||
      d.area.walk < walk.lags() - 1 || rows % d.area.walk || rows / d.area.walk % d.row_dilation) {
    return "no such walk";
  }
  const FilterSteps steps(d.area.taps, d.entry_pieces, d.row_taps, d.area.run);
  if (d.chunks > 1 || steps.of_row > walk.steps) return "its warps do not hold the filter";
  return nullptr;
}

const char* WhyNotTapsAcross(const DirectParams& d, const DirectTile& tile) {
  if (d.problem.groups > 1) return "columns are of one group here";
  if (std::max(1, d.area.taps) * d.problem.out_channels > tile.col_blocks() * 8) {
    return "its columns do not hold all taps";
  }
  return BoxPixels(d.area) > tile.warps * tile.positions * 16 ? "its warps do not hold the box" : nullptr;
}

const char* WhyNot(const ConvProblem& p, Pass pass, const Plan& plan) {
  if (const char* why = WhyNotPersistentPlan(plan, std::size(kDirectTiles), pass)) return why;
  if (ResultElements(p, pass) == 0) return nullptr;
  const DirectTile& tile = kDirectTiles[plan.tile];
  const bool is_runs = tile.run > 0, walks = pass == Pass::kGather && tile.walks();
  if (const char* why = WhyNotProblem(p, pass, tile)) return why;
  if (p.groups > 1 && BlockGroups(p, tile) == 0) return "the tile does not hold whole groups";
  const Area area = plan.area();
  if (area.rows < 1 || area.cols < kRun || area.cols % kRun || area.taps < 0 || area.taps > p.tap_count ||
      area.walk < 1 || area.run < 0 || area.run > area.taps || (area.run > 0) != is_runs) {
    return "no such area";
  }
  const bool taps_across = HasTapsAcross(tile, pass), has_whole_runs = area.box[2] % kRun == 0;
  if (std::min({area.box[0], area.box[1], area.box[2]}) < 1 || !(is_runs || taps_across || has_whole_runs) ||
      std::max({area.box[0], area.box[1], area.box[2], area.rows, area.cols}) > kMostBoxExtent) {
    return "no such box";
  }
  constexpr int64_t kMostPixels = 1 << 16;  // sizes of shared memory are of 32 bits
  if (BoxPixels(area) > kMostPixels) return "the box is too large";
  if (pass == Pass::kReduce && std::max({p.period[0], p.period[1], p.period[2]}) > 1) {
    return "the gradient's positions are not neighbours";
  }
  const DirectParams d = MakeShape(p, pass, plan);
  if (const char* why = WhyNotRun(d, tile, walks)) return why;
  if (const char* why = taps_across ? WhyNotTapsAcross(d, tile) : nullptr) return why;
  if (walks) {
    if (const char* why = WhyNotWalk(d, tile)) return why;
  } else if (area.walk != 1) {
    return "the tile does not walk";
  }
  if (pass == Pass::kGather) {
    const int across = d.col_blocks / tile.col_blocks();
    if (across > tile.warps || tile.warps % across) return "its warps do not share out the channels";
    if (area.rows / area.walk * area.cols > d.positions) return "its warps do not cover the area";
  } else if (d.items > kReduceWarps || d.col_blocks > 8) {
    return "its warps do not hold the sums";
  }
  const auto image = [](const TensorStrides& s, const int64_t (&size)[kSpatial]) {
    return std::max({s.spatial[0] * size[0], s.spatial[1] * size[1], s.spatial[2] * size[2]});
  };
  const int64_t sums = pass == Pass::kReduce ? ResultElements(p, pass) : 0;
  if (std::max({Positions(p), sums, image(p.src, p.src_size), image(p.dst, p.dst_size)}) >= INT32_MAX) {
    return "positions, a gradient's sums, or the elements of an image do not fit 32 bits";
  }
  return nullptr;
}

size_t SharedBytes(const ConvProblem& p, Pass pass, const Plan& plan) {
  return ResultElements(p, pass) == 0 ? 0 : MakeShape(p, pass, plan).places.end;
}

// A gather's blocks stay as long as there are areas.
int32_t GatherWorkers(const DirectParams& d, const DirectTile& tile) {
  const ConvProblem& p = d.problem;
  const int64_t areas =
      p.batch * p.dst_size[0] * CeilDiv(p.dst_size[1], d.area.rows) * CeilDiv(p.dst_size[2], d.area.cols);
  return Workers(d.places.end, tile.gather_blocks(), static_cast<int64_t>(d.channel_blocks) * p.class_count, areas);
}

FilterOrder OrderOf(const ConvCall& call, const DirectTile& tile) {
  const ConvProblem& p = call.problem;
  const FilterStrides& f = p.filter;
  const int64_t outs = p.groups * p.out_channels;
  if (call.pass == Pass::kReduce) return FilterOrder::kNone;
  if (RhsLayout(call).StepVectors(kPieceChannels)) return FilterOrder::kIns;
  if (tile.taps_across) return FilterOrder::kNone;
  const bool is_row = f.out == 1 && (p.groups == 1 || f.group == p.out_channels) && outs % kPieceChannels == 0;
  return is_row && (p.in_channels == 1 || f.in == outs) ? FilterOrder::kOuts : FilterOrder::kNone;
}

// Fills in what TMA needs, on devices that have it.
bool EncodeMaps(const ConvCall& call, DirectParams* d) {
  const int major = DeviceAttribute(cudaDevAttrComputeCapabilityMajor);
  if (major == 0) return false;
  if (major < 9) return true;
  const ConvProblem& p = call.problem;
  const int32_t area[kSpatial] = {1, d->area.rows, d->area.cols};
  if (!EncodeMap(&d->src_map, &d->src_in_rows, call.src, p.src_type, p.src, p.src_size, p.batch,
                 p.groups * p.in_channels, d->src_pixel, d->copied, d->area.run > 0)) {
    return false;
  }
  return call.pass == Pass::kGather || EncodeMap(&d->dst_map, &d->dst_in_rows, call.rhs, p.dst_type, p.dst, p.dst_size,
                                                 p.batch, p.groups * p.out_channels, d->dst_pixel, area, false);
}

// What thread blocks divide by, of which the workers were the last to be known.
void SetDividers(DirectParams* d) {
  const ConvProblem& p = d->problem;
  const auto divider = [](int64_t divisor) { return Divider<int32_t>(static_cast<int32_t>(divisor)); };
  d->by_workers = divider(d->workers);
  d->by_chunks = divider(d->chunks);
  d->by_channel_blocks = divider(d->channel_blocks);
  d->by_cols = divider(d->area.cols);
  d->by_pieces = divider(d->entry_pieces);
  d->by_ins = divider(p.in_channels);
  d->by_outs = divider(p.out_channels);
  d->grid = AreaGrid(d->area, {static_cast<int32_t>(p.dst_size[0]), static_cast<int32_t>(p.dst_size[1]),
                               static_cast<int32_t>(p.dst_size[2])});
}

cudaError_t Launch(const ConvCall& call, const Plan& plan, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  if (ResultElements(p, call.pass) == 0) return cudaSuccess;
  const DirectTile& tile = kDirectTiles[plan.tile];
  const bool reduce = call.pass == Pass::kReduce;
  DirectParams d = MakeShape(p, call.pass, plan);
  SetOperands(call, plan, &d);
  if (!AreAligned({d.src, d.rhs, d.out})) return LaunchUnaligned(call, plan, stream);
  d.workers = reduce ? plan.split : GatherWorkers(d, tile);
  d.filter_order = OrderOf(call, tile);
  SetDividers(&d);
  if (!EncodeMaps(call, &d)) return cudaErrorInvalidValue;
  const bool is_odd = d.area.run > 0 && d.position_elements % 2 == 1;
  const DirectKernel kernel = p.src_type == DType::kBF16 ? FindDirect<__nv_bfloat16>(plan.tile, call.pass, is_odd)
                                                         : FindDirect<__half>(plan.tile, call.pass, is_odd);
  const int64_t blocks = static_cast<int64_t>(d.workers) * d.channel_blocks * p.class_count * (reduce ? d.chunks : 1);
  const int warps = reduce ? kReduceWarps : tile.gather_warps();
  const cudaError_t status = EnqueueShared(kernel, blocks, 32 * warps, d.places.end, stream, d);
  if (status != cudaSuccess || plan.split == 1) return status;
  return AddSlices<float>(call, plan, stream);
}

}  // namespace

const KernelFamily kDirect = {WhyNot, SplitBytes, SharedBytes, Launch};

}  // namespace jaxconv
