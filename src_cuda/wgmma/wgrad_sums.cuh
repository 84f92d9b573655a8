// The sums of weight gradients in a consumer warpgroup's registers: how they are shared out, added in a cluster, and
// stored. wgrad.cuh multiplies.
//
// Without swap_ab, M is source channels of taps and N is output channels; with it, M is output channels. wgmma reads an
// M of 64 anew for each 64 x N, so the longer side of a tile should be N: shared memory gives 128 bytes a clock.
#pragma once

#include <cstdint>
#include <numeric>

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
  static constexpr int kCols = kTile.halo && kTile.swap_ab ? WgradUnit(kTile) : kNOfWarpgroup;
  static constexpr int kMults = kNOfWarpgroup / kCols;
  static_assert(kSharesN || kM % (kBlockRows * kWarpgroups) == 0, "warpgroups share out M in blocks of 64");
  static_assert(kCols <= 256 && kCols * kMults == kNOfWarpgroup, "N of a multiplication is 256 at most");
  static_assert(kCols < 256 || WgmmaThreads(kTile) < 512, "ptxas refuses N of 256 in kernels of 512 threads");

  static constexpr int kOfBlock = kNOfWarpgroup / 8;  // fragments of 16 rows of M by 8 columns of N, in a warp
  static constexpr int kFragments = kBlocks * kOfBlock;
  static constexpr int kThreads = 32 * ConsumerWarps(kTile);
  using Sums = float[kBlocks][kMults][kCols / 8][4];
  using Fragments = float[kFragments][4];

  static __device__ __forceinline__ int FirstBlock() { return kSharesN ? 0 : threadIdx.x / 128 * kBlocks; }
  static __device__ __forceinline__ int FirstOfN() { return kSharesN ? threadIdx.x / 128 * kNOfWarpgroup : 0; }
  // With halo tiles, the first group of taps.
  static __device__ __forceinline__ int FirstGroup() {
    return (kTile.swap_ab ? FirstOfN() / kBlockRows : FirstBlock()) / kHaloWgradTaps;
  }
};

// Whether a fragment's rows are channels in their order, and not in that of WgradRegisters.
template <typename T, WgmmaTile kTile>
inline constexpr bool kWgradRowsInOrder = kReadsMnMajor<T> || kTile.bf16x6;

// Where a tile's results go: rows are source channels of a tap, columns are output channels, which are neighbours in
// memory. To be made, and asked, by all lanes of a warp.
template <WgmmaTile kTile>
class WgradResults {
 public:
  // Of 64 rows: how far they are from the origin, and how many of them are source channels.
  struct Block {
    int64_t offset = 0;
    int32_t channels = 0;
  };

  __device__ WgradResults(const WgmmaParams& p, const WgradWorkTile& tile) : params_(p), tile_(tile) {
    static_assert(kTile.rows / kBlockRows <= 32, "each 64 rows have a lane");
    const int lane = threadIdx.x % 32;
    if (lane >= kTile.rows / kBlockRows) return;
    const WgradRows rows = WgradRowsOf<kTile>(p, tile, lane);
    if (rows.tap < 0) return;
    const int64_t of_tap = p.rank == 2 ? 0 : p.taps[rows.tap].filter_delta;  // a matrix's one tap is the filter's first
    of_lane_ = {of_tap + rows.channel * p.problem.filter.in,
                static_cast<int32_t>(p.problem.in_channels) - rows.channel};
  }

  // A lane may ask for another block than others do.
  __device__ __forceinline__ Block BlockAt(int block) const {
    return {__shfl_sync(0xffffffff, of_lane_.offset, block), __shfl_sync(0xffffffff, of_lane_.channels, block)};
  }

  // A row of a block, and whether a column of the tile is an output channel.
  template <typename Out>
  __device__ __forceinline__ Out* Row(const Block& block, int row) const {
    return static_cast<Out*>(params_.out) + tile_.slice * params_.slice_elements + block.offset +
           row * params_.problem.filter.in + tile_.first_col;
  }
  __device__ __forceinline__ bool HasCol(int col) const { return tile_.first_col + col < params_.out_channels; }

