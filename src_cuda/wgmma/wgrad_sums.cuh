// The sums of weight gradients in a consumer warpgroup's registers: how they are shared out, added in a cluster, and
// stored. wgrad.cuh multiplies.
//
// Without swap_ab, M is source channels of taps and N is output channels; with it, M is output channels. wgmma reads an
// M of 64 anew for each 64 x N, so the longer side of a tile should be N: shared memory gives 128 bytes a clock.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "common/ptx_cluster.cuh"
#include "common/ptx_hopper.cuh"
#include "common/warpgroup_mma.cuh"
#include "wgmma/config.h"
#include "wgmma/params.cuh"
#include "wgmma/wgrad_operands.cuh"
#include "wgmma/wgrad_tiles.cuh"

namespace jaxconv {

// A warpgroup's share of a tile: blocks of 64 along M, by kMults multiplications of kCols along N.
template <WgmmaTile kTile>
struct WgradShare {
  static constexpr int kWarpgroups = kTile.warpgroups();
  static constexpr int kM = kTile.swap_ab ? kTile.cols : kTile.rows, kN = kTile.swap_ab ? kTile.rows : kTile.cols;
  static constexpr bool kSharesN = kM == kBlockRows;  // one block of M is for all warpgroups
  static constexpr int kBlocks = kSharesN ? 1 : kM / kBlockRows / kWarpgroups;
  static constexpr int kNOfWarpgroup = kSharesN ? kN / kWarpgroups : kN;
  static constexpr int kCols = kTile.halo ? kHaloWgradTaps * kBlockRows : kNOfWarpgroup;
  static constexpr int kMults = kNOfWarpgroup / kCols;
  static_assert(kSharesN || kM % (kBlockRows * kWarpgroups) == 0, "warpgroups share out M in blocks of 64");
  static_assert(kCols <= 256 && kCols * kMults == kNOfWarpgroup, "N of a multiplication is 256 at most");
  static_assert(kCols < 256 || WgmmaThreads(kTile) < 512, "ptxas refuses N of 256 in kernels of 512 threads");

  static constexpr int kFragments = kBlocks * kNOfWarpgroup / 8;  // of 16 rows of M by 8 columns of N, in a warp
  static constexpr int kThreads = 32 * ConsumerWarps(kTile);
  using Sums = float[kBlocks][kMults][kCols / 8][4];
  using Fragments = float[kFragments][4];

  static __device__ __forceinline__ int FirstBlock() { return kSharesN ? 0 : threadIdx.x / 128 * kBlocks; }
  static __device__ __forceinline__ int FirstOfN() { return kSharesN ? threadIdx.x / 128 * kNOfWarpgroup : 0; }

  // CTAs of a cluster add, and store, equally many fragments of each run of neighbouring ones.
  static constexpr int kRun = WgradRun(kTile), kRuns = kFragments / kRun, kRunsOfBlock = kRuns / kBlocks;
  static_assert(kFragments % kRun == 0 && kNOfWarpgroup % (kRun * 8) == 0 && kBlockRows % (kRun * 8) == 0,
                "runs are of one block of 64 rows, or columns");
};

// From the sums of this CTA's slice to those of all, in the order of slices. Of each run a CTA has some, which become
// the first ones of `sums`. The operands' shared memory is free for them.
template <WgmmaTile kTile, int kParts>
__device__ __forceinline__ void AddInCluster(uint32_t shared, typename WgradShare<kTile>::Fragments& sums) {
  using Share = WgradShare<kTile>;
  constexpr int kOfRun = Share::kRun / kParts, kOfCta = Share::kFragments / kParts;
  constexpr int kGroup = kMostCluster / kParts;  // sums whose loads are in flight together
  constexpr uint32_t kApart = Share::kThreads * 16;
  const uint32_t mine = shared + threadIdx.x * 16, part = blockIdx.x / kTile.cluster() % kParts;
  ptx::NamedBarrierSync<Share::kThreads>();  // all have read the operands
#pragma unroll
  for (int i = 0; i < Share::kFragments; ++i) ptx::StoreFour(mine + i * kApart, sums[i]);
  ptx::SyncClusterMemory();
  const uint32_t from = ptx::MapToCta(mine + part * kOfRun * kApart, blockIdx.x % kTile.cluster());
  const uint32_t next_part = ptx::MapToCta(mine, kTile.cluster()) - ptx::MapToCta(mine, 0);
#pragma unroll
  for (int first = 0; first < kOfCta; first += kGroup) {
    float slices[kGroup][kParts][4];
#pragma unroll
    for (int j = first; j < first + kGroup && j < kOfCta; ++j) {
      const int fragment = j / kOfRun * Share::kRun + j % kOfRun;
#pragma unroll
      for (int slice = 0; slice < kParts; ++slice) {
        ptx::LoadRemoteFour(slices[j - first][slice], from + fragment * kApart + slice * next_part);
      }
    }
#pragma unroll
    for (int j = first; j < first + kGroup && j < kOfCta; ++j) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        sums[j][v] = slices[j - first][0][v];
#pragma unroll
        for (int slice = 1; slice < kParts; ++slice) sums[j][v] += slices[j - first][slice][v];
      }
    }
  }
  ptx::FenceForTma();  // the next tile's operands come here
  ptx::SyncClusterMemory();
}

