// What a warpgroup of the wgmma family adds up, in its registers.
#pragma once

#include <cstdint>

#include "device/ptx_barrier.cuh"
#include "device/ptx_cluster.cuh"
#include "device/ptx_hopper.cuh"
#include "device/warpgroup_mma.cuh"
#include "device/wgmma_filter.cuh"
#include "device/wgmma_params.cuh"

namespace jaxconv {

// A multiplying warpgroup's sums: its share of the tile's rows, in blocks of 64.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaSums {
 public:
  static constexpr int kRowBlocks = kTile.rows / (64 * kTile.warpgroups());
  // ptxas refuses 256 columns to kernels of 512 threads, though their warpgroups take more registers than they begin
  // with.
  static constexpr int kColsAtOnce = kTile.warpgroups() == 3 ? 128 : kTile.cols;
  static constexpr int kColBlocks = kTile.cols / kColsAtOnce;
  static_assert(kTile.rows % (64 * kTile.warpgroups()) == 0, "each warpgroup has blocks of 64 rows");

  // Of the i-th 64 rows and the j-th kColsAtOnce columns.
  __device__ __forceinline__ const float (&At(int i, int j) const)[kColsAtOnce / 8][4] { return sums_[i][j]; }

 protected:
  using Rhs = MatrixDescriptor<typename WgmmaFilter<T, kTile, kAlongSteps>::Tile>;

  // Begins the multiplications of a chunk of pixels, or its first part, which Src describes, by a filter's tile. The
  // first of a work's overwrites instead of adding: were zeros put in registers, the compiler would let none overlap.
  template <typename Src, int kChannels = kChunk>
  __device__ __forceinline__ void BeginChunk(uint64_t a, uint32_t filter, bool adds) {
    const uint64_t b = Rhs::At(filter, 0);
    ptx::BeginMultiplications();
#pragma unroll
    for (int k = 0; k < kChannels / 16; ++k) {
#pragma unroll
      for (int i = 0; i < kRowBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < kColBlocks; ++j) {
          ptx::WarpgroupMultiplyAdd<T, kColsAtOnce, false, !kAlongSteps>(
              sums_[i][j], a + Src::Further(i * 64, k), b + Rhs::Further(j * kColsAtOnce, k), k > 0 || adds);
        }
      }
    }
    ptx::CommitMultiplications();
  }

  // Waits for all of them: of a work's sums, which are read behind it, or of a stage.
  __device__ __forceinline__ void FinishAll() {
    ptx::WaitForMultiplications<0>();
#pragma unroll
    for (auto& rows : sums_) {
#pragma unroll
      for (auto& block : rows) {
#pragma unroll
        for (auto& four : block) ptx::KeepBehind(four);
      }
    }
  }

  // To be called by all of a warp; a lane tells each block of the cluster.
  static __device__ __forceinline__ void Release(uint32_t empty) {
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (kTile.cluster() > 1) {
      if (lane < kTile.cluster()) ptx::ArriveAt(empty, lane);
    } else {
      if (lane == 0) ptx::Arrive(empty);
    }
  }

  // An address of shared memory has the block's place in its cluster in front, for which descriptors have no bits.
  static constexpr uint32_t kOfBlock = (1 << 18) - 1;

 private:
  float sums_[kRowBlocks][kColBlocks][kColsAtOnce / 8][4];
};

}  // namespace jaxconv
