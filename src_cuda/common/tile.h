// Tiles of the families that multiply on CUDA cores: simt and im2col.
#pragma once

#include <cstdint>
#include <string>

#include "common/product.h"
#include "common/tiled_product.h"
#include "common/types.h"
#include "conv_problem.h"

namespace jaxconv {

// The tile that a CTA computes.
struct Tile {
  int block_m;
  int block_n;
  int block_k;
  int stages;    // of the pipeline: copies of the operands' tiles in shared memory
  int thread_m;  // the results of one thread: thread_m x thread_n
  int thread_n = 8;
  int ctas_per_sm;
  bool only_f32 = false;  // compiled for sums in float32 only; other tiles also for float64 and int32

  constexpr int threads() const { return block_m * block_n / (thread_m * thread_n); }
  // The operands' tiles, padded against bank conflicts, the points of the rows (M), and the StepTable.
  constexpr int64_t shared_bytes(int64_t sum_bytes) const {
    constexpr int kPadding = 4;
    return stages * block_k * (block_m + block_n + 2 * kPadding) * sum_bytes + (block_m + 2 * threads()) * kPointBytes;
  }
  std::string name() const {
    return std::to_string(block_m) + "x" + std::to_string(block_n) + "x" + std::to_string(block_k);
  }
  TileFields fields() const {
    return {
        {"rows", block_m},     {"cols", block_n}, {"depth", block_k}, {"stages", stages}, {"ctas_per_sm", ctas_per_sm},
        {"only_f32", only_f32}};
  }
  PlannedTile planned() const { return {block_m, block_n, block_k, ctas_per_sm}; }
};

inline Reason UnsupportedSums(const Tile& tile, DType sums) {
  if (!tile.only_f32 || sums == DType::kF32) return std::nullopt;
  return "compiled for float32 sums only";
}

// Multiply-adds of an SM's CUDA cores in a clock.
inline double FmaRate(const Product& product, const Device& device) {
  return product.sum_type() == DType::kF32 ? device.float32_fmas_per_clock : device.other_fmas_per_clock;
}

// For a family that converts the elements that it loads to the type of the sums.
template <typename Settings>
Reason UnsupportedTile(const ConvProblem& p, const Settings& s) {
  if (Reason why = UnsupportedSplit(s)) return why;
  return UnsupportedSums(Settings::kTiles[s.tile], SumType(p));
}

}  // namespace jaxconv
