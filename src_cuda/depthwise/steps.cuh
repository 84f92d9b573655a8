// The steps of a depthwise kernel's thread block, for warp-specialized kernels and for the others.
#pragma once

#include <cstdint>
#include <utility>

#include "common/family.h"
#include "common/ptx.cuh"
#include "depthwise/config.h"
#include "depthwise/params.cuh"

namespace jaxconv {

// The address of the rows of a step. `n` counts the steps of all tiles.
template <DepthwiseTile kTile>
__device__ __forceinline__ uint32_t StageAddress(const DepthwiseParams& p, const char* shared, uint32_t n) {
  return ptx::SharedAddress(shared) + n % kTile.stages() * p.offsets.stage;
}

// Does steps, and tells each its number modulo kTurns.
template <int kTurns, typename Do>
__device__ __forceinline__ void InTurns(int32_t steps, Do&& do_step) {
  for (int32_t first = 0; first < steps; first += kTurns) {
    [&]<int... kTurn>(std::integer_sequence<int, kTurn...>) {
      (... && (first + kTurn < steps && (do_step.template operator()<kTurn>(first + kTurn), true)));
    }(std::make_integer_sequence<int, kTurns>());
  }
}

// Multiplies all steps of a wgrad, for a window part. For each, begin() waits for its rows, stage() gives
// their address, and end() tells that they have been read.
template <DepthwiseTile kTile, typename Sums, typename Begin, typename Stage, typename End>
__device__ __forceinline__ void MultiplyWgradSteps(const DepthwiseParams& p, const DepthwiseRange& range,
                                                   const WindowPart& window, Sums& sums, Begin&& begin, Stage&& stage,
                                                   End&& end) {
  for (int32_t row = range.begin; row < range.end;) {
    const DepthwiseTileCoord coord(p, kTile, row, range.end);
    row += coord.rows();
    const int32_t steps = coord.WgradSteps(p, kTile, window);
    int32_t source_row = coord.Row(p, kTile) * kTile.step + SourceRow(p, kTile, window);
    sums.Begin(coord.rows());
    InTurns<Sums::kTurns>(steps, [&]<int kTurn>(int32_t step) {
      begin();
      const bool has_source = HasRow(p, source_row);
      source_row += RowsApart(p, kTile, kTile.step);
      const uint32_t at = stage();
      sums.template Multiply<kTurn>(p, step, at, kTile.step > 1 || has_source);
      end();
    });
  }
}

// Stores the rows of a conv's other lags after a tile's last step. No source row follows, so they are complete, too.
template <DepthwiseTile kTile, typename Store>
__device__ __forceinline__ void StoreLastRows(const DepthwiseTileCoord& coord, int32_t steps, Store&& store) {
#pragma unroll
  for (int lag = kTile.lags - 2; lag >= 0; --lag) {
    if (steps - 1 - lag >= 0 && steps - 1 - lag < coord.rows()) store(lag);
  }
}

}  // namespace jaxconv
