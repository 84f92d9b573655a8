// The steps of a depthwise kernel's thread block, where kernels whose warps all do the same and those whose warps have
// roles go through them alike.
#pragma once

#include <cstdint>
#include <utility>

#include "device/depthwise_params.cuh"
#include "device/ptx.cuh"
#include "launch.h"

namespace jaxconv {

// Where a step's rows are in shared memory, of the n-th of all tiles.
template <DepthwiseTile kTile>
__device__ __forceinline__ uint32_t StagePlace(const DepthwiseParams& p, const char* shared, uint32_t n) {
  return ptx::SharedAddress(shared) + n % kTile.stages() * p.places.stage;
}

// Multiplies all steps of a reduce, of a piece of the window. Of each, begin() waits for its rows, stage() says where
// they are, and end() that they have been read.
template <DepthwiseTile kTile, typename Sums, typename Begin, typename Stage, typename End>
__device__ __forceinline__ void MultiplyReduceSteps(const DepthwiseParams& p, const DepthwiseRange& range,
                                                    const WindowPiece& window, Sums& sums, Begin&& begin, Stage&& stage,
                                                    End&& end) {
  for (int32_t row = range.begin; row < range.end;) {
    const DepthwiseTilePlace place(p, row, range.end);
    row += place.rows();
    const int32_t steps = place.ReduceSteps(p, kTile, window);
    int32_t source_row = place.Row(p, kTile) * kTile.step + SourceRow(p, kTile, window);
    sums.Begin(place.rows());
    const auto advance = [&]<int kTurn>(int32_t step) {
      begin();
      const bool has_source = HasRow(p, source_row);
      source_row += RowsApart(p, kTile, kTile.step);
      const uint32_t at = stage();
      sums.template Multiply<kTurn>(p, step, at, kTile.step > 1 || has_source);
      end();
    };
    for (int32_t first = 0; first < steps; first += Sums::kTurns) {
      [&]<int... kTurn>(std::integer_sequence<int, kTurn...>) {
        (... && (first + kTurn < steps && (advance.template operator()<kTurn>(first + kTurn), true)));
      }(std::make_integer_sequence<int, Sums::kTurns>());
    }
  }
}

}  // namespace jaxconv
