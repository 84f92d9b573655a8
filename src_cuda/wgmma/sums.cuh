// The sums of a consumer warpgroup of the wgmma family, in its registers.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/ptx_hopper.cuh"
#include "common/warpgroup_mma.cuh"
#include "wgmma/bf16x6.cuh"
#include "wgmma/cluster.cuh"
#include "wgmma/filter.cuh"
#include "wgmma/params.cuh"

namespace jaxconv {

// A warpgroup has a share of the tile's rows, in blocks of 64, by all columns. With swapped operands it has a share of
// the columns, in blocks of 64, by all rows.
template <typename T, WgmmaTile kTile, bool kKMajor>
class WgmmaSums {
 public:
  static constexpr int kShare = (kTile.swap_ab ? kTile.cols : kTile.rows) / kTile.warpgroups();
  static constexpr int kBlocks = kShare / 64;
  static constexpr int kAcross = kTile.swap_ab ? kTile.rows : kTile.cols;
  static_assert(kShare % 64 == 0, "each warpgroup has blocks of 64 rows, or columns");

  // All sums; and those of its i-th 64.
  using Sum = SumOf<T>;
  using Sums = Sum[kBlocks][kAcross / 8][4];
  __device__ __forceinline__ Sums& All() { return sums_; }
  __device__ __forceinline__ const Sum (&At(int i) const)[kAcross / 8][4] { return sums_[i]; }

  // This warpgroup's first row, or column, of the tile.
  static __device__ __forceinline__ int FirstRow() { return kTile.swap_ab ? 0 : threadIdx.x / 128 * kShare; }
  static __device__ __forceinline__ int FirstCol() { return kTile.swap_ab ? threadIdx.x / 128 * kShare : 0; }

 protected:
  // Begins to multiply a block of K of pixels, or its first part, by a filter's tile. Src describes the pixels. A
  // tile's first step overwrites the sums: were zeros put in registers, the compiler would let no multiplications
  // overlap.
  template <typename Src, int kChannels = kBlockK<T>>
  __device__ __forceinline__ void BeginKBlock(uint64_t src, uint32_t filter, bool adds) {
    using Rhs = MatrixDescriptor<typename WgmmaFilter<T, kTile, kKMajor>::Tile>;
    const uint64_t rhs = Rhs::At(filter, FirstCol());
    ptx::WarpgroupArrive();
#pragma unroll
    for (int k = 0; k < kChannels / kTraits<T>.mma_depth; ++k) {
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) {
        if constexpr (kTile.swap_ab) {
          ptx::WarpgroupMultiplyAdd<T, kAcross, !kKMajor, false>(sums_[i], rhs + Rhs::Advance(i * 64, k),
                                                                 src + Src::Advance(0, k), k > 0 || adds);
        } else {
          ptx::WarpgroupMultiplyAdd<T, kAcross, false, !kKMajor>(sums_[i], src + Src::Advance(i * 64, k),
                                                                 rhs + Rhs::Advance(0, k), k > 0 || adds);
        }
      }
    }
    ptx::WarpgroupCommit();
  }

  // Multiplies one step or more. begin(step) begins one, and returns the barrier that is to be released when it is
  // done: behind the beginning of the next one. Returns the last one's. Subtiles of the previous tile are stored
  // meanwhile, each behind the beginning of a step, which takes longer.
  template <typename Epilogue, typename F>
  __device__ __forceinline__ uint32_t MultiplySteps(int32_t steps, Epilogue& epilogue, F&& begin) {
    uint32_t read = begin(0);
    StoreBesides<0>(steps, epilogue, begin, read);
#pragma unroll 1
    for (int32_t step = max(1, Epilogue::kLeft); step < steps; ++step) MultiplyNext(step, begin, read);
    return read;
  }

  // Waits for all multiplications. The sums are read behind it.
  __device__ __forceinline__ void FinishAll() {
    ptx::WarpgroupWait<0>();
#pragma unroll
    for (auto& block : sums_) {
#pragma unroll
      for (auto& four : block) ptx::FenceOperand(four);
    }
  }

 private:
  template <typename F>
  static __device__ __forceinline__ void MultiplyNext(int32_t step, F&& begin, uint32_t& read) {
    const uint32_t next = begin(step);
    ptx::WarpgroupWait<1>();
    ReleaseInCluster<kTile>(read);
    read = next;
  }

  // Stores subtiles beside the first steps.
  template <int kSubtile, typename Epilogue, typename F>
  static __device__ __forceinline__ void StoreBesides(int32_t steps, Epilogue& epilogue, F&& begin, uint32_t& read) {
    if constexpr (kSubtile < Epilogue::kLeft) {
      epilogue.template StoreSubtile<kSubtile>();
      if (kSubtile + 1 < min(steps, Epilogue::kLeft)) MultiplyNext(kSubtile + 1, begin, read);
      StoreBesides<kSubtile + 1>(steps, epilogue, begin, read);
    }
  }

