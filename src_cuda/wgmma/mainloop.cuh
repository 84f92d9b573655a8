// The main loop of im2col mode: a producer thread copies both operands by TMA, pixels tap by tap, and consumer
// warpgroups multiply them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "common/shared_tile.cuh"
#include "common/stage_pipeline.cuh"
#include "common/tma_limits.h"
#include "common/warpgroup_mma.cuh"
#include "wgmma/cluster.cuh"
#include "wgmma/filter.cuh"
#include "wgmma/params.cuh"
#include "wgmma/sums.cuh"
#include "wgmma/tile_order.cuh"

namespace jaxconv {

// Shared memory of the operands' tiles.
template <typename T, WgmmaTile kTile, bool kKMajor>
struct WgmmaStages {
  using SrcTile = SharedTile<T, kTile.rows, kBlockK<T>, true>;
  using Filter = WgmmaFilter<T, kTile, kKMajor>;
  static constexpr int kProducers = 1;  // threads
  static constexpr int kBytes = SrcTile::kBytes + Filter::kBytes;
  static constexpr int kBytesOfChannel = kTile.rows * sizeof(T) + Filter::kCols * Filter::kElementBytes;
  static_assert(SrcTile::kBytes % 1024 == 0, "each tile begins a turn of its swizzle");
  static constexpr int kBarriers = StagePipeline<kTile.stages>::kBarriers;

  struct Stage {
    char src[SrcTile::kBytes];
    char filter[Filter::kBytes];
  };
  Stage stages[kTile.stages];

  // A block copies to others of its cluster. A stage is empty when all of the cluster have read it.
  static __device__ void InitBarriers(uint32_t barriers) {
    StagePipeline<kTile.stages>(barriers).Init(1, ConsumerWarps(kTile) * kTile.cluster());
  }
};

// Fills the stages: one thread, or lanes of a warp, each with a stage of its own.
template <typename T, WgmmaTile kTile, bool kKMajor>
class WgmmaProducer {
 public:
  using Stages = WgmmaStages<T, kTile, kKMajor>;

  // What a step reads: a block of K's channels of the pixels that a tap sees.
  struct Step {
    int32_t channel;
    uint16_t w, h, d;  // the tap's offset in windows
    int16_t rows;      // whose they are, see TapCoord
    int32_t tap;       // of the filter
  };

  __device__ WgmmaProducer(const WgmmaParams& p, const Stages& stages, uint32_t barriers, int first_stage = 0)
      : params_(p),
        rows_(p),
        by_k_blocks_(p.k_blocks, p.k_block_reciprocal),
        stages_(ptx::SharedAddress(&stages)),
        pipeline_(barriers, first_stage) {}

  // Finds a tile's first step.
  __device__ __forceinline__ void Find(const WgmmaWorkTile& tile) {
    if (params_.rank == 2) return FindInMatrix(tile);
    at_ = FirstPixel(tile);
    from_ = params_.has_rows ? FindStep<true>(tile, tile.steps.first) : FindStep<false>(tile, tile.steps.first);
  }

  // Copies a tile's operands, tap by tap, behind Find. One of the warp's lanes does.
  __device__ __forceinline__ void Copy(const WgmmaWorkTile& tile) {
    if (!ptx::ElectOne()) return;
    const OriginWithoutGroups without_groups{tile.first_col};
    if (params_.has_groups) {
      const OperandOrigin origin(params_, tile.first_col);
      params_.rank == 2 ? CopyMatrixSteps(tile, origin) : CopySteps<false>(tile, origin);
    } else if (params_.rank == 2) {
      CopyMatrixSteps(tile, without_groups);
    } else {
      params_.has_rows ? CopySteps<true>(tile, without_groups) : CopySteps<false>(tile, without_groups);
    }
  }

  // The first pixel that this block copies of each step.
  __device__ __forceinline__ ptx::PixelCoord FirstPixel(const WgmmaWorkTile& tile) const {
    const bool is_zeros = tile.steps.first == tile.steps.taps * params_.k_blocks;  // behind the last image
    ptx::PixelCoord at = InPixels(rows_.At(tile.first_row + FirstPart()), params_.step, params_.corner);
    if (is_zeros) at.image = static_cast<int32_t>(params_.problem.batch);
    return at;
  }

  // A step's tap, where there are no rows of neighbours. Behind a class's taps is one that the filter does not have,
  // with a negative delta.
  __device__ __forceinline__ Tap TapOf(const WgmmaWorkTile& tile, int32_t step) const {
    int32_t k_block;
    const int32_t index = by_k_blocks_.Divide(step, &k_block);
    return TapAt(tile, index, index < tile.steps.taps);
  }

