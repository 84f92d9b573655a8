// Weight gradients on Hopper: a product of (tap, source channel) by output channels, whose K is output positions.
//
// Two producer warps fill stages by TMA, one with each operand, consumer warpgroups multiply them. CTAs of a cluster
// share what they read of one operand. A cluster may be several such groups of CTAs, each with a slice of the steps.
// They add their sums through shared memory, which saves most of the workspace's traffic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "common/stage_pipeline.cuh"
#include "common/warpgroup_mma.cuh"
#include "wgmma/cluster.cuh"
#include "wgmma/config.h"
#include "wgmma/finite_sums.cuh"
#include "wgmma/gradient_sums.cuh"
#include "wgmma/kernels.h"
#include "wgmma/params.cuh"
#include "wgmma/wgrad_operands.cuh"
#include "wgmma/wgrad_sums.cuh"
#include "wgmma/wgrad_tiles.cuh"

namespace jaxconv {

template <typename T, WgmmaTile kTile>
using WgradOperands = std::conditional_t<kTile.halo, WgradHalo<T, kTile>, WgradIm2col<T, kTile>>;

// A thread block: its shared memory, and what its warps do.
template <typename T, WgmmaTile kTile>
struct alignas(1024) WgradBlock {
  using Operands = WgradOperands<T, kTile>;
  using Stage = typename Operands::Stage;
  using Steps = WgradTileSteps<kTile, WgradPositions(kTile, sizeof(T))>;
  using Share = WgradShare<kTile>;
  using Pipeline = StagePipeline<kTile.stages>;
  static constexpr bool kIsDynamic = kWgradIsDynamic<T>;
  using Tiles = WgradTiles<kIsDynamic, kTile>;

  union {
    Stage stages[kTile.stages];
    float sums[kTile.rows * kTile.cols];
  };
  uint64_t barriers[Pipeline::kBarriers];
  WgradNextTile<kTile> next_tile;
  GradientParts<T, kTile> gradient_parts;

  // Of producers: a thread for each operand. Copies begin one after the other, and steps have many.
  template <bool kOfSource>
  __device__ __forceinline__ void Produce(const WgmmaParams& p, Tiles& tiles) {
    Pipeline pipeline(ptx::SharedAddress(barriers));
    Operands operands(p);
    const auto ctas = static_cast<uint16_t>(((1 << kTile.cluster()) - 1) << FirstOfGroup(p));
    const auto copy = [&](const WgradWorkTile& tile) {
      if (kOfSource && tile.first_step < tile.end_step) operands.Find(p, tile);  // unseen taps are nowhere
      Steps::ForEachRange(
          p, tile, [&](int32_t begin, int32_t end) { Copy<kOfSource>(p, tile, begin, end, operands, pipeline, ctas); });
    };
    constexpr WgradReader kReader = kOfSource ? WgradReader::kAsks : WgradReader::kProducer;
    tiles.template ForEach<kReader>(next_tile, copy, [&] { WaitForSums(p); });
    if constexpr (kTile.cluster() > 1) {  // the others arrive in this block, which must not have ended
      for (int stage = 0; stage < kTile.stages; ++stage) pipeline.WaitUntilEmpty(), pipeline.Advance();
    }
  }

  template <bool kOfSource>
  __device__ __forceinline__ void Copy(const WgmmaParams& p, const WgradWorkTile& tile, int32_t begin, int32_t end,
                                       const Operands& operands, Pipeline& pipeline, uint16_t ctas) {
#pragma unroll 1
    for (int32_t step = begin; step < end; ++step) {
      pipeline.WaitUntilEmpty();
      const uint32_t stage = ptx::SharedAddress(&stages[pipeline.stage()]);
      if constexpr (kOfSource) {
        ptx::ArriveExpecting(pipeline.full(), operands.SourceBytes(p));
        operands.CopySource(p, tile, step, stage, pipeline.full(), ctas);
      } else {
        ptx::ArriveExpecting(pipeline.full(), Operands::Gradient::kBytes);
        operands.CopyGradient(p, tile, step, stage, pipeline.full(), ctas);
      }
      pipeline.Advance();
    }
  }

