// The depthwise family's kernels whose rows TMA copies. One thread has it copy a row.
//
// Where warps copy, a row's vectors take as many turns at shared memory as the consumers do, and their offsets are
// worked out before the first copy. Here a box is a row of all images of a tile. TMA also writes the zeros between
// images, and in place of images after the last. Few warps then share the registers, so consumers may read the next
// step's pixels while they multiply a step.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/ptx_cluster.cuh"
#include "depthwise/row_pairs.cuh"
#include "depthwise/warp_specialized.cuh"

namespace jaxconv {

// A position in the pipeline. Divisions of step numbers would tell later where the next stage is.
template <DepthwiseTile kTile>
class HaloTileStages {
 public:
  __device__ __forceinline__ HaloTileStages(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                            const char* shared, int stage = 0)
      : p_(p), barriers_(barriers), first_(ptx::SharedAddress(shared)), stage_(stage) {}

  // Each waits for the next step's stage and returns its address: the producer's, and a consumer's.
  __device__ __forceinline__ uint32_t WaitForEmpty() const {
    barriers_.WaitForEmptyStage(stage_, parity_);
    return Address();
  }
  __device__ __forceinline__ uint32_t WaitForFull() const {
    barriers_.WaitForFullStage(stage_, parity_);
    return Address();
  }

  // The barrier of its copies.
  __device__ __forceinline__ uint32_t full() const { return barriers_.Full(stage_); }

  // Says that this warp has read it, and goes to the next one.
  __device__ __forceinline__ void Release() {
    barriers_.ReleaseStage(stage_);
    Advance<1>();
  }

  // Goes kBy stages on.
  template <int kBy>
  __device__ __forceinline__ void Advance() {
    stage_ += kBy;
    const bool is_behind = stage_ >= kTile.stages();
    stage_ = is_behind ? stage_ - kTile.stages() : stage_;
    parity_ ^= is_behind;
  }

 private:
  __device__ __forceinline__ uint32_t Address() const { return first_ + stage_ * p_.offsets.stage; }

