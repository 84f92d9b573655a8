// The im2col matrix (column matrix): a row for each output position, and a column for each (tap, channel) of the
// position's residue class.
//
// The rows of a residue class start at a multiple of the tile's rows, so that each tile has rows of only one class.
#pragma once

#include <cstdint>

#include "common/points.cuh"
#include "conv_problem.h"
#include "im2col/config.h"

namespace jaxconv {

// The rows of the column matrix that the workspace holds. A row is [group][tap of its class][channel].
struct Columns {
  void* data;
  int64_t first_row;  // a multiple of the tile's rows
  int64_t rows;
  int64_t pitch;  // elements from one row to the next
  int64_t width;  // elements from one group to the next
};

struct Im2colParams {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  Columns columns;
  uint32_t src_size[kSpatial];
  uint32_t step_blocks;
  int tile_rows;
};

// Writes the column matrix. Elements are copied as words of the same size, so a kernel serves several types.
template <typename Word>
__global__ void Im2colKernel(const __grid_constant__ Im2colParams p) {
  __shared__ Point rows[kIm2colRows];
  uint32_t block = blockIdx.x;
  const uint32_t step_block = block % p.step_blocks;
  block /= p.step_blocks;
  const uint32_t group = block % static_cast<uint32_t>(p.problem.groups);
  const int64_t first = static_cast<int64_t>(block / p.problem.groups) * kIm2colRows;

  uint32_t tile = static_cast<uint32_t>((p.columns.first_row + first) / p.tile_rows);
  const int64_t row_in_tile = (p.columns.first_row + first) % p.tile_rows;
  const ResidueClass* residue = FindClass(p.problem, p.classes, false, p.tile_rows, &tile);
  if (residue == nullptr) return;
  const ClassPoints points{p.problem, p.taps, *residue, false};
  if (threadIdx.x < kIm2colRows) {
    const int64_t row = static_cast<int64_t>(tile) * p.tile_rows + row_in_tile + threadIdx.x;
    rows[threadIdx.x] = row < points.rows() ? points.Row(row) : OutOfBounds();
  }
  __syncthreads();

  const int64_t step = static_cast<int64_t>(step_block) * kIm2colSteps + threadIdx.x % kIm2colSteps;
  if (step >= points.steps()) return;
  const Point column = points.Step(step);
  const Word* src = static_cast<const Word*>(p.src) + group * p.problem.src.group + column.src;
  Word* to = static_cast<Word*>(p.columns.data) + first * p.columns.pitch + group * p.columns.width + step;
#pragma unroll
  for (int row = threadIdx.x / kIm2colSteps; row < kIm2colRows; row += kIm2colWarps) {
    bool inside = true;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      inside &= static_cast<uint32_t>(rows[row].at[d] + column.at[d]) < p.src_size[d];
    }
    to[row * p.columns.pitch] = inside ? src[rows[row].src] : Word{0};
  }
}

}  // namespace jaxconv
