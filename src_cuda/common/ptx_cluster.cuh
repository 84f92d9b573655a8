// Clusters: thread blocks that run at the same time and reach each other's shared memory. Hopper's, as TMA in its
// im2col mode, which copies pixels of a convolution's windows, and to all blocks of a cluster at once.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/ptx_hopper.cuh"

namespace jaxconv::ptx {

// Makes barriers that this thread has set up known to the cluster, and to TMA.
__device__ __forceinline__ void FenceBarriers() {
  JAXCONV_HOPPER_ASM("fence.mbarrier_init.release.cluster;" :: : "memory");
}

// Waits for all threads of the cluster; of memory it says nothing.
__device__ __forceinline__ void SyncCluster() {
  JAXCONV_HOPPER_ASM("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" :: : "memory");
}

// The same in two, between which a thread may do other things.
__device__ __forceinline__ void ArriveInCluster() {
  JAXCONV_HOPPER_ASM("barrier.cluster.arrive.relaxed;" :: : "memory");
}
__device__ __forceinline__ void WaitForCluster() { JAXCONV_HOPPER_ASM("barrier.cluster.wait;" :: : "memory"); }

// The block's place in its cluster, and the cluster's along the grid's first dimension.
__device__ __forceinline__ uint32_t RankInCluster() {
  uint32_t rank = 0;
  JAXCONV_HOPPER_ASM("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t ClusterIndex() {
  uint32_t index = 0;
  JAXCONV_HOPPER_ASM("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t InBlock(uint32_t address, uint32_t block) {
  uint32_t there = 0;
  JAXCONV_HOPPER_ASM("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}

// Writes to shared memory of a block of the cluster, and tells a barrier of that block of the 16 bytes when they are
// there.
__device__ __forceinline__ void SendFour(uint32_t to, const float (&four)[4], uint32_t barrier) {
  JAXCONV_HOPPER_ASM(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]), "r"(barrier) : "memory");
}

// Writes a number there, and arrives at the barrier when it is there.
__device__ __forceinline__ void SendOne(uint32_t to, uint32_t one, uint32_t barrier) {
  JAXCONV_HOPPER_ASM(
      "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%2], 4; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(one), "r"(barrier) : "memory");
}

// Waits for the end of the barrier's first phase, and for what blocks of the cluster wrote before it.
__device__ __forceinline__ void WaitForSent(uint32_t barrier) {
  uint32_t done = 0;
  while (!done) {
    JAXCONV_HOPPER_ASM(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(barrier) : "memory");
  }
}

// Arrives at the barrier that is at the same place in another block of the cluster. What this thread wrote is not
// released to that one: it would wait for all of it, hundreds of cycles.
__device__ __forceinline__ void ArriveAt(uint32_t barrier, uint32_t block) {
  JAXCONV_HOPPER_ASM(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
      "r"(block) : "memory");
}

// Copies a box of one of some matrices, as the taps of a filter; if kToAll, to the blocks of the cluster that the mask
// names, at the same place.
template <bool kToAll>
__device__ __forceinline__ void CopyMatrix(uint32_t to, const CUtensorMap& map, uint32_t barrier, int32_t fast,
                                           int32_t slow, int32_t matrix, uint16_t blocks) {
  [[maybe_unused]] const auto address = reinterpret_cast<uint64_t>(&map);
  if constexpr (kToAll) {
    JAXCONV_HOPPER_ASM(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(address), "r"(barrier), "r"(fast), "r"(slow), "r"(matrix), "h"(blocks) : "memory");
  } else {
    JAXCONV_HOPPER_ASM(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(to),
        "l"(address), "r"(barrier), "r"(fast), "r"(slow), "r"(matrix) : "memory");
  }
}

// A pixel, of as many dimensions as a map has: of TMA's im2col mode, or, of rank 2, a row of a matrix.
struct PixelPlace {
  int32_t w, h, d, image;
};

// To be called by all of a warp: the place that a lane has.
__device__ __forceinline__ PixelPlace PlaceOfLane(const PixelPlace& of_lane, int lane) {
  return {__shfl_sync(0xffffffff, of_lane.w, lane), __shfl_sync(0xffffffff, of_lane.h, lane),
          __shfl_sync(0xffffffff, of_lane.d, lane), __shfl_sync(0xffffffff, of_lane.image, lane)};
}

// Copies pixels and so many channels of each, from a place on, moved by a tap's offset; zeros outside. If kToAll, to
// the blocks of the cluster that the mask names, at the same place.
template <bool kToAll>
__device__ __forceinline__ void CopyPixels(int rank, uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                           int32_t channel, const PixelPlace& at, uint16_t w, uint16_t h, uint16_t d,
                                           uint16_t blocks) {
  [[maybe_unused]] const auto address = reinterpret_cast<uint64_t>(&map);
#define JAXCONV_COPY_PIXELS "d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
#define JAXCONV_COPY_PIXELS_OF(RANK, AT, OFFSETS, BLOCKS, ...)                                                   \
  if constexpr (kToAll) {                                                                                        \
    JAXCONV_HOPPER_ASM("cp.async.bulk.tensor." RANK JAXCONV_COPY_PIXELS ".multicast::cluster [%0], [%1, {" AT    \
                       "}], [%2], {" OFFSETS "}, " BLOCKS ";" ::"r"(to),                                         \
                       "l"(address), "r"(barrier), "r"(channel), __VA_ARGS__, "h"(blocks) : "memory");           \
  } else {                                                                                                       \
    JAXCONV_HOPPER_ASM("cp.async.bulk.tensor." RANK JAXCONV_COPY_PIXELS " [%0], [%1, {" AT "}], [%2], {" OFFSETS \
                       "};" ::"r"(to),                                                                           \
                       "l"(address), "r"(barrier), "r"(channel), __VA_ARGS__ : "memory");                        \
  }
  if (rank == 2) {
    CopyMatrix<kToAll>(to, map, barrier, channel, at.w, 0, blocks);
  } else if (rank == 3) {
    JAXCONV_COPY_PIXELS_OF("3", "%3, %4, %5", "%6", "%7", "r"(at.w), "r"(at.image), "h"(w))
  } else if (rank == 4) {
    JAXCONV_COPY_PIXELS_OF("4", "%3, %4, %5, %6", "%7, %8", "%9", "r"(at.w), "r"(at.h), "r"(at.image), "h"(w), "h"(h))
  } else {
    JAXCONV_COPY_PIXELS_OF("5", "%3, %4, %5, %6, %7", "%8, %9, %10", "%11", "r"(at.w), "r"(at.h), "r"(at.d),
                           "r"(at.image), "h"(w), "h"(h), "h"(d))
  }
#undef JAXCONV_COPY_PIXELS_OF
#undef JAXCONV_COPY_PIXELS
}

// Stores pixels to such places; none outside.
__device__ __forceinline__ void StorePixels(int rank, const CUtensorMap& map, uint32_t from, int32_t channel,
                                            const PixelPlace& at) {
  [[maybe_unused]] const auto address = reinterpret_cast<uint64_t>(&map);
#define JAXCONV_STORE_PIXELS "d.global.shared::cta.im2col_no_offs.bulk_group [%0, "
  if (rank == 2) {
    JAXCONV_HOPPER_ASM(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, 0}], [%1];" ::"l"(address), "r"(from),
        "r"(channel), "r"(at.w) : "memory");
  } else if (rank == 3) {
    JAXCONV_HOPPER_ASM("cp.async.bulk.tensor.3" JAXCONV_STORE_PIXELS "{%2, %3, %4}], [%1];" ::"l"(address), "r"(from),
                       "r"(channel), "r"(at.w), "r"(at.image) : "memory");
  } else if (rank == 4) {
    JAXCONV_HOPPER_ASM("cp.async.bulk.tensor.4" JAXCONV_STORE_PIXELS "{%2, %3, %4, %5}], [%1];" ::"l"(address),
                       "r"(from), "r"(channel), "r"(at.w), "r"(at.h), "r"(at.image) : "memory");
  } else {
    JAXCONV_HOPPER_ASM("cp.async.bulk.tensor.5" JAXCONV_STORE_PIXELS "{%2, %3, %4, %5, %6}], [%1];" ::"l"(address),
                       "r"(from), "r"(channel), "r"(at.w), "r"(at.h), "r"(at.d), "r"(at.image) : "memory");
  }
#undef JAXCONV_STORE_PIXELS
}

// Stores a box of pixels from such a place on; none outside.
__device__ __forceinline__ void StoreBox(const CUtensorMap& map, uint32_t from, int32_t channel, const PixelPlace& at) {
  [[maybe_unused]] const auto address = reinterpret_cast<uint64_t>(&map);
  JAXCONV_HOPPER_ASM(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(address),
      "r"(from), "r"(channel), "r"(at.w), "r"(at.h), "r"(at.d), "r"(at.image) : "memory");
}

__device__ __forceinline__ void CommitStores() { JAXCONV_HOPPER_ASM("cp.async.bulk.commit_group;" :: : "memory"); }

// Waits until at most kPending groups of this thread's stores still read shared memory.
template <int kPending>
__device__ __forceinline__ void WaitForStores() {
  JAXCONV_HOPPER_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Four 8 x 8 matrices of 16-bit elements from registers, row i of matrix j, or its column i, to the address that lane
// 8 * j + i gives.
template <bool kTranspose>
__device__ __forceinline__ void StoreMatrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  if constexpr (kTranspose) {
    JAXCONV_HOPPER_ASM("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                       "r"(b), "r"(c), "r"(d) : "memory");
  } else {
    JAXCONV_HOPPER_ASM("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a),
                       "r"(b), "r"(c), "r"(d) : "memory");
  }
}

}  // namespace jaxconv::ptx
