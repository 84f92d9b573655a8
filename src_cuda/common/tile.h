// Tiles of the families on CUDA cores.
#pragma once

#include <cstddef>
#include <iterator>
#include <utility>

#include "common/plan.h"
#include "common/product.h"
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
  bool only_f32;  // compiled for sums in float32 alone; the others also for float64 and int32

  constexpr int threads() const { return rows * cols / (thread_rows * thread_cols); }
};

// Why no family on CUDA cores that has `tiles` can run a plan, or null.
template <size_t kCount>
const char* WhyNotTile(const Tile (&tiles)[kCount], const ConvProblem& p, const Plan& plan) {
  if (const char* why = WhyNotPlan(plan, kCount)) return why;
  if (tiles[plan.tile].only_f32 && SumType(p) != DType::kF32) return "the tile is compiled for float32 sums only";
  return nullptr;
}

// Shared memory of a family on CUDA cores, whose blocks have a Shared<type of the sums, tile>.
template <template <typename, Tile> class Shared, const auto& kTiles>
size_t SharedBytesOf(const ConvProblem& p, int tile) {
  return WithSumType(p, [&](auto acc) {
    return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
      constexpr size_t kBytes[] = {sizeof(Shared<decltype(acc), kTiles[kIndex]>)...};
      return kBytes[tile];
    }(std::make_index_sequence<std::size(kTiles)>());
  });
}

}  // namespace jaxconv
