// The main loop of the wgmma family: a thread that copies both operands by TMA, and warpgroups that multiply them.
#pragma once

#include <cstdint>

#include "device/ptx.cuh"
#include "device/ptx_barrier.cuh"
#include "device/ptx_cluster.cuh"
#include "device/ptx_hopper.cuh"
#include "device/shared_tile.cuh"
#include "device/stage_ring.cuh"
#include "device/warpgroup_mma.cuh"
#include "device/wgmma_params.cuh"
#include "device/wgmma_scheduler.cuh"

namespace jaxconv {

// Shared memory of the operands' tiles: kAlongSteps says how the filter lies in memory.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct WgmmaStages {
  using SrcTile = SharedTile<T, kTile.rows, kChunk, true>;
  // Where columns are neighbours in memory, they are copied by 64.
  static constexpr int kCols = kAlongSteps ? kTile.cols : (kTile.cols + kChunk - 1) / kChunk * kChunk;
  using RhsTile = SharedTile<T, kCols, kChunk, kAlongSteps>;
  static constexpr int kBytes = SrcTile::kBytes + RhsTile::kBytes;
  static_assert(sizeof(T) == 2, "a chunk is 128 bytes, and the filter's columns need not be neighbours");
  static_assert(SrcTile::kBytes % 1024 == 0 && RhsTile::kBytes % 1024 == 0, "each tile begins a turn of its swizzle");

  struct Stage {
    char src[SrcTile::kBytes];
    char rhs[RhsTile::kBytes];
  };
  Stage stages[kTile.stages];
};

// What fills the stages: one thread.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaCopies {
 public:
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;

  __device__ WgmmaCopies(const WgmmaParams& p, uint32_t stages, uint32_t barriers)
      : params_(p), rows_(p), stages_(stages), ring_(barriers), rank_(blockIdx.x % kTile.cluster()) {}

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
                                              channel, at, offset.w, offset.h, offset.d, kAll);
      CopyFilter(stage + Stages::SrcTile::kBytes, channel, work.first_col, offset.tap);
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

  // Blocks of neighbouring rows each copy a part of the filter's tile, to all of them.
  __device__ __forceinline__ void CopyFilter(uint32_t to, int32_t channel, int32_t col, int32_t tap) const {
    constexpr bool kToAll = kTile.row_blocks > 1;
    const auto part = static_cast<int32_t>(kToAll ? rank_ : 0);
    if constexpr (kAlongSteps) {
      constexpr int kPart = kTile.cols / kTile.row_blocks;
      static_assert(kPart % 8 == 0, "a part begins a turn of the swizzle");
      ptx::CopyMatrix<kToAll>(to + part * kPart * 128, params_.rhs_map, ring_.full(), channel, col + part * kPart, tap,
                              kAll);
    } else {
      constexpr int kPart = kChunk / kTile.row_blocks;
#pragma unroll
      for (int block = 0; block < Stages::kCols / kChunk; ++block) {  // of 64 columns: 128 bytes
        ptx::CopyMatrix<kToAll>(to + (block * kChunk + part * kPart) * 128, params_.rhs_map, ring_.full(),
                                col + block * kChunk, channel + part * kPart, tap, kAll);
      }
    }
  }

  static constexpr int kRowPart = kTile.rows / kTile.col_blocks;
  static constexpr auto kAll = static_cast<uint16_t>((1 << kTile.cluster()) - 1);
  static_assert(kTile.row_blocks == 1 || kTile.col_blocks == 1, "blocks of a cluster share one of the operands");

  const WgmmaParams& params_;
  RowPlaces rows_;
  uint32_t stages_;
  StageRing<kTile.stages> ring_;
  uint32_t rank_;
};

// A multiplying warpgroup's sums: its share of the tile's rows, in blocks of 64.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaSums {
 public:
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;
  static constexpr int kRowBlocks = kTile.rows / (64 * kTile.warpgroups());
  // ptxas refuses 256 columns to kernels of 512 threads, though their warpgroups take more registers than they begin with.
  static constexpr int kColsAtOnce = kTile.warpgroups() == 2 ? kTile.cols : 128;
  static constexpr int kColBlocks = kTile.cols / kColsAtOnce;
  static_assert(kTile.rows % (64 * kTile.warpgroups()) == 0, "each warpgroup has blocks of 64 rows");

  // An address of shared memory has the block's place in its cluster in front, for which descriptors have no bits.
  __device__ WgmmaSums(uint32_t stages, uint32_t barriers, int first_row)
      : stages_(stages & kOfBlock), ring_(barriers), first_row_(first_row) {}

  // Of the i-th 64 rows and the j-th kColsAtOnce columns.
  __device__ __forceinline__ const float (&At(int i, int j) const)[kColsAtOnce / 8][4] { return sums_[i][j]; }

  // The sums of a work. A stage is released when the multiplications behind its own have begun.
  __device__ __forceinline__ void Multiply(const WgmmaWork& work) {
    const auto steps = static_cast<int32_t>(work.steps.end - work.steps.begin);
    uint32_t read = MultiplyStage<false>();
#pragma unroll 1
    for (int32_t step = 1; step < steps; ++step) {
      const uint32_t next = MultiplyStage<true>();
      ptx::WaitForMultiplications<1>();
      Release(read);
      read = next;
    }
    ptx::WaitForMultiplications<0>();
    Release(read);
#pragma unroll
    for (auto& rows : sums_) {
#pragma unroll
      for (auto& block : rows) {
#pragma unroll
        for (auto& four : block) ptx::KeepBehind(four);
      }
    }
  }

 private:
  // Begins the next stage's multiplications; its barrier, to be released.
  template <bool kAdds>
  __device__ __forceinline__ uint32_t MultiplyStage() {
    using Src = MatrixDescriptor<typename Stages::SrcTile>;
    using Rhs = MatrixDescriptor<typename Stages::RhsTile>;
    ring_.WaitUntilFull();
    const uint32_t stage = stages_ + ring_.stage() * Stages::kBytes, empty = ring_.empty();
    const uint64_t a = Src::At(stage, first_row_), b = Rhs::At(stage + Stages::SrcTile::kBytes, 0);
    ptx::BeginMultiplications();
#pragma unroll
    for (int k = 0; k < kChunk / 16; ++k) {
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kColBlocks; ++j) {
          ptx::WarpgroupMultiplyAdd<T, kColsAtOnce, false, !kAlongSteps>(
              sums_[i][j], a + Src::Further(i * 64, k), b + Rhs::Further(j * kColsAtOnce, k), k > 0 || kAdds);
        }
      }
    }
    ptx::CommitMultiplications();
    ring_.Advance();
    return empty;
  }

  // To be called by all of a warp; a lane tells each block of the cluster.
  __device__ __forceinline__ void Release(uint32_t empty) const {
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (kTile.cluster() > 1) {
      if (lane < kTile.cluster()) ptx::ArriveAt(empty, lane);
    } else {
      if (lane == 0) ptx::Arrive(empty);
    }
  }

  static constexpr uint32_t kOfBlock = (1 << 18) - 1;

  uint32_t stages_;
  StageRing<kTile.stages> ring_;
  int first_row_;
  float sums_[kRowBlocks][kColBlocks][kColsAtOnce / 8][4];
};

}  // namespace jaxconv
