// The depthwise family's kernels whose warps have roles: four copy source rows to shared memory, four what belongs to
// strips, a gradient's rows to there or results from there, and eight multiply.
//
// Where all warps do everything, a step is one latency after the other: of the barrier, reads, copies, multiplications
// and results. Here warps that multiply wait for rows that have been copied long before, and for results' places.
// Copies take few registers: so more sums fit into a multiprocessor, and a thread block has 64 neighbouring bytes of a
// pixel instead of 32, which memory copies faster.
#pragma once

#include <cstdint>

#include "common/prefetch_tables.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "depthwise/bands.cuh"
#include "depthwise/filter_bands.cuh"
#include "depthwise/steps.cuh"

namespace jaxconv {

// Registers of a thread: 512 are those of two that multiply, and of one of each four warps that copy; where TMA copies,
// 504 of two that multiply and one that does not.
struct RoleRegisters {
  int multiplier;
  int copier;
};
constexpr RoleRegisters RegistersOf(const DepthwiseTile& tile, Pass pass) {
  if (tile.by_tma) return tile.in_pairs ? RoleRegisters{240, 24} : RoleRegisters{232, 40};
  const int gradients = 2 * tile.lags * tile.channels;
  const int kept = pass == Pass::kConv ? tile.conv_registers() : tile.wgrad_sums() + gradients;
  return kept > 128 ? RoleRegisters{208, 48} : RoleRegisters{176, 80};
}

// Of warps that multiply, first of all.
template <typename T, DepthwiseTile kTile, Pass kPass>
__device__ __forceinline__ void BeginMultiplier(const DepthwiseParams& p) {
  const int64_t filter_bytes = p.problem.tap_count * p.all_channels * static_cast<int64_t>(sizeof(T));
  if constexpr (kPass == Pass::kConv || !kTile.by_tma) {
    PrefetchTables(p, kPass == Pass::kConv ? filter_bytes : 0, Multiplier(kTile), Multipliers(kTile));
  }
  ptx::TakeRegisters<RegistersOf(kTile, kPass).multiplier>();
}

// Of the ring of stages, and of that of results: which have been filled, and which may be filled again. A phase is a
// round of the ring.
template <DepthwiseTile kTile>
class DepthwiseBarriers {
 public:
  static constexpr int kResults = kTile.results();
  // Each lane says that it has stored or taken results where others load them: compute-sanitizer's racecheck does not
  // follow __syncwarp to one that says so for its warp.
  static constexpr int kStorers = kTile.by_tma ? kTile.warps() : Multipliers(kTile);
  static constexpr int kTakers = kTile.by_tma ? 1 : kDepthwiseThreads;
  static constexpr int kCount = 2 * kTile.stages() + 2 * kResults;
  static_assert(kCount * 8 <= kBarrierBytes);

  __device__ __forceinline__ DepthwiseBarriers(const DepthwiseParams& p, const char* shared)
      : first_(ptx::SharedAddress(shared) + p.places.barriers) {}

  // Sets them up, for so many threads that copy a step. By those that multiply, a lane of each warp, as lanes of one
  // would take turns; all others find out meanwhile what they begin with, and wait for it.
  __device__ __forceinline__ void Init(int copiers) const {
    if (threadIdx.x % 32 != 0) return;
#pragma unroll 1
    for (int number = Multiplier(kTile) / 32; number < kCount; number += kTile.warps()) {
      const bool is_of_stage = number < 2 * kTile.stages();
      const int of_stage = number < kTile.stages() ? copiers : kTile.warps();
      const int of_results = number < kCount - kResults ? kStorers : kTakers;
      ptx::InitBarrier(Copied(number), is_of_stage ? of_stage : of_results);
    }
    if constexpr (kTile.by_tma) ptx::FenceBarriers();
  }
  // Those of a stage alone, by who has TMA copy it.
  __device__ __forceinline__ void InitStage(int stage) const {
    ptx::InitBarrier(Copied(stage), 1);
    ptx::InitBarrier(Read(stage), kTile.warps());
    ptx::FenceBarriers();
  }

