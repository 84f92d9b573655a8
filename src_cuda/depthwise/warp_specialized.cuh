// The depthwise family's warp-specialized kernels. Four producer warps copy source rows to shared memory. Four others
// copy a gradient's rows there, or a conv's results from there. Eight consumer warps multiply.
//
// Where all warps do everything, the latencies of a step add up: of its barrier, reads, copies, multiplications and
// results. Here consumers wait for rows that producers copied long before. Copies take few registers, so more sums fit
// into a multiprocessor. A thread block then has 64 neighbouring bytes of a pixel instead of 32, which memory copies
// faster.
#pragma once

#include <cstdint>

#include "common/prefetch_tables.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "depthwise/steps.cuh"
#include "depthwise/toeplitz_conv.cuh"
#include "depthwise/toeplitz_wgrad.cuh"

namespace jaxconv {

// Registers of a thread. Where warps copy, two consumers and two producers share 512. Where TMA copies, two consumers
// and one other share 504.
struct RoleRegisters {
  int consumer;
  int producer;
};
constexpr RoleRegisters RegistersOf(const DepthwiseTile& tile, Pass pass) {
  if (tile.by_tma) return tile.in_pairs ? RoleRegisters{240, 24} : RoleRegisters{232, 40};
  const int gradients = 2 * tile.lags * tile.channels;
  const int kept = pass == Pass::kConv ? tile.conv_registers() : tile.wgrad_sums() + gradients;
  return kept > 128 ? RoleRegisters{208, 48} : RoleRegisters{176, 80};
}

// Consumers begin with this.
template <typename T, DepthwiseTile kTile, Pass kPass>
__device__ __forceinline__ void BeginConsumer(const DepthwiseParams& p) {
  const int64_t filter_bytes = p.problem.tap_count * p.all_channels * static_cast<int64_t>(sizeof(T));
  if constexpr (kPass == Pass::kConv || !kTile.by_tma) {
    PrefetchTables(p, kPass == Pass::kConv ? filter_bytes : 0, ConsumerThread(kTile), ConsumerThreads(kTile));
  }
  ptx::IncreaseRegisters<RegistersOf(kTile, kPass).consumer>();
}

// The barriers of two pipelines: of the stages that producers fill, and of the results that consumers fill. A phase is
// a round of the pipeline.
template <DepthwiseTile kTile>
class DepthwiseBarriers {
 public:
  static constexpr int kResults = kTile.results();
  // Each lane arrives by itself where other threads load what it stored: compute-sanitizer's racecheck does not follow
  // __syncwarp to the lane that arrives for its warp.
  static constexpr int kStorers = kTile.by_tma ? kTile.warps() : ConsumerThreads(kTile);
  static constexpr int kTakers = kTile.by_tma ? 1 : kDepthwiseThreads;
  static constexpr int kCount = 2 * kTile.stages() + 2 * kResults;
  static_assert(kCount * 8 <= kBarrierBytes);

  __device__ __forceinline__ DepthwiseBarriers(const DepthwiseParams& p, const char* shared)
      : first_(ptx::SharedAddress(shared) + p.offsets.barriers) {}

  // Initializes all. A lane of each consumer warp does it, as the lanes of one warp would take turns. Meanwhile the
  // other warps find out what they begin with. All wait for it.
  __device__ __forceinline__ void Init(int producer_threads) const {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (int number = ConsumerThread(kTile) / 32; number < kCount; number += kTile.warps()) {
      const bool is_of_stage = number < 2 * kTile.stages();
      const int of_stage = number < kTile.stages() ? producer_threads : kTile.warps();
      const int of_results = number < kCount - kResults ? kStorers : kTakers;
      ptx::InitBarrier(Full(number), is_of_stage ? of_stage : of_results);
    }
    if constexpr (kTile.by_tma) ptx::FenceBarriers();
  }
  // Initializes one stage's, by the thread that has TMA fill it.
  __device__ __forceinline__ void InitStage(int stage) const {
    ptx::InitBarrier(Full(stage), 1);
    ptx::InitBarrier(Empty(stage), kTile.warps());
    ptx::FenceBarriers();
  }