 private:
  const WgmmaParams& params_;
  const WgradWorkTile& tile_;
  Block of_lane_;
};

// Rounds neighbouring sums to results, and stores them at once.
template <typename Out, int kCount>
__device__ __forceinline__ void StoreWgradResults(Out* to, const float (&sums)[kCount]) {
  constexpr int kWords = kCount * sizeof(Out) / sizeof(uint32_t);
  uint32_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    if constexpr (sizeof(Out) == 4) {
      words[i] = __float_as_uint(sums[i]);
    } else {
      words[i] = RoundPair<Out>(sums[2 * i], sums[2 * i + 1]);
    }
  }
  if constexpr (kWords == 1) {
    *reinterpret_cast<uint32_t*>(to) = words[0];  // which the compiler may put between other instructions
  } else {
    ptx::StoreWords<kWords>(to, words);
  }
}

// Stores a tile's sums through the shared memory that operands had. The lanes of a fragment have eight rows; from
// shared memory, the lanes of a warp store neighbours. In a cluster each CTA first adds all slices of some of the
// tile's rows.
//
// Shared memory has the tile's rows as results lie in device memory. Chunks of 32 bytes, a fragment's part of a row,
// are swizzled, so that the rows of a fragment are in different banks.
template <typename T, WgmmaTile kTile, int kParts>
class WgradSharedSums {
 public:
  using Share = WgradShare<kTile>;

  __device__ explicit WgradSharedSums(uint32_t shared) : shared_(shared) {}

  __device__ __forceinline__ void AddAndStore(const WgmmaParams& p, const WgradWorkTile& tile,
                                              const typename Share::Fragments& sums) const {
    ptx::NamedBarrierSync<Share::kThreads>();  // all have read the operands
    Put(sums);
    if constexpr (kParts > 1) {
      ptx::SyncClusterMemory();
    } else {
      ptx::NamedBarrierSync<Share::kThreads>();
    }
    const WgradResults<kTile> results(p, tile);
    WithResultType<T, false>(p.out_type, [&](auto out) { StoreRows<decltype(out)>(results); });
    if constexpr (kParts > 1) {
      ptx::FenceForTma();  // the next tile's operands come here
      ptx::SyncClusterMemory();
    }
  }

 private:
  static constexpr int kRows = kTile.rows / kParts;     // that this CTA stores
  static constexpr int kVectorsOfRow = kTile.cols / 4;  // of 16 bytes
  static constexpr int kVectors = kRows * kVectorsOfRow;
  static constexpr int kTogether = std::gcd(kVectors / Share::kThreads, kParts == 1 ? 4 : kMostCluster / kParts);
  static constexpr bool kInOrder = kWgradRowsInOrder<T, kTile>;
  static_assert(kVectors % Share::kThreads == 0, "threads have equally many vectors");
  static constexpr int kChunkBytes = 32, kRowBytes = kTile.cols * 4;
  static_assert(kRowBytes % (4 * kChunkBytes) == 0, "a chunk is swizzled among four");

  // How a row's chunks are swizzled: the rows of a fragment that are stored at the same time differ.
  static __device__ __forceinline__ int TurnOf(int row) { return (kTile.swap_ab ? row / 2 : row) % 4; }
  static __device__ __forceinline__ int AddressOf(int row, int col) {
    return row * kRowBytes + (col / 8 ^ TurnOf(row)) * kChunkBytes + col % 8 * 4;
  }

