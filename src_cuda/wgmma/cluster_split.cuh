// Cluster split-K, for small problems: a cluster has one tile, and each of its blocks multiplies a slice of K. There is
// no workspace, no second kernel and no next tile.
//
// A warp's sums are fragments of 16 rows x 8 columns, as its registers hold them. Each block adds some columns, of all
// slices. The others send it theirs by stores that tell its barrier when they are there. So no block waits for what it
// sends, or reads another's shared memory, and each stays until it has all that it is sent.
#pragma once

#include <cstdint>

#include "common/family.h"
#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "wgmma/config.h"
#include "wgmma/epilogue.cuh"
#include "wgmma/finite_sums.cuh"
#include "wgmma/mainloop.cuh"
#include "wgmma/params.cuh"
#include "wgmma/stores.cuh"
#include "wgmma/tile_order.cuh"

namespace jaxconv {

// The sums that the blocks of a cluster send a block. Each warp has those of the same warps.
template <typename Sum, WgmmaTile kTile>
class ClusterSums {
 public:
  using Sums = Sum[kTile.cols / 8][4];
  static constexpr int kBytes = kTile.rows * kTile.cols * sizeof(float);  // a part of the tile, of each slice

  __device__ ClusterSums(const WgmmaParams& p, uint32_t sums, uint32_t barrier)
      : sums_(sums + threadIdx.x * 16), barrier_(barrier), slice_(ptx::RankInCluster()) {
    share_ = kFragments >> (31 - __clz(p.split));  // slices are a power of two
  }

  // To be called by one thread, before any block sends.
  static __device__ __forceinline__ void InitBarrier(uint32_t barrier) {
    ptx::InitBarrier(barrier, 1);
    ptx::ArriveExpecting(barrier, kBytes);
  }

