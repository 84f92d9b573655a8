// The main loop of the wgmma family: a thread that copies both operands by TMA, the pixels in its im2col mode, tap by
// tap, and warpgroups that multiply them.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "common/shared_tile.cuh"
#include "common/stage_ring.cuh"
#include "common/tma_limits.h"
#include "common/warpgroup_mma.cuh"
#include "wgmma/filter.cuh"
#include "wgmma/params.cuh"
#include "wgmma/scheduler.cuh"
#include "wgmma/sums.cuh"

namespace jaxconv {

// Shared memory of the operands' tiles.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct WgmmaStages {
  using SrcTile = SharedTile<T, kTile.rows, kBlockK<T>, true>;
  using Filter = WgmmaFilter<T, kTile, kAlongSteps>;
  static constexpr int kBytes = SrcTile::kBytes + Filter::Tile::kBytes;
  static_assert(SrcTile::kBytes % 1024 == 0, "each tile begins a turn of its swizzle");
  static constexpr int kBarriers = StageRing<kTile.stages>::kBarriers;

  struct Stage {
    char src[SrcTile::kBytes];
    char filter[Filter::Tile::kBytes];
  };
  Stage stages[kTile.stages];

  // All blocks of a cluster, into which a block copies, have read a stage before it is empty.
  static __device__ void InitBarriers(uint32_t barriers) {
    StageRing<kTile.stages>(barriers).Init(1, WgmmaReaders(kTile) * kTile.cluster());
  }
};

// What fills the stages: one thread, or lanes of a warp, each of them a stage of its own.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaCopies {
 public:
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;

  // What a step reads: a chunk of channels of the pixels that a tap sees.
  struct Step {
    int32_t channel;
    uint16_t w, h, d;  // the tap's place in windows
    int32_t tap;       // of the filter
  };

  __device__ WgmmaCopies(const WgmmaParams& p, const Stages& stages, uint32_t barriers, int first_stage = 0)
      : params_(p),
        rows_(p),
        by_chunks_(p.chunks, p.chunk_reciprocal),
        stages_(ptx::SharedAddress(&stages)),
        ring_(barriers, first_stage),
        rank_(blockIdx.x % kTile.cluster()) {}

  // Finds out where a work's first step is.
  __device__ __forceinline__ void Find(const WgmmaWork& work) {
    at_ = FirstPixel(work);
    from_ = StepOf(TapOf(work, work.steps.first), work.steps.first);
  }

  // Copies a work's tiles, tap by tap, when the first one's place has been found; one of the warp's lanes.
  __device__ __forceinline__ void Copy(const WgmmaWork& work) {
    if (threadIdx.x % 32 != 0) return;
    for (int32_t step = work.steps.first; step < work.steps.end;) {
      CopyStep(work, at_, from_);
      ring_.Advance();
      from_.channel += kBlockK<T>;
      if (++step < work.steps.end && from_.channel == params_.chunks * kBlockK<T>) {
        from_ = StepOf(TapOf(work, step), step);
      }
    }
  }

  // The first pixel that this block copies, of a tile's first step.
  __device__ __forceinline__ ptx::PixelPlace FirstPixel(const WgmmaWork& work) const {
    const bool is_zeros = work.steps.first == work.steps.taps * params_.chunks;  // behind the last image, or row
    const int32_t row = work.first_row + FirstPart();
    if (params_.rank == 2) return {is_zeros ? static_cast<int32_t>(params_.problem.src_size[2]) : row, 0, 0, 0};
    ptx::PixelPlace at = InPixels(rows_.At(row), params_.problem.step, params_.corner);
    if (is_zeros) at.image = static_cast<int32_t>(params_.problem.batch);
    return at;
  }

  // A step's tap; behind a class's taps is one that the filter does not have, of less than no elements. Of a matrix
  // there is one, known without a look at the table, for which a thread block's beginning would wait.
  __device__ __forceinline__ Tap TapOf(const WgmmaWork& work, int32_t step) const {
    int32_t chunk;
    const int32_t place = by_chunks_.Divide(step, &chunk);
    if (place < work.steps.taps && params_.rank > 2) return params_.taps[work.first_tap + place];
    return {0, place < work.steps.taps ? 0 : -1, {params_.corner[0], params_.corner[1], params_.corner[2]}};
  }

  // The plan is of another problem, if a tap is where the maps do not reach.
  __device__ __forceinline__ Step StepOf(const Tap& tap, int32_t step) const {
    int32_t chunk, rest;
    by_chunks_.Divide(step, &chunk);
    if (params_.rank == 2) return {chunk * kBlockK<T>, 0, 0, 0, tap.filter_delta < 0 ? 1 : 0};
    int32_t number = Divider<int32_t>(params_.tap_stride, params_.tap_reciprocal).Divide(tap.filter_delta, &rest);
    bool is_tap = number < params_.problem.tap_count && rest == 0;
    if (tap.filter_delta < 0) is_tap = true, number = params_.problem.tap_count;
    uint32_t from_corner[kSpatial];
    const uint32_t reach = Im2colOffsetEnd(params_.rank);
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      from_corner[d] = static_cast<uint32_t>(tap.shift[d] - params_.corner[d]);
      is_tap &= from_corner[d] < (kSpatial - d > params_.rank - 2 ? 1 : reach);
    }
    if (!is_tap) __trap();
    return {chunk * kBlockK<T>, static_cast<uint16_t>(from_corner[2]), static_cast<uint16_t>(from_corner[1]),
            static_cast<uint16_t>(from_corner[0]), number};
  }

  // Fills the stage with a step's tiles, when it has been read.
  __device__ __forceinline__ void CopyStep(const WgmmaWork& work, const ptx::PixelPlace& at, const Step& from) const {
    ring_.WaitUntilEmpty();
    const uint32_t stage = stages_ + ring_.stage() * Stages::kBytes;
    ptx::ArriveExpecting(ring_.full(), Stages::kBytes);
    ptx::CopyPixels<(kTile.col_blocks > 1)>(params_.rank, stage + FirstPart() * kSwizzleBytes, params_.src_map,
                                            ring_.full(), from.channel, at, from.w, from.h, from.d,
                                            Stages::Filter::kAll);
    Stages::Filter::Copy(params_, stage + Stages::SrcTile::kBytes, ring_.full(), from.channel, work.first_col, from.tap,
                         rank_);
  }

  // To be called between two steps of a lane.
  __device__ __forceinline__ void Return() { ring_.Return(); }

  // Waits until all has been read: of a block that has ended the others cannot say so.
  __device__ __forceinline__ void Finish() {
    for (int stage = 0; stage < kTile.stages; ++stage) {
      ring_.WaitUntilEmpty();
      ring_.Advance();
    }
  }

 private:
  // Of the rows, that this block copies.
  __device__ __forceinline__ int32_t FirstPart() const { return kTile.col_blocks > 1 ? rank_ * kRowPart : 0; }

  static constexpr int kRowPart = kTile.rows / kTile.col_blocks;
  static_assert(kTile.row_blocks == 1 || kTile.col_blocks == 1, "blocks of a cluster share one of the operands");

  const WgmmaParams& params_;
  RowPlaces<kTile> rows_;
  Divider<int32_t> by_chunks_;
  uint32_t stages_;
  StageRing<kTile.stages> ring_;
  uint32_t rank_;
  ptx::PixelPlace at_;
  Step from_;
};

