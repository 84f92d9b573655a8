// The tiles of the wgmma family, and what a thread block has of shared memory and threads. Host-only: without CUDA.
#pragma once

#include <cstdint>
#include <string>

#include "common/operand_traits.h"
#include "common/product.h"
#include "common/tiled_product.h"
#include "common/tma_limits.h"

namespace jaxconv {

inline constexpr int kMostWgmmaClasses = 8;
inline constexpr int kSwizzleBytes = 128;  // of a row, as TMA swizzles it: BLOCK_K of all types, channels of one tap
inline constexpr int kResultRows = 16;     // that are stored at once: a warp's of a block of 64
inline constexpr int kResultBytes = kResultRows * kSwizzleBytes;
inline constexpr int kUnitRows = 64;  // of a tile of boxes: positions of one box of pixels
// BLOCK_K of 16-bit types, for tiles' names and for what planning shares with other families.
inline constexpr int kPlannedBlockK = TraitsOf(DType::kBF16).swizzle_row();
inline constexpr int kMostBoxPixels = 104, kMostBoxTaps = 127;

// A tile of the wgmma family, of which one or two warpgroups have equally many rows, or columns. Blocks of a cluster
// have neighbouring rows and share what they read of the filter, or neighbouring columns and share what they read of
// the source; or they have the slices of one tile's reduction, and add them.
struct WgmmaTile {
  int rows;
  int cols;
  int stages;
  int row_blocks;  // of a cluster
  int col_blocks;
  int resident;  // thread blocks of a multiprocessor; of two, one multiplies while the other begins or ends a tile
  bool boxed = false;  // pixels are copied once for all taps of a plane, for 8 x 8 positions, or 64 of a line
  int slices = 0;  // of a reduction, that the blocks of a cluster add: so many, or a part; 0: a second kernel adds them
  bool transposed = false;  // a multiplication's 64 rows are channels, and all of the tile's positions its columns

  constexpr int cluster() const { return row_blocks * col_blocks; }
  constexpr int warpgroups() const { return rows == 64 ? 1 : 2; }  // that multiply
  // Slices of a reduction that are stored: those that a cluster adds are stored as one.
  constexpr int64_t stored_slices(int64_t split) const { return slices > 0 ? 1 : split; }
  constexpr int64_t shared_bytes(bool along_steps) const;

  std::string name() const {
    const auto number = [](int n) { return std::to_string(n); };
    const std::string by = cluster() > 1 ? " by " + number(row_blocks) + "x" + number(col_blocks) : "";
    return number(rows) + "x" + number(cols) + "x" + number(kPlannedBlockK) + by + (boxed ? " of boxes" : "") +
           (slices > 0 ? " by slices" : "") + (resident == 2 ? ", two at once" : "");
  }
  TileFields fields() const {
    return {{"rows", rows},
            {"cols", cols},
            {"stages", stages},
            {"row_blocks", row_blocks},
            {"col_blocks", col_blocks},
            {"resident", resident},
            {"boxed", boxed},
            {"slices", slices},
            {"transposed", transposed}};
  }
  PlannedTile planned() const { return {rows, cols, kPlannedBlockK, resident}; }
};

inline constexpr WgmmaTile kWgmmaTiles[] = {
    {256, 128, 4, 2, 1, 1, false, 0, true},
    {128, 256, 4, 2, 1, 1},
    {256, 160, 3, 2, 1, 1},
    {192, 256, 3, 1, 1, 1, false, 0, true},
    {192, 128, 4, 1, 2, 1, false, 0, true},
    {128, 192, 4, 2, 1, 1},
    {128, 128, 6, 1, 2, 1},
    {128, 128, 3, 1, 1, 2},
    {256, 96, 4, 1, 1, 1},
    {256, 64, 4, 1, 1, 1},
    {256, 64, 2, 1, 1, 2},
    {128, 64, 4, 1, 1, 2},
    {256, 64, 5, 1, 1, 2, true},
    {256, 96, 4, 1, 1, 1, true},
    {256, 128, 4, 1, 1, 1, true},
    {128, 256, 4, 1, 1, 1, true},
    {64, 64, 5, 1, 1, 2, false, 8},
    {128, 256, 4, 1, 1, 1},
};

constexpr int WgmmaReaders(const WgmmaTile& tile) { return 4 * tile.warpgroups(); }  // warps that multiply
// Behind them is one that copies, or two of boxes, one that deals works, unless blocks have one, and one that stores
// zeros: of a warpgroup, which leaves them its registers, unless a multiprocessor has two blocks.
constexpr int WgmmaThreads(const WgmmaTile& tile) {
  return 32 * WgmmaReaders(tile) + (tile.resident == 1 ? 128 : tile.slices > 0 ? 32 : 64);
}

// Of tiles of boxes: the pixels of a unit that shared memory holds, and in how many boxes at most. Planes of few taps
// are multiplied before the next one's pixels are there, unless another block multiplies meanwhile.
constexpr int BoxPixels(const WgmmaTile& tile) { return tile.resident == 1 ? 248 : kMostBoxPixels; }
constexpr int BoxStages(const WgmmaTile& tile) { return tile.resident == 1 ? 3 : 1; }

// Whether a block has a warp to spare, which stores zeros.
constexpr bool StoresZeros(const WgmmaTile& tile) { return tile.resident == 1 && !tile.boxed && tile.slices == 0; }

// Columns that are stored at once, of 16-bit results: as many as TMA swizzles in a row, of 128 or 64 bytes.
constexpr int ResultCols(const WgmmaTile& tile) { return tile.cols % 64 == 0 ? 64 : 32; }

// Of each warpgroup: one is filled while the other is stored, or, where there are two blocks, while the other block
// multiplies.
constexpr int ResultBuffers(const WgmmaTile& tile) { return tile.resident == 1 ? 2 : 1; }

// Columns of a filter's tile. Where they are neighbours in memory, which wgmma takes of 16-bit types alone, they are
// copied by rows of 128 bytes.
constexpr int FilterCols(const WgmmaTile& tile, bool along_steps) {
  return along_steps ? tile.cols : static_cast<int>(CeilDiv(tile.cols, kPlannedBlockK) * kPlannedBlockK);
}

// Of a thread block: operands; results on their way, zeros, and what the block is told of, or the sums that it is sent.
// `along_steps`: the filter's source channels are neighbours in memory, not its output channels.
constexpr int64_t WgmmaTile::shared_bytes(bool along_steps) const {
  constexpr int64_t kBarriers = 2 * 8, kTapBytes = 16, kWorkBytes = 32, kAlignment = 1024;
  int64_t bytes = stages * (FilterCols(*this, along_steps) * kSwizzleBytes + kBarriers);
  if (boxed) {
    bytes += rows / kUnitRows * BoxPixels(*this) * kSwizzleBytes + BoxStages(*this) * kBarriers;
    bytes += (kMostBoxTaps + 1) * kTapBytes;
  } else {
    bytes += stages * rows * kSwizzleBytes;
  }
  if (slices > 0) {
    bytes += rows * cols * 4 + kBarriers / 2;
  } else {
    bytes += warpgroups() * ResultBuffers(*this) * 4 * kResultBytes + (StoresZeros(*this) ? kResultBytes : 16);
    bytes += kMostWgmmaClasses * 4 + stages * (kWorkBytes + kBarriers) + (cluster() > 1 ? 2 : 1) * kBarriers + 16;
  }
  return CeilDiv(bytes, kAlignment) * kAlignment;
}

}  // namespace jaxconv
