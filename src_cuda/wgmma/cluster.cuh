// What the thread blocks of a cluster do together.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "wgmma/config.h"
#include "wgmma/params.cuh"

namespace jaxconv {

// The low bits of an address of shared memory. Descriptors have no bits for the rest, the block's rank in its cluster.
inline constexpr uint32_t kAddressInCta = (1 << 18) - 1;

// A block's coordinates in its cluster. Blocks with the same columns share the filter, those with the same rows
// share the source: as masks of their ranks.
template <WgmmaTile kTile>
struct ClusterCoord {
  uint32_t row, col;

  __device__ __forceinline__ ClusterCoord()
      : row(blockIdx.x % kTile.cluster() % kTile.row_blocks), col(blockIdx.x % kTile.cluster() / kTile.row_blocks) {}

  __device__ __forceinline__ uint16_t SharersOfFilter() const { return kColumn << col * kTile.row_blocks; }
  __device__ __forceinline__ uint16_t SharersOfSource() const { return kRow << row; }

 private:
  static constexpr uint32_t kColumn = (1 << kTile.row_blocks) - 1;
  static constexpr uint32_t kRow = ((1 << kTile.cluster()) - 1) / kColumn;  // a bit for each column
};

// Releases a stage in all blocks of a cluster, from the first one's rank on: in those that share no operand with this
// one, too, so that one number of arrivals is right for all. To be called by a warp.
template <WgmmaTile kTile>
__device__ __forceinline__ void ReleaseInCluster(uint32_t empty, uint32_t first = 0) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (kTile.cluster() > 1) {
    if (lane < kTile.cluster()) ptx::ArriveRemote(empty, first + lane);
  } else {
    if (lane == 0) ptx::Arrive(empty);
  }
}

// A tile behind the first two of each cluster, or one behind the last. Each cluster asks once in vain, and the last one
// of these makes the counter zero again.
__device__ __forceinline__ uint32_t AskForTile(const WgmmaParams& p, uint32_t clusters) {
  return ptx::AtomicInc(p.asked_for, p.tiles - clusters - 1) + 2 * clusters;
}

}  // namespace jaxconv