  const DepthwiseParams& p_;
  const DepthwiseBarriers<kTile>& barriers_;
  uint32_t first_;
  int stage_;
  uint32_t parity_ = 0;
};

// For a wgrad, which waits once for all roles: for the barriers, and for what the roles set up beside them. Or arrives
// there without waiting.
template <DepthwiseTile kTile>
__device__ __forceinline__ void SyncRoles() {
  ptx::NamedBarrierSync<BlockThreads(kTile), 2>();
}
template <DepthwiseTile kTile>
__device__ __forceinline__ void ArriveAtRoles() {
  ptx::NamedBarrierArrive<BlockThreads(kTile), 2>();
}

// Has TMA copy a step's rows into a stage. A conv reads all rows, so for rows that do not exist TMA writes zeros.
template <DepthwiseTile kTile, Pass kPass>
__device__ __forceinline__ void CopyStep(const DepthwiseParams& p, const DepthwiseMaps& maps,
                                         const DepthwiseTileCoord& coord, int32_t step, int32_t channel, uint32_t stage,
                                         uint32_t barrier) {
  constexpr bool kIsWgrad = kPass == Pass::kWgrad;
  constexpr int kRows = kTile.box_rows();
  const uint32_t strips = stage + kRows * p.offsets.row;
  const int32_t source = coord.first_row + p.first_row + step * kRows;
  const int32_t gradient = (step - kTile.late_steps()) * kRows;  // from the tile's first
  const auto has_source = [&](int i) { return !kIsWgrad || HasRow(p, source + i); };
  const auto has_gradient = [&](int i) { return kIsWgrad && gradient + i >= 0 && gradient + i < coord.rows(); };
  uint32_t pixels = 0;
  for (int i = 0; i < kRows; ++i) pixels += (has_source(i) ? p.src_width : 0) + (has_gradient(i) ? p.strips_pitch : 0);
  ptx::ArriveExpecting(barrier, pixels * p.images * kBoxPixelBytes);
  for (int i = 0; i < kRows; ++i) {
    if (!has_source(i)) continue;
    ptx::CopyBoxByTma(stage + i * p.offsets.row, maps.source, barrier, channel, kTile.in_pairs ? 0 : p.first_col,
                      source + i, 0, coord.image);
  }
  for (int i = 0; i < kRows; ++i) {
    if (!has_gradient(i)) continue;
    ptx::CopyBoxByTma(strips + i * p.offsets.result_row, maps.strips, barrier, channel, 0,
                      coord.first_row + gradient + i, 0, coord.image);
  }
}

// Producer warps, of the four that do not multiply. A step's copies take a thread some hundred cycles to begin, and
// there are few steps.
inline constexpr int kHaloTileLoaders = 3;
static_assert(kHaloTileLoaders + 1 == kDepthwiseWarps, "one is left, to store results or to find taps");

// The role of a thread of each producer warp: it copies the rows of every kHaloTileLoaders-th step into the pipeline.
// In a wgrad it begins while the other warps do not know their offsets yet. A conv's filter would come later then.
template <DepthwiseTile kTile, Pass kPass>
__device__ __forceinline__ void LoadHaloTiles(const DepthwiseParams& p, const DepthwiseMaps& maps,
                                              const DepthwiseBarriers<kTile>& barriers, int32_t worker,
                                              const char* shared, int loader) {
  constexpr bool kIsWgrad = kPass == Pass::kWgrad;
  constexpr int kOwn = kTile.stages() / kHaloTileLoaders;
  static_assert(kTile.stages() % kHaloTileLoaders == 0, "each has stages of its own");
  const int lane = threadIdx.x % 32;
  if (kIsWgrad && lane < kOwn) barriers.InitStage(loader + lane * kHaloTileLoaders);
  const DepthwiseRange range(p, worker);
  const int32_t channel = FirstChannel(p);
  DepthwiseTileCoord coord(p, kTile, range.begin, range.end);
  // Or the compiler works it out after the barrier.
  ptx::Keep(coord.image), ptx::Keep(coord.first_row), ptx::Keep(coord.last_row);
  __syncwarp();
  if constexpr (kIsWgrad) {
    ArriveAtRoles<kTile>();
  } else {
    __syncthreads();
  }
  if (lane != 0) return;
  HaloTileStages<kTile> stages(p, barriers, shared, loader);
  int32_t skipped = loader;  // steps of the others, before the next
  for (int32_t begin = range.begin; begin < range.end; coord = {p, kTile, begin, range.end}) {
    begin += coord.rows();
    const int32_t steps = kIsWgrad ? coord.WgradSteps(p, kTile, {}) : coord.SeenConvSteps(p, kTile);
    int32_t step = skipped + (kIsWgrad && !kTile.in_pairs ? 0 : coord.FirstStep(p, kTile, {}));
#pragma unroll 1
    for (; step < steps; step += kHaloTileLoaders) {
      const uint32_t stage = stages.WaitForEmpty(), barrier = stages.full();
      stages.template Advance<kHaloTileLoaders>();
      CopyStep<kTile, kPass>(p, maps, coord, step, channel, stage, barrier);
    }
    skipped = step - steps;
  }
}

// Stores zeros after each stage's source row, as strips of the last image read some pixels there. By kThreads threads.
template <DepthwiseTile kTile, int kThreads>
__device__ __forceinline__ void ClearBehindHaloTiles(const DepthwiseParams& p, char* shared) {
  static_assert(kTile.box_rows() == 1, "a stage begins with its only source row");
  const int32_t begin = p.images * p.src_width * kBoxPixelBytes;
#pragma unroll 1  // all wait for it, and for its instructions
  for (int stage = 0; stage < kTile.stages(); ++stage) {
    char* const row = shared + stage * p.offsets.stage;
#pragma unroll 1
    for (int32_t i = begin + threadIdx.x % kThreads * kVectorBytes; i < p.offsets.row; i += kThreads * kVectorBytes) {
      *reinterpret_cast<uint4*>(row + i) = uint4{};
    }
  }
}

// The role of the thread that writes a conv's results. A residual's rows come first where results will be.
template <DepthwiseTile kTile, bool kHasResidual>
__device__ __forceinline__ void StoreTiles(const DepthwiseParams& p, const DepthwiseMaps& maps,
                                           const DepthwiseBarriers<kTile>& barriers, int32_t worker, char* shared) {
  constexpr int kResults = DepthwiseBarriers<kTile>::kResults;
  const DepthwiseRange range(p, worker);
  const int32_t channel = FirstChannel(p);
  uint32_t row = 0;  // of all tiles
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTileCoord coord(p, kTile, begin, range.end);
    begin += coord.rows();
    const auto copy_residual = [&](int32_t position, uint32_t row) {
      const uint32_t barrier = barriers.ResultEmpty(row % kResults);
      ptx::ArriveExpecting(barrier, p.strips_pitch * p.images * kBoxPixelBytes);
      ptx::CopyBoxByTma(ptx::SharedAddress(ResultAddress<kTile>(p, shared, row)), maps.residual, barrier, channel, 0,
                        position, 0, coord.image);
    };
    if constexpr (kHasResidual) {
      ptx::WaitForStores<0>();  // of the tile before
      for (int i = 0; i < min(kResults, coord.rows()); ++i) copy_residual(coord.first_row + i, row + i);
    }
#pragma unroll 1
    for (int32_t position = coord.first_row; position < coord.last_row; ++position, ++row) {
      barriers.WaitForResult(row);
      // One fence, by the thread that has seen all arrivals: it is between the writes of all consumers and what TMA
      // reads. They need not wait for it.
      ptx::FenceForTma();
      const uint32_t from = ptx::SharedAddress(ResultAddress<kTile>(p, shared, row));
      ptx::StoreBox(maps.strips, from, channel, {.w = 0, .h = position, .d = 0, .image = coord.image});
      ptx::CommitStores();
      ptx::WaitForStores<1>();
      if constexpr (!kHasResidual) {
        if (row > 0) barriers.ReleaseResult(row - 1);
      } else if (position > coord.first_row && position - 1 + kResults < coord.last_row) {
        copy_residual(position - 1 + kResults, row - 1 + kResults);
      }
    }
  }
  ptx::WaitForStores<0>();
}