  // Copiers, before and behind the copies of a step.
  __device__ __forceinline__ void WaitForStage(uint32_t step) const {
    if (step >= kTile.stages()) ptx::Wait(Read(step % kTile.stages()), step / kTile.stages() + 1 & 1);
  }
  __device__ __forceinline__ void ArriveBehindCopies(uint32_t step) const {
    ptx::ArriveBehindCopies(Copied(step % kTile.stages()));
  }
  // Warps that multiply, before and behind their reads of it.
  __device__ __forceinline__ void WaitForCopies(uint32_t step) const {
    ptx::Wait(Copied(step % kTile.stages()), step / kTile.stages() & 1);
  }
  __device__ __forceinline__ void ArriveBehindReads(uint32_t step) const { ArriveBehindReadsOf(step % kTile.stages()); }
  // By who counts stages, and knows whether the ring's round is an odd one, itself.
  __device__ __forceinline__ void WaitForCopiesOf(uint32_t stage, uint32_t parity) const {
    ptx::Wait(Copied(stage), parity);
  }
  __device__ __forceinline__ void ArriveBehindReadsOf(uint32_t stage) const { OfWarp(Read(stage)); }
  __device__ __forceinline__ void WaitForReadsOf(uint32_t stage, uint32_t parity) const {
    ptx::Wait(Read(stage), parity ^ 1);
  }
  // The same of results, which go the other way.
  __device__ __forceinline__ void WaitForPlace(uint32_t row) const {
    if (row >= kResults) ptx::Wait(Taken(row % kResults), row / kResults + 1 & 1);
  }
  __device__ __forceinline__ void ArriveBehindStores(uint32_t row) const {
    if constexpr (kTile.by_tma) {
      OfWarp(Stored(row % kResults));
    } else {
      ptx::Arrive(Stored(row % kResults));
    }
  }
  __device__ __forceinline__ void WaitForResults(uint32_t row) const {
    ptx::Wait(Stored(row % kResults), row / kResults & 1);
  }
  // By each thread that takes results, or the one by which TMA does.
  __device__ __forceinline__ void ArriveBehindLoads(uint32_t row) const { ptx::Arrive(Taken(row % kResults)); }
  // Of a stage's copies.
  __device__ __forceinline__ uint32_t Copied(uint32_t i) const { return first_ + i * 8; }

 private:
  static __device__ __forceinline__ void OfWarp(uint32_t barrier) {
    __syncwarp();
    ptx::ArriveOfWarp(barrier);
  }

  __device__ __forceinline__ uint32_t Read(uint32_t i) const { return Copied(kTile.stages() + i); }
  __device__ __forceinline__ uint32_t Stored(uint32_t i) const { return Copied(2 * kTile.stages() + i); }
  __device__ __forceinline__ uint32_t Taken(uint32_t i) const { return Copied(2 * kTile.stages() + kResults + i); }

  uint32_t first_;
};

template <DepthwiseTile kTile>
__device__ __forceinline__ char* ResultPlace(const DepthwiseParams& p, char* shared, uint32_t row) {
  return shared + p.places.results + row % DepthwiseBarriers<kTile>::kResults * kTile.period * p.places.result_row;
}

// A role of copiers: all steps, into the ring.
template <typename T, DepthwiseTile kTile, Copies kCopies>
__device__ __forceinline__ void CopySteps(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                          int32_t worker, char* shared) {
  DepthwiseReader<T, kTile, kCopies> reader(p, shared, DepthwiseRange(p, worker));
  __syncthreads();
#pragma unroll 1
  for (uint32_t step = 0; reader.HasNext(); ++step) {
    barriers.WaitForStage(step);
    reader.Copy();
    barriers.ArriveBehindCopies(step);
  }
}

// And of those that write a conv's results.
template <typename T, DepthwiseTile kTile>
__device__ __forceinline__ void WriteResults(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                             int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  DepthwiseWriter<T, kTile> writer(p);
  __syncthreads();
  uint32_t row = 0;  // of all tiles
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTilePlace place(p, kTile, begin, range.end);
    begin += place.rows();
    writer.Begin(place);
#pragma unroll 1
    for (int32_t position = 0; position < place.rows(); ++position, ++row) {
      barriers.WaitForResults(row);
      const auto pieces = writer.Load(ResultPlace<kTile>(p, shared, row));
      barriers.ArriveBehindLoads(row);
      writer.Store(position, pieces);
    }
  }
}

// Of warps that multiply, which set up the barriers before all others go on: a conv's bands, and its sums.
template <typename T, DepthwiseTile kTile>
struct Conv {
  Bands<T, kTile> bands;
  BandSums<T, kTile> sums;

  __device__ __forceinline__ Conv(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers, int copiers,
                                  char* table)
      : sums(BeginTable(p, barriers, copiers, table)) {
    SyncMultipliers<kTile>();
    bands.Read(p, table, 0);
  }

 private:
  // What comes of the sums' places does not wait for the table.
  static __device__ __forceinline__ BandSums<T, kTile> BeginTable(const DepthwiseParams& p,
                                                                  const DepthwiseBarriers<kTile>& barriers, int copiers,
                                                                  char* table) {
    const auto taps = Bands<T, kTile>::FirstTaps(p);
    barriers.Init(copiers);
    Bands<T, kTile>::ClearTable(p, table);
    __syncthreads();
    Bands<T, kTile>::FillTable(p, table, taps);
    return BandSums<T, kTile>(p);
  }
};