  // If the maps do not reach a tap, the plan is of another problem.
  __device__ __forceinline__ Step StepOf(const Tap& tap, int32_t step) const {
    int32_t k_block, rest;
    by_k_blocks_.Divide(step, &k_block);
    int32_t number = FastDivmod<int32_t>(params_.tap_stride, params_.tap_reciprocal).Divide(tap.filter_delta, &rest);
    bool is_tap = number < params_.filter_taps && rest == 0;
    if (tap.filter_delta < 0) is_tap = true, number = params_.filter_taps;
    uint32_t from_corner[kSpatial];
    const uint32_t reach = Im2colOffsetEnd(params_.rank);
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      from_corner[d] = static_cast<uint32_t>(tap.shift[d] - params_.corner[d]);
      is_tap &= from_corner[d] < (kSpatial - d > params_.rank - 2 ? 1 : reach);
    }
    if (!is_tap) __trap();
    return {k_block * params_.block_k,
            static_cast<uint16_t>(from_corner[2]),
            static_cast<uint16_t>(from_corner[1]),
            static_cast<uint16_t>(from_corner[0]),
            TapCoord::kImage,
            number};
  }

  // Fills the stage with a step's operands, when it is empty.
  template <bool kHasRows = false, typename Origin>
  __device__ __forceinline__ void CopyStep(const Origin& origin, ptx::PixelCoord at, const Step& from) const {
    FillStage(origin, from.channel, from.tap, [&](uint32_t to, int32_t channel) {
      const CUtensorMap* map = &params_.src_map;
      if (kHasRows && from.rows != TapCoord::kImage) map = &params_.rows_maps[from.rows], at = AmongRows(at, from.rows);
      ptx::CopyPixels<kSharesSource>(params_.rank, to, *map, pipeline_.full(), channel, at, from.w, from.h, from.d,
                                     cluster_coord_.SharersOfSource());
    });
  }

  // To be called between two steps of a lane.
  __device__ __forceinline__ void Return() { pipeline_.FlipPhase(); }

  // Waits until all has been read: the others arrive in this block, which must not have ended.
  __device__ __forceinline__ void Finish() {
    for (int stage = 0; stage < kTile.stages; ++stage) {
      pipeline_.WaitUntilEmpty();
      pipeline_.Advance();
    }
  }

 private:
  static constexpr bool kSharesSource = kTile.col_blocks > 1;

  // Fills the stage, when it is empty, with a block of K's channels. copy_source(address, channel) copies the source's.
  template <typename Origin, typename F>
  __device__ __forceinline__ void FillStage(const Origin& origin, int32_t channel, int32_t tap, F&& copy_source) const {
    pipeline_.WaitUntilEmpty();
    const uint32_t stage = stages_ + pipeline_.stage() * Stages::kBytes;
    ptx::ArriveExpecting(pipeline_.full(), Stages::kBytesOfChannel * params_.block_k);
    copy_source(stage + FirstPart() * kSwizzleBytes, origin.src_channel + channel);
    Stages::Filter::Copy(params_, stage + Stages::SrcTile::kBytes, pipeline_.full(), origin.filter_channel + channel,
                         origin.filter_col, tap, cluster_coord_);
  }

  // Of a matrix, without a look at tables: its one tap's blocks of K follow each other. Behind them is the step of
  // zeros, of rows behind the last one and of a tap that the filter does not have. Few instructions, because a thread
  // block runs them once, one after the other, before its first copy.
  __device__ __forceinline__ void FindInMatrix(const WgmmaWorkTile& tile) {
    const bool is_zeros = tile.steps.first == params_.k_blocks;
    constexpr int32_t kBehindRows = 1 << 30;
    at_.w = is_zeros ? kBehindRows : tile.first_row + FirstPart();
    from_.channel = is_zeros ? 0 : tile.steps.first * params_.block_k;
    from_.tap = is_zeros;
  }
  template <typename Origin>
  __device__ __forceinline__ void CopyMatrixSteps(const WgmmaWorkTile& tile, const Origin& origin) {
#pragma unroll 1
    for (int32_t step = tile.steps.first; step < tile.steps.end; ++step) {
      FillStage(origin, from_.channel, from_.tap, [&](uint32_t to, int32_t channel) {
        ptx::CopyMatrix<kSharesSource>(to, params_.src_map, pipeline_.full(), channel, at_.w, 0,
                                       cluster_coord_.SharersOfSource());
      });
      pipeline_.Advance();
      from_.channel += params_.block_k;
    }
  }

  __device__ __forceinline__ Tap TapAt(const WgmmaWorkTile& tile, int32_t index, bool is_tap) const {
    if (is_tap) return params_.taps[tile.first_tap + index];
    return {0, -1, {params_.corner[0], params_.corner[1], params_.corner[2]}};
  }

  template <bool kHasRows>
  __device__ __forceinline__ Step FindStep(const WgmmaWorkTile& tile, int32_t step) const {
    if constexpr (!kHasRows) return StepOf(TapOf(tile, step), step);
    int32_t k_block;
    const int32_t number = by_k_blocks_.Divide(step, &k_block);
    const TapCoord coord(params_, number);
    Step from = StepOf(TapAt(tile, coord.tap, number < tile.steps.taps), step);
    from.rows = static_cast<int16_t>(coord.rows);
    return from;
  }