// A conv reads the next step's pixels while it multiplies a step.
template <typename T, DepthwiseTile kTile, DepthwiseEpilogueKind kEpilogueKind>
__device__ __forceinline__ void ConvHaloTiles(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                              int32_t worker, char* shared) {
  const DepthwiseRange range(p, worker);
  Conv<T, kTile> conv(p, barriers, 1, shared + p.offsets.taps);
  auto& [matrices, sums] = conv;
  const DepthwiseEpilogue<kTile, kEpilogueKind> epilogue(p);
  uint32_t n = 0, row = 0;  // steps, and complete rows, of all tiles
  const auto read = [&](uint32_t n) {
    barriers.WaitForFull(n);
    const auto pixels = sums.First(p, StageAddress<kTile>(p, shared, n));
    barriers.Release(n);
    return pixels;
  };
  const auto store = [&](int lag) { StoreRow(p, barriers, sums, epilogue, lag, row++, shared); };
  auto pixels = read(0);
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTileCoord coord(p, kTile, begin, range.end);
    begin += coord.rows();
    const int32_t first_step = coord.FirstStep(p, kTile, {}), steps = coord.SeenConvSteps(p, kTile);
    if (first_step > 0) sums.Clear();
#pragma unroll 1
    for (int32_t step = first_step; step < steps; ++step, ++n) {
      sums.Multiply(p, matrices, 0, pixels, {}, [&] {
        if (step + 1 < steps || begin < range.end) pixels = read(n + 1);
      });
      if (step >= kTile.lags - 1) store(kTile.lags - 1);
    }
    StoreLastRows<kTile>(coord, steps, store);
  }
}

