// The tiles of the depthwise family.
#pragma once

#include <string>

#include "common/operand_traits.h"
#include "conv_problem.h"

namespace jaxconv {

inline constexpr int kStripCols = 8;    // the columns of a multiplication: neighbouring outputs
inline constexpr int kMultiplied = 16;  // strips, its rows; and source pixels, its steps

// What a thread block of the depthwise family does with a step: it takes the source rows of one row of the destination,
// or gives the rows of the destination that one source row begins.
struct DepthwiseTile {
  int step;        // source rows of a step
  int period;      // rows of the destination
  int lags;        // steps after which a source row is used for the last time, and one
  int blocks;      // of 16 source pixels, which eight neighbouring outputs read; none of a tile on CUDA cores
  int channels;    // of a warp on tensor cores
  int width;       // of a window on CUDA cores, whose columns have the strides of the rows
  int depths = 1;  // planes of a volume that a position's taps are in, whose rows a step takes together
  // Whether larger windows are taken in pieces, one after the other. A tile's sums wait in shared memory meanwhile.
  bool has_pieces = false;
  // Whether four warps copy source rows, four what belongs to strips, and eight multiply: in code for sm_90a.
  bool has_copiers = false;
  // Whether TMA does so instead: boxes of whole rows of two images or more, of which a tile has 16 strips.
  bool by_tma = false;
  // Whether pairs of source rows are multiplied at once, of images of at most eight columns: a wgrad by TMA alone.
  bool in_pairs = false;

  bool operator==(const DepthwiseTile&) const = default;

  constexpr bool on_cuda_cores() const { return blocks == 0; }
  // Tensor cores multiply a band of 16 source pixels at once: of types whose multiplications are as deep.
  constexpr bool IsFor(DType type) const {
    return on_cuda_cores() ? type == DType::kF32 : TraitsOf(type).mma_depth == kMultiplied;
  }
  constexpr int element_bytes() const { return TraitsOf(on_cuda_cores() ? DType::kF32 : DType::kBF16).bytes; }
  // Of a volume, planes take the place of images.
  constexpr bool has_planes() const { return depths > 1 || has_pieces; }
  // Source rows of a step, of all planes.
  constexpr int sources() const { return step * depths; }
  constexpr int slots() const { return sources() * period * lags; }
  // Source pixels that a strip of eight outputs reads.
  constexpr int pixels() const {
    return on_cuda_cores() ? (kStripCols / period - 1) * step + width : blocks * kMultiplied;
  }
  constexpr int stages() const { return by_tma ? 6 : sources() * blocks == 1 ? 8 : 4; }
  // Registers of the sums, of a conv and of a wgrad.
  constexpr int conv_sums() const { return period * lags * row_sums(); }
  // A conv's with its taps.
  constexpr int conv_registers() const {
    return conv_sums() + slots() * (on_cuda_cores() ? period * width : 2 * blocks * channels);
  }
  constexpr int wgrad_sums() const {
    if (in_pairs) return 4 * pairs() * 2 * channels;
    return slots() * (on_cuda_cores() ? width : 4 * blocks * channels);
  }
  // Sums of a lane that are a row's.
  constexpr int row_sums() const { return on_cuda_cores() ? kStripCols : 4 * channels; }
  // Thread blocks that a multiprocessor is to hold: as registers allow.
  constexpr int conv_blocks() const {
    if (has_copiers) return 1;
    if (on_cuda_cores()) return has_pieces && conv_registers() > 80 ? 2 : 3;
    return conv_sums() <= 32 && blocks == 1 ? 3 : 2;
  }
  constexpr int wgrad_blocks() const { return has_copiers ? 1 : on_cuda_cores() || wgrad_sums() <= 32 ? 3 : 2; }
  // Of a conv, rows of results that wait in shared memory to be written.
  constexpr int results() const { return by_tma ? 6 : has_copiers && period == 1 ? 4 : 2; }
  // Warps that multiply.
  constexpr int warps() const { return has_copiers ? 8 : 4; }
  // Channels that are left out behind each pixel's in a conv's table of taps on tensor cores, so that other pixels'
  // are in other banks. A large window's table would leave no room for a second thread block: only where warps copy.
  constexpr int table_gap() const { return has_copiers ? channels : 0; }
  // By TMA, rows of a step; and pairs of source rows that a row of the gradient is multiplied with.
  constexpr int box_rows() const { return in_pairs ? 2 : 1; }
  constexpr int pairs() const { return (lags + 1) / 2; }
  // Steps by which the gradient's rows come behind the first source row that they are multiplied with.
  constexpr int late_steps() const { return in_pairs ? pairs() - 1 : 0; }
  constexpr bool has_conv() const { return !in_pairs; }
  // Whether a warp's registers hold a wgrad's sums.
  constexpr bool has_wgrad() const { return period == 1 && wgrad_sums() <= 160; }
  constexpr bool Has(Pass pass) const { return pass == Pass::kConv ? has_conv() : has_wgrad(); }