  // Of producers behind a tile. While a cluster adds its sums, they are in the place of operands.
  static __device__ __forceinline__ void WaitForSums(const WgmmaParams& p) {
    if (p.wgrad_parts == 1) return;
    ptx::SyncClusterMemory();
    ptx::SyncClusterMemory();
  }

  // The rank of the first block that shares operands with this one.
  static __device__ __forceinline__ uint32_t FirstOfGroup(const WgmmaParams& p) {
    return WgradPart<kTile>(p) * kTile.cluster();
  }

  // Of consumer warpgroups.
  __device__ __forceinline__ void Consume(const WgmmaParams& p) {
    Pipeline pipeline(ptx::SharedAddress(barriers));
    Operands operands(p);
    const bool has_one_tile = p.tiles <= WgradCluster<kTile>(p).count;  // of each cluster
    ForEachWgradTile<kIsDynamic>(p, next_tile, [&](const WgradWorkTile& tile) {
      if constexpr (kTile.halo) operands.FindGroups(p, tile, Share::FirstGroup());
      typename Share::Sums sums;
      if constexpr (kReadsMnMajor<T>) {
        GradientSums<T, kTile> gradient_sums(p, tile);
        Multiply(p, Steps::Count(p, tile), operands, pipeline, sums, gradient_sums);
        gradient_sums.Store(p, tile, gradient_parts.of);
      } else {
        Multiply(p, Steps::Count(p, tile), operands, pipeline, sums);
      }
      if constexpr (kRoundsToInfinity<T, kTile>) ReplaceInfiniteWgrad<kTile>(sums, p, tile, Share::FirstBlock());
      switch (p.wgrad_parts) {
        case 1: return has_one_tile ? AddAndStore<1>(p, tile, sums) : StoreFromRegisters(p, tile, sums);
        case 2: return AddAndStore<2>(p, tile, sums);
        case 4: return AddAndStore<4>(p, tile, sums);
        case 8: return AddAndStore<8>(p, tile, sums);
      }
    });
  }

  static __device__ __forceinline__ void StoreFromRegisters(const WgmmaParams& p, const WgradWorkTile& tile,
                                                            typename Share::Sums& sums) {
    WgradRegisterSums<T, kTile>(p, tile).Store(reinterpret_cast<typename Share::Fragments&>(sums));
  }

  template <int kParts>
  __device__ __forceinline__ void AddAndStore(const WgmmaParams& p, const WgradWorkTile& tile,
                                              typename Share::Sums& sums) const {
    if constexpr (kTile.TakesParts(kParts)) {
      WgradSharedSums<T, kTile, kParts>(ptx::SharedAddress(this->sums))
          .AddAndStore(p, tile, reinterpret_cast<typename Share::Fragments&>(sums));
    }
  }

  // Of 16 bits, where both operands are in shared memory: a tile's first step overwrites the sums.
  __device__ __forceinline__ void Multiply(const WgmmaParams& p, int32_t steps, const Operands& operands,
                                           Pipeline& pipeline, typename Share::Sums& sums,
                                           GradientSums<T, kTile>& gradient_sums) {
    if (steps == 0) return Clear(sums);
    const uint32_t first_of_group = FirstOfGroup(p);
    uint32_t read = MultiplyStage(operands, pipeline, sums, false);
#pragma unroll 1
    for (int32_t step = 1;; ++step) {
      gradient_sums.Add(p, StageOf(read));
      if (step == steps) break;
      const uint32_t next = MultiplyStage(operands, pipeline, sums, true);
      ptx::WarpgroupWait<1>();
      ReleaseInCluster<kTile>(read, first_of_group);
      read = next;
    }
    End(read, sums, first_of_group);
  }