// A wgrad's steps. It reads the next one's pixels while it multiplies one.
template <typename T, DepthwiseTile kTile>
__device__ __forceinline__ void MultiplyHaloTiles(const DepthwiseParams& p, const DepthwiseRange& range,
                                                  ToeplitzFilterSums<T, kTile>& sums, HaloTileStages<kTile>& stages) {
  const auto read = [&](int32_t source_row, bool has_gradient) {
    const auto pixels = sums.First(p, stages.WaitForFull(), HasRow(p, source_row), has_gradient);
    stages.Release();
    return pixels;
  };
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTileCoord coord(p, kTile, begin, range.end);
    begin += coord.rows();
    const int32_t steps = coord.WgradSteps(p, kTile, {});
    int32_t source_row = coord.first_row + p.first_row;
    sums.Begin(coord.rows());
    auto pixels = read(source_row, true);
    InTurns<ToeplitzFilterSums<T, kTile>::kTurns>(steps, [&]<int kTurn>(int32_t step) {
      const bool has_source = HasRow(p, source_row++);
      sums.template Multiply<kTurn>(pixels, has_source, [&] {
        if (step + 1 < steps) pixels = read(source_row, step + 1 < coord.rows());
      });
    });
  }
}

// The same for pairs of rows. First come the steps of a tile that have no row of the gradient yet. Then it reads a row
// of the gradient while it multiplies the one before, and the next step's source rows before the second row of a step.
// Branches take as long as multiplications, so it also reads a row of the gradient that does not exist.
template <typename T, DepthwiseTile kTile>
__device__ __forceinline__ void MultiplyHaloTiles(const DepthwiseParams& p, const DepthwiseRange& range,
                                                  RowPairSums<T, kTile>& sums, HaloTileStages<kTile>& stages) {
  using Row = typename RowPairSums<T, kTile>::Row;
  constexpr int kTurns = RowPairSums<T, kTile>::kTurns, kRows = kTile.box_rows();
  static_assert(kTile.late_steps() == kTurns - 1, "the gradient's first step is turn 0");
  for (int32_t begin = range.begin; begin < range.end;) {
    const DepthwiseTileCoord coord(p, kTile, begin, range.end);
    begin += coord.rows();
    const int32_t first_step = coord.FirstStep(p, kTile, {});
    int32_t source_row = coord.first_row + p.first_row + first_step * kRows;
    uint32_t stage;
    Row source[kRows], even;
    const auto read_source = [&] {
      stage = stages.WaitForFull();
      for (int i = 0; i < kRows; ++i) source[i] = sums.Read(p, stage + i * p.offsets.row, HasRow(p, source_row++));
    };
    const auto read_gradient = [&](int i) {
      return sums.Read(p, stage + kRows * p.offsets.row + i * p.offsets.result_row);
    };
    sums.Begin();
    InTurns<kTurns - 1>(kTurns - 1, [&]<int kStep>(int32_t) {
      if (first_step > kStep) return;
      read_source();
      stages.Release();
      sums.template Keep<kStep - kTile.late_steps() + kTurns>(source);
    });
    read_source();
    even = read_gradient(0);
    InTurns<kTurns>((coord.rows() + kRows - 1) / kRows, [&]<int kTurn>(int32_t step) {
      const Row odd = read_gradient(1);
      stages.Release();
      sums.template Keep<kTurn>(source);
      sums.template Multiply<kTurn, 0>(even);
      const int32_t rows_left = coord.rows() - step * kRows;  // with this step's
      if (rows_left > kRows) {
        read_source();
        even = read_gradient(0);
      }
      if (rows_left > 1) sums.template Multiply<kTurn, 1>(odd);
    });
  }
}

// The consumers, and the warp that finds out where taps go to.
template <DepthwiseTile kTile>
inline constexpr int kSumThreads = ConsumerThreads(kTile) + 32;