// Leaves a complete row of a lag, so many rows of all tiles behind the first, to those that write results.
template <typename T, DepthwiseTile kTile, typename Epilogue>
__device__ __forceinline__ void StoreRow(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                         BandSums<T, kTile>& sums, const Epilogue& epilogue, int lag, uint32_t row,
                                         char* shared) {
  barriers.WaitForPlace(row);
  sums.Store(p, epilogue, ResultPlace<kTile>(p, shared, row), lag);
  barriers.ArriveBehindStores(row);
}

template <typename T, DepthwiseTile kTile, bool kHasEpilogue>
__device__ __forceinline__ void MultiplyConv(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                             int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  Conv<T, kTile> conv(p, barriers, kDepthwiseThreads, shared + p.places.taps);
  auto& [bands, sums] = conv;
  const DepthwiseEpilogue<kTile, kHasEpilogue> epilogue(p);
  constexpr bool kReadsAtOnce = kTile.sources() * kTile.blocks == 1;
  uint32_t n = 0, row = 0;  // steps, and complete rows, of all tiles
  const auto store = [&](int lag) { StoreRow(p, barriers, sums, epilogue, lag, row++, shared); };
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTilePlace place(p, kTile, begin, range.end);
    begin += place.rows();
    const int32_t first_step = place.FirstStep(p, kTile, {}), steps = place.SeenConvSteps(p, kTile);
    if (first_step > 0) sums.Clear();
#pragma unroll 1
    for (int32_t step = first_step; step < steps; ++step, ++n) {
      barriers.WaitForCopies(n);
      const uint32_t stage = StagePlace<kTile>(p, shared, n);
      const auto pixels = sums.First(p, stage);
      if constexpr (kReadsAtOnce) barriers.ArriveBehindReads(n);
      sums.Multiply(p, bands, stage, pixels);
      if constexpr (!kReadsAtOnce) barriers.ArriveBehindReads(n);
      if (step >= kTile.lags - 1) store(kTile.lags - 1);
    }
    StoreLastRows<kTile>(place, steps, store);
  }
}

template <typename T, DepthwiseTile kTile>
__device__ __forceinline__ void MultiplyWgrad(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                              int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  barriers.Init(FirstMultiplier(kTile));
  __syncthreads();
  // While there is nothing to multiply: in the end they would have to come from memory again.
  auto* taps = reinterpret_cast<StoredTap*>(shared + p.places.taps);
  for (int32_t t = Multiplier(kTile); t < p.problem.tap_count; t += Multipliers(kTile)) {
    taps[t] = StoredTap(p, kTile, 0, t);
  }
  FilterBandSums<T, kTile> sums(p);
  uint32_t n = 0;  // steps of all tiles
  MultiplyWgradSteps<kTile>(
      p, range, {}, sums, [&] { barriers.WaitForCopies(n); }, [&] { return StagePlace<kTile>(p, shared, n); },
      [&] { barriers.ArriveBehindReads(n++); });
  SyncMultipliers<kTile>();
  sums.Leave(p, reinterpret_cast<float*>(shared));
  SyncMultipliers<kTile>();
  sums.Store(p, worker, reinterpret_cast<const float*>(shared), [&](int32_t t) { return taps[t]; });
}

template <typename T, int kIndex, Pass kPass, bool kHasEpilogue>
__global__ void __launch_bounds__(BlockThreads(kDepthwiseTiles[kIndex]), 1)
    DepthwiseByRoles(const __grid_constant__ DepthwiseParams p) {
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches the tile without copiers
  } else {
    constexpr DepthwiseTile kTile = kDepthwiseTiles[kIndex];
    constexpr RoleRegisters kRegisters = RegistersOf(kTile, kPass);
    static_assert(2 * (kRegisters.multiplier + kRegisters.copier) == 512, "a multiprocessor's, by its 128 lanes");
    constexpr bool kIsConv = kPass == Pass::kConv;
    extern __shared__ __align__(128) char shared[];
    const int32_t worker = BlockOfChannels(p);
    const DepthwiseBarriers<kTile> barriers(p, shared);
    if (threadIdx.x < kDepthwiseThreads) {
      ptx::LeaveRegisters<kRegisters.copier>();
      CopySteps<T, kTile, kIsConv ? Copies::kConv : Copies::kWgradSource>(p, barriers, worker, shared);
    } else if (threadIdx.x < FirstMultiplier(kTile)) {
      ptx::LeaveRegisters<kRegisters.copier>();
      if constexpr (kIsConv) {
        WriteResults<T, kTile>(p, barriers, worker, shared);
      } else {
        CopySteps<T, kTile, Copies::kWgradGradient>(p, barriers, worker, shared);
      }
    } else {
      BeginMultiplier<T, kTile, kPass>(p);
      if constexpr (kIsConv) {
        MultiplyConv<T, kTile, kHasEpilogue>(p, barriers, worker, shared);
      } else {
        MultiplyWgrad<T, kTile>(p, barriers, worker, shared);
      }
    }
  }
}

}  // namespace jaxconv