  // Of float32. The sums begin at zero: were they overwritten, the compiler would spill them where a tile without steps
  // has its zeros.
  __device__ __forceinline__ void Multiply(const WgmmaParams& p, int32_t steps, const Operands& operands,
                                           Pipeline& pipeline, typename Share::Sums& sums) {
    Clear(sums);
    if (steps == 0) return;
    const uint32_t first_of_group = FirstOfGroup(p);
    uint32_t read;
    if constexpr (kTile.bf16x6) {
      read = MultiplyBF16x6Stages(steps, pipeline, sums, first_of_group);
    } else if constexpr (kTile.halo) {
      read = MultiplyLines(steps, operands, pipeline, sums, first_of_group);
    } else {
      read = MultiplyFromRegisters(steps, pipeline, sums, first_of_group);
    }
    End(read, sums, first_of_group);
  }

  static __device__ __forceinline__ void Clear(typename Share::Sums& sums) {
#pragma unroll
    for (auto& four : reinterpret_cast<typename Share::Fragments&>(sums)) four[0] = four[1] = four[2] = four[3] = 0;
  }

  // Waits for the last multiplications, and releases their stage.
  static __device__ __forceinline__ void End(uint32_t read, typename Share::Sums& sums, uint32_t first_of_group) {
    ptx::WarpgroupWait<0>();
    ReleaseInCluster<kTile>(read, first_of_group);
#pragma unroll
    for (auto& four : reinterpret_cast<typename Share::Fragments&>(sums)) ptx::FenceOperand(four);
  }

  // The stage that a barrier is released for.
  __device__ __forceinline__ uint32_t StageOf(uint32_t empty) const {
    return ptx::SharedAddress(stages) + (empty - ptx::SharedAddress(barriers)) / 16 * sizeof(Stage);
  }

  // Begins the multiplications of all steps, of float32, and waits for all but the last one's. Returns that stage's
  // barrier, to be released. wgmma reads the source's registers until it is waited for. Only then they are loaded
  // again: another warpgroup multiplies meanwhile.
  __device__ __forceinline__ uint32_t MultiplyFromRegisters(int32_t steps, Pipeline& pipeline,
                                                            typename Share::Sums& sums, uint32_t first_of_group) {
    using Gradient = MatrixDescriptor<typename WgradGradient<T, kTile>::Tile>;
    uint32_t read = 0;
#pragma unroll 1
    for (int32_t step = 0; step < steps; ++step) {
      pipeline.WaitUntilFull();
      if (step > 0) {
        ptx::WarpgroupWait<0>();
        ReleaseInCluster<kTile>(read, first_of_group);
      }
      const uint32_t stage = ptx::SharedAddress(&stages[pipeline.stage()]);
      WgradRegisters source[Operands::kOfWarpgroup][Operands::kDepths];
      Operands::Load(stage, Share::FirstBlock(), source);
      const uint64_t gradient = Gradient::At(stage & kAddressInCta, 0);
      ptx::WarpgroupArrive();
#pragma unroll
      for (int k = 0; k < Operands::kDepths; ++k) {
#pragma unroll
        for (int i = 0; i < Share::kBlocks; ++i) {
          ptx::WarpgroupMultiplyAdd<T, Share::kCols, false, false>(sums[i][0], source[i][k].words,
                                                                   gradient + Gradient::Advance(0, k));
        }
      }
      ptx::WarpgroupCommit();
      read = pipeline.empty();
      pipeline.Advance();
    }
    return read;
  }

