// The depthwise family's kernels for operands of a type: one for each tile and pass.
#pragma once

#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "common/prefetch_tables.cuh"
#include "depthwise/cuda_cores.cuh"
#include "depthwise/kernels.h"
#include "depthwise/steps.cuh"
#include "depthwise/tma.cuh"
#include "depthwise/toeplitz_conv.cuh"
#include "depthwise/toeplitz_wgrad.cuh"
#include "depthwise/warp_specialized.cuh"

namespace jaxconv {

template <typename T, DepthwiseTile kTile>
using DepthwiseTaps = std::conditional_t<kTile.on_cuda_cores(), LaneTaps<T, kTile>, ToeplitzTaps<T, kTile>>;
template <typename T, DepthwiseTile kTile>
using DepthwiseSums = std::conditional_t<kTile.on_cuda_cores(), LaneSums<T, kTile>, ToeplitzSums<T, kTile>>;
template <typename T, DepthwiseTile kTile>
using DepthwiseFilterSums =
    std::conditional_t<kTile.on_cuda_cores(), LaneFilterSums<T, kTile>, ToeplitzFilterSums<T, kTile>>;

// A step of a conv: adds what its source row gives to the rows that it reaches. With a window in parts, a
// row's sums begin with those of the window parts before, which wait in `window_part_sums`: `loaded` is the row that
// begins with them, `stored` the row whose sums are to wait, or -1.
template <DepthwiseTile kTile, typename Taps, typename Sums>
__device__ __forceinline__ void ConvStep(const DepthwiseParams& p, const Taps& taps, Sums& sums, uint32_t stage,
                                         const typename Sums::Pixels& pixels, bool has_source, char* window_part_sums,
                                         int32_t loaded, int32_t stored) {
  if constexpr (kTile.in_parts) {
    typename Sums::Begins begins{};
    if (loaded >= 0) sums.LoadSums(window_part_sums, loaded, begins);
    if (has_source || !LeavesOutRows(kTile)) {
      sums.Multiply(p, taps, stage, pixels, begins);
    } else {
      sums.MoveOn(begins);
    }
    if (stored >= 0) sums.StoreSums(window_part_sums, stored);
  } else if constexpr (LeavesOutRows(kTile)) {
    if (has_source) {
      sums.Multiply(p, taps, stage, pixels);
    } else {
      sums.MoveOn();
    }
  } else {
    sums.Multiply(p, taps, stage, pixels);
  }
}

template <typename T, int kIndex, DepthwiseEpilogueKind kEpilogueKind>
__global__ void __launch_bounds__(kDepthwiseThreads, kDepthwiseTiles[kIndex].conv_ctas_per_sm())
    DepthwiseConv(const __grid_constant__ DepthwiseParams p) {
  constexpr DepthwiseTile kTile = kDepthwiseTiles[kIndex];
  extern __shared__ __align__(128) char shared[];
  PrefetchTables(p, p.problem.tap_count * p.all_channels * static_cast<int64_t>(sizeof(T)));
  const DepthwiseRange range(p, BlockOfChannels(p));
  const int32_t parts_of_window = kTile.in_parts ? p.window_parts : 1;
  DepthwiseReader<T, kTile, Copies::kConv> reader(p, shared, range);
#pragma unroll 1
  for (int i = 0; i < kTile.stages() - 1; ++i) reader.Copy();
  char* table = shared + p.offsets.taps;
  DepthwiseTaps<T, kTile>::ClearTable(p, table);
  __syncthreads();
  DepthwiseTaps<T, kTile>::FillTable(p, table);
  __syncthreads();
  DepthwiseTaps<T, kTile> taps;
  if constexpr (!kTile.in_parts) taps.Read(p, table, 0);
  DepthwiseSums<T, kTile> sums(p);
  const DepthwiseEpilogue<kTile, kEpilogueKind> epilogue(p);
  DepthwiseWriter<T, kTile> writer(p);
  const auto results = [&](uint32_t n) {
    return shared + p.offsets.results + (n & 1) * kTile.period * p.offsets.result_row;
  };
  uint32_t n = 0;         // steps of all tiles
  int32_t complete = -1;  // the position whose rows the step before has completed
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTileCoord coord(p, kTile, begin, range.end);
    begin += coord.rows();
    const WindowPart first_window_part = coord.FirstWindowPart(p, kTile);
    int32_t begun = kTile.in_parts ? p.rows : 0;  // the first row to have been begun by a window part
    for (WindowPart window_part = first_window_part, next; window_part.number < parts_of_window; window_part = next) {
      next = coord.NextWindowPart(p, kTile, window_part);
      const bool is_first = window_part.number == first_window_part.number, is_last = next.number == parts_of_window;
      const int32_t first_step = coord.FirstStep(p, kTile, window_part);
      int32_t source_row = (coord.Row(p, kTile) + RowsApart(p, kTile, first_step)) * kTile.step;
      source_row += SourceRow(p, kTile, window_part);
      if constexpr (kTile.in_parts) {
        taps.Read(p, table, window_part.number);
      } else {
        if (first_step > 0) sums.Clear();
      }
#pragma unroll 1
      for (int32_t step = first_step; step < coord.ConvSteps(kTile); ++step, ++n) {
        ptx::WaitForCopies<kTile.stages() - 2>();
        __syncthreads();
        // All reads of shared memory go first, and none waits for a copy to be begun.
        const uint32_t stage = StageAddress<kTile>(p, shared, n);
        const auto pixels = sums.First(p, stage);
        const auto vectors = writer.Load(results(n - 1));
        reader.Copy();
        writer.Store(complete, vectors);
        if (step == first_step && is_first) writer.Begin(coord);
        const bool has_source = HasRow(p, source_row);
        source_row += RowsApart(p, kTile, kTile.step);
        const int32_t done = step - (kTile.lags - 1);
        const bool adds_residual = epilogue.kHasResidual && is_last && done >= 0;
        if (adds_residual) writer.CopyResidual(done, results(n)), ptx::CommitCopies();
        ConvStep<kTile>(p, taps, sums, stage, pixels, has_source, shared + p.offsets.sums,
                        step >= begun && step < p.rows ? step : -1,
                        !is_last && done >= first_step && done < p.rows ? done : -1);
        if (adds_residual) ptx::WaitForCopies<0>(), __syncthreads();
        if (is_last) sums.Store(p, epilogue, results(n));
        complete = is_last && done >= 0 ? done : -1;
      }
      begun = min(begun, first_step);
    }
  }
  __syncthreads();
  writer.Store(complete, writer.Load(results(n - 1)));
}

