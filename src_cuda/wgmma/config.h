// The tiles of the wgmma family, and the threads and shared memory of a thread block. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "common/product.h"
#include "common/tiled_product.h"
#include "common/tma_limits.h"
#include "operand_traits.h"

namespace jaxconv {

// The epilogue of a kernel. Without one it stores sums. Results of one byte have kernels of their own, and so have
// those of int8 with channels in blocks.
enum class WgmmaEpilogueKind { kNone, kPlain, kBytes, kBlocks };

inline constexpr int kMostWgmmaClasses = 8;
inline constexpr int kMostCluster = 8;  // thread blocks of a cluster, on every device with clusters
inline constexpr int kResultRows = 16;  // a warp stores so many rows at once: its part of a multiplication's 64
inline constexpr int kResultBytes = kResultRows * kSwizzleBytes;
inline constexpr int kUnreadBytes = 3 * 32 * 4;  // a word for each lane of a warp and operand, see BringEpilogue
inline constexpr int kBlockRows = 64;            // M of a multiplication, and channels that wgrad's tiles are made of
inline constexpr int kWgradBlockBytes = kBlockRows * kSwizzleBytes;  // of 64 channels in a step of wgrad
inline constexpr int64_t kMostWgradSplit = 1 << 15;                  // its square fits in 32 bits, see FindWgradTile
inline constexpr int kHaloWgradTaps = 3;  // of a window's row: they are columns of one multiplication of wgrad
inline constexpr int kUnitRows = 64;      // positions that have a halo tile: the rows of one multiplication
inline constexpr int kUnitSide = 8;       // of a unit that is a square, not a line
// BLOCK_K of 16-bit types. Tiles' names have it, and what planning shares with other families.
inline constexpr int kPlannedBlockK = TraitsOf(DType::kBF16).swizzle_row();
// Of a number of float32: three that add up to it, and the first one again, finite. And of a product. See bf16x6.cuh.
inline constexpr int kBF16Parts = 4, kBF16x6Products = 6;
inline constexpr int kMostHaloPixels = 104, kMostHaloTaps = 127;

// What BLOCK_K of a problem may be: all channels of a swizzled row, three quarters, or half. The last one is for
// results with channels in blocks: there a plane of the source is a quarter of a row of bytes. Each is a multiple of
// the instruction's K. Kernels have a loop for each.
constexpr std::array<int, 4> BlockKs(int row, int mma_depth) {
  const int three_quarters = row * 3 / 4, half = row / 2;
  return {row, three_quarters % mma_depth == 0 ? three_quarters : row, half, row == kSwizzleBytes ? row / 4 : half};
}

// A tile of the wgmma family. Its warpgroups have equal shares of its rows, or, with swapped operands, of its
// columns. Blocks of a cluster with the same columns share the filter that they read, those with the same rows share
// the source. With cluster split-K they have slices of one tile's K instead, and add them.
struct WgmmaTile {
  int rows;
  int cols;
  int stages;
  int row_blocks = 1;  // thread blocks of a cluster, along rows and along columns
  int col_blocks = 1;
  int ctas_per_sm = 1;  // of two, one multiplies while the other begins or ends a tile
  // TMA copies the pixels that all taps of a plane see once, for 8 x 8 positions or 64 of a line.
  bool halo = false;
  // Slices of K that a cluster adds: so many, or a divisor of it. 0: split-K is through the workspace.
  int cluster_split = 0;
  bool swap_ab = false;  // channels are M of a multiplication, and all of the tile's positions N
  bool has_conv = true;  // whether the tile is compiled for convs
  bool bf16x6 = false;   // float32 by products of bfloat16, see bf16x6.cuh; no other types

