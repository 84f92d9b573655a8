// The depthwise family's kernels whose rows TMA copies, each by an instruction of one thread.
//
// Where warps copy, a row's pieces take as many turns at shared memory as the warps that multiply, and their places are
// worked out before the first copy. Here a box is a row of all images of a tile: zeros between them, and in place of
// images behind the last, are TMA's work, too. Few warps then share out the registers, so that the next step's pixels
// may be read while a step is multiplied.
#pragma once

#include <cstdint>

#include "device/depthwise_maps.cuh"
#include "device/depthwise_roles.cuh"
#include "device/ptx_cluster.cuh"

namespace jaxconv {

// A role of one thread: copies all steps' rows into the ring. To be called by its warp instead of __syncthreads, before
// which it finds out where the first rows are.
template <DepthwiseTile kTile, Pass kPass>
__device__ __forceinline__ void LoadBoxes(const DepthwiseParams& p, const DepthwiseMaps& maps,
                                          const DepthwiseBarriers<kTile>& barriers, int32_t worker,
                                          const char* shared) {
  constexpr bool kReduces = kPass == Pass::kReduce;
  const DepthwiseRange range(p, worker);
  const int32_t channel = FirstChannel(p);
  const uint32_t row_bytes = p.images * p.src_width * kBoxPixelBytes;
  const uint32_t gradient_bytes = kReduces ? p.images * p.strips_pitch * kBoxPixelBytes : 0;
  DepthwiseTilePlace place(p, range.begin, range.end);
  // Or the compiler works it out behind the barrier.
  ptx::Keep(place.image), ptx::Keep(place.first_row), ptx::Keep(place.last_row);
  __syncthreads();
  if (threadIdx.x % 32 != 0) return;
  uint32_t n = 0;  // steps of all tiles
  for (int32_t begin = range.begin; begin < range.end; place = {p, begin, range.end}) {
    begin += place.rows();
    const int32_t steps = kReduces ? place.ReduceSteps(p, kTile, {}) : place.SeenGatherSteps(p, kTile);
#pragma unroll 1
    for (int32_t step = kReduces ? 0 : place.FirstStep(p, kTile, {}); step < steps; ++step, ++n) {
      barriers.WaitForStage(n);
      const uint32_t to = StagePlace<kTile>(p, shared, n), barrier = barriers.OfCopies(n);
      const int32_t row = place.first_row + step, source_row = row + p.first_row;
      const bool has_source = !kReduces || HasRow(p, source_row), has_gradient = kReduces && row < place.last_row;
      ptx::ArriveExpecting(barrier, (has_source ? row_bytes : 0) + (has_gradient ? gradient_bytes : 0));
      if (has_source) ptx::CopyBoxByTma(to, maps.source, barrier, channel, p.first_col, source_row, 0, place.image);
      if (has_gradient) ptx::CopyBoxByTma(to + p.places.row, maps.strips, barrier, channel, 0, row, 0, place.image);
    }
  }
}

// A role of kThreads threads, of which this is one: stores zeros behind each stage's source row, where strips of the
// last image read some pixels, too.
template <DepthwiseTile kTile, int kThreads>
__device__ __forceinline__ void ClearBehindBoxes(const DepthwiseParams& p, int thread, char* shared) {
  const int32_t begin = p.images * p.src_width * kBoxPixelBytes;
  for (int stage = 0; stage < kTile.stages(); ++stage) {
    char* const row = shared + stage * p.places.stage;
    for (int32_t i = begin + thread * kPieceBytes; i < p.places.row; i += kThreads * kPieceBytes) {
      *reinterpret_cast<uint4*>(row + i) = uint4{};
    }
  }
}

// And of one that writes a gather's results.
template <DepthwiseTile kTile>
__device__ __forceinline__ void StoreBoxes(const DepthwiseParams& p, const DepthwiseMaps& maps,
                                           const DepthwiseBarriers<kTile>& barriers, int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  const int32_t channel = FirstChannel(p);
  uint32_t row = 0;  // of all tiles
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTilePlace place(p, begin, range.end);
    begin += place.rows();
#pragma unroll 1
    for (int32_t position = place.first_row; position < place.last_row; ++position, ++row) {
      barriers.WaitForResults(row);
      // Once, by who has seen the arrivals of all that wrote, who then need not wait for it: the fence is between their
      // writes and what TMA reads.
      ptx::FenceForTma();
      const uint32_t from = ptx::SharedAddress(ResultPlace<kTile>(p, shared, row));
      ptx::StoreBox(maps.strips, from, channel, {.w = 0, .h = position, .d = 0, .image = place.image});
      ptx::CommitStores();
      ptx::WaitForStores<1>();
      if (row > 0) barriers.ArriveBehindLoads(row - 1);
    }
  }
  ptx::WaitForStores<0>();
}

