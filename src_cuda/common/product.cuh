// The matrix product of a call, and which tile of it a CTA computes.
#pragma once

#include <cstdint>

#include "common/points.cuh"
#include "common/step_table.cuh"

namespace jaxconv {

// The parameters of a kernel that reads the operands in place.
struct ProductParams {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;
  void* out;  // the result, or with split-K the slices in the workspace
  DType rhs_type;
  DType out_type;
  uint32_t src_size[kSpatial];
  uint32_t row_tiles;  // an upper bound, see RowTiles
  uint32_t col_tiles;
  int64_t cols;
  int64_t rhs_col_stride;
  int64_t rhs_group_stride;
  int64_t out_col_stride;
  int64_t out_group_stride;
  int64_t out_elements;  // elements of one slice
  int32_t split;
  bool wgrad;
  bool out_vectors;  // results may be stored as vectors of the family's size
};

// The work of a CTA: one tile of the product of a residue class and a group, over one slice of K.
struct WorkTile {
  const ResidueClass* residue;  // null: no work
  uint32_t row_tile;            // within the class
  uint32_t col_tile;
  uint32_t slice;
  uint32_t group;

  // N is fastest: CTAs that run at the same time share rows of A in L2.
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

  // `wgrad` equals p.wgrad. The caller may know it at compile time.
  __device__ ClassPoints Points(const ProductParams& p, bool wgrad) const {
    return {p.problem, p.taps, *residue, wgrad};
  }

  // Fills in the points of the tile's rows (M). `partner` becomes the offset in the result.
  template <int kRows, int kThreads>
  __device__ void FillRows(const ProductParams& p, const ClassPoints& points, Point (&rows)[kRows]) const {
    for (int i = threadIdx.x; i < kRows; i += kThreads) {
      const int64_t row = static_cast<int64_t>(row_tile) * kRows + i;
      Point point = OutOfBounds();
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