  Sums sums_;
};

// The same, but a step's products are added to the sums of all steps before it by CUDA cores, which round to nearest.
// Each step is done when the call that multiplies it returns.
template <typename T, WgmmaTile kTile, bool kKMajor>
class WgmmaPromotedSums : public WgmmaSums<T, kTile, kKMajor> {
 public:
  static_assert(!kTile.swap_ab, "a step has sums of its own for 64 rows of the source");

 protected:
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& block : this->All()) {
#pragma unroll
      for (auto& four : block) four[0] = four[1] = four[2] = four[3] = 0;
    }
  }

  // As those of WgmmaSums.
  template <typename Epilogue, typename F>
  __device__ __forceinline__ uint32_t MultiplySteps(int32_t steps, Epilogue&, F&& multiply) {
    static_assert(Epilogue::kLeft == 0, "there are no registers for results");
    uint32_t read = multiply(0);
#pragma unroll 1
    for (int32_t step = 1; step < steps; ++step) {
      ReleaseInCluster<kTile>(read);
      read = multiply(step);
    }
    return read;
  }
  __device__ __forceinline__ void FinishAll() {}
};

// Of float8. Tensor cores add its products with 14 bits, and cut off what is below.
template <typename T, WgmmaTile kTile, bool kKMajor>
class WgmmaSumsFloat8 : public WgmmaPromotedSums<T, kTile, kKMajor> {
 protected:
  template <typename Src, int kChannels = kBlockK<T>>
  __device__ __forceinline__ void BeginKBlock(uint64_t src, uint32_t filter, bool adds) {
    using Rhs = MatrixDescriptor<typename WgmmaFilter<T, kTile, kKMajor>::Tile>;
    constexpr int kAcross = WgmmaSums<T, kTile, kKMajor>::kAcross;
    const uint64_t rhs = Rhs::At(filter, 0);
    if (!adds) this->Clear();
#pragma unroll
    for (int i = 0; i < WgmmaSums<T, kTile, kKMajor>::kBlocks; ++i) {
      float of_step[kAcross / 8][4];
      ptx::WarpgroupArrive();
#pragma unroll
      for (int k = 0; k < kChannels / kTraits<T>.mma_depth; ++k) {
        ptx::WarpgroupMultiplyAdd<T, kAcross, false, false>(of_step, src + Src::Advance(i * 64, k),
                                                            rhs + Rhs::Advance(0, k), k > 0);
      }
      ptx::WarpgroupCommit();
      ptx::WarpgroupWait<0>();
#pragma unroll
      for (int j = 0; j < kAcross / 8; ++j) {
        ptx::FenceOperand(of_step[j]);
#pragma unroll
        for (int v = 0; v < 4; ++v) this->All()[i][j][v] += of_step[j][v];
      }
    }
  }
};

// Of float32 by products of bfloat16.
template <typename T, WgmmaTile kTile, bool kKMajor>
class WgmmaSumsBF16x6 : public WgmmaPromotedSums<T, kTile, kKMajor> {
 public:
  using WgmmaSums<T, kTile, kKMajor>::kBlocks, WgmmaSums<T, kTile, kKMajor>::kAcross;

 protected:
  // Where a warpgroup's rows of the source are in shared memory, and how far apart: eights of them, and blocks of 64.
  struct Rows {
    uint32_t first, eights_apart, blocks_apart;
  };

  template <int kChannels>
  __device__ __forceinline__ void MultiplyKBlock(const Rows& rows, uint32_t filter, bool adds) {
    using Filter = WgmmaFilter<T, kTile, kKMajor>;
    constexpr int kDepths = kChannels / Filter::kMmaDepth;
    const uint32_t warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4;
    const uint32_t first = rows.first + 2 * warp * rows.eights_apart + g * kSwizzleBytes;
    BF16Source source[kBlocks][kDepths];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const uint32_t of_lane[] = {first + i * rows.blocks_apart, first + i * rows.blocks_apart + rows.eights_apart};
#pragma unroll
      for (int k = 0; k < kDepths; ++k) source[i][k].LoadKMajor(of_lane, k);
    }
    if (!adds) this->Clear();
    MultiplyBF16x6<typename Filter::Tile, kAcross>(source, filter & kAddressInCta, this->All());
  }
};

template <typename T, WgmmaTile kTile, bool kKMajor>
using WgmmaSumsOf = std::conditional_t<
    kTile.bf16x6, WgmmaSumsBF16x6<T, kTile, kKMajor>,
    std::conditional_t<kIsFloat8<T>, WgmmaSumsFloat8<T, kTile, kKMajor>, WgmmaSums<T, kTile, kKMajor>>>;

}  // namespace jaxconv