  // Where there are no rows of neighbours, nothing is to look for them: a step has no more time.
  template <bool kHasRows, typename Origin>
  __device__ __forceinline__ void CopySteps(const WgmmaWorkTile& tile, const Origin& origin) {
    for (int32_t step = tile.steps.first; step < tile.steps.end;) {
      CopyStep<kHasRows>(origin, at_, from_);
      pipeline_.Advance();
      from_.channel += params_.block_k;
      if (++step < tile.steps.end && from_.channel == params_.k_blocks * params_.block_k) {
        from_ = FindStep<kHasRows>(tile, step);
      }
    }
  }

  // The coordinates among a neighbour's rows. Behind the last image they may be any that the map reaches.
  __device__ __forceinline__ ptx::PixelCoord AmongRows(const ptx::PixelCoord& at, int32_t rows) const {
    const int32_t dim = params_.rows_dim, shift = params_.rows_shift[rows];
    if (at.image < params_.problem.batch) return MovedAlong(dim, shift, at);
    const int32_t near = shift > 0 ? 0 : (params_.counts[dim] - 1) * params_.step[dim];
    return MovedAlong(dim, params_.corner[dim] + near + shift - Along(dim, at), at);
  }

  // The first row that this block copies.
  __device__ __forceinline__ int32_t FirstPart() const { return cluster_coord_.col * kRowPart; }

  static constexpr int kRowPart = kTile.rows / kTile.col_blocks;

  const WgmmaParams& params_;
  RowPositions<kTile> rows_;
  FastDivmod<int32_t> by_k_blocks_;
  uint32_t stages_;
  StagePipeline<kTile.stages> pipeline_;
  ClusterCoord<kTile> cluster_coord_;
  ptx::PixelCoord at_;
  Step from_;
};

// A consumer warpgroup.
template <typename T, WgmmaTile kTile, bool kKMajor>
class WgmmaConsumer : public WgmmaSumsOf<T, kTile, kKMajor> {
 public:
  using Stages = WgmmaStages<T, kTile, kKMajor>;

  __device__ WgmmaConsumer(const WgmmaParams& p, const Stages& stages, uint32_t barriers)
      : block_k_(p.block_k),
        stages_(ptx::SharedAddress(&stages) & (kTile.bf16x6 ? UINT32_MAX : kAddressInCta)),
        pipeline_(barriers) {}

  // Sums up a tile; calls last() while the last step is multiplied.
  template <typename Epilogue, typename Last>
  __device__ __forceinline__ void Multiply(const WgmmaSteps& steps, Epilogue&& epilogue, Last&& last) {
    constexpr auto kBlockKs = BlockKs(kBlockK<T>, Stages::Filter::kMmaDepth);
    constexpr bool kHasLast = std::decay_t<Epilogue>::kTakesBlocks && kBlockKs[3] < kBlockKs[2];
    if (block_k_ > kBlockKs[1]) {
      MultiplyKBlocks<kBlockKs[0]>(steps, epilogue, last);
    } else if (block_k_ > kBlockKs[2]) {
      MultiplyKBlocks<kBlockKs[1]>(steps, epilogue, last);
    } else if (!kHasLast || block_k_ > kBlockKs[3]) {
      MultiplyKBlocks<kBlockKs[2]>(steps, epilogue, last);
    } else {
      MultiplyKBlocks<kBlockKs[kHasLast ? 3 : 2]>(steps, epilogue, last);
    }
  }

 private:
  template <int kChannels, typename Epilogue, typename Last>
  __device__ __forceinline__ void MultiplyKBlocks(const WgmmaSteps& steps, Epilogue& epilogue, Last& last) {
    const uint32_t read = this->MultiplySteps(steps.end - steps.first, epilogue,
                                              [&](int32_t step) { return MultiplyStage<kChannels>(step > 0); });
    last();
    this->FinishAll();
    ReleaseInCluster<kTile>(read);
  }

  // Begins the next stage's multiplications. Returns its barrier, to be released.
  template <int kChannels>
  __device__ __forceinline__ uint32_t MultiplyStage(bool adds) {
    using Src = MatrixDescriptor<typename Stages::SrcTile>;
    pipeline_.WaitUntilFull();
    const uint32_t stage = stages_ + pipeline_.stage() * Stages::kBytes, empty = pipeline_.empty();
    const uint32_t filter = stage + Stages::SrcTile::kBytes;
    if constexpr (kTile.bf16x6) {
      this->template MultiplyKBlock<kChannels>(
          {stage + this->FirstRow() * kSwizzleBytes, 8 * kSwizzleBytes, 64 * kSwizzleBytes}, filter, adds);
    } else {
      this->template BeginKBlock<Src, kChannels>(Src::At(stage, this->FirstRow()), filter, adds);
    }
    pipeline_.Advance();
    return empty;
  }

  int32_t block_k_;
  uint32_t stages_;
  StagePipeline<kTile.stages> pipeline_;
};

}  // namespace jaxconv
