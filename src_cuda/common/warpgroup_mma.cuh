// The part of a CTA's tile that a warp group multiplies by wgmma, which reads both operands from shared memory.
#pragma once

#include <cstdint>

#include "common/ptx_hopper.cuh"
#include "common/shared_tile.cuh"
#include "common/store_pairs.cuh"

namespace jaxconv {

// wgmma's 64-bit descriptor of a tile in shared memory: the address, the distances between blocks of 8 rows and between
// columns of 128 bytes, and the swizzle. All but the address are known at compile time.
template <typename Tile>
struct MatrixDescriptor {
  static constexpr uint64_t kSwizzle = Tile::kRowBytes == 128 ? 1 : Tile::kRowBytes == 64 ? 2 : 3;
  static constexpr uint64_t kRowBlockStride = 8 * Tile::kRowBytes, kColumnStride = Tile::kRows * Tile::kRowBytes;
  static constexpr uint64_t kLayout = kSwizzle << 62 | kRowBlockStride / 16 << 32 | kColumnStride / 16 << 16;
  static_assert(!Tile::kReadsWords && kColumnStride < 1 << 18, "distances have 14 bits, in units of 16 bytes");

  // The descriptor of a tile from index `mn` on. The address has 14 bits, in units of 16 bytes.
  static __device__ __forceinline__ uint64_t At(uint32_t tile, int mn) {
    return kLayout | (tile + (Tile::kKMajor ? mn * Tile::kRowBytes
                                            : mn * 2 / Tile::kRowBytes * static_cast<int>(kColumnStride))) >>
                         4;
  }

  // Is added to a descriptor to advance by `mn`, and to the k-th multiplication along K.
  static constexpr uint64_t Advance(int mn, int k) {
    return (Tile::kKMajor ? mn * Tile::kRowBytes + k * 32
                          : mn * 2 / Tile::kRowBytes * kColumnStride + k * 16 * Tile::kRowBytes) /
           16;
  }
};

// kRows x kCols sums of operands of type T. Multiplications are asynchronous: Finish or Reuse waits for them.
template <typename T, typename SrcTile, typename RhsTile, int kRows, int kCols>
class WarpgroupMma {
 public:
  __device__ WarpgroupMma(int first_row, int first_col) : first_row_(first_row), first_col_(first_col) {}

  static constexpr int kSteps = SrcTile::kBlockK / 16;  // multiplications of a tile

  // Must be called before the barrier that precedes the reads of a tile. After it, the multiplications of at most
  // kPending tiles are pending, so the shared memory of the other tiles may be overwritten.
  template <int kPending>
  __device__ __forceinline__ void Reuse() const {
    ptx::FenceForTensorCores();
    ptx::WarpgroupWait<kPending>();
  }

  static constexpr bool kRounds = false;  // 16-bit operands are multiplied as they are
  __device__ __forceinline__ bool AreFinite() const { return true; }

  // Adds the product of a tile. Calls between(k) once for each multiplication, while they run.
  template <bool kFinite, typename F>
  __device__ __forceinline__ void Multiply(uint32_t src, uint32_t rhs, F&& between) {
    using Src = MatrixDescriptor<SrcTile>;
    using Rhs = MatrixDescriptor<RhsTile>;
    const uint64_t a = Src::At(src, first_row_), b = Rhs::At(rhs, first_col_);
    ptx::WarpgroupArrive();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < kRows / 64; ++i) {
        ptx::WarpgroupMultiplyAdd<T, kCols, !SrcTile::kKMajor, !RhsTile::kKMajor>(sum_[i], a + Src::Advance(i * 64, k),
                                                                                  b + Rhs::Advance(0, k));
      }
    }
    ptx::WarpgroupCommit();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) between(k);
  }

  __device__ __forceinline__ void Finish() {
    ptx::WarpgroupWait<0>();
#pragma unroll
    for (auto& rows : sum_) {
#pragma unroll
      for (auto& four : rows) ptx::FenceOperand(four);
    }
  }

  // Rounds the sums and stores them into rows of `pitch` elements.
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