  // Producers: before and after the copies of a step.
  __device__ __forceinline__ void WaitForEmpty(uint32_t step) const {
    if (step >= kTile.stages()) ptx::Wait(Empty(step % kTile.stages()), step / kTile.stages() + 1 & 1);
  }
  __device__ __forceinline__ void Commit(uint32_t step) const { ptx::ArriveAfterCopies(Full(step % kTile.stages())); }
  // Consumers: before and after their reads of a step.
  __device__ __forceinline__ void WaitForFull(uint32_t step) const {
    ptx::Wait(Full(step % kTile.stages()), step / kTile.stages() & 1);
  }
  __device__ __forceinline__ void Release(uint32_t step) const { ReleaseStage(step % kTile.stages()); }
  // For threads that count stages and rounds themselves.
  __device__ __forceinline__ void WaitForFullStage(uint32_t stage, uint32_t parity) const {
    ptx::Wait(Full(stage), parity);
  }
  __device__ __forceinline__ void ReleaseStage(uint32_t stage) const { OfWarp(Empty(stage)); }
  __device__ __forceinline__ void WaitForEmptyStage(uint32_t stage, uint32_t parity) const {
    ptx::Wait(Empty(stage), parity ^ 1);
  }
  // The same for results, which consumers fill.
  __device__ __forceinline__ void WaitForFreeResult(uint32_t row) const {
    if (row >= kResults) ptx::Wait(ResultEmpty(row % kResults), row / kResults + 1 & 1);
  }
  // The same for a residual, which is there first, in each round.
  __device__ __forceinline__ void WaitForResidual(uint32_t row) const {
    ptx::Wait(ResultEmpty(row % kResults), row / kResults & 1);
  }
  __device__ __forceinline__ void CommitResult(uint32_t row) const {
    if constexpr (kTile.by_tma) {
      OfWarp(ResultFull(row % kResults));
    } else {
      ptx::Arrive(ResultFull(row % kResults));
    }
  }
  __device__ __forceinline__ void WaitForResult(uint32_t row) const {
    ptx::Wait(ResultFull(row % kResults), row / kResults & 1);
  }
  // By each thread that loads results, or by the one that has TMA store them.
  __device__ __forceinline__ void ReleaseResult(uint32_t row) const { ptx::Arrive(ResultEmpty(row % kResults)); }
  // The same once its residual is there: by each thread that has begun its copies.
  __device__ __forceinline__ void ReleaseWithResidual(uint32_t row) const {
    ptx::ArriveAfterCopies(ResultEmpty(row % kResults));
  }
  // A stage's full barrier, or any other by its number.
  __device__ __forceinline__ uint32_t Full(uint32_t i) const { return first_ + i * 8; }
  __device__ __forceinline__ uint32_t ResultEmpty(uint32_t i) const { return Full(2 * kTile.stages() + kResults + i); }

 private:
  static __device__ __forceinline__ void OfWarp(uint32_t barrier) {
    __syncwarp();
    ptx::ArriveOfWarp(barrier);
  }

  __device__ __forceinline__ uint32_t Empty(uint32_t i) const { return Full(kTile.stages() + i); }
  __device__ __forceinline__ uint32_t ResultFull(uint32_t i) const { return Full(2 * kTile.stages() + i); }

