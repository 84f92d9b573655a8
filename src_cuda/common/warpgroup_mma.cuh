// A warpgroup's share of a block's product on Hopper's tensor cores, which read both operands from shared memory.
#pragma once

#include <cstdint>

#include "common/ptx_hopper.cuh"
#include "common/shared_tile.cuh"
#include "common/store_pairs.cuh"

namespace jaxconv {

// A tile in shared memory as wgmma's 64-bit descriptors say it: the address, the distances between blocks of 8 rows and
// of columns of 128 bytes, and the swizzle, all but the address known at compile time.
template <typename Tile>
struct MatrixDescriptor {
  static constexpr uint64_t kSwizzle = Tile::kRowBytes == 128 ? 1 : Tile::kRowBytes == 64 ? 2 : 3;
  static constexpr uint64_t kRowsApart = 8 * Tile::kRowBytes, kColumnsApart = Tile::kRows * Tile::kRowBytes;
  static constexpr uint64_t kLayout = kSwizzle << 62 | kRowsApart / 16 << 32 | kColumnsApart / 16 << 16;
  static_assert(!Tile::kWords && kColumnsApart < 1 << 18, "distances have 14 bits, of 16 bytes");

  // From a line of a tile on. The address has 14 bits, of 16 bytes.
  static __device__ __forceinline__ uint64_t At(uint32_t tile, int line) {
    return kLayout | (tile + (Tile::kAlongSteps ? line * Tile::kRowBytes
                                                : line * 2 / Tile::kRowBytes * static_cast<int>(kColumnsApart))) >>
                         4;
  }

  // What is added to it for as many lines, and for the k-th multiplication's steps.
  static constexpr uint64_t Further(int lines, int k) {
    return (Tile::kAlongSteps ? lines * Tile::kRowBytes + k * 32
                              : lines * 2 / Tile::kRowBytes * kColumnsApart + k * 16 * Tile::kRowBytes) /
           16;
  }
};

// kRows x kCols sums of operands of type T. Multiplications are under way until Finish, or Reuse, waits for them.
template <typename T, typename SrcTile, typename RhsTile, int kRows, int kCols>
class WarpgroupMma {
 public:
  __device__ WarpgroupMma(int first_row, int first_col) : first_row_(first_row), first_col_(first_col) {}

  static constexpr int kSteps = SrcTile::kDepth / 16;  // multiplications of a tile

  // To be called before the barrier after which a tile is read. Of the multiplications, kPending tiles' may be going on
  // after it: the others' shared memory may be written.
  template <int kPending>
  __device__ __forceinline__ void Reuse() const {
    ptx::FenceForTensorCores();
    ptx::WaitForMultiplications<kPending>();
  }

  static constexpr bool kRounds = false;  // operands are of 16 bits
  __device__ __forceinline__ bool AreFinite() const { return true; }

  // Adds a tile's product; calls between(k) for each multiplication meanwhile.
  template <bool kFinite, typename F>
  __device__ __forceinline__ void Multiply(uint32_t src, uint32_t rhs, F&& between) {
    using Src = MatrixDescriptor<SrcTile>;
    using Rhs = MatrixDescriptor<RhsTile>;
    const uint64_t a = Src::At(src, first_row_), b = Rhs::At(rhs, first_col_);
    ptx::BeginMultiplications();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < kRows / 64; ++i) {
        ptx::WarpgroupMultiplyAdd<T, kCols, !SrcTile::kAlongSteps, !RhsTile::kAlongSteps>(
            sum_[i], a + Src::Further(i * 64, k), b + Rhs::Further(0, k));
      }
    }
    ptx::CommitMultiplications();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) between(k);
  }

  __device__ __forceinline__ void Finish() {
    ptx::WaitForMultiplications<0>();
#pragma unroll
    for (auto& rows : sum_) {
#pragma unroll
      for (auto& four : rows) ptx::KeepBehind(four);
    }
  }

  // Calls f(sum, column) for each of the thread's sums; columns are counted from the first one.
  template <typename F>
  __device__ __forceinline__ void ForEach(const F& f) {
    ForEachSum(sum_, f);
  }

  // Stores the sums, rounded, into rows of `pitch` elements.
  template <typename Out>
  __device__ __forceinline__ void Store(Out* first, int pitch) const {
    const int warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < kRows / 64; ++i) {
      StorePairs(sum_[i], first + (i * 64 + warp * 16) * pitch, pitch, [](int half, int g) { return half * 8 + g; });
    }
  }

 private:
  int first_row_;
  int first_col_;
  float sum_[kRows / 64][kCols / 8][4] = {};
};

}  // namespace jaxconv
