// The matrix product of a call as a kernel's thread blocks share it out.
#pragma once

#include <cstdint>

#include "common/epilogue.h"
#include "common/points.cuh"
#include "common/step_table.cuh"

namespace jaxconv {

// What a kernel that reads the operands in place is launched with.
struct ProductParams {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;
  void* out;  // the result, or the slices in the workspace
  DType rhs_type;
  DType out_type;
  uint32_t src_size[kSpatial];
  uint32_t row_tiles;  // at least those of all classes together
  uint32_t col_tiles;
  int64_t cols;
  int64_t rhs_col_stride;
  int64_t rhs_group_stride;
  int64_t out_col_stride;
  int64_t out_group_stride;
  int64_t out_elements;  // of one slice
  int32_t split;
  bool wgrad;
  bool out_vectors;  // neighbours may be stored as vectors, of as many elements as the family asked for
  Epilogue epilogue;
};

// What a block computes: a tile of one class's product, in one group, over one slice of the reduction.
struct WorkTile {
  const ResidueClass* residue;  // null: nothing
  uint32_t row_tile;            // of the class
  uint32_t col_tile;
  uint32_t slice;
  uint32_t group;

  // Blocks that run at the same time read the same rows, then neighbouring rows.
  static __device__ WorkTile OfBlock(const ProductParams& p, int tile_rows) {
    uint32_t block = blockIdx.x;
    WorkTile work;
    work.col_tile = block % p.col_tiles, block /= p.col_tiles;
    work.row_tile = block % p.row_tiles, block /= p.row_tiles;
    work.slice = block % p.split;
    work.group = block / p.split;
    work.residue = FindClass(p.problem, p.classes, p.wgrad, tile_rows, &work.row_tile);
    return work;
  }

  // `wgrad` is the parameters', perhaps known to the compiler.
  __device__ ClassPoints Points(const ProductParams& p, bool wgrad) const {
    return {p.problem, p.taps, *residue, wgrad};
  }

  // Fills the points of the tile's rows, `partner` being their offsets in the result.
  template <int kRows, int kThreads>
  __device__ void FillRows(const ProductParams& p, const ClassPoints& points, Point (&rows)[kRows]) const {
    for (int i = threadIdx.x; i < kRows; i += kThreads) {
      const int64_t row = static_cast<int64_t>(row_tile) * kRows + i;
      Point point = Nowhere();
      if (row < points.rows()) {
        point = points.Row(row);
        point.src += group * p.problem.src.group;
        point.partner += group * p.out_group_stride + slice * p.out_elements;
      }
      rows[i] = point;
    }
  }
};

}  // namespace jaxconv