  // A fragment has 16 rows of M by eight columns of N: a lane has the columns 2 c and 2 c + 1 of the rows r and r + 8,
  // with c = lane % 4 and r = lane / 4, or of tf32 the rows of WgradRegisters. From a lane's first address to the
  // others there are constants, so that they take no registers.
  __device__ __forceinline__ void Put(const typename Share::Fragments& sums) const {
    constexpr int kOfBlock = Share::kOfBlock;
    const int lane = threadIdx.x % 32, first_m = Share::FirstBlock() * kBlockRows + threadIdx.x / 32 % 4 * kResultRows;
    const int m = kInOrder ? first_m + lane / 4 : first_m / kBlockRows * kBlockRows + WgradRegisters::ChannelOf(0);
    const int n = Share::FirstOfN() + lane % 4 * 2;
    const uint32_t first = shared_ + (kTile.swap_ab ? AddressOf(n, m) : AddressOf(m, n));
#pragma unroll
    for (int i = 0; i < Share::kFragments; ++i) {
      const int block = i / kOfBlock, of_block = i % kOfBlock;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t one = __float_as_uint(sums[i][2 * half]), two = __float_as_uint(sums[i][2 * half + 1]);
        if constexpr (kTile.swap_ab) {
          const uint32_t at = (first ^ half * kChunkBytes) + block * kBlockRows * 4 + of_block * 8 * kRowBytes;
          ptx::StoreWord(at, one);
          ptx::StoreWord(at + kRowBytes, two);
        } else {
          constexpr int kHalf = kInOrder ? 8 : 4;
          const uint32_t at = (first ^ of_block % 4 * kChunkBytes) + of_block / 4 * 4 * kChunkBytes +
                              (block * kBlockRows + half * kHalf) * kRowBytes;
          ptx::StoreTwoWords(at, one, two);
        }
      }
    }
  }

  // Slices are added in their order.
  template <typename Out>
  __device__ __forceinline__ void StoreRows(const WgradResults<kTile>& results) const {
    const auto first_row = static_cast<int>(blockIdx.x / kTile.cluster() % kParts) * kRows;
    const auto row_of = [&](int vector) { return first_row + vector / kVectorsOfRow; };
    const auto col_of = [](int vector) { return vector % kVectorsOfRow * 4; };
#pragma unroll 1
    for (int first = 0; first < kVectors; first += kTogether * Share::kThreads) {
      float slices[kTogether][kParts][4];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int vector = first + i * Share::kThreads + static_cast<int>(threadIdx.x);
        Load(AddressOf(row_of(vector), col_of(vector)), slices[i]);
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int vector = first + i * Share::kThreads + static_cast<int>(threadIdx.x);
        const int row = row_of(vector), col = col_of(vector);
        float (&sums)[4] = slices[i][0];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int slice = 1; slice < kParts; ++slice) sums[j] += slices[i][slice][j];
        }
        const auto block = results.BlockAt(row / kBlockRows);
        if (row % kBlockRows < block.channels && results.HasCol(col)) {
          StoreWgradResults(results.template Row<Out>(block, row % kBlockRows) + col, sums);
        }
      }
    }
  }

  // Loads 16 bytes of each slice.
  __device__ __forceinline__ void Load(int at, float (&slices)[kParts][4]) const {
    if constexpr (kParts == 1) return ptx::LoadFour(reinterpret_cast<uint32_t (&)[4]>(slices[0]), shared_ + at);
    const uint32_t of_first = ptx::MapToCta(shared_, blockIdx.x % kTile.cluster()) + at;  // the first slice's CTA
    const uint32_t next_slice = ptx::MapToCta(shared_, kTile.cluster()) - ptx::MapToCta(shared_, 0);
#pragma unroll
    for (int slice = 0; slice < kParts; ++slice) ptx::LoadRemoteFour(slices[slice], of_first + slice * next_slice);
  }

  uint32_t shared_;
};

// Stores a tile's sums from registers, for CTAs that have another tile's operands in shared memory by then. Channels
// are whole vectors of four at least, so both columns of a lane are channels, or none is.
template <typename T, WgmmaTile kTile>
class WgradRegisterSums {
 public:
  using Share = WgradShare<kTile>;
  using Fragments = typename Share::Fragments;

  __device__ WgradRegisterSums(const WgmmaParams& p, const WgradWorkTile& tile)
      : params_(p),
        results_(p, tile),
        lane_(threadIdx.x % 32),
        first_m_(Share::FirstBlock() * kBlockRows + threadIdx.x / 32 % 4 * kResultRows) {}

