// Tiles of the families on CUDA cores.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "common/product.h"
#include "common/tiled_product.h"
#include "common/types.h"
#include "conv_problem.h"

namespace jaxconv {

// A thread block's part of the product: `rows` x `cols` results, `depth` steps of the reduction at a time, `stages`
// copies of the operands' tiles in shared memory.
struct Tile {
  int rows;
  int cols;
  int depth;
  int stages;
  int thread_rows;  // results of one thread
  int thread_cols;
  int resident;   // thread blocks that a multiprocessor holds
  bool only_f32;  // compiled for sums in float32 alone; the others also for float64 and int32

  constexpr int threads() const { return rows * cols / (thread_rows * thread_cols); }
  // Tiles of both operands, whose lines are padded against bank conflicts, and points of the rows and of two rings'
  // halves of steps.
  constexpr int64_t shared_bytes(int64_t sum_bytes) const {
    constexpr int kPadding = 4, kPointBytes = 32;
    return stages * depth * (rows + cols + 2 * kPadding) * sum_bytes + (rows + 2 * threads()) * kPointBytes;
  }
  std::string name() const { return std::to_string(rows) + "x" + std::to_string(cols) + "x" + std::to_string(depth); }
  TileFields fields() const {
    return {{"rows", rows},     {"cols", cols},         {"depth", depth},
            {"stages", stages}, {"resident", resident}, {"only_f32", only_f32}};
  }
  PlannedTile planned() const { return {rows, cols, depth, resident}; }
};

inline Reason UnsupportedSums(const Tile& tile, DType sums) {
  if (!tile.only_f32 || sums == DType::kF32) return std::nullopt;
  return "compiled for float32 sums only";
}

// Multiply-adds of a multiprocessor's CUDA cores in a clock.
inline double FmaRate(const Product& product) { return product.sum_type() == DType::kF32 ? 128 : 64; }

// Of a family on CUDA cores, which has `tiles`.
template <size_t kCount, typename Settings>
Reason UnsupportedTile(const Tile (&tiles)[kCount], const ConvProblem& p, Pass pass, const Settings& s) {
  if (Reason why = UnsupportedTileOrSplit(s, kCount)) return why;
  if (Reason why = UnsupportedSums(tiles[s.tile], SumType(p))) return why;
  return UnsupportedTypes(p, pass);
}

}  // namespace jaxconv
