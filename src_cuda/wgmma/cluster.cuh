// What the thread blocks of a cluster do together.
#pragma once

#include <cstdint>

#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "wgmma/config.h"

namespace jaxconv {

// Of an address of shared memory: in front is the block's rank in its cluster, for which descriptors have no bits.
inline constexpr uint32_t kAddressInCta = (1 << 18) - 1;

// Releases a stage in all blocks that share operands, from the first one's rank on. To be called by a warp.
template <WgmmaTile kTile>
__device__ __forceinline__ void ReleaseInCluster(uint32_t empty, uint32_t first = 0) {
  const uint32_t lane = threadIdx.x % 32;
  if constexpr (kTile.cluster() > 1) {
    if (lane < kTile.cluster()) ptx::ArriveRemote(empty, first + lane);
  } else {
    if (lane == 0) ptx::Arrive(empty);
  }
}

}  // namespace jaxconv