  constexpr int cluster() const { return row_blocks * col_blocks; }
  constexpr int warpgroups() const {  // that multiply
    const int m = swap_ab ? cols : rows;
    return rows == kBlockRows ? 1 : rows > 384 || m % (2 * kBlockRows) != 0 ? 3 : 2;
  }
  // Slices that are stored: a cluster stores the sum of its own.
  constexpr int64_t workspace_split(Pass pass, int64_t split) const {
    if (pass == Pass::kWgrad) return split / wgrad_cluster_split(split);
    return cluster_split > 0 ? 1 : split;
  }
  // Of so many slices of wgrad, those that a cluster adds: a power of two.
  constexpr int64_t wgrad_cluster_split(int64_t split) const {
    int64_t slices = 1;
    while (split % (2 * slices) == 0 && TakesParts(2 * slices)) slices *= 2;
    return slices;
  }
  // Whether a cluster may add so many slices of wgrad.
  constexpr bool TakesParts(int64_t slices) const { return slices * cluster() <= kMostCluster; }
  constexpr int64_t shared_bytes(bool k_major) const;
  constexpr int64_t wgrad_shared_bytes() const;
  // Whether the tile is for weight gradients of tf32 alone, with halo tiles. M is the source then.
  constexpr bool has_tf32_halos() const { return halo && !swap_ab && !has_conv; }
  // Whether the tile is for float32 alone.
  constexpr bool is_of_float32() const { return bf16x6 || has_tf32_halos(); }
  // Whether the tile is compiled for convs of a type. Results of one byte are stored by rows of 64 at least, and none
  // where channels are M. CUDA cores add each step of float8, and tensor cores wait: sharing both operands saves no
  // time. The widest tile of bytes takes longest to compile, and is planned in clusters alone.
  constexpr bool HasConv(DType type) const {
    const bool is_widest = cols == 256 && cluster() == 1;
    if (IsFloat8(type) && (!has_promoted_sums() || shares_both())) return false;
    return has_conv && (!IsByte(type) || (!swap_ab && cols % 64 == 0 && !bf16x6 && !is_widest));
  }
  // Whether such a conv may have an epilogue. 16-bit K-major filters occur mostly in data gradients, which have no
  // epilogue. For the few others, only tiles with two CTAs per SM have one: these take less long to compile.
  constexpr bool HasEpilogue(DType type, bool k_major) const {
    return HasConv(type) && (!k_major || TraitsOf(type).bytes != 2 || ctas_per_sm == 2);
  }
  // Whether the tile is compiled for wgrad of a type. With halo tiles, output channels are M.
  constexpr bool HasWgrad(DType type) const {
    if (IsByte(type)) return false;   // wgmma reads bytes K-major alone
    if (shares_both()) return false;  // producers of wgrad share one operand
    // M and N are made of blocks of 64 channels, and a cluster's threads add equally many vectors of four sums each.
    const int adding = 128 * warpgroups() * kMostCluster / cluster();
    if (rows % kBlockRows != 0 || rows * cols / 4 % adding != 0) return false;
    if (bf16x6) return type == DType::kF32 && !halo && cols >= kBlockRows;
    if (type == DType::kF32) return has_tf32_wgrad();
    const int of_m = swap_ab ? cols : rows;
    return cluster_split == 0 && (!halo || swap_ab) && (of_m == kBlockRows || of_m % (kBlockRows * warpgroups()) == 0);
  }