  // From this warp's 16 rows of this slice's sums to those of all slices: the first fragments of `added` are this
  // block's columns.
  __device__ __forceinline__ void AddAll(const Sums& sums, Sums& added) const {
    if (share_ == kFragments) {  // there is one slice
#pragma unroll
      for (int fragment = 0; fragment < kFragments; ++fragment) {
#pragma unroll
        for (int i = 0; i < 4; ++i) added[fragment][i] = sums[fragment][i];
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
  static constexpr int kFragments = kTile.cols / 8;
  static_assert(kFragments == kTile.cluster_split && (kFragments & (kFragments - 1)) == 0,
                "blocks have equally many columns, a power of two of fragments");

  // Sends the sums to the blocks that add them.
  __device__ __forceinline__ void Send(const Sums& sums) const {
    uint32_t block = 0, in_block = 0;
#pragma unroll
    for (int fragment = 0; fragment < kFragments; ++fragment) {
      const Sum(&four)[4] = sums[fragment];
      ptx::StoreAsync(ptx::MapToCta(At(slice_, in_block), block),
                      {BitsOf(four[0]), BitsOf(four[1]), BitsOf(four[2]), BitsOf(four[3])},
                      ptx::MapToCta(barrier_, block));
      if (++in_block == share_) in_block = 0, ++block;
    }
  }

  // Adds this block's fragments of this warp's rows, when they are there: the first ones of `sums` are complete. Slices
  // are a power of two. So a thread reads all that it was sent at once, and adds halves to halves.
  __device__ __forceinline__ void Add(Sums& sums) const {
    ptx::WaitForRemoteStores(barrier_);
#pragma unroll
    for (int fragment = 0; fragment < kFragments; ++fragment) {
      uint32_t words[4];
      ptx::LoadFour(words, At(0, fragment));
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[fragment][i] = FromBits<Sum>(words[i]);
    }
#pragma unroll
    for (int half = kFragments / 2; half > 0; half /= 2) {
      if (half < share_) continue;
#pragma unroll
      for (int fragment = 0; fragment < half; ++fragment) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[fragment][i] += sums[fragment + half][i];
      }
    }
  }

  // This thread's part of a fragment, in all blocks.
  __device__ __forceinline__ uint32_t At(uint32_t slice, uint32_t fragment) const {
    return sums_ + (slice * share_ + fragment) * (ConsumerWarps(kTile) * 32 * 16);
  }

  uint32_t sums_;
  uint32_t barrier_;
  uint32_t slice_;
  uint32_t share_;  // fragments of a row that a block adds
};

template <typename T, WgmmaTile kTile, bool kKMajor>
struct alignas(1024) WgmmaClusterSplitShared {
  using Stages = WgmmaStages<T, kTile, kKMajor>;
  Stages stages;
  char sums[ClusterSums<SumOf<T>, kTile>::kBytes];
  uint64_t barriers[Stages::kBarriers];
  uint64_t sent;
  char unread[kUnreadBytes];
};

template <typename T, int kTileIndex, bool kKMajor, WgmmaEpilogueKind kEpilogueKind>
__global__ void __launch_bounds__(WgmmaThreads(kWgmmaTiles[kTileIndex]), kWgmmaTiles[kTileIndex].ctas_per_sm)
    WgmmaClusterSplitKernel(const __grid_constant__ WgmmaParams p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  static_assert(kTile.cluster() == 1 && !kTile.halo, "the cluster's blocks have the slices, in im2col mode");
  static_assert(!kTile.swap_ab, "a lane has pairs of columns");
  static_assert(kTile.rows == 64 * kTile.warpgroups(), "a warp has 16 rows");
  static_assert(kTile.ctas_per_sm == 2, "no warp gives registers to others");
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches mma's
  } else {
    using Shared = WgmmaClusterSplitShared<T, kTile, kKMajor>;
    static_assert(sizeof(Shared) == kTile.shared_bytes(kKMajor),
                  "planning knows how much shared memory a thread block has");
    extern __shared__ __align__(1024) char raw_shared[];
    Shared& shared = *reinterpret_cast<Shared*>(raw_shared);
    using Sums = ClusterSums<SumOf<T>, kTile>;
    const uint32_t barriers = ptx::SharedAddress(shared.barriers), sent = ptx::SharedAddress(&shared.sent);
    if (threadIdx.x == 32 * ConsumerWarps(kTile)) ptx::PrefetchMap(p.src_map), ptx::PrefetchMap(p.rhs_map);
    if (threadIdx.x == 0) {  // the first copy waits for it
      if (ptx::SharedAddress(&shared) % alignof(Shared) != 0) __trap();
      Shared::Stages::InitBarriers(barriers);
      Sums::InitBarrier(sent);
      ptx::FenceBarriers();
    }
    const WgmmaWorkTile tile = TileOfCluster<kTile>(p);
    const int thread = static_cast<int>(threadIdx.x) - 32 * ConsumerWarps(kTile);
    if (thread < 0) {
      __syncthreads();
      ptx::ArriveInCluster();
      const Sums cluster_sums(p, ptx::SharedAddress(shared.sums), sent);
      WgmmaConsumer<T, kTile, kKMajor> sums(p, shared.stages, barriers);
      // This takes long. It is done while there is nothing to multiply.
      constexpr bool kHasEpilogue = kEpilogueKind != WgmmaEpilogueKind::kNone;
      using Out = WgmmaResult<T, kEpilogueKind>;
      const WgmmaStores<Out, kTile, kEpilogueKind, sizeof(T) == 1 && sizeof(Out) != 1> stores(p, 0);
      const int32_t first_row = tile.first_row + threadIdx.x / 32 * kResultRows;
      const int64_t offsets[] = {stores.LaneOffset(tile, first_row, 0), stores.LaneOffset(tile, first_row, 1)};
      if constexpr (kHasEpilogue) {
        const int32_t first_of_cluster = tile.first_col + cluster_sums.first_col();
        BringEpilogue<kTile>(p, first_of_cluster, ptx::SharedAddress(shared.unread));
        if (p.epilogue.residual != nullptr) {
          PrefetchResidual<T>(p, threadIdx.x, 128 * kTile.warpgroups(), kTile.rows, first_of_cluster,
                              cluster_sums.cols(),
                              [&](int row) { return stores.RowOffset(tile, tile.first_row + row); });
        }
      }
      sums.Multiply(tile.steps, NothingLeft{}, [] {});
      if constexpr (kRoundsToInfinity<T, kTile>) {
        FiniteConvSums<kTile>(p, nullptr).Replace(sums.All(), tile, tile.first_row + sums.FirstRow(), tile.first_col);
      }
      ptx::WaitForCluster();                 // all blocks have their barriers
      SumOf<T> added[1][kTile.cols / 8][4];  // blocks of 64 rows: one
      cluster_sums.AddAll(sums.At(0), added[0]);
      const int32_t first_col = tile.first_col + cluster_sums.first_col();
      const int32_t end_col = first_col + cluster_sums.cols();
      if constexpr (kHasEpilogue) {
        EndSums([&] { ScaleAndAddBias<kTile>(p, first_col, end_col, added); },
                [&] {
                  if (p.epilogue.residual == nullptr) return;
                  AddResidual<T, kTile>(p, first_col, end_col, added, [&](int half) { return offsets[half]; });
                },
                [&] {
                  BendAll(p, added);
                  ClipAll(p.epilogue.of_floats, added[0]);
                },
                [&] {
                  if constexpr (sizeof(Out) == 1) ScaleResults<kTile>(p, first_col, end_col, added[0]);
                });
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (offsets[half] >= 0) {
          stores.StoreRow(added[0], 2 * half, offsets[half], first_col, end_col);
        }
      }
    } else if (p.rank == 2) {
      WgmmaProducer<T, kTile, kKMajor> producer(p, shared.stages, barriers);
      producer.Find(tile);
      __syncthreads();
      ptx::ArriveInCluster();
      producer.Copy(tile);
      __syncwarp();
      ptx::WaitForCluster();
    } else {
      // A lane fills a stage. So lanes look up taps at the same time, each its first while pixels are worked out.
      WgmmaProducer<T, kTile, kKMajor> producer(p, shared.stages, barriers, thread % kTile.stages);
      int32_t step = tile.steps.first + thread;
      const bool copies_one = thread < kTile.stages && step < tile.steps.end;
      if (!copies_one) step = tile.steps.first;
      const Tap tap = producer.TapOf(tile, step);
      const OperandOrigin origin(p, tile.first_col);
      const ptx::PixelCoord at = producer.FirstPixel(tile);
      auto from = producer.StepOf(tap, step);
      __syncthreads();
      ptx::ArriveInCluster();
      for (bool more = copies_one; more;) {
        producer.CopyStep(origin, at, from);
        more = (step += kTile.stages) < tile.steps.end;
        if (more) producer.Return(), from = producer.StepOf(producer.TapOf(tile, step), step);
      }
      __syncwarp();
      ptx::WaitForCluster();
    }
  }
}

}  // namespace jaxconv