  // The same with halo tiles, a line of eight positions at a time. The next line is loaded into other registers, while
  // the one before it is multiplied.
  __device__ __forceinline__ uint32_t MultiplyLines(int32_t steps, const Operands& operands, Pipeline& pipeline,
                                                    typename Share::Sums& sums, uint32_t first_of_group) {
    using OfGradient = WgradGradient<T, kTile>;
    using Gradient = MatrixDescriptor<typename OfGradient::Tile>;
    static_assert(Share::kBlocks == kHaloWgradTaps, "a warpgroup has the taps of one group");
    static_assert(OfGradient::kLines % 2 == 0, "each line of a step has the same registers");
    WgradRegisters source[2][kHaloWgradTaps];
    uint32_t read = 0;
#pragma unroll 1
    for (; steps > 0; --steps) {
      pipeline.WaitUntilFull();
      const uint32_t stage = ptx::SharedAddress(&stages[pipeline.stage()]);
      const uint64_t gradient = Gradient::At(stage & kAddressInCta, 0);
#pragma unroll 1
      for (int first = 0; first < OfGradient::kLines; first += 2) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int line = first + i;
          operands.LoadLine(stage, line, source[i]);
          ptx::WarpgroupArrive();
#pragma unroll
          for (int tap = 0; tap < kHaloWgradTaps; ++tap) {
            ptx::WarpgroupMultiplyAdd<T, Share::kCols, false, false>(sums[tap][0], source[i][tap].words,
                                                                     gradient + line * OfGradient::Tile::kBytes / 16);
          }
          ptx::WarpgroupCommit();
          ptx::WarpgroupWait<1>();  // the line before this one, which may be the last step's last one
          if (line == 0 && read != 0) ReleaseInCluster<kTile>(read, first_of_group);
        }
      }
      read = pipeline.empty();
      pipeline.Advance();
    }
    return read;
  }

  // Multiplies all steps of float32 by products of bfloat16. Returns the last stage's barrier, to be released.
  __device__ __forceinline__ uint32_t MultiplyBF16x6Stages(int32_t steps, Pipeline& pipeline,
                                                           typename Share::Sums& sums, uint32_t first_of_group) {
    uint32_t read = 0;
#pragma unroll 1
    for (int32_t step = 0; step < steps; ++step) {
      if (step > 0) ReleaseInCluster<kTile>(read, first_of_group);
      pipeline.WaitUntilFull();
      const uint32_t stage = ptx::SharedAddress(&stages[pipeline.stage()]);
      BF16Source source[Operands::kOfWarpgroup][Operands::kDepths];
      Operands::Load(stage, Share::FirstBlock(), source);
      static_assert(Share::kMults == 1, "a multiplication has all columns");
      MultiplyBF16x6<typename WgradGradient<T, kTile>::Tile, Share::kCols>(
          source, stage & kAddressInCta, reinterpret_cast<float (&)[Share::kBlocks][Share::kCols / 8][4]>(sums));
      read = pipeline.empty();
      pipeline.Advance();
    }
    return read;
  }

  // Begins the multiplications of the next stage. Returns its barrier, to be released.
  __device__ __forceinline__ uint32_t MultiplyStage(const Operands& operands, Pipeline& pipeline,
                                                    typename Share::Sums& sums, bool adds) {
    using Gradient = MatrixDescriptor<typename WgradGradient<T, kTile>::Tile>;
    pipeline.WaitUntilFull();
    const uint32_t stage = ptx::SharedAddress(&stages[pipeline.stage()]) & kAddressInCta, empty = pipeline.empty();
    const int first_m = Share::FirstBlock(), first_n = Share::FirstOfN();
    ptx::WarpgroupArrive();
#pragma unroll
    for (int k = 0; k < WgradPositions(kTile, sizeof(T)) / kTraits<T>.mma_depth; ++k) {
      const uint64_t of_gradient = Gradient::Advance(0, k), of_source = operands.Advance(k);
#pragma unroll
      for (int i = 0; i < Share::kBlocks; ++i) {
#pragma unroll
        for (int j = 0; j < Share::kMults; ++j) {
          const int m = (first_m + i) * kBlockRows, n = first_n + j * Share::kCols;
          const uint64_t gradient = Gradient::At(stage, kTile.swap_ab ? m : n) + of_gradient;
          const uint64_t source = kTile.swap_ab
                                      ? operands.At(stage, first_n / kBlockRows, j * Share::kCols / kBlockRows)
                                      : operands.At(stage, first_m, i);
          const uint64_t a = kTile.swap_ab ? gradient : source + of_source;
          const uint64_t b = kTile.swap_ab ? source + of_source : gradient;
          ptx::WarpgroupMultiplyAdd<T, Share::kCols, true, true>(sums[i][j], a, b, k > 0 || adds);
        }
      }
    }
    ptx::WarpgroupCommit();
    pipeline.Advance();
    return empty;
  }
};