  std::string name() const {
    const auto number = [](int n) { return std::to_string(n); };
    const std::string by = cluster() > 1 ? " by " + number(row_blocks) + "x" + number(col_blocks) : "";
    return number(rows) + "x" + number(cols) + "x" + number(kPlannedBlockK) + by + (halo ? " of halo tiles" : "") +
           (cluster_split > 0 ? " by slices" : "") + (ctas_per_sm == 2 ? ", two at once" : "") +
           (bf16x6 ? ", bf16x6" : "") + (has_tf32_halos() ? ", tf32" : "");
  }
  TileFields fields() const {
    return {{"rows", rows},
            {"cols", cols},
            {"stages", stages},
            {"warpgroups", warpgroups()},
            {"row_blocks", row_blocks},
            {"col_blocks", col_blocks},
            {"ctas_per_sm", ctas_per_sm},
            {"halo", halo},
            {"cluster_split", cluster_split},
            {"swap_ab", swap_ab},
            {"has_conv", has_conv},
            {"has_int8_conv", HasConv(DType::kS8)},
            {"has_float8_conv", HasConv(DType::kE4M3)},
            {"has_wgrad", HasWgrad(DType::kBF16)},
            {"has_float32_wgrad", HasWgrad(DType::kF32)},
            {"bf16x6", bf16x6}};
  }
  PlannedTile planned() const { return {rows, cols, kPlannedBlockK, ctas_per_sm}; }

