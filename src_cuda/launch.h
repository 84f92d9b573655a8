// What the kernel files offer to the FFI handlers: one launch a family, and the table of compiled tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "conv_problem.h"

namespace jaxconv {

enum class Family : int32_t { kSimt };

// The two products of conv_problem.h.
enum class Pass { kGather, kReduce };

// A call's operands, all in device memory. `rhs` is the filter of a gather and the destination's gradient of a reduce.
struct ConvCall {
  const ConvProblem& problem;
  Pass pass;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;
  void* result;
};

// A thread block's part of the product: `rows` x `cols` results, `depth` steps of the reduction at a time.
struct SimtTile {
  int rows;
  int cols;
  int depth;
  int thread_rows;  // results of one thread
  int thread_cols;
  bool only_f32;  // compiled for sums in float32 alone; the others also for float64 and int32

  constexpr int threads() const { return rows * cols / (thread_rows * thread_cols); }
};

inline constexpr SimtTile kSimtTiles[] = {
    {128, 128, 8, 8, 8, true},
    {128, 64, 8, 8, 8, true},
    {64, 64, 8, 4, 8, false},
    {128, 32, 8, 4, 8, false},
};
inline constexpr int kSimtTileCount = sizeof(kSimtTiles) / sizeof(kSimtTiles[0]);

// The plan of a simt call. With split > 1 the reduction is cut into that many slices, each summed into its own part of
// the scratch, and a second kernel adds the slices in order.
struct SimtPlan {
  int tile;  // index into kSimtTiles
  int split;
};

// Scratch that a call needs: one result in the sums' type for each slice, nothing without a split.
size_t SimtScratchBytes(const ConvProblem& problem, Pass pass, int split);

// Why a call cannot run, or null.
const char* WhyNotSimt(const ConvProblem& problem, Pass pass, const SimtPlan& plan);

// Enqueues a call that WhyNotSimt accepts. Allocates nothing, waits for nothing.
cudaError_t LaunchSimt(const ConvCall& call, const SimtPlan& plan, void* scratch, cudaStream_t stream);

}  // namespace jaxconv