  // All lanes of the warp must call it.
  __device__ __forceinline__ void Store(const Fragments& sums) const {
    WithResultType<T, false>(params_.out_type, [&](auto out) { StoreAs<decltype(out)>(sums); });
  }

 private:
  static constexpr int kOfBlock = Share::kOfBlock;
  static constexpr int kEights = kBlockRows / 8;     // of a block of 64 rows, which are columns of N
  static constexpr bool kInEights = sizeof(T) == 2;  // eight rows, or columns, are all channels, or none
  static constexpr bool kInOrder = kWgradRowsInOrder<T, kTile>;

  template <typename Out>
  __device__ __forceinline__ void StoreAs(const Fragments& sums) const {
    if constexpr (kTile.swap_ab) {
#pragma unroll
      for (int first = 0; first < kOfBlock; first += kEights) StoreColumns<Out>(sums, first);
    } else {
#pragma unroll
      for (int i = 0; i < 2 * Share::kBlocks; ++i) StoreRow<Out>(sums, i / 2, i % 2);
    }
  }

  // Stores a row of a block of 64, the first or the second that a lane has: of output channels.
  template <typename Out>
  __device__ __forceinline__ void StoreRow(const Fragments& sums, int block, int half) const {
    const auto rows = results_.BlockAt(first_m_ / kBlockRows + block);
    const int first = first_m_ % kBlockRows + half * 8;
    const int channel = kInOrder ? first + lane_ / 4 : WgradRegisters::ChannelOf(half);
    if ((kInEights ? first : channel) >= rows.channels) return;
    Out* const row = results_.template Row<Out>(rows, channel);
#pragma unroll
    for (int i = 0; i < kOfBlock; ++i) {
      const int col = Share::FirstOfN() + i * 8;
      if (!results_.HasCol(col + (kInEights ? 0 : lane_ % 4 * 2))) continue;
      const float (&four)[4] = sums[block * kOfBlock + i];
      StoreWgradResults(row + col + lane_ % 4 * 2, {four[2 * half], four[2 * half + 1]});
    }
  }

  // Stores 64 columns of N, from a fragment's on, which are source channels of a tap, of all output channels.
  template <typename Out>
  __device__ __forceinline__ void StoreColumns(const Fragments& sums, int first) const {
    static_assert(!kTile.swap_ab || (kOfBlock % kEights == 0 && Share::kNOfWarpgroup % kBlockRows == 0),
                  "a warpgroup has whole blocks of rows");
    const int64_t apart = params_.problem.filter.in;
    const auto columns = results_.BlockAt((Share::FirstOfN() + first * 8) / kBlockRows);
    Out* const origin = results_.template Row<Out>(columns, lane_ % 4 * 2);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      if (i * 8 >= columns.channels) return;
      Out* const column = origin + i * 8 * apart;
#pragma unroll
      for (int half = 0; half < 2 * Share::kBlocks; ++half) {
        const int channel = first_m_ + half / 2 * kBlockRows + half % 2 * 8;
        const float (&four)[4] = sums[half / 2 * kOfBlock + first + i];
        if (results_.HasCol(channel)) StoreTwo(column + channel, apart, four[half % 2 * 2], four[half % 2 * 2 + 1]);
      }
    }
  }

  // Stores a lane's sums of two columns, which are `apart`, of eight output channels from `first` on.
  template <typename Out>
  __device__ __forceinline__ void StoreTwo(Out* first, int64_t apart, float one, float two) const {
    if constexpr (sizeof(Out) == 4) {
      first[lane_ / 4] = one;
      first[apart + lane_ / 4] = two;
    } else {
      // Lanes of neighbouring channels exchange sums: each then stores both of one column.
      const bool is_odd = lane_ & 4;
      const float other = __shfl_xor_sync(0xffffffff, is_odd ? one : two, 4);
      StoreWgradResults(first + (is_odd ? apart : 0) + lane_ / 8 * 2, {is_odd ? other : one, is_odd ? two : other});
    }
  }

  const WgmmaParams& params_;
  WgradResults<kTile> results_;
  int lane_;
  int first_m_;
};

}  // namespace jaxconv