  uint32_t first_;
};

template <DepthwiseTile kTile>
__device__ __forceinline__ char* ResultAddress(const DepthwiseParams& p, char* shared, uint32_t row) {
  return shared + p.offsets.results + row % DepthwiseBarriers<kTile>::kResults * kTile.period * p.offsets.result_row;
}

// The role of producers: they copy all steps into the pipeline.
template <typename T, DepthwiseTile kTile, Copies kCopies>
__device__ __forceinline__ void CopySteps(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                          int32_t worker, char* shared) {
  DepthwiseReader<T, kTile, kCopies> reader(p, shared, DepthwiseRange(p, worker));
  __syncthreads();
#pragma unroll 1
  for (uint32_t step = 0; reader.HasNext(); ++step) {
    barriers.WaitForEmpty(step);
    reader.Copy();
    barriers.Commit(step);
  }
}

// The role of the warps that write a conv's results. A residual's rows come first where results will be, as many rows
// before them as shared memory holds.
template <typename T, DepthwiseTile kTile, bool kHasResidual>
__device__ __forceinline__ void WriteResults(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                             int32_t worker, char* shared) {
  constexpr int kResults = DepthwiseBarriers<kTile>::kResults;
  const DepthwiseRange range(p, worker);
  DepthwiseWriter<T, kTile> writer(p);
  __syncthreads();
  uint32_t row = 0;  // of all tiles
  const auto copy_residual = [&](int32_t position, uint32_t row) {
    writer.CopyResidual(position, ResultAddress<kTile>(p, shared, row));
    barriers.ReleaseWithResidual(row);
  };
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTileCoord coord(p, kTile, begin, range.end);
    begin += coord.rows();
    writer.Begin(coord);
#pragma unroll 1
    for (int i = 0; kHasResidual && i < min(kResults, coord.rows()); ++i) copy_residual(i, row + i);
#pragma unroll 1
    for (int32_t position = 0; position < coord.rows(); ++position, ++row) {
      barriers.WaitForResult(row);
      const auto vectors = writer.Load(ResultAddress<kTile>(p, shared, row));
      if constexpr (!kHasResidual) {
        barriers.ReleaseResult(row);
      } else if (position + kResults < coord.rows()) {
        copy_residual(position + kResults, row + kResults);
      }
      writer.Store(position, vectors);
    }
  }
}

// What consumers of a conv have. They initialize the barriers before all other warps go on.
template <typename T, DepthwiseTile kTile>
struct Conv {
  ToeplitzTaps<T, kTile> matrices;
  ToeplitzSums<T, kTile> sums;

  __device__ __forceinline__ Conv(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers, int producers,
                                  char* table)
      : sums(BeginTable(p, barriers, producers, table)) {
    SyncConsumers<kTile>();
    matrices.Read(p, table, 0);
  }

 private:
  // The sums' offsets do not depend on the table, so they are worked out while it is filled.
  static __device__ __forceinline__ ToeplitzSums<T, kTile> BeginTable(const DepthwiseParams& p,
                                                                      const DepthwiseBarriers<kTile>& barriers,
                                                                      int producers, char* table) {
    const auto taps = ToeplitzTaps<T, kTile>::FirstTaps(p);
    barriers.Init(producers);
    ToeplitzTaps<T, kTile>::ClearTable(p, table);
    __syncthreads();
    ToeplitzTaps<T, kTile>::FillTable(p, table, taps);
    return ToeplitzSums<T, kTile>(p);
  }
};

// Hands a complete row of a lag over to the threads that write results. `row` counts the rows of all tiles.
template <typename T, DepthwiseTile kTile, typename Epilogue>
__device__ __forceinline__ void StoreRow(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                         ToeplitzSums<T, kTile>& sums, const Epilogue& epilogue, int lag, uint32_t row,
                                         char* shared) {
  if constexpr (epilogue.kHasResidual) {
    barriers.WaitForResidual(row);
  } else {
    barriers.WaitForFreeResult(row);
  }
  sums.Store(p, epilogue, ResultAddress<kTile>(p, shared, row), lag);
  barriers.CommitResult(row);
}

