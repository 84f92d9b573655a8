// The direct family: convolution on tensor cores from a halo tile in shared memory, which serves all taps. For channels
// that tiles of a matrix product are too large for: narrow groups, depthwise, stems, few outputs.
#include "direct/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "common/call_epilogue.h"
#include "common/device_attribute.h"
#include "common/enqueue.cuh"
#include "common/gradient_sums.h"
#include "common/layout.h"
#include "common/persistent.h"
#include "common/product.h"
#include "common/split_k.h"
#include "common/stand_in.h"
#include "common/types.h"
#include "direct/config.h"
#include "direct/family.h"
#include "direct/layout.h"
#include "direct/support.h"
#include "direct/tensor_map.h"

namespace jaxconv {
namespace {

// Everything but the operands.
DirectParams ParamsOf(const DirectLayout& layout) {
  const ConvProblem& p = layout.problem;
  DirectParams d{};
  d.problem = p;
  d.channel_blocks = layout.channel_blocks;
  d.channel_parts = layout.channel_parts;
  d.block_groups = layout.block_groups;
  d.col_blocks = layout.col_blocks;
  d.src_pixel = layout.src_pixel;
  d.dst_pixel = layout.dst_pixel;
  d.tile = layout.out_tile;
  d.position_elements = static_cast<int32_t>(layout.position_elements());
  d.offsets = layout.offsets;
  std::copy_n(d.tile.halo, kSpatial, d.copied);
  if (layout.stages_rows()) d.copied[1] = 1;
  for (int i = 0; i < kSpatial; ++i) d.dst_apart[i] = static_cast<int32_t>(p.period[i] * p.dst.spatial[i]);
  d.entry_vectors = layout.entry_vectors;
  d.positions = layout.positions;
  d.items = layout.items;
  d.parts = layout.parts;
  d.row_taps = layout.row_taps;
  d.row_dilation = layout.row_dilation;
  return d;
}

// Thread blocks of a conv are persistent.
int32_t ConvWorkers(const DirectLayout& d) {
  const ConvProblem& p = d.problem;
  const int64_t out_tiles =
      p.batch * p.dst_size[0] * CeilDiv(p.dst_size[1], d.out_tile.rows) * CeilDiv(p.dst_size[2], d.out_tile.cols);
  return PersistentCtasOfDevice(d.shared_bytes, d.blocks(), static_cast<int64_t>(d.channel_blocks) * p.class_count,
                                out_tiles);
}

FilterOrder OrderOf(const ConvCall& call, const DirectTile& tile) {
  const ConvProblem& p = call.problem;
  const FilterStrides& f = p.filter;
  const int64_t outs = p.groups * p.out_channels;
  if (call.pass == Pass::kWgrad) return FilterOrder::kNone;
  if (RhsLayout(call).KVectors(TraitsOf(p.filter_type).vector())) return FilterOrder::kIns;
  if (tile.taps_in_n) return FilterOrder::kNone;
  const bool is_row = f.out == 1 && (p.groups == 1 || f.group == p.out_channels) && outs % kColBlock == 0;
  if (!tile.of_halves() && p.groups > 1 && p.out_channels % 4 != 0) return FilterOrder::kNone;  // four are read at once
  return is_row && (p.in_channels == 1 || f.in == outs) ? FilterOrder::kOuts : FilterOrder::kNone;
}

// Maps of a row of a halo tile in the image, and in the rows of its neighbours.
bool EncodeRows(const ConvCall& call, const DirectSettings& s, DirectParams* d) {
  const ConvProblem& p = call.problem;
  const int dim = s.rows_dim();
  d->has_rows = true, d->rows_dim = dim;
  d->rows_before = static_cast<int32_t>(s.rows_before), d->rows_after = static_cast<int32_t>(s.rows_after);
  int32_t extent[] = {d->copied[0], d->copied[1], d->copied[2]};
  extent[dim] = 1;
  d->row_bytes = static_cast<uint32_t>(extent[0] * extent[1] * extent[2] << d->src_pixel.pitch) * 16;
  const void* const arrays[] = {call.rows.before, call.src, call.rows.after};
  const int64_t counts[] = {s.rows_before, p.src_size[dim], s.rows_after};
  for (int i = 0; i < 3; ++i) {
    const RowsOfSource of(p, dim, counts[i]);
    bool in_rows = d->src_in_rows;
    if (counts[i] > 0 && !EncodeMap(&d->row_maps[i], &in_rows, arrays[i], p.src_type, of.strides, of.size, p.batch,
                                    p.groups * p.in_channels, d->src_pixel, extent, d->tile.packed > 0)) {
      return false;
    }
    if (in_rows != d->src_in_rows) return false;  // coordinates would mean something else
  }
  return true;
}

// Fills in what TMA needs, on devices that have it.
bool EncodeMaps(const ConvCall& call, const DirectSettings& s, DirectParams* d) {
  const int major = DeviceAttribute(cudaDevAttrComputeCapabilityMajor);
  if (major == 0) return false;
  if (major < 9) return !s.has_rows();
  const ConvProblem& p = call.problem;
  const int32_t out_tile[kSpatial] = {1, d->tile.rows, d->tile.cols};
  if (!EncodeMap(&d->src_map, &d->src_in_rows, call.src, p.src_type, p.src, p.src_size, p.batch,
                 p.groups * p.in_channels, d->src_pixel, d->copied, d->tile.packed > 0)) {
    return false;
  }
  if (s.has_rows() && !EncodeRows(call, s, d)) return false;
  return call.pass == Pass::kConv || EncodeMap(&d->dst_map, &d->dst_in_rows, call.rhs, p.dst_type, p.dst, p.dst_size,
                                               p.batch, p.groups * p.out_channels, d->dst_pixel, out_tile, false);
}

// What thread blocks divide by. The workers are known last.
void SetDividers(DirectParams* d) {
  const ConvProblem& p = d->problem;
  const auto divmod = [](int64_t divisor) { return FastDivmod<int32_t>(static_cast<int32_t>(divisor)); };
  d->by_workers = divmod(d->workers);
  d->by_channel_parts = divmod(d->channel_parts);
  d->by_channel_blocks = divmod(d->channel_blocks);
  d->by_cols = divmod(d->tile.cols);
  d->by_vectors = divmod(d->entry_vectors);
  d->by_ins = divmod(p.in_channels);
  d->by_outs = divmod(p.out_channels);
  d->grid = TileGrid(d->tile, {static_cast<int32_t>(p.dst_size[0]), static_cast<int32_t>(p.dst_size[1]),
                               static_cast<int32_t>(p.dst_size[2])});
}

DirectKernel FindKernel(const ConvCall& call, const DirectSettings& s, bool is_odd) {
  const bool has_epilogue = EndsWithEpilogue(call, s.split);
  const auto find = [&](auto type) { return FindDirect<decltype(type)>(s.tile, call.pass, has_epilogue, is_odd); };
  switch (call.problem.src_type) {
    case DType::kBF16: return find(__nv_bfloat16());
    case DType::kF16: return find(__half());
    case DType::kS8: return find(int8_t());
    case DType::kF32: return find(float());
    default: return nullptr;  // UnsupportedTypes says so
  }
}

Reason UnsupportedReason(const ConvProblem& p, Pass pass, const DirectSettings& s) {
  if (Reason why = direct::UnsupportedSettings(p, pass, s)) return why;
  return UnsupportedStandIn(p, pass, {s.split});
}

cudaError_t Launch(const ConvCall& given, const DirectSettings& s, cudaStream_t stream) {
  const ConvProblem& p = given.problem;
  const DirectTile& tile = kDirectTiles[s.tile];
  const bool wgrad = given.pass == Pass::kWgrad;
  const DirectLayout layout = direct::LayoutOf(p, given.pass, s);
  const int64_t sum_rows = direct::GradientSumRows(p, given.pass, s);
  const ConvCall call = BehindGradientSums(given, sum_rows);
  DirectParams d = ParamsOf(layout);
  SetOperands(call, s.split, &d);
  const void* const packs = tile.of_bytes() ? call.epilogue.residual : nullptr;  // others read it by the number
  static_assert(DirectSettings::kNeedsAligned, "arrays that are not aligned go to a slower kernel");
  if (!AreAligned({d.src, d.rhs, d.out, packs, call.rows.before, call.rows.after})) {
    return s.has_rows() ? cudaErrorMisalignedAddress : LaunchSummingStandIn(given, sum_rows, {s.split}, stream);
  }
  d.gradient_sums = GradientSumsOf(given, sum_rows);
  d.all_channels = static_cast<int32_t>(p.groups * p.out_channels);
  d.workers = wgrad ? static_cast<int32_t>(s.split) : ConvWorkers(layout);
  d.filter_order = OrderOf(call, tile);
  d.epilogue = call.epilogue;
  if (!EncodeMaps(call, s, &d)) return cudaErrorInvalidValue;
  SetDividers(&d);
  const DirectKernel kernel = FindKernel(call, s, layout.has_odd_positions());
  const int64_t blocks =
      static_cast<int64_t>(d.workers) * d.channel_blocks * p.class_count * (wgrad ? d.channel_parts : 1);
  const int warps = wgrad ? kWgradWarps : tile.conv_warps();
  const cudaError_t status = EnqueueShared(kernel, blocks, 32 * warps, layout.shared_bytes, stream, d);
  if (status != cudaSuccess || s.split == 1) return status;
  return AddSlices(call, s.split, stream);
}

}  // namespace

const KernelFamily<DirectSettings> kDirect = {
    {UnsupportedReason, direct::kRules.workspace_bytes, direct::kRules.shared_bytes}, Launch};

}  // namespace jaxconv