// A gather: while a step is multiplied, the next one's pixels are read.
template <typename T, DepthwiseTile kTile>
__device__ __forceinline__ void GatherBoxes(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                            int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  Gather<T, kTile> gather(p, barriers, 1, shared + p.places.taps);
  auto& [bands, sums] = gather;
  uint32_t n = 0, row = 0;  // steps, and complete rows, of all tiles
  const auto read = [&](uint32_t n) {
    barriers.WaitForCopies(n);
    const auto pixels = sums.First(p, StagePlace<kTile>(p, shared, n));
    barriers.ArriveBehindReads(n);
    return pixels;
  };
  const auto store = [&](int lag) { StoreRow(p, barriers, sums, lag, row++, shared); };
  auto pixels = read(0);
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTilePlace place(p, begin, range.end);
    begin += place.rows();
    const int32_t first_step = place.FirstStep(p, kTile, {}), steps = place.SeenGatherSteps(p, kTile);
    if (first_step > 0) sums.Clear();
#pragma unroll 1
    for (int32_t step = first_step; step < steps; ++step, ++n) {
      sums.Multiply(p, bands, 0, pixels, {}, [&] {
        if (step + 1 < steps || begin < range.end) pixels = read(n + 1);
      });
      if (step >= kTile.lags - 1) store(kTile.lags - 1);
    }
    StoreLastRows<kTile>(place, steps, store);
  }
}

// A reduce, likewise.
template <typename T, DepthwiseTile kTile>
__device__ __forceinline__ void ReduceBoxes(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                            int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  Reduce<T, kTile>(p, barriers, 1, worker, shared, [&](auto& sums) {
    uint32_t stage = 0, parity = 0;  // of the next step to be read: by divisions of its number they are known later
    const uint32_t first_stage = ptx::SharedAddress(shared);
    const auto read = [&](int32_t source_row, bool has_gradient) {
      barriers.WaitForCopiesOf(stage, parity);
      const auto pixels = sums.First(p, first_stage + stage * p.places.stage, HasRow(p, source_row), has_gradient);
      barriers.ArriveBehindReadsOf(stage);
      stage = stage + 1 < kTile.stages() ? stage + 1 : 0;
      parity ^= stage == 0;
      return pixels;
    };
    for (int32_t begin = range.begin; begin < range.end;) {
      const DepthwiseTilePlace place(p, begin, range.end);
      begin += place.rows();
      const int32_t steps = place.ReduceSteps(p, kTile, {});
      int32_t source_row = place.first_row + p.first_row;
      sums.Begin(place.rows());
      auto pixels = read(source_row, true);
      InTurns<kTile.lags>(steps, [&]<int kTurn>(int32_t step) {
        const bool has_source = HasRow(p, source_row++);
        sums.template Multiply<kTurn>(pixels, has_source, [&] {
          if (step + 1 < steps) pixels = read(source_row, step + 1 < place.rows());
        });
      });
    }
  });
}

template <typename T, int kIndex, Pass kPass>
__global__ void __launch_bounds__(BlockThreads(kDepthwiseTiles[kIndex]), 1)
    DepthwiseByTma(const __grid_constant__ DepthwiseParams p, const __grid_constant__ DepthwiseMaps maps) {
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches the tile without copiers
  } else {
    constexpr DepthwiseTile kTile = kDepthwiseTiles[kIndex];
    constexpr RoleRegisters kRegisters = RegistersOf(kTile, kPass);
    constexpr int kLaunched = 168;  // registers of each thread: a multiprocessor's, by 384
    static_assert(2 * kRegisters.multiplier + kRegisters.copier <= 3 * kLaunched, "there are as many as at launch");
    static_assert(kTile.step == 1 && kTile.period == 1 && !kTile.has_planes(), "a step has one row, and gives one");
    static_assert(kTile.blocks == 1, "a step's pixels are read at once");
    extern __shared__ __align__(kBoxTurnBytes) char boxes[];
    const int32_t worker = BlockOfChannels(p);
    const DepthwiseBarriers<kTile> barriers(p, boxes);
    if (threadIdx.x < FirstMultiplier(kTile)) {
      if (threadIdx.x == 0) ptx::PrefetchMap(maps.source), ptx::PrefetchMap(maps.strips);
      if (ptx::SharedAddress(boxes) % kBoxTurnBytes != 0) __trap();
      ptx::LeaveRegisters<kRegisters.copier>();
      constexpr int kBusy = 64;  // threads, of the warps that copy and store
      if (threadIdx.x < 32) {
        LoadBoxes<kTile, kPass>(p, maps, barriers, worker, boxes);
      } else {
        if (threadIdx.x >= kBusy) {
          ClearBehindBoxes<kTile, FirstMultiplier(kTile) - kBusy>(p, threadIdx.x - kBusy, boxes);
        }
        __syncthreads();
        if constexpr (kPass == Pass::kGather) {
          if (threadIdx.x == 32) StoreBoxes<kTile>(p, maps, barriers, worker, boxes);
        }
      }
    } else {
      BeginMultiplier<T, kTile, kPass>(p);
      if constexpr (kPass == Pass::kGather) {
        GatherBoxes<T, kTile>(p, barriers, worker, boxes);
      } else {
        ReduceBoxes<T, kTile>(p, barriers, worker, boxes);
      }
    }
  }
}

}  // namespace jaxconv
