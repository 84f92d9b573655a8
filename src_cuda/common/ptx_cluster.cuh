// Hopper's clusters and TMA. The CTAs of a cluster run at the same time and reach each other's shared memory. TMA can
// copy to all of them at once (multicast), and in its im2col mode it copies the pixels of one tap for many positions.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "common/ptx_hopper.cuh"

namespace jaxconv::ptx {

// Makes the barriers that this thread has initialised visible to the cluster and to TMA.
__device__ __forceinline__ void FenceBarriers() {
  JAXCONV_HOPPER_ASM("fence.mbarrier_init.release.cluster;" :: : "memory");
}

// A barrier for all threads of the cluster. It does not order memory accesses.
__device__ __forceinline__ void SyncCluster() {
  JAXCONV_HOPPER_ASM("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" :: : "memory");
}

// The same, and what each thread has written before is there for all others behind it.
__device__ __forceinline__ void SyncClusterMemory() {
  JAXCONV_HOPPER_ASM("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" :: : "memory");
}

// SyncCluster in two parts. A thread may do other work between them.
__device__ __forceinline__ void ArriveInCluster() {
  JAXCONV_HOPPER_ASM("barrier.cluster.arrive.relaxed;" :: : "memory");
}
__device__ __forceinline__ void WaitForCluster() { JAXCONV_HOPPER_ASM("barrier.cluster.wait;" :: : "memory"); }

// The rank of the CTA in its cluster, and the index of the cluster in the grid's first dimension.
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

// The same shared memory address in another CTA of the cluster.
__device__ __forceinline__ uint32_t MapToCta(uint32_t address, uint32_t cta) {
  uint32_t there = 0;
  JAXCONV_HOPPER_ASM("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(cta));
  return there;
}

// Writes 16 bytes to the shared memory of a CTA of the cluster. A barrier of that CTA counts the bytes when they are
// written.
__device__ __forceinline__ void StoreAsync(uint32_t to, const uint32_t (&four)[4], uint32_t barrier) {
  JAXCONV_HOPPER_ASM(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
      "r"(four[0]), "r"(four[1]), "r"(four[2]), "r"(four[3]), "r"(barrier) : "memory");
}

// Loads 16 bytes of the shared memory of a CTA of the cluster.
__device__ __forceinline__ void LoadRemoteFour(float (&four)[4], uint32_t from) {
  JAXCONV_HOPPER_ASM("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]),
                     "=f"(four[3]) : "r"(from) : "memory");
}

// Writes 4 bytes in the same way, and arrives at the barrier.
__device__ __forceinline__ void StoreAsyncAndArrive(uint32_t to, uint32_t one, uint32_t barrier) {
  JAXCONV_HOPPER_ASM(
      "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%2], 4; "
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(one), "r"(barrier) : "memory");
}

// Waits until the first phase of the barrier has completed, and acquires what CTAs of the cluster wrote before.
__device__ __forceinline__ void WaitForRemoteStores(uint32_t barrier) {
  uint32_t done = 0;
  while (!done) {
    JAXCONV_HOPPER_ASM(
        "{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
        : "=r"(done) : "r"(barrier) : "memory");
  }
}

// Arrives at the barrier with the same address in another CTA of the cluster. It does not release this thread's writes
// to the cluster: that would wait for all of them, hundreds of cycles.
__device__ __forceinline__ void ArriveRemote(uint32_t barrier, uint32_t cta) {
  JAXCONV_HOPPER_ASM(
      "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(barrier),
      "r"(cta) : "memory");
}

// Copies a box of one matrix of a three-dimensional tensor, for example of the filter of one tap. With kMulticast,
// copies to the same address in all CTAs of `cta_mask`.
template <bool kMulticast>
__device__ __forceinline__ void CopyMatrix(uint32_t to, const CUtensorMap& map, uint32_t barrier, int32_t fast,
                                           int32_t slow, int32_t matrix, uint16_t cta_mask) {
  [[maybe_unused]] const auto address = reinterpret_cast<uint64_t>(&map);
  if constexpr (kMulticast) {
    JAXCONV_HOPPER_ASM(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
        "l"(address), "r"(barrier), "r"(fast), "r"(slow), "r"(matrix), "h"(cta_mask) : "memory");
  } else {
    JAXCONV_HOPPER_ASM(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
        "[%2];" ::"r"(to),
        "l"(address), "r"(barrier), "r"(fast), "r"(slow), "r"(matrix) : "memory");
  }
}

// The coordinates of a pixel. A TMA descriptor of rank 4 leaves out `d`, one of rank 3 also `h`. With rank 2, `w` is
// a row of a matrix.
struct PixelCoord {
  int32_t w, h, d, image;
};

// The coordinates that a lane has. All lanes of the warp must call it.
__device__ __forceinline__ PixelCoord CoordOfLane(const PixelCoord& of_lane, int lane) {
  return {__shfl_sync(0xffffffff, of_lane.w, lane), __shfl_sync(0xffffffff, of_lane.h, lane),
          __shfl_sync(0xffffffff, of_lane.d, lane), __shfl_sync(0xffffffff, of_lane.image, lane)};
}

// TMA's im2col mode: copies channels of the pixels from `at` on, shifted by the offset (w, h, d) of a tap. Pixels
// outside are zeros. With kMulticast, copies to the same address in all CTAs of `cta_mask`. The descriptor has the
// number of pixels and of channels.
template <bool kMulticast>
__device__ __forceinline__ void CopyPixels(int rank, uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                           int32_t channel, const PixelCoord& at, uint16_t w, uint16_t h, uint16_t d,
                                           uint16_t cta_mask) {
  [[maybe_unused]] const auto address = reinterpret_cast<uint64_t>(&map);
#define JAXCONV_COPY_PIXELS "d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes"
#define JAXCONV_COPY_PIXELS_OF(RANK, AT, OFFSETS, BLOCKS, ...)                                                   \
  if constexpr (kMulticast) {                                                                                    \
    JAXCONV_HOPPER_ASM("cp.async.bulk.tensor." RANK JAXCONV_COPY_PIXELS ".multicast::cluster [%0], [%1, {" AT    \
                       "}], [%2], {" OFFSETS "}, " BLOCKS ";" ::"r"(to),                                         \
                       "l"(address), "r"(barrier), "r"(channel), __VA_ARGS__, "h"(cta_mask) : "memory");         \
  } else {                                                                                                       \
    JAXCONV_HOPPER_ASM("cp.async.bulk.tensor." RANK JAXCONV_COPY_PIXELS " [%0], [%1, {" AT "}], [%2], {" OFFSETS \
                       "};" ::"r"(to),                                                                           \
                       "l"(address), "r"(barrier), "r"(channel), __VA_ARGS__ : "memory");                        \
  }
  if (rank == 2) {
    CopyMatrix<kMulticast>(to, map, barrier, channel, at.w, 0, cta_mask);
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

// Stores pixels from `at` on, in im2col mode. Pixels outside are skipped.
__device__ __forceinline__ void StorePixels(int rank, const CUtensorMap& map, uint32_t from, int32_t channel,
                                            const PixelCoord& at) {
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

// Stores a box of pixels, from `at` on. Pixels outside are skipped.
__device__ __forceinline__ void StoreBox(const CUtensorMap& map, uint32_t from, int32_t channel, const PixelCoord& at) {
  [[maybe_unused]] const auto address = reinterpret_cast<uint64_t>(&map);
  JAXCONV_HOPPER_ASM(
      "cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(address),
      "r"(from), "r"(channel), "r"(at.w), "r"(at.h), "r"(at.d), "r"(at.image) : "memory");
}

// Stores bytes that follow each other: whole 16-byte vectors.
__device__ __forceinline__ void StoreBytes(void* to, uint32_t from, uint32_t bytes) {
  JAXCONV_HOPPER_ASM("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
                     "r"(bytes) : "memory");
}

__device__ __forceinline__ void CommitStores() { JAXCONV_HOPPER_ASM("cp.async.bulk.commit_group;" :: : "memory"); }

// Waits until at most kPending committed groups of this thread's stores still read shared memory.
template <int kPending>
__device__ __forceinline__ void WaitForStores() {
  JAXCONV_HOPPER_ASM("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// stmatrix: stores four 8 x 8 matrices of 16-bit elements. Lane 8 * j + i gives the address of row i (with kTranspose:
// column i) of matrix j.
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