// Registers of a producer's thread. In im2col mode it keeps several boxes.
constexpr int WgradProducerRegisters(const WgmmaTile& tile) { return tile.halo && tile.warpgroups() == 2 ? 40 : 56; }

// A tile as weight gradients have it: operands of float32 are not swapped.
template <typename T>
constexpr WgmmaTile WgradTile(int index) {
  WgmmaTile tile = kWgmmaTiles[index];
  tile.swap_ab &= kReadsMnMajor<T>;
  return tile;
}

template <typename T, int kTileIndex>
__global__ void __launch_bounds__(WgmmaThreads(kWgmmaTiles[kTileIndex]), kWgmmaTiles[kTileIndex].ctas_per_sm)
    WgradKernel(const __grid_constant__ WgmmaParams p) {
  constexpr WgmmaTile kTile = WgradTile<T>(kTileIndex);
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches mma's
  } else {
    using Block = WgradBlock<T, kTile>;
    static_assert(kTile.warpgroups() == kWgmmaTiles[kTileIndex].warpgroups(), "the host launches so many threads");
    static_assert(sizeof(Block) <= kTile.wgrad_shared_bytes(), "planning knows how much shared memory a CTA has");
    extern __shared__ __align__(1024) char raw_shared[];
    Block& block = *reinterpret_cast<Block*>(raw_shared);
    if (ptx::SharedAddress(&block) % alignof(Block) != 0) __trap();
    const bool asks = Block::kIsDynamic && p.asked_for != nullptr;
    if (threadIdx.x == 0) {
      typename Block::Pipeline(ptx::SharedAddress(block.barriers))
          .Init(kWgradProducers, ConsumerWarps(kTile) * kTile.cluster());
      if (asks) block.next_tile.InitBarriers(p);
      ptx::FenceBarriers();
    }
    if (threadIdx.x == 32 * ConsumerWarps(kTile)) ptx::PrefetchMap(p.src_map), ptx::PrefetchMap(p.rhs_map);
    const auto sync_blocks = [&] {  // blocks that share no operand, and are told no tiles, meet first to add their sums
      __syncthreads();
      if (kTile.cluster() > 1 || asks) ptx::SyncCluster();
    };
    if (threadIdx.x / 128 == kTile.warpgroups()) {
      if constexpr (kTile.ctas_per_sm == 1) ptx::DecreaseRegisters<WgradProducerRegisters(kTile)>();
      typename Block::Tiles tiles(p);
      sync_blocks();
      const int warp = static_cast<int>(threadIdx.x) / 32 - ConsumerWarps(kTile);
      const bool is_elected = ptx::ElectOne();
      if (warp == 0 && is_elected) {
        block.template Produce<true>(p, tiles);
      } else if (warp == 1 && is_elected) {
        block.template Produce<false>(p, tiles);
      }  // the others end: a cluster's barrier does not wait for threads that have ended
    } else {
      sync_blocks();
      if constexpr (kTile.ctas_per_sm == 1)
        ptx::IncreaseRegisters<ConsumerRegisters(kTile, WgradProducerRegisters(kTile))>();
      block.Consume(p);
    }
  }
}

template <typename T, bool kBF16x6, int kTileIndex>
constexpr WgmmaKernelPtr CompiledWgrad() {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  if constexpr (kTile.bf16x6 == kBF16x6 && kTile.HasWgrad(TypeOf<T>())) return WgradKernel<T, kTileIndex>;
  return nullptr;
}

template <typename T, bool kBF16x6>
WgmmaKernelPtr FindWgrad(int64_t tile) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    constexpr WgmmaKernelPtr kKernels[] = {CompiledWgrad<T, kBF16x6, kIndex>()...};
    return kKernels[tile];
  }(std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace jaxconv