// Stores a tile's sums from registers: all, or those that this CTA of a cluster has added. A fragment has 16 rows of M
// by eight columns of N: a lane has the columns 2 c and 2 c + 1 of the rows r and r + 8, with c = lane % 4 and
// r = lane / 4, or of tf32 those of WgradRegisters. Channels are whole vectors of four at least, so both columns are
// channels, or none is.
template <typename T, WgmmaTile kTile, int kParts>
class WgradStore {
 public:
  using Share = WgradShare<kTile>;
  using Fragments = typename Share::Fragments;

  __device__ WgradStore(const WgmmaParams& p, const WgradWorkTile& tile)
      : params_(p),
        tile_(tile),
        lane_(threadIdx.x % 32),
        first_m_(Share::FirstBlock() * kBlockRows + threadIdx.x / 32 % 4 * kResultRows),
        first_n_(Share::FirstOfN() + (kParts == 1 ? 0 : blockIdx.x / kTile.cluster() % kParts * kOfRun * 8)) {
    static_assert(kTile.rows / kBlockRows <= 32, "each 64 rows have a lane");
    if (lane_ >= kTile.rows / kBlockRows) return;
    const WgradRows rows = WgradRowsOf<kTile>(p, tile, lane_);
    if (rows.tap < 0) return;
    const int64_t of_tap = p.rank == 2 ? 0 : p.taps[rows.tap].filter_delta;  // a matrix's one tap is the filter's first
    of_lane_ = {of_tap + rows.channel * p.problem.filter.in,
                static_cast<int32_t>(p.problem.in_channels) - rows.channel};
  }

  // All lanes of the warp must call it.
  __device__ __forceinline__ void Store(const Fragments& sums) const {
    params_.out_type == TypeOf<T>() ? StoreAs<T>(sums) : StoreAs<float>(sums);
  }

 private:
  static constexpr int kOfRun = Share::kRun / kParts;
  static constexpr bool kInEights = sizeof(T) == 2;            // eight rows, or columns, are all channels, or none
  static constexpr bool kInOrder = kInEights || kTile.bf16x6;  // rows are channels in their order

  // The results of 64 rows: how far they are from the origin, and how many of the rows are source channels.
  struct Results {
    int64_t offset = 0;
    int32_t channels = 0;
  };
  __device__ __forceinline__ Results ResultsOf(int block) const {
    return {__shfl_sync(0xffffffff, of_lane_.offset, block), __shfl_sync(0xffffffff, of_lane_.channels, block)};
  }
  template <typename Out>
  __device__ __forceinline__ Out* At(const Results& rows, int row) const {
    return static_cast<Out*>(params_.out) + tile_.slice * params_.slice_elements + rows.offset +
           row * params_.problem.filter.in;
  }