  std::string name() const {
    const std::string rows = step * period > 1 ? std::to_string(step) + ":" + std::to_string(period) + " " : "";
    const std::string planes = depths > 1 ? std::to_string(depths) + "x" : "";
    const std::string reach =
        on_cuda_cores() ? std::to_string(width) : std::to_string(pixels()) + " by " + std::to_string(channels);
    const std::string copied = by_tma ? " by TMA" : has_copiers ? " copied by others" : "";
    const std::string how = has_pieces ? " in pieces" : in_pairs ? copied + " in pairs" : copied;
    return rows + planes + std::to_string(lags) + "x" + reach + how;
  }
};

inline constexpr DepthwiseTile kDepthwiseTiles[] = {
    {1, 1, 1, 1, 8, 0},
    {1, 1, 1, 3, 8, 0},
    {1, 1, 1, 3, 4, 0},
    {1, 1, 3, 1, 8, 0},
    {1, 1, 3, 1, 4, 0},
    {1, 1, 5, 1, 4, 0},
    {1, 1, 7, 1, 4, 0},
    {1, 1, 8, 3, 2, 0, 1, true},
    {1, 1, 5, 3, 2, 0, 1, true},
    {2, 1, 2, 2, 4, 0},
    {2, 1, 4, 2, 4, 0},
    {1, 2, 2, 1, 4, 0},
    {1, 2, 4, 1, 4, 0},
    {1, 1, 1, 0, 0, 4},
    {1, 1, 1, 0, 0, 32},
    {1, 1, 3, 0, 0, 3},
    {1, 1, 5, 0, 0, 5},
    {1, 1, 7, 0, 0, 7},
    {2, 1, 2, 0, 0, 3},
    {2, 1, 3, 0, 0, 5},
    {1, 2, 2, 0, 0, 2},
    {1, 2, 3, 0, 0, 3},
    {1, 1, 3, 1, 4, 0, 3},
    {1, 1, 7, 1, 4, 0, 1, true},
    {1, 1, 1, 3, 8, 0, 1, true},
    {1, 1, 3, 0, 0, 3, 3},
    {1, 1, 5, 0, 0, 5, 1, true},
    {1, 1, 7, 0, 0, 7, 1, true},
    {1, 1, 4, 0, 0, 16, 1, true},
    {1, 1, 1, 0, 0, 32, 1, true},
    {1, 1, 3, 1, 4, 0, 1, false, true},
    {1, 1, 5, 1, 4, 0, 1, false, true},
    {1, 1, 7, 1, 4, 0, 1, false, true},
    {2, 1, 2, 2, 4, 0, 1, false, true},
    {1, 2, 2, 1, 4, 0, 1, false, true},
    {1, 1, 7, 1, 4, 0, 1, false, true, true},
    {1, 1, 7, 1, 4, 0, 1, false, true, true, true},
};

// The place of a tile in the table, or -1.
constexpr int DepthwiseTileIndex(const DepthwiseTile& tile) {
  int i = 0;
  for (const DepthwiseTile& other : kDepthwiseTiles) {
    if (other == tile) return i;
    ++i;
  }
  return -1;
}

// The same tile where TMA does not copy, but warps do; and where all warps do.
constexpr DepthwiseTile WithoutTma(DepthwiseTile tile) {
  tile.by_tma = tile.in_pairs = false;
  return tile;
}
constexpr DepthwiseTile WithoutCopiers(DepthwiseTile tile) {
  tile.has_copiers = tile.by_tma = tile.in_pairs = false;
  return tile;
}

constexpr bool HasTilesWithoutCopiers() {
  for (const DepthwiseTile& tile : kDepthwiseTiles) {
    if ((tile.by_tma && !tile.has_copiers) || (tile.in_pairs && !tile.by_tma)) return false;
    if (DepthwiseTileIndex(WithoutTma(tile)) < 0 || DepthwiseTileIndex(WithoutCopiers(tile)) < 0) return false;
  }
  return true;
}
static_assert(HasTilesWithoutCopiers(), "plans are for any device: another tile takes the place of one that it lacks");

}  // namespace jaxconv
