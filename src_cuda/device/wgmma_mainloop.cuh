// The main loop of the wgmma family: a thread that copies both operands by TMA, the pixels in its im2col mode, tap by
// tap, and warpgroups that multiply them.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "device/ptx_barrier.cuh"
#include "device/ptx_cluster.cuh"
#include "device/ptx_hopper.cuh"
#include "device/shared_tile.cuh"
#include "device/stage_ring.cuh"
#include "device/warpgroup_mma.cuh"
#include "device/wgmma_filter.cuh"
#include "device/wgmma_params.cuh"
#include "device/wgmma_scheduler.cuh"
#include "device/wgmma_sums.cuh"

namespace jaxconv {

// Shared memory of the operands' tiles.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct WgmmaStages {
  using SrcTile = SharedTile<T, kTile.rows, kChunk, true>;
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

// What fills the stages: one thread.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaCopies {
 public:
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;

  __device__ WgmmaCopies(const WgmmaParams& p, const Stages& stages, uint32_t barriers)
      : params_(p), rows_(p), stages_(ptx::SharedAddress(&stages)), ring_(barriers),
        rank_(blockIdx.x % kTile.cluster()) {}

  // Copies a work's tiles, tap by tap.
  __device__ __forceinline__ void Copy(const WgmmaWork& work) {
    const int32_t first_part = kTile.col_blocks > 1 ? rank_ * kRowPart : 0;  // of the rows, that this block copies
    ptx::PixelPlace at = InPixels(rows_.At(work.first_row + first_part), params_.problem.step, params_.corner);
    const auto chunks = static_cast<uint32_t>(params_.chunks);
    uint32_t tap = static_cast<uint32_t>(work.steps.begin) / chunks, chunk = work.steps.begin % chunks;
    if (tap == static_cast<uint32_t>(work.taps)) {  // zeros lie behind the last image, or row
      (params_.rank == 2 ? at.w : at.image) =
          static_cast<int32_t>(params_.rank == 2 ? params_.problem.src_size[2] : params_.problem.batch);
    }
    Offset offset = OffsetOf(work, tap);
    for (auto step = static_cast<int32_t>(work.steps.begin); step < work.steps.end; ++step) {
      ring_.WaitUntilEmpty();
      const uint32_t stage = stages_ + ring_.stage() * Stages::kBytes;
      ptx::ArriveExpecting(ring_.full(), Stages::kBytes);
      const auto channel = static_cast<int32_t>(chunk * kChunk);
      ptx::CopyPixels<(kTile.col_blocks > 1)>(params_.rank, stage + first_part * 128, params_.src_map, ring_.full(),
                                              channel, at, offset.w, offset.h, offset.d, Stages::Filter::kAll);
      Stages::Filter::Copy(params_, stage + Stages::SrcTile::kBytes, ring_.full(), channel, work.first_col, offset.tap,
                           rank_);
      ring_.Advance();
      if (++chunk < chunks) continue;
      chunk = 0, ++tap;
      if (step + 1 < work.steps.end) offset = OffsetOf(work, tap);
    }
  }

  // Waits until all has been read: of a block that has ended the others cannot say so.
  __device__ __forceinline__ void Finish() {
    for (int stage = 0; stage < kTile.stages; ++stage) {
      ring_.WaitUntilEmpty();
      ring_.Advance();
    }
  }

 private:
  struct Offset {
    uint16_t w, h, d;
    int32_t tap;  // of the filter
  };

  // A tap's place in windows, which the table tells. Behind a class's taps is one that the filter does not have. The
  // plan is of another problem, if a tap is where the maps do not reach.
  __device__ __forceinline__ Offset OffsetOf(const WgmmaWork& work, uint32_t place) const {
    if (place >= static_cast<uint32_t>(work.taps)) return {0, 0, 0, params_.problem.tap_count};
    const Tap& tap = params_.taps[work.first_tap + place];
    uint32_t from_corner[kSpatial];
    const uint32_t reach = params_.rank == 3 ? 1 << 16 : params_.rank == 4 ? 1 << 8 : 1 << 5;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      from_corner[d] = static_cast<uint32_t>(tap.shift[d] - params_.corner[d]);
      if (from_corner[d] >= (kSpatial - d > params_.rank - 2 ? 1 : reach)) __trap();
    }
    const int32_t number = tap.filter_delta / params_.tap_stride;
    const bool is_tap = static_cast<uint32_t>(number) < static_cast<uint32_t>(params_.problem.tap_count);
    if (!is_tap || number * params_.tap_stride != tap.filter_delta) __trap();
    return {static_cast<uint16_t>(from_corner[2]), static_cast<uint16_t>(from_corner[1]),
            static_cast<uint16_t>(from_corner[0]), number};
  }

  static constexpr int kRowPart = kTile.rows / kTile.col_blocks;
  static_assert(kTile.row_blocks == 1 || kTile.col_blocks == 1, "blocks of a cluster share one of the operands");

  const WgmmaParams& params_;
  RowPlaces<kTile> rows_;
  uint32_t stages_;
  StageRing<kTile.stages> ring_;
  uint32_t rank_;
};

// What a warpgroup multiplies.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaProducts : public WgmmaSums<T, kTile, kAlongSteps> {
 public:
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;

  __device__ WgmmaProducts(const WgmmaParams& p, const Stages& stages, uint32_t barriers, int first_row)
      : channels_(p.chunks > 1 ? kChunk : static_cast<int32_t>(p.problem.in_channels)), stages_(ptx::SharedAddress(&stages) & this->kOfBlock), ring_(barriers), first_row_(first_row) {}

  // The sums of a work. Where there are no channels, nothing is multiplied.
  __device__ __forceinline__ void Multiply(const WgmmaWork& work) {
    if (channels_ > 48) {
      MultiplyChunks<kChunk>(work);
    } else if (channels_ > 32) {
      MultiplyChunks<48>(work);
    } else {
      MultiplyChunks<32>(work);
    }
  }

 private:
  // A stage is released when the multiplications behind its own have begun.
  template <int kChannels>
  __device__ __forceinline__ void MultiplyChunks(const WgmmaWork& work) {
    const auto steps = static_cast<int32_t>(work.steps.end - work.steps.begin);
    uint32_t read = MultiplyStage<kChannels>(false);
#pragma unroll 1
    for (int32_t step = 1; step < steps; ++step) {
      const uint32_t next = MultiplyStage<kChannels>(true);
      ptx::WaitForMultiplications<1>();
      this->Release(read);
      read = next;
    }
    this->FinishAll();
    this->Release(read);
  }

  // Begins the next stage's multiplications; its barrier, to be released.
  template <int kChannels>
  __device__ __forceinline__ uint32_t MultiplyStage(bool adds) {
    using Src = MatrixDescriptor<typename Stages::SrcTile>;
    ring_.WaitUntilFull();
    const uint32_t stage = stages_ + ring_.stage() * Stages::kBytes, empty = ring_.empty();
    this->template BeginChunk<Src, kChannels>(Src::At(stage, first_row_), stage + Stages::SrcTile::kBytes, adds);
    ring_.Advance();
    return empty;
  }

  int32_t channels_;  // of all chunks
  uint32_t stages_;
  StageRing<kTile.stages> ring_;
  int first_row_;
};

// The main loop of pixels in TMA's im2col mode.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct WgmmaWindows {
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;
  using Copies = WgmmaCopies<T, kTile, kAlongSteps>;
  using Products = WgmmaProducts<T, kTile, kAlongSteps>;
};

}  // namespace jaxconv