template <typename T, DepthwiseTile kTile, DepthwiseEpilogueKind kEpilogueKind>
__device__ __forceinline__ void MultiplyConv(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                             int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  Conv<T, kTile> conv(p, barriers, kDepthwiseThreads, shared + p.offsets.taps);
  auto& [matrices, sums] = conv;
  const DepthwiseEpilogue<kTile, kEpilogueKind> epilogue(p);
  constexpr bool kReadsAtOnce = kTile.sources() * kTile.blocks == 1;
  uint32_t n = 0, row = 0;  // steps, and complete rows, of all tiles
  const auto store = [&](int lag) { StoreRow(p, barriers, sums, epilogue, lag, row++, shared); };
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTileCoord coord(p, kTile, begin, range.end);
    begin += coord.rows();
    const int32_t first_step = coord.FirstStep(p, kTile, {}), steps = coord.SeenConvSteps(p, kTile);
    if (first_step > 0) sums.Clear();
#pragma unroll 1
    for (int32_t step = first_step; step < steps; ++step, ++n) {
      barriers.WaitForFull(n);
      const uint32_t stage = StageAddress<kTile>(p, shared, n);
      const auto pixels = sums.First(p, stage);
      if constexpr (kReadsAtOnce) barriers.Release(n);
      sums.Multiply(p, matrices, stage, pixels);
      if constexpr (!kReadsAtOnce) barriers.Release(n);
      if (step >= kTile.lags - 1) store(kTile.lags - 1);
    }
    StoreLastRows<kTile>(coord, steps, store);
  }
}

template <typename T, DepthwiseTile kTile>
__device__ __forceinline__ void MultiplyWgrad(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                              int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  barriers.Init(FirstConsumer(kTile));
  __syncthreads();
  // Now, while there is nothing to multiply: after the last step they would have to come from memory again.
  auto* taps = reinterpret_cast<StoredTap*>(shared + p.offsets.taps);
  for (int32_t t = ConsumerThread(kTile); t < p.problem.tap_count; t += ConsumerThreads(kTile)) {
    taps[t] = StoredTap(p, kTile, 0, t);
  }
  ToeplitzFilterSums<T, kTile> sums(p);
  uint32_t n = 0;  // steps of all tiles
  MultiplyWgradSteps<kTile>(
      p, range, {}, sums, [&] { barriers.WaitForFull(n); }, [&] { return StageAddress<kTile>(p, shared, n); },
      [&] { barriers.Release(n++); });
  SyncConsumers<kTile>();
  sums.Leave(p, reinterpret_cast<float*>(shared));
  SyncConsumers<kTile>();
  const auto* const left = reinterpret_cast<const float*>(shared);
  sums.Store(p, worker, left, [&](int32_t t) { return taps[t]; });
  if constexpr (kTile.may_sum_gradient()) sums.StoreGradientSums(p, worker, left);
}

template <typename T, int kIndex, Pass kPass, DepthwiseEpilogueKind kEpilogueKind>
__global__ void __launch_bounds__(BlockThreads(kDepthwiseTiles[kIndex]), 1)
    DepthwiseWarpSpecialized(const __grid_constant__ DepthwiseParams p) {
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches the tile without producers
  } else {
    constexpr DepthwiseTile kTile = kDepthwiseTiles[kIndex];
    constexpr RoleRegisters kRegisters = RegistersOf(kTile, kPass);
    static_assert(2 * (kRegisters.consumer + kRegisters.producer) == 512, "a multiprocessor's, by its 128 lanes");
    constexpr bool kIsConv = kPass == Pass::kConv;
    extern __shared__ __align__(128) char shared[];
    const int32_t worker = BlockOfChannels(p);
    const DepthwiseBarriers<kTile> barriers(p, shared);
    if (threadIdx.x < kDepthwiseThreads) {
      ptx::DecreaseRegisters<kRegisters.producer>();
      CopySteps<T, kTile, kIsConv ? Copies::kConv : Copies::kWgradSource>(p, barriers, worker, shared);
    } else if (threadIdx.x < FirstConsumer(kTile)) {
      ptx::DecreaseRegisters<kRegisters.producer>();
      if constexpr (kIsConv) {
        WriteResults<T, kTile, kEpilogueKind == DepthwiseEpilogueKind::kResidual>(p, barriers, worker, shared);
      } else {
        CopySteps<T, kTile, Copies::kWgradGradient>(p, barriers, worker, shared);
      }
    } else {
      BeginConsumer<T, kTile, kPass>(p);
      if constexpr (kIsConv) {
        MultiplyConv<T, kTile, kEpilogueKind>(p, barriers, worker, shared);
      } else {
        MultiplyWgrad<T, kTile>(p, barriers, worker, shared);
      }
    }
  }
}

}  // namespace jaxconv
