// Implicit GEMM on Hopper: thread blocks that stay, of a warp that copies and two or three warpgroups that multiply.
//
// TMA reads pixels in its im2col mode, in which a tap of the filter is an offset, or as boxes for many taps, and the
// filter as it lies. Blocks of a cluster have neighbouring rows or columns and share what they read of an operand: L2
// gives less than the tensor cores take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "device/ptx.cuh"
#include "device/ptx_barrier.cuh"
#include "device/ptx_cluster.cuh"
#include "device/ptx_hopper.cuh"
#include "device/wgmma_boxes.cuh"
#include "device/wgmma_epilogue.cuh"
#include "device/wgmma_mainloop.cuh"
#include "device/wgmma_params.cuh"
#include "device/wgmma_scheduler.cuh"
#include "device/wgmma_slices.cuh"
#include "kernels/wgmma.h"
#include "launch.h"

namespace jaxconv {

template <typename T, WgmmaTile kTile, bool kAlongSteps>
using WgmmaMainLoop =
    std::conditional_t<kTile.boxed, WgmmaBoxes<T, kTile, kAlongSteps>, WgmmaWindows<T, kTile, kAlongSteps>>;

template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct alignas(1024) WgmmaShared {
  using Stages = typename WgmmaMainLoop<T, kTile, kAlongSteps>::Stages;
  Stages stages;
  char results[WgmmaReaders(kTile)][ResultBuffers(kTile)][kResultBytes];
  uint64_t barriers[Stages::kBarriers];
  int32_t order[kMostWgmmaClasses];
};

template <typename T, int kTileIndex, bool kAlongSteps>
__global__ void __launch_bounds__(WgmmaThreads(kWgmmaTiles[kTileIndex]), kWgmmaTiles[kTileIndex].resident)
    WgmmaKernel(const __grid_constant__ WgmmaParams p) {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  if constexpr (!ptx::kIsHopper) {
    __trap();  // the host launches mma's
  } else {
    using Shared = WgmmaShared<T, kTile, kAlongSteps>;
    using MainLoop = WgmmaMainLoop<T, kTile, kAlongSteps>;
    using Scheduler = WgmmaScheduler<kTile>;
    extern __shared__ __align__(1024) char raw_shared[];
    Shared& shared = *reinterpret_cast<Shared*>(raw_shared);
    const uint32_t barriers = ptx::SharedAddress(shared.barriers);
    static_assert(offsetof(Shared, results) % 1024 == 0, "each tile begins a turn of its swizzle");
    if (ptx::SharedAddress(&shared) % alignof(Shared) != 0) __trap();
    Scheduler::FillOrder(p, shared.order);
    if constexpr (kTile.boxed) shared.stages.FillTaps(p);
    if (threadIdx.x == 0) {
      MainLoop::Stages::InitBarriers(barriers);
      ptx::FenceBarriers();
      ptx::PrefetchMap(p.src_map);
      ptx::PrefetchMap(p.rhs_map);
    }
    __syncthreads();
    // No block of a cluster may reach into another before that one's barriers are there, nor after it has ended.
    if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
    constexpr int kCopyRegisters = kTile.warpgroups() == 2 ? 40 : 32;
    constexpr int kMultiplyRegisters = kTile.warpgroups() == 2 ? 232 : 160;
    static_assert(kCopyRegisters + kTile.warpgroups() * kMultiplyRegisters <= 65536 / 128,
                  "a multiprocessor has 65536 registers");
    // Two warpgroups of one block have registers for a tile's results beside the next one's sums. They are stored behind
    // the beginning of its multiplications, which the tensor cores are busy with meanwhile.
    constexpr bool kOverlaps = kTile.rows * kTile.cols <= 256 * 128 && kTile.warpgroups() == 2 && kTile.resident == 1;
    Scheduler scheduler(p, shared.order);
    WgmmaWork work;
    const int warpgroup = threadIdx.x / 128;
    if (warpgroup == kTile.warpgroups()) {
      if constexpr (kTile.resident == 1) ptx::LeaveRegisters<kCopyRegisters>();
      const int copier = static_cast<int>(threadIdx.x) / 32 - WgmmaReaders(kTile);
      if (threadIdx.x % 32 == 0 && copier < MainLoop::kCopiers) {
        typename MainLoop::Copies copies(p, shared.stages, barriers, copier);
        while (scheduler.Next(&work)) copies.Copy(work);
        if constexpr (kTile.cluster() > 1) copies.Finish();
      }
    } else {
      if constexpr (kTile.resident == 1) ptx::TakeRegisters<kMultiplyRegisters>();
      const int first_row = warpgroup * (kTile.rows / kTile.warpgroups());
      typename MainLoop::Products sums(p, shared.stages, barriers, first_row);
      WgmmaStores<T, kTile> stores(p, ptx::SharedAddress(shared.results[threadIdx.x / 32]));
      if constexpr (kOverlaps) {
        typename MainLoop::Products::Rounded left[sums.kRowBlocks][sums.kColBlocks];
        int32_t residue, row, col;  // of what is left
        bool is_left = false;
        const auto store_left = [&] {
          if (!is_left) return;
          is_left = false;
          sums.EachBlock([&](int i, int j) {
            stores.StoreByTma(left[i][j], residue, row + i * 64, col + j * sums.kColsAtOnce);
          });
        };
        while (scheduler.Next(&work)) {
          sums.Multiply(work, store_left);
          residue = work.residue, row = work.first_row + first_row, col = work.first_col;
          is_left = p.has_out_maps;
          sums.EachBlock([&](int i, int j) {
            if (p.has_out_maps) {
              sums.Round(i, j, left[i][j]);
            } else {
              stores.StoreRows(sums.At(i, j), work, row + i * 64, col + j * sums.kColsAtOnce);
            }
          });
        }
        store_left();
      } else {
        while (scheduler.Next(&work)) {
          sums.Multiply(work, [] {});
          sums.EachBlock([&](int i, int j) {
            const int32_t row = work.first_row + first_row + i * 64, col = work.first_col + j * sums.kColsAtOnce;
            if (p.has_out_maps) {
              typename MainLoop::Products::Rounded rounded;
              sums.Round(i, j, rounded);
              stores.StoreByTma(rounded, work.residue, row, col);
            } else {
              stores.StoreRows(sums.At(i, j), work, row, col);
            }
          });
        }
      }
      stores.Finish();
    }
    __syncwarp();
    if constexpr (kTile.cluster() > 1) ptx::SyncCluster();
  }
}

template <typename T, int kTileIndex, bool kAlongSteps>
constexpr WgmmaKernelOfTile CompiledWgmma() {
  constexpr WgmmaTile kTile = kWgmmaTiles[kTileIndex];
  if constexpr (kTile.slices > 0) {
    return {WgmmaKernelOfSlices<T, kTileIndex, kAlongSteps>, sizeof(WgmmaSlicesShared<T, kTile, kAlongSteps>)};
  } else {
    return {WgmmaKernel<T, kTileIndex, kAlongSteps>, sizeof(WgmmaShared<T, kTile, kAlongSteps>)};
  }
}

// The compiled kernels for operands of type T.
template <typename T>
WgmmaKernelOfTile FindWgmma(int tile, bool along_steps) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    const WgmmaKernelOfTile tiles[][2] = {{CompiledWgmma<T, kIndex, false>(), CompiledWgmma<T, kIndex, true>()}...};
    return tiles[tile][along_steps];
  }(std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace jaxconv