// What a warpgroup multiplies.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaProducts : public WgmmaSums<T, kTile, kAlongSteps> {
 public:
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;

  __device__ WgmmaProducts(const WgmmaParams& p, const Stages& stages, uint32_t barriers)
      : channels_(p.chunks > 1 ? kBlockK<T> : static_cast<int32_t>(p.problem.in_channels)),
        stages_(ptx::SharedAddress(&stages) & this->kOfBlock),
        ring_(barriers) {}

  // The sums of a work; calls last() while the last step's are multiplied. Of the only chunk, what has no channels is
  // left out.
  template <typename Epilogue, typename Last>
  __device__ __forceinline__ void Multiply(const WgmmaSteps& steps, Epilogue&& epilogue, Last&& last) {
    constexpr int kMost = kBlockK<T> * 3 / 4, kHalf = kBlockK<T> / 2;
    if (channels_ > kMost) {
      MultiplyChunks<kBlockK<T>>(steps, epilogue, last);
    } else if (channels_ > kHalf) {
      MultiplyChunks<kMost>(steps, epilogue, last);
    } else {
      MultiplyChunks<kHalf>(steps, epilogue, last);
    }
  }

 private:
  template <int kChannels, typename Epilogue, typename Last>
  __device__ __forceinline__ void MultiplyChunks(const WgmmaSteps& steps, Epilogue& epilogue, Last& last) {
    const uint32_t read = this->MultiplySteps(steps.end - steps.first, epilogue,
                                              [&](int32_t step) { return MultiplyStage<kChannels>(step > 0); });
    last();
    this->FinishAll();
    this->Release(read);
  }

  // Begins the next stage's multiplications; its barrier, to be released.
  template <int kChannels>
  __device__ __forceinline__ uint32_t MultiplyStage(bool adds) {
    using Src = MatrixDescriptor<typename Stages::SrcTile>;
    ring_.WaitUntilFull();
    const uint32_t stage = stages_ + ring_.stage() * Stages::kBytes, empty = ring_.empty();
    this->template BeginChunk<Src, kChannels>(Src::At(stage, this->FirstRow()), stage + Stages::SrcTile::kBytes, adds);
    ring_.Advance();
    return empty;
  }

  int32_t channels_;  // of all chunks
  uint32_t stages_;
  StageRing<kTile.stages> ring_;
};

// The main loop of pixels in TMA's im2col mode.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct WgmmaWindows {
  static constexpr int kCopiers = 1;
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;
  using Copies = WgmmaCopies<T, kTile, kAlongSteps>;
  using Products = WgmmaProducts<T, kTile, kAlongSteps>;
};

}  // namespace jaxconv