template <typename T, int kIndex>
__global__ void __launch_bounds__(kDepthwiseThreads, kDepthwiseTiles[kIndex].wgrad_ctas_per_sm())
    DepthwiseWgrad(const __grid_constant__ DepthwiseParams p) {
  constexpr DepthwiseTile kTile = kDepthwiseTiles[kIndex];
  extern __shared__ __align__(128) char shared[];
  PrefetchTables(p, 0);
  const int32_t block = BlockOfChannels(p), worker = block / p.window_parts,
                window_part = block - worker * p.window_parts;
  const DepthwiseRange range(p, worker);
  const WindowPart window(p, kTile, window_part);
  DepthwiseReader<T, kTile, Copies::kWgrad> reader(p, shared, range, window);
#pragma unroll 1
  for (int i = 0; i < kTile.stages() - 1; ++i) reader.Copy();
  DepthwiseFilterSums<T, kTile> sums(p);
  uint32_t n = 0;  // steps of all tiles
  const auto begin = [&] {
    ptx::WaitForCopies<kTile.stages() - 2>();
    __syncthreads();
    reader.Copy();
  };
  MultiplyWgradSteps<kTile>(p, range, window, sums, begin, [&] { return StageAddress<kTile>(p, shared, n++); }, [] {});
  __syncthreads();
  sums.Leave(p, reinterpret_cast<float*>(shared));
  __syncthreads();
  const auto* const left = reinterpret_cast<const float*>(shared);
  sums.Store(p, worker, left, [&](int32_t t) { return StoredTap(p, kTile, window_part, t); });
  if constexpr (kTile.may_sum_gradient()) sums.StoreGradientSums(p, worker, left);
}

// The kernel of a tile, if it is for the type. A wgrad has no epilogue.
template <typename Type, int kIndex, Pass kPass, DepthwiseEpilogueKind kEpilogueKind>
const void* DepthwiseKernelOf() {
  constexpr DepthwiseTile kTile = kDepthwiseTiles[kIndex];
  using T = std::conditional_t<kTile.of_bytes, __half, Type>;  // of an element, as it is moved
  const auto pointer = [](auto* kernel) { return reinterpret_cast<const void*>(kernel); };
  if constexpr (!kTile.IsFor(TypeOf<Type>()) || !kTile.Has(kPass) ||
                (kTile.of_bytes && kEpilogueKind == DepthwiseEpilogueKind::kNone)) {
    return nullptr;
  } else if constexpr (kTile.by_tma) {
    return pointer(DepthwiseByTma<T, kIndex, kPass, kEpilogueKind>);
  } else if constexpr (kTile.has_producers) {
    return pointer(DepthwiseWarpSpecialized<T, kIndex, kPass, kEpilogueKind>);
  } else if constexpr (kPass == Pass::kConv) {
    return pointer(DepthwiseConv<T, kIndex, kEpilogueKind>);
  } else {
    return pointer(DepthwiseWgrad<T, kIndex>);
  }
}

template <typename T>
const void* FindDepthwise(int64_t tile, Pass pass, DepthwiseEpilogueKind epilogue_kind) {
  return [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) {
    const void* kernels[][4] = {{DepthwiseKernelOf<T, kIndex, Pass::kConv, DepthwiseEpilogueKind::kNone>(),
                                 DepthwiseKernelOf<T, kIndex, Pass::kConv, DepthwiseEpilogueKind::kPlain>(),
                                 DepthwiseKernelOf<T, kIndex, Pass::kConv, DepthwiseEpilogueKind::kResidual>(),
                                 DepthwiseKernelOf<T, kIndex, Pass::kWgrad, DepthwiseEpilogueKind::kNone>()}...};
    return kernels[tile][pass == Pass::kWgrad ? 3 : static_cast<int>(epilogue_kind)];
  }(std::make_integer_sequence<int, std::size(kDepthwiseTiles)>());
}

}  // namespace jaxconv
