// From a call to ProductParams.
#pragma once

#include "common/layout.h"
#include "common/product.cuh"
#include "common/product.h"

namespace jaxconv {

inline ProductParams MakeParams(const ConvCall& call, int64_t split, int tile_rows, int tile_cols) {
  const ConvProblem& p = call.problem;
  const bool wgrad = call.pass == Pass::kWgrad;
  const OperandLayout rhs = RhsLayout(call), out = ResultLayout(call, split);
  ProductParams params{};
  params.problem = p;
  params.taps = call.taps;
  params.classes = call.classes;
  params.src = call.src;
  params.rhs = call.rhs;
  params.out = const_cast<void*>(out.data);
  params.rhs_type = rhs.type;
  params.out_type = out.type;
  for (int d = 0; d < kSpatial; ++d) params.src_size[d] = static_cast<uint32_t>(p.src_size[d]);
  params.row_tiles = static_cast<uint32_t>(RowTiles(p, Rows(p, call.pass), tile_rows));
  params.col_tiles = static_cast<uint32_t>(CeilDiv(p.out_channels, tile_cols));
  params.cols = p.out_channels;
  params.rhs_col_stride = rhs.mn_stride;
  params.rhs_group_stride = wgrad ? p.dst.group : p.filter.group;
  params.out_col_stride = out.mn_stride;
  params.out_group_stride = wgrad ? p.filter.group : p.dst.group;
  params.out_elements = ResultElements(p, call.pass);
  params.split = static_cast<int32_t>(split);
  params.wgrad = wgrad;
  return params;
}

}  // namespace jaxconv
