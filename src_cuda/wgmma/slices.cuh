// Small problems: a cluster has one tile, of which each block multiplies a slice of the reduction. There is no scratch
// memory, no second kernel and no next tile.
//
// A warp's sums are pieces of 16 rows x 8 columns, as its registers hold them. Each block adds some columns, of all
// slices: it is sent them, by stores that tell its barrier when they are there. So no block waits for what it sends, or
// reads another's shared memory, and each stays until all that it is sent has come.
#pragma once

#include <cstdint>

#include "common/family.h"
#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "wgmma/config.h"
#include "wgmma/epilogue.cuh"
#include "wgmma/mainloop.cuh"
#include "wgmma/params.cuh"
#include "wgmma/scheduler.cuh"
#include "wgmma/stores.cuh"

namespace jaxconv {

// The sums that a block is sent by those of its cluster, each warp of it by the same warp of theirs.
template <WgmmaTile kTile>
class SliceSums {
 public:
  static constexpr int kBytes =
      kTile.rows * kTile.cols * sizeof(float);  // of shared memory: a part of the tile, of each slice

  __device__ SliceSums(const WgmmaParams& p, uint32_t sums, uint32_t barrier)
      : sums_(sums + threadIdx.x * 16),
        barrier_(barrier),
        slice_(ptx::RankInCluster()),
        share_(kRowPieces / static_cast<uint32_t>(p.split)) {}

  // To be called by one thread, before any block sends.
  __device__ __forceinline__ void Init() const {
    ptx::InitBarrier(barrier_, 1);
    ptx::ArriveExpecting(barrier_, kBytes);
  }

  // From this warp's 16 rows of this slice's sums to those of all slices, of this block's columns: the first of
  // `added`.
  __device__ __forceinline__ void AddAll(const float (&sums)[kTile.cols / 8][4],
                                         float (&added)[kTile.cols / 8][4]) const {
    if (share_ == kRowPieces) {  // there is one
#pragma unroll
      for (int piece = 0; piece < kRowPieces; ++piece) {
#pragma unroll
        for (int i = 0; i < 4; ++i) added[piece][i] = sums[piece][i];
      }
    } else {
      Send(sums);
      Add(added);
    }
  }

  // Columns that this block adds: the first one, and how many.
  __device__ __forceinline__ int32_t first_col() const { return static_cast<int32_t>(slice_ * share_ * 8); }
  __device__ __forceinline__ int32_t cols() const { return static_cast<int32_t>(share_ * 8); }

 private:
  static constexpr int kRowPieces = kTile.cols / 8;
  static_assert(kRowPieces == kTile.slices && (kRowPieces & (kRowPieces - 1)) == 0,
                "blocks have equally many columns, one piece or a power of two");

  // Sends the sums to those who add them.
  __device__ __forceinline__ void Send(const float (&sums)[kTile.cols / 8][4]) const {
    uint32_t block = 0, place = 0;
#pragma unroll
    for (int piece = 0; piece < kRowPieces; ++piece) {
      ptx::SendFour(ptx::InBlock(At(slice_, place), block), sums[piece], ptx::InBlock(barrier_, block));
      if (++place == share_) place = 0, ++block;
    }
  }

  // Adds this block's pieces of this warp's rows, when they are there: the first ones of `sums` are the results. As
  // slices are a power of two, all that a thread was sent are read at once, and halves added to halves.
  __device__ __forceinline__ void Add(float (&sums)[kTile.cols / 8][4]) const {
    ptx::WaitForSent(barrier_);
#pragma unroll
    for (int place = 0; place < kRowPieces; ++place) {
      uint32_t words[4];
      ptx::LoadFour(words, At(0, place));
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[place][i] = __uint_as_float(words[i]);
    }
#pragma unroll
    for (int half = kRowPieces / 2; half > 0; half /= 2) {
      if (half < share_) continue;
#pragma unroll
      for (int place = 0; place < half; ++place) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[place][i] += sums[place + half][i];
      }
    }
  }

  // This thread's part of a piece, in all blocks.
  __device__ __forceinline__ uint32_t At(uint32_t slice, uint32_t place) const {
    return sums_ + (slice * share_ + place) * (WgmmaReaders(kTile) * 32 * 16);
  }

  uint32_t sums_;
  uint32_t barrier_;
  uint32_t slice_;
  uint32_t share_;  // pieces of a row, that a block adds
};