 private:
  // Whether CTAs of a cluster share both operands.
  constexpr bool shares_both() const { return row_blocks > 1 && col_blocks > 1; }
  // Whether registers hold the sums of float8, and those of one step for 64 rows, which are added to them.
  constexpr bool has_promoted_sums() const {
    const int blocks = rows / (kBlockRows * warpgroups()), registers = (blocks + 1) * cols / 2;
    return cluster_split == 0 && registers <= (ctas_per_sm == 1 ? 192 : 64);
  }
  // M is the source, which goes through registers: WgradTile (wgrad.cuh) drops swap_ab. Each 64 rows take 16 registers
  // of a thread, beside those of the sums.
  constexpr bool has_tf32_wgrad() const {
    const int blocks = rows / (kBlockRows * warpgroups()), registers = blocks * (cols / 2 + 16);
    return cluster_split == 0 && (!halo || has_tf32_halos()) && rows == kBlockRows * warpgroups() * blocks &&
           registers <= (ctas_per_sm == 1 ? 192 : 56);
  }
};

inline constexpr WgmmaTile kWgmmaTiles[] = {
    {.rows = 256, .cols = 128, .stages = 4, .row_blocks = 2, .swap_ab = true},
    {.rows = 128, .cols = 256, .stages = 4, .row_blocks = 2},
    {.rows = 256, .cols = 160, .stages = 3, .row_blocks = 2},
    {.rows = 192, .cols = 256, .stages = 3, .swap_ab = true, .has_conv = false},
    {.rows = 192, .cols = 128, .stages = 4, .col_blocks = 2, .swap_ab = true},
    {.rows = 128, .cols = 192, .stages = 4, .row_blocks = 2},
    {.rows = 128, .cols = 128, .stages = 6, .col_blocks = 2},
    {.rows = 128, .cols = 128, .stages = 3, .ctas_per_sm = 2},
    {.rows = 256, .cols = 96, .stages = 4},
    {.rows = 256, .cols = 64, .stages = 4},
    {.rows = 256, .cols = 64, .stages = 2, .ctas_per_sm = 2},
    {.rows = 128, .cols = 64, .stages = 4, .ctas_per_sm = 2},
    {.rows = 256, .cols = 64, .stages = 5, .ctas_per_sm = 2, .halo = true},
    {.rows = 256, .cols = 96, .stages = 4, .halo = true},
    {.rows = 256, .cols = 128, .stages = 4, .halo = true},
    {.rows = 64, .cols = 64, .stages = 5, .ctas_per_sm = 2, .cluster_split = 8},
    {.rows = 128, .cols = 256, .stages = 4},
    {.rows = 384, .cols = 128, .stages = 3, .has_conv = false},
    {.rows = 192, .cols = 256, .stages = 4, .row_blocks = 2, .swap_ab = true, .has_conv = false},
    {.rows = 384, .cols = 128, .stages = 5, .halo = true, .swap_ab = true, .has_conv = false},
    {.rows = 576, .cols = 64, .stages = 4, .halo = true, .swap_ab = true, .has_conv = false},
    {.rows = 192, .cols = 256, .stages = 4, .halo = true, .swap_ab = true, .has_conv = false},
    {.rows = 128, .cols = 128, .stages = 4, .row_blocks = 2, .bf16x6 = true},
    {.rows = 256, .cols = 64, .stages = 4, .bf16x6 = true},
    {.rows = 128, .cols = 128, .stages = 4, .halo = true, .bf16x6 = true},
    {.rows = 256, .cols = 64, .stages = 4, .halo = true, .bf16x6 = true},
    {.rows = 128, .cols = 160, .stages = 3, .row_blocks = 2, .bf16x6 = true},
    {.rows = 128, .cols = 128, .stages = 6, .row_blocks = 2, .col_blocks = 2},
    {.rows = 256, .cols = 32, .stages = 4, .bf16x6 = true},
    {.rows = 192, .cols = 128, .stages = 5, .row_blocks = 2, .has_conv = false},
    {.rows = 128, .cols = 128, .stages = 6, .has_conv = false},
    {.rows = 576, .cols = 64, .stages = 2, .halo = true, .has_conv = false},
    {.rows = 144, .cols = 192, .stages = 4, .row_blocks = 2, .swap_ab = true},
    {.rows = 160, .cols = 128, .stages = 4, .col_blocks = 2, .swap_ab = true},
    {.rows = 128, .cols = 96, .stages = 3, .ctas_per_sm = 2},
};

constexpr int ConsumerWarps(const WgmmaTile& tile) { return 4 * tile.warpgroups(); }
// Behind the consumers are a producer warp, or two for halo tiles, the tile scheduler, unless a block has one tile, and
// a warp that stores zeros. With one block a multiprocessor they are a whole warpgroup: setmaxnreg is for warpgroups.
constexpr int WgmmaThreads(const WgmmaTile& tile) {
  return 32 * ConsumerWarps(tile) + (tile.ctas_per_sm == 1 ? 128 : tile.cluster_split > 0 ? 32 : 64);
}

// Registers of a consumer's thread, if a producer's has so many. A block alone on a multiprocessor has 512 for a thread
// of each of its warpgroups together. setmaxnreg takes multiples of eight.
constexpr int ConsumerRegisters(const WgmmaTile& tile, int of_producer) {
  return (512 - of_producer) / tile.warpgroups() / 8 * 8;
}

// Of halo tiles: the pixels of a unit that shared memory can hold, and how many stages there are at most. With few taps
// a plane is multiplied before the next one has arrived. So one stage is too few, unless another block multiplies
// meanwhile.
constexpr int HaloPixels(const WgmmaTile& tile) { return tile.ctas_per_sm == 1 ? 248 : kMostHaloPixels; }
constexpr int HaloStages(const WgmmaTile& tile) { return tile.ctas_per_sm == 1 ? 3 : 1; }

// Whether a block has a warp to spare, to store zeros.
constexpr bool StoresZeros(const WgmmaTile& tile) {
  return tile.ctas_per_sm == 1 && !tile.halo && tile.cluster_split == 0;
}

// Columns of results that are stored at once: a swizzled row of TMA, of 128 bytes, or of 64 if no whole ones fit.
constexpr int ResultCols(const WgmmaTile& tile, int result_bytes) {
  const int cols = kSwizzleBytes / result_bytes;
  return tile.cols % cols == 0 ? cols : cols / 2;
}

// Whether a tile that has all of few columns stores its rows as one contiguous block: TMA takes longer for a row that
// ends before its box does.
constexpr bool StoresWholeRows(const WgmmaTile& tile, int result_bytes) {
  return result_bytes == 2 && !tile.halo && !tile.swap_ab && tile.cols <= 128;
}

// Result buffers of a warpgroup. Of two, one is filled while the other is stored. With two blocks a multiprocessor, the
// other block multiplies meanwhile, and one is enough.
constexpr int ResultBuffers(const WgmmaTile& tile) { return tile.ctas_per_sm == 1 ? 2 : 1; }

// Columns of the filter's tile in shared memory. An MN-major filter, which wgmma reads of 16-bit types alone, is copied
// by whole rows of 128 bytes.
constexpr int FilterCols(const WgmmaTile& tile, bool k_major) {
  return k_major ? tile.cols : static_cast<int>(CeilDiv(tile.cols, kPlannedBlockK) * kPlannedBlockK);
}

// A block of K of these columns. In parts, 32 channels have four times 64 bytes.
constexpr int FilterBytes(const WgmmaTile& tile, bool k_major) {
  return FilterCols(tile, k_major) * kSwizzleBytes * (tile.bf16x6 ? 2 : 1);
}

// Shared memory of a thread block: operands, result buffers, zeros and the next tiles; or operands and the sums of
// other slices. `k_major`: the filter's source channels are neighbours in memory, not its output channels.
constexpr int64_t WgmmaTile::shared_bytes(bool k_major) const {
  constexpr int64_t kBarriers = 2 * 8, kTapBytes = 16, kWorkTileBytes = 32, kAlignment = 1024;
  int64_t bytes = stages * (FilterBytes(*this, k_major) + kBarriers);
  if (halo) {
    bytes += rows / kUnitRows * HaloPixels(*this) * kSwizzleBytes + HaloStages(*this) * kBarriers;
    bytes += (kMostHaloTaps + 1) * kTapBytes;
  } else {
    bytes += stages * rows * kSwizzleBytes;
  }
  if (cluster_split > 0) {
    bytes += rows * cols * 4 + kBarriers / 2 + kUnreadBytes;
  } else {
    bytes +=
        warpgroups() * ResultBuffers(*this) * 4 * kResultBytes + (StoresZeros(*this) ? kResultBytes : kUnreadBytes);
    bytes += kMostWgmmaClasses * 4 + stages * (kWorkTileBytes + kBarriers) + (cluster() > 1 ? 2 : 1) * kBarriers + 16;
    bytes += 4 * warpgroups() * ResultBuffers(*this) * 8;
  }
  return CeilDiv(bytes, kAlignment) * kAlignment;
}

// Rows of wgrad's product that a tile has all of, or none: channels of one tap, or of the taps of a multiplication.
constexpr int WgradUnit(const WgmmaTile& tile) { return tile.halo ? kHaloWgradTaps * kBlockRows : kBlockRows; }

// Positions that are a step of K of wgrad: as many as fill 128 bytes, or those of a halo tile.
constexpr int WgradPositions(const WgmmaTile& tile, int element_bytes) {
  return tile.halo ? kUnitRows : kSwizzleBytes / element_bytes;
}

// Operands, barriers, the next tile's index, and a part of GradientSums for each consumer warp. In the end the sums,
// that the blocks of a cluster add, take the place of the operands. With halo tiles, a step of float32 has twice the
// bytes of others: its positions are as many.
constexpr int64_t WgmmaTile::wgrad_shared_bytes() const {
  constexpr int64_t kBarriers = 2 * 8, kIndexBytes = 8, kAlignment = 1024;
  const int64_t source = rows / WgradUnit(*this) * (halo ? kMostHaloPixels * kSwizzleBytes : kWgradBlockBytes);
  const int64_t gradient = CeilDiv(cols, kBlockRows) * kWgradBlockBytes;
  const int64_t stage = source * (has_tf32_halos() ? 2 : 1) + gradient * (is_of_float32() ? 2 : 1);
  const int64_t parts = is_of_float32() ? 0 : ConsumerWarps(*this) * kBlockRows * 4;
  const int64_t bytes =
      std::max<int64_t>(stages * stage, rows * cols * 4) + (stages + 1) * kBarriers + kIndexBytes + parts;
  return CeilDiv(bytes, kAlignment) * kAlignment;
}

}  // namespace jaxconv
