// What a warpgroup of the wgmma family adds up, in its registers.
#pragma once

#include <cstdint>

#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "common/warpgroup_mma.cuh"
#include "wgmma/filter.cuh"
#include "wgmma/params.cuh"

namespace jaxconv {

// A multiplying warpgroup's sums: its share of the tile's rows, in blocks of 64, by all columns, or, of transposed
// tiles, its share of the columns by all rows.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaSums {
 public:
  static constexpr int kShare = (kTile.transposed ? kTile.cols : kTile.rows) / kTile.warpgroups();
  static constexpr int kBlocks = kShare / 64;
  static constexpr int kAcross = kTile.transposed ? kTile.rows : kTile.cols;
  static_assert(kShare % 64 == 0, "each warpgroup has blocks of 64 rows, or columns");

  // All; and of its i-th 64.
  using Sums = float[kBlocks][kAcross / 8][4];
  __device__ __forceinline__ Sums& All() { return sums_; }
  __device__ __forceinline__ const float (&At(int i) const)[kAcross / 8][4] { return sums_[i]; }

  // This warpgroup's first row, or column, of the tile.
  static __device__ __forceinline__ int FirstRow() { return kTile.transposed ? 0 : threadIdx.x / 128 * kShare; }
  static __device__ __forceinline__ int FirstCol() { return kTile.transposed ? threadIdx.x / 128 * kShare : 0; }

 protected:
  // Begins the multiplications of a chunk of pixels, or its first part, which Src describes, by a filter's tile. The
  // first of a work's overwrites instead of adding: were zeros put in registers, the compiler would let none overlap.
  template <typename Src, int kChannels = kBlockK<T>>
  __device__ __forceinline__ void BeginChunk(uint64_t src, uint32_t filter, bool adds) {
    using Rhs = MatrixDescriptor<typename WgmmaFilter<T, kTile, kAlongSteps>::Tile>;
    const uint64_t rhs = Rhs::At(filter, FirstCol());
    ptx::BeginMultiplications();
#pragma unroll
    for (int k = 0; k < kChannels / kTraits<T>.mma_depth; ++k) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        if constexpr (kTile.transposed) {
          ptx::WarpgroupMultiplyAdd<T, kAcross, !kAlongSteps, false>(sums_[i], rhs + Rhs::Further(i * 64, k),
                                                                     src + Src::Further(0, k), k > 0 || adds);
        } else {
          ptx::WarpgroupMultiplyAdd<T, kAcross, false, !kAlongSteps>(sums_[i], src + Src::Further(i * 64, k),
                                                                     rhs + Rhs::Further(0, k), k > 0 || adds);
        }
      }
    }
    ptx::CommitMultiplications();
  }

  // The multiplications of so many steps, of one at least: begin(step) begins a step's, and says which barrier is to be
  // told that they have been done, as it is when the next one's have begun; the last one's is returned. What the last
  // work left is stored piece by piece, each behind the beginning of a step, which the tensor cores take longer for.
  template <typename Epilogue, typename F>
  __device__ __forceinline__ uint32_t MultiplySteps(int32_t steps, Epilogue& epilogue, F&& begin) {
    uint32_t read = begin(0);
    StoreBesides<0>(steps, epilogue, begin, read);
#pragma unroll 1
    for (int32_t step = max(1, Epilogue::kLeft); step < steps; ++step) MultiplyNext(step, begin, read);
    return read;
  }

  // Waits for all of them: of a work's sums, which are read behind it, or of a stage.
  __device__ __forceinline__ void FinishAll() {
    ptx::WaitForMultiplications<0>();
#pragma unroll
    for (auto& block : sums_) {
#pragma unroll
      for (auto& four : block) ptx::KeepBehind(four);
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
  template <typename F>
  static __device__ __forceinline__ void MultiplyNext(int32_t step, F&& begin, uint32_t& read) {
    const uint32_t next = begin(step);
    ptx::WaitForMultiplications<1>();
    Release(read);
    read = next;
  }

  // Of as many steps as there are pieces, if there are so many.
  template <int kPiece, typename Epilogue, typename F>
  static __device__ __forceinline__ void StoreBesides(int32_t steps, Epilogue& epilogue, F&& begin, uint32_t& read) {
    if constexpr (kPiece < Epilogue::kLeft) {
      epilogue.template StorePiece<kPiece>();
      if (kPiece + 1 < min(steps, Epilogue::kLeft)) MultiplyNext(kPiece + 1, begin, read);
      StoreBesides<kPiece + 1>(steps, epilogue, begin, read);
    }
  }

  Sums sums_;
};

}  // namespace jaxconv