template <typename T, DepthwiseTile kTile>
__device__ __forceinline__ void WgradHaloTiles(const DepthwiseParams& p, const DepthwiseBarriers<kTile>& barriers,
                                               int32_t worker, char* shared) {
  SyncRoles<kTile>();
  std::conditional_t<kTile.in_pairs, RowPairSums<T, kTile>, ToeplitzFilterSums<T, kTile>> sums(p);
  const StoredTaps<kTile> taps(p, worker, shared, sums.DiagonalOfLane(p));
  HaloTileStages<kTile> stages(p, barriers, shared);
  MultiplyHaloTiles(p, DepthwiseRange(p, worker), sums, stages);
  ptx::NamedBarrierSync<kSumThreads<kTile>>();
  float added[kTile.lags];
  sums.AddTaps(added);
  taps.Store(added);
  StoreGradientSums<kTile>(p, worker, [&](int channel) { return sums.GradientSum(p, channel); });
}

template <typename T, int kIndex, Pass kPass, DepthwiseEpilogueKind kEpilogueKind>
__global__ void __launch_bounds__(BlockThreads(kDepthwiseTiles[kIndex]), 1)
    DepthwiseByTma(const __grid_constant__ DepthwiseParams p, const __grid_constant__ DepthwiseMaps maps) {
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches the tile without producers
  } else {
    constexpr DepthwiseTile kTile = kDepthwiseTiles[kIndex];
    constexpr RoleRegisters kRegisters = RegistersOf(kTile, kPass);
    constexpr int kLaunched = 168;  // registers of each thread: an SM's, by 384
    static_assert(2 * kRegisters.consumer + kRegisters.producer <= 3 * kLaunched, "there are as many as at launch");
    static_assert(kTile.step == 1 && kTile.period == 1 && !kTile.has_planes(), "a step has one row, and gives one");
    static_assert(kTile.blocks == 1, "a step's pixels are read at once");
    extern __shared__ __align__(kBoxTurnBytes) char boxes[];
    const int32_t worker = BlockOfChannels(p);
    const DepthwiseBarriers<kTile> barriers(p, boxes);
    if (threadIdx.x < FirstConsumer(kTile)) {
      ptx::DecreaseRegisters<kRegisters.producer>();  // first of all, as consumers wait for them
      if (threadIdx.x == 0) ptx::PrefetchMap(maps.source), ptx::PrefetchMap(maps.strips);
      if (ptx::SharedAddress(boxes) % kBoxTurnBytes != 0) __trap();
      constexpr bool kIsWgrad = kPass == Pass::kWgrad;
      if constexpr (!kIsWgrad) ClearBehindHaloTiles<kTile, kDepthwiseThreads>(p, boxes);
      if (const int warp = threadIdx.x / 32; warp < kHaloTileLoaders) {
        LoadHaloTiles<kTile, kPass>(p, maps, barriers, worker, boxes, warp);
        return;
      }
      if constexpr (kIsWgrad && !kTile.in_pairs) ClearBehindHaloTiles<kTile, 32>(p, boxes);
      if constexpr (kIsWgrad) {
        SyncRoles<kTile>();
        FindTaps<kTile>(p, reinterpret_cast<int32_t*>(boxes + p.offsets.taps));
        ptx::NamedBarrierArrive<kSumThreads<kTile>>();
      } else {
        __syncthreads();
        if (threadIdx.x % 32 == 0) {
          StoreTiles<kTile, kEpilogueKind == DepthwiseEpilogueKind::kResidual>(p, maps, barriers, worker, boxes);
        }
      }
    } else {
      BeginConsumer<T, kTile, kPass>(p);
      if constexpr (kPass == Pass::kConv) {
        ConvHaloTiles<T, kTile, kEpilogueKind>(p, barriers, worker, boxes);
      } else {
        WgradHaloTiles<T, kTile>(p, barriers, worker, boxes);
      }
    }
  }
}

}  // namespace jaxconv
