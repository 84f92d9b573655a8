// The maps by which TMA finds a call's operands.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/family.h"
#include "common/product.h"
#include "conv_problem.h"
#include "wgmma/config.h"
#include "wgmma/im2col_map.h"
#include "wgmma/params.cuh"
#include "wgmma/work_tiles.h"

namespace jaxconv {

// Of a filter in parts, the taps of a part are behind those of the part before it. Of groups that are side by side
// along K, the map has the source channels of all, and the output channels of one.
inline bool EncodeFilter(const ConvCall& call, const WgmmaTile& tile, WgmmaParams* params) {
  const ConvProblem& p = call.problem;
  const bool k_major = IsKMajor(p), along_k = p.groups > 1 && FilterGroupsAlongK(p);
  const int64_t in_channels = along_k ? SrcChannels(p) : p.in_channels;
  const int64_t out_channels = along_k ? p.out_channels / p.groups : p.out_channels;
  const int block_k = params->block_k, parts = tile.bf16x6 ? kBF16Parts : 1;
  MapElements of = OfOperand(tile.bf16x6 ? DType::kBF16 : p.filter_type);
  if (tile.bf16x6 && k_major) of.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;  // 32 channels
  return EncodeMatrices(&params->rhs_map, call.rhs, of, k_major ? in_channels : out_channels,
                        k_major ? out_channels : in_channels, k_major ? p.filter.out : p.filter.in, p.tap_count * parts,
                        params->tap_stride, k_major ? block_k : TraitsOf(of.type).swizzle_row(),
                        (k_major ? tile.cols : block_k) / tile.row_blocks);
}

// The source. Tensor cores take float32 as tf32, or consumers split it.
inline MapElements OfSource(const ConvProblem& p, const WgmmaTile& tile) {
  MapElements of = OfOperand(p.src_type);
  if (tile.bf16x6) of.in_map = MapType(p.src_type);
  return of;
}

// Maps of the parts of halo tiles that neighbours' rows are, and of what is left.
inline bool EncodeHaloRows(const ConvCall& call, const WgmmaTile& tile, WgmmaParams* params) {
  const ConvProblem& p = call.problem;
  const int dim = params->rows_dim;
  const PixelBox whole{params->halo_rows, params->halo_cols, p.step[1], p.step[2]};
  const auto with = [&](int64_t rows) {
    PixelBox box = whole;
    if (dim > 0) (dim == 1 ? box.rows : box.cols) = rows;
    return box;
  };
  const void* const rows[] = {call.rows.before, call.rows.after};
  for (int i = 0; i < 2; ++i) {
    const int64_t count = params->rows_count[i];
    if (count == 0) continue;
    const RowsOfSource of(p, dim, count);
    if (!EncodeBoxes(&params->rows_maps[i], rows[i], OfSource(p, tile), of.strides, of.size, p.batch, SrcChannels(p),
                     params->block_k, with(count))) {
      return false;
    }
  }
  const int64_t left_out[] = {params->rows_count[0], params->rows_count[1],
                              params->rows_count[0] + params->rows_count[1]};
  for (int i = 0; i < 3 && dim > 0; ++i) {
    const int64_t left = (dim == 1 ? whole.rows : whole.cols) - left_out[i];
    if (left > 0 && !EncodeBoxes(&params->part_maps[i], call.src, OfSource(p, tile), p.src, p.src_size, p.batch,
                                 SrcChannels(p), params->block_k, with(left))) {
      return false;
    }
  }
  return true;
}

// Maps of halo tiles, and of the part of a unit that a warp stores, in the result and in the residual.
inline bool EncodeHaloMaps(const ConvCall& call, const WgmmaTile& tile, WgmmaParams* params) {
  const ConvProblem& p = call.problem;
  if (!EncodeBoxes(&params->src_map, call.src, OfSource(p, tile), p.src, p.src_size, p.batch, SrcChannels(p),
                   params->block_k, {params->halo_rows, params->halo_cols, p.step[1], p.step[2]}) ||
      !EncodeHaloRows(call, tile, params)) {
    return false;
  }
  const int cols = std::min(params->unit_cols, kResultRows), at_once = ResultCols(tile, TraitsOf(p.dst_type).bytes);
  const auto encode = [&](CUtensorMap* map, const void* tensor) {
    return EncodeBoxes(map, tensor, OfResult(p.dst_type, at_once), p.dst, p.dst_size, p.batch, p.out_channels, at_once,
                       {kResultRows / cols, cols});
  };
  return !params->has_out_maps ||
         (encode(&params->out_maps[0], call.result) &&
          (!call.epilogue.residual || encode(&params->residual_maps[0], call.epilogue.residual)));
}

// The map of a neighbour's rows, where windows are as they are in the image. TMA has no corners farther than an end
// from a tensor's: tiles do not reach so far.
inline bool EncodeIm2colRows(const ConvCall& call, const WgmmaTile& tile, Im2colWindows windows, const void* rows,
                             int32_t count, int32_t shift, const WgmmaParams& params, CUtensorMap* map) {
  const ConvProblem& p = call.problem;
  const int dim = params.rows_dim;
  const RowsOfSource of(p, dim, count);
  const int64_t end = Im2colCornerEnd(params.rank);
  const int64_t corner = windows.corner[dim] + shift, step = windows.step[dim];
  const int64_t last = std::min(corner + (windows.count[dim] - 1) * step, end - 1 + count - 1);
  windows.corner[dim] = corner + CeilDiv(std::max<int64_t>(0, -end - corner), step) * step;
  windows.count[dim] = (last - windows.corner[dim]) / step + 1;
  return EncodeIm2col(map, params.rank, rows, OfSource(p, tile), of.strides, of.size, p.batch, SrcChannels(p), windows,
                      params.block_k, tile.rows / tile.col_blocks);
}

// Maps of TMA's im2col mode.
inline bool EncodeIm2colMaps(const ConvCall& call, const WgmmaTile& tile, WgmmaParams* params) {
  const ConvProblem& p = call.problem;
  Im2colWindows windows;
  for (int d = 0; d < kSpatial; ++d) windows.Set(d, params->corner[d], p.step[d], params->counts[d]);
  if (!EncodeIm2col(&params->src_map, params->rank, call.src, OfSource(p, tile), p.src, p.src_size, p.batch,
                    SrcChannels(p), windows, params->block_k, tile.rows / tile.col_blocks)) {
    return false;
  }
  for (int i = 0; i < 2; ++i) {
    const int32_t shift = params->rows_shift[i];
    const void* const rows = shift > 0 ? call.rows.before : call.rows.after;
    if (params->rows_taps[i] > 0 &&
        !EncodeIm2colRows(call, tile, windows, rows, params->rows_count[i], shift, *params, &params->rows_maps[i])) {
      return false;
    }
  }
  if (!params->has_out_maps) return true;
  const int at_once = ResultCols(tile, TraitsOf(p.dst_type).bytes);
  // Classes are in the table's order: the last dimension's phases follow each other.
  for (int32_t c = 0; c < params->live_classes; ++c) {
    for (int32_t d = kSpatial - 1, rest = c; d >= 0; --d) {
      const auto phases = static_cast<int32_t>(LivePhases(p, d));
      windows.Set(d, rest % phases, p.period[d], params->counts[d]), rest /= phases;
    }
    const auto encode = [&](CUtensorMap* map, const void* tensor) {
      return EncodeIm2col(map, params->rank, tensor, OfResult(p.dst_type, at_once), p.dst, p.dst_size, p.batch,
                          p.out_channels, windows, at_once, kResultRows);
    };
    if (!encode(&params->out_maps[c], call.result)) return false;
    const void* const residual = call.epilogue.residual;
    if (residual && !encode(&params->residual_maps[c], residual)) return false;
  }
  return true;
}

// The map of gradients of float32 with halo tiles: of 64 channels at the positions of a unit. In shared memory each
// eight positions of a line have a row of 32 bytes for each channel, so that they are K of one multiplication. The
// map's dimensions are positions of a line, channels, then lines, or the eights of the only line, depths and images.
inline bool EncodeGradientLines(const ConvCall& call, const WgmmaParams& params, CUtensorMap* map) {
  const ConvProblem& p = call.problem;
  const bool is_line = params.unit_rows == 1;
  const int64_t line = is_line ? kUnitSide : p.dst_size[2];
  TensorStrides strides = p.dst;
  strides.spatial[1] = is_line ? kUnitSide : p.dst.spatial[1], strides.spatial[2] = p.dst.channel;
  const int64_t size[] = {p.dst_size[0], is_line ? p.dst_size[2] / kUnitSide : p.dst_size[1], p.out_channels};
  MapElements of = OfOperand(p.dst_type);
  of.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
  static_assert(kUnitRows == kUnitSide * kUnitSide, "a unit is eight eights");
  return EncodeActivation(map, call.rhs, of, strides, size, p.batch, line, 1, {kUnitSide, kBlockRows, kUnitSide, 1, 1});
}

// Maps of both operands of wgrad: of channels of the pixels that positions see by a tap, or all taps of a plane see,
// and of their gradients. Of tf32 each output channel's gradients are a row of a matrix. In parts, a part's images are
// behind those of the part before it.
inline bool EncodeWgradMaps(const ConvCall& call, const WgmmaTile& tile, WgmmaParams* params) {
  const ConvProblem& p = call.problem;
  const OperandTraits& traits = TraitsOf(p.src_type);
  const int positions = WgradPositions(tile, traits.bytes), channels = traits.swizzle_row();
  if (tile.halo) {
    if (!EncodeBoxes(&params->src_map, call.src, OfOperand(p.src_type), p.src, p.src_size, p.batch, SrcChannels(p),
                     channels, {params->halo_rows, params->halo_cols})) {
      return false;
    }
    if (tile.has_tf32_halos()) return EncodeGradientLines(call, *params, &params->rhs_map);
    return EncodeBoxes(&params->rhs_map, call.rhs, OfOperand(p.dst_type), p.dst, p.dst_size, p.batch, p.out_channels,
                       kBlockRows, {params->unit_rows, params->unit_cols});
  }
  Im2colWindows src, dst;
  for (int d = 0; d < kSpatial; ++d) {
    src.Set(d, params->corner[d], p.step[d], params->counts[d]);
    dst.Set(d, 0, p.period[d], params->counts[d]);
  }
  if (!EncodeIm2col(&params->src_map, params->rank, call.src, OfSource(p, tile), p.src, p.src_size, p.batch,
                    SrcChannels(p), src, channels, positions)) {
    return false;
  }
  const MapElements of_gradient = OfOperand(tile.bf16x6 ? DType::kBF16 : p.dst_type);
  if (tile.bf16x6) {
    const int64_t rows[] = {1, 1, p.dst_size[2] * kBF16Parts};
    const bool is_matrix = params->rank == 2;
    TensorStrides parts = p.dst;
    const int64_t pixel = PixelStride(p.dst, p.dst_size, p.batch);
    parts.batch = pixel * p.dst_size[0] * p.dst_size[1] * p.dst_size[2];  // of one image its own may be any
    return EncodeIm2col(&params->rhs_map, params->rank, call.rhs, of_gradient, parts, is_matrix ? rows : p.dst_size,
                        p.batch * kBF16Parts, p.out_channels, dst, kBlockRows, positions);
  }
  if (p.src_type == DType::kF32) {
    return EncodeMatrices(&params->rhs_map, call.rhs, of_gradient, ClassRows(p, tile), p.out_channels, p.dst.channel, 1,
                          traits.vector(), positions, kBlockRows);
  }
  return EncodeIm2col(&params->rhs_map, params->rank, call.rhs, of_gradient, p.dst, p.dst_size, p.batch, p.out_channels,
                      dst, channels, positions);
}

// False where TMA has no maps of the operands.
inline bool EncodeMaps(const ConvCall& call, const WgmmaSettings& s, WgmmaParams* params) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  if (call.pass == Pass::kWgrad) return EncodeWgradMaps(call, tile, params);
  return EncodeFilter(call, tile, params) &&
         (tile.halo ? EncodeHaloMaps(call, tile, params) : EncodeIm2colMaps(call, tile, params));
}

}  // namespace jaxconv