template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct alignas(1024) WgmmaSlicesShared {
  using Stages = WgmmaStages<T, kTile, kAlongSteps>;
  Stages stages;
  char sums[SliceSums<kTile>::kBytes];
  uint64_t barriers[Stages::kBarriers];
  uint64_t sent;
};

template <typename T, int kTileIndex, bool kAlongSteps, bool kHasEpilogue>
__global__ void __launch_bounds__(WgmmaThreads(kWgmmaTiles[kTileIndex]), kWgmmaTiles[kTileIndex].resident)
    WgmmaKernelOfSlices(const __grid_constant__ WgmmaParams p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  static_assert(kTile.cluster() == 1 && !kTile.boxed, "the cluster's blocks have the slices, of pixels for each tap");
  static_assert(!kTile.transposed, "a lane has pairs of columns");
  static_assert(kTile.rows == 64 * kTile.warpgroups(), "a warp has 16 rows");
  static_assert(kTile.resident == 2, "no warp leaves registers to others");
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches mma's
  } else {
    using Shared = WgmmaSlicesShared<T, kTile, kAlongSteps>;
    static_assert(sizeof(Shared) == kTile.shared_bytes(kAlongSteps),
                  "planning knows how much shared memory a thread block has");
    extern __shared__ __align__(1024) char raw_shared[];
    Shared& shared = *reinterpret_cast<Shared*>(raw_shared);
    const uint32_t barriers = ptx::SharedAddress(shared.barriers);
    if (threadIdx.x == 32 * WgmmaReaders(kTile)) ptx::PrefetchMap(p.src_map), ptx::PrefetchMap(p.rhs_map);
    const WgmmaWork work = WorkOfCluster<kTile>(p);
    const int copier = static_cast<int>(threadIdx.x) - 32 * WgmmaReaders(kTile);
    if (copier < 0) {
      const SliceSums<kTile> slices(p, ptx::SharedAddress(shared.sums), ptx::SharedAddress(&shared.sent));
      if (threadIdx.x == 0) {
        if (ptx::SharedAddress(&shared) % alignof(Shared) != 0) __trap();
        Shared::Stages::InitBarriers(barriers);
        slices.Init();
        ptx::FenceBarriers();
      }
      __syncthreads();
      ptx::ArriveInCluster();
      WgmmaProducts<T, kTile, kAlongSteps> sums(p, shared.stages, barriers);
      // What takes long to find out, while there is nothing to multiply.
      const WgmmaStores<T, kTile> stores(p, 0);
      if constexpr (kHasEpilogue) WgmmaSumsEpilogue<kTile>(p, work.first_col + slices.first_col()).Prefetch();
      const int32_t first_row = work.first_row + threadIdx.x / 32 * kResultRows;
      const int64_t offsets[] = {stores.LaneOffset(work, first_row, 0), stores.LaneOffset(work, first_row, 1)};
      sums.Multiply(work.steps, NothingLeft{}, [] {});
      ptx::WaitForCluster();              // all blocks have their barriers
      float added[1][kTile.cols / 8][4];  // blocks of 64 rows: one
      slices.AddAll(sums.At(0), added[0]);
      const int32_t first_col = work.first_col + slices.first_col();
      if constexpr (kHasEpilogue) WgmmaSumsEpilogue<kTile>(p, first_col).Apply(added);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (offsets[half] >= 0) {
          stores.StoreRow(added[0], 2 * half, offsets[half], first_col, first_col + slices.cols());
        }
      }
    } else {
      // A lane for each stage: they look up taps at the same time, each its first while pixels are worked out.
      WgmmaCopies<T, kTile, kAlongSteps> copies(p, shared.stages, barriers, copier % kTile.stages);
      int32_t step = work.steps.first + copier;
      const bool copies_one = copier < kTile.stages && step < work.steps.end;
      if (!copies_one) step = work.steps.first;
      const Tap tap = copies.TapOf(work, step);
      const ptx::PixelPlace at = copies.FirstPixel(work);
      auto from = copies.StepOf(tap, step);
      __syncthreads();
      ptx::ArriveInCluster();
      for (bool more = copies_one; more;) {
        copies.CopyStep(work, at, from);
        more = (step += kTile.stages) < work.steps.end;
        if (more) copies.Return(), from = copies.StepOf(copies.TapOf(work, step), step);
      }
      __syncwarp();
      ptx::WaitForCluster();
    }
  }
}

}  // namespace jaxconv