  template <typename Out>
  __device__ __forceinline__ void StoreAs(const Fragments& sums) const {
    if constexpr (kTile.swap_ab) {
#pragma unroll
      for (int run = 0; run < Share::kRunsOfBlock; ++run) StoreRunOfColumns<Out>(sums, run);
    } else {
#pragma unroll
      for (int i = 0; i < 2 * Share::kBlocks; ++i) StoreRow<Out>(sums, i / 2, i % 2);
    }
  }

  // Stores a row of a block of 64, the first or the second that a lane has: of output channels.
  template <typename Out>
  __device__ __forceinline__ void StoreRow(const Fragments& sums, int block, int half) const {
    const Results rows = ResultsOf(first_m_ / kBlockRows + block);
    const int first = first_m_ % kBlockRows + half * 8;
    const int channel = kInOrder ? first + lane_ / 4 : WgradRegisters::ChannelOf(half);
    if ((kInEights ? first : channel) >= rows.channels) return;
    Out* const row = At<Out>(rows, channel);
#pragma unroll
    for (int run = 0; run < Share::kRunsOfBlock; ++run) {
#pragma unroll
      for (int i = 0; i < kOfRun; ++i) {
        const int32_t col = tile_.first_col + first_n_ + (run * Share::kRun + i) * 8;
        if (col + (kInEights ? 0 : lane_ % 4 * 2) >= params_.out_channels) continue;
        const float (&four)[4] = sums[(block * Share::kRunsOfBlock + run) * kOfRun + i];
        StorePair(row + col + lane_ % 4 * 2, four[2 * half], four[2 * half + 1]);
      }
    }
  }

  // Stores a run of columns, which are source channels of a tap, of all output channels.
  template <typename Out>
  __device__ __forceinline__ void StoreRunOfColumns(const Fragments& sums, int run) const {
    const int64_t apart = params_.problem.filter.in;
    const int first = first_n_ + run * Share::kRun * 8;
    const Results columns = ResultsOf(first / kBlockRows);
#pragma unroll
    for (int i = 0; i < kOfRun; ++i) {
      if (first % kBlockRows + i * 8 >= columns.channels) return;
      Out* const column = At<Out>(columns, first % kBlockRows + i * 8 + lane_ % 4 * 2);
#pragma unroll
      for (int half = 0; half < 2 * Share::kBlocks; ++half) {
        const int32_t channel = tile_.first_col + first_m_ + half / 2 * kBlockRows + half % 2 * 8;
        const float (&four)[4] = sums[(half / 2 * Share::kRunsOfBlock + run) * kOfRun + i];
        if (channel < params_.out_channels) {
          StoreColumns(column + channel, apart, four[half % 2 * 2], four[half % 2 * 2 + 1]);
        }
      }
    }
  }

  // Stores a lane's sums of two columns, which are `apart`, of eight output channels from `first` on.
  template <typename Out>
  __device__ __forceinline__ void StoreColumns(Out* first, int64_t apart, float one, float two) const {
    if constexpr (sizeof(Out) == 4) {
      first[lane_ / 4] = one;
      first[apart + lane_ / 4] = two;
    } else {
      // Lanes of neighbouring channels exchange sums: each then stores both of one column.
      const bool is_odd = lane_ & 4;
      const float other = __shfl_xor_sync(0xffffffff, is_odd ? one : two, 4);
      StorePair(first + (is_odd ? apart : 0) + lane_ / 8 * 2, is_odd ? other : one, is_odd ? two : other);
    }
  }

  template <typename Out>
  static __device__ __forceinline__ void StorePair(Out* to, float first, float second) {
    if constexpr (sizeof(Out) == 4) {
      ptx::StoreWords<2>(to, {__float_as_uint(first), __float_as_uint(second)});
    } else {
      *reinterpret_cast<uint32_t*>(to) = RoundPair<Out>(first, second);
    }
  }

  const WgmmaParams& params_;
  const WgradWorkTile& tile_;
  int lane_;
  int first_m_;
  int first_n_;
  Results of_lane_;
};

}  // namespace jaxconv
