// The tiles of the depthwise family.
#pragma once

#include <string>

#include "conv_problem.h"
#include "operand_traits.h"

namespace jaxconv {

inline constexpr int kStripCols = 8;    // the columns of a multiplication: neighbouring outputs
inline constexpr int kMultiplied = 16;  // strips, its rows; and source pixels, its steps

// What a thread block of the depthwise family does in a step. It takes the source rows of one row of the destination,
// or adds to all rows of the destination that one source row reaches.
struct DepthwiseTile {
  int step = 1;      // source rows of a step
  int period = 1;    // rows of the destination
  int lags;          // steps after which a source row is used for the last time, and one
  int blocks = 0;    // of 16 source pixels, which eight neighbouring outputs read; none of a tile on CUDA cores
  int channels = 0;  // of a warp on tensor cores, in elements of 16 bits
  int width = 0;     // of a window on CUDA cores, whose columns have the strides of the rows
  int depths = 1;    // planes of a volume that a position's taps are in, whose rows a step takes together
  // Whether the tile takes larger windows in parts, one after the other. Meanwhile its sums wait in shared memory.
  bool in_parts = false;
  // Whether warps are specialized: four producer warps copy source rows, four copy what belongs to strips, and eight
  // consumer warps multiply. In code for sm_90a.
  bool has_producers = false;
  // Whether TMA copies instead: boxes of whole rows of two images or more. A tile then has 16 strips.
  bool by_tma = false;
  // Whether one multiplication takes a pair of source rows, of images of at most eight columns. Only a wgrad by TMA
  // does.
  bool in_pairs = false;
  // Whether an element of 16 bits is two neighbouring channels of int8. Copies then are those of other types.
  bool of_bytes = false;

  bool operator==(const DepthwiseTile&) const = default;

  constexpr bool on_cuda_cores() const { return blocks == 0; }
  // Tensor cores multiply 16 source pixels at once, so types need multiplications of that depth.
  constexpr bool IsFor(DType type) const {
    if (of_bytes) return type == DType::kS8;
    return on_cuda_cores() ? type == DType::kF32 : TraitsOf(type).mma_depth == kMultiplied;
  }
  constexpr int element_bytes() const { return TraitsOf(on_cuda_cores() ? DType::kF32 : DType::kBF16).bytes; }
  // Channels whose sums a warp has on tensor cores.
  constexpr int summed_channels() const { return of_bytes ? 2 * channels : channels; }
  // Numbers of an epilogue of bytes, which a thread keeps.
  constexpr int epilogue_numbers() const { return of_bytes ? 3 * summed_channels() : 0; }
  // Of a volume, planes take the place of images.
  constexpr bool has_planes() const { return depths > 1 || in_parts; }
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
    return conv_sums() + epilogue_numbers() + slots() * (on_cuda_cores() ? period * width : 2 * blocks * channels);
  }
  constexpr int wgrad_sums() const {
    if (in_pairs) return 4 * pairs() * 2 * channels;
    return slots() * (on_cuda_cores() ? width : 4 * blocks * channels);
  }
  // Sums of a lane that are a row's.
  constexpr int row_sums() const { return on_cuda_cores() ? kStripCols : 4 * summed_channels(); }
  // CTAs per SM, as registers allow.
  constexpr int conv_ctas_per_sm() const {
    if (has_producers) return 1;
    if (on_cuda_cores()) return in_parts && conv_registers() > 80 ? 2 : 3;
    return conv_sums() <= 32 && blocks == 1 ? 3 : 2;
  }
  constexpr int wgrad_ctas_per_sm() const { return has_producers ? 1 : on_cuda_cores() || wgrad_sums() <= 32 ? 3 : 2; }
  // Of a conv, rows of results that wait in shared memory to be written.
  constexpr int results() const { return by_tma ? 6 : has_producers && period == 1 ? 4 : 2; }
  // Consumer warps.
  constexpr int warps() const { return has_producers ? 8 : 4; }
  // Channels left free after each pixel's in a conv's table of taps on tensor cores, so that other pixels are in other
  // banks. With them a large window's table would leave no room for a second thread block, so only warp-specialized
  // kernels have them.
  constexpr int table_gap() const { return has_producers ? channels : 0; }
  // By TMA, rows of a step; and pairs of source rows that a row of the gradient is multiplied with.
  constexpr int box_rows() const { return in_pairs ? 2 : 1; }
  constexpr int pairs() const { return (lags + 1) / 2; }
  // Steps by which a gradient's row comes later than the first source row that it is multiplied with.
  constexpr int late_steps() const { return in_pairs ? pairs() - 1 : 0; }
  // A wgrad needs a warp's registers for its sums.
  constexpr bool Has(Pass pass) const {
    return pass == Pass::kConv ? !in_pairs : !of_bytes && period == 1 && wgrad_sums() <= 160;
  }

  // Whether a wgrad may add up the gradient as well. Its last source pixel must be free for that. With two source rows
  // a step, no register is.
  constexpr bool may_sum_gradient() const { return !on_cuda_cores() && !in_parts && step == 1 && Has(Pass::kWgrad); }

  std::string name() const {
    const std::string rows = step * period > 1 ? std::to_string(step) + ":" + std::to_string(period) + " " : "";
    const std::string planes = depths > 1 ? std::to_string(depths) + "x" : "";
    const std::string reach =
        on_cuda_cores() ? std::to_string(width) : std::to_string(pixels()) + " by " + std::to_string(channels);
    const std::string copied = by_tma ? " by TMA" : has_producers ? " copied by others" : "";
    const std::string how = in_parts ? " in parts" : in_pairs ? copied + " in pairs" : copied;
    return rows + planes + std::to_string(lags) + "x" + reach + (of_bytes ? " of bytes" : "") + how;
  }
};

inline constexpr DepthwiseTile kDepthwiseTiles[] = {
    {.lags = 1, .blocks = 1, .channels = 8},
    {.lags = 1, .blocks = 3, .channels = 8},
    {.lags = 1, .blocks = 3, .channels = 4},
    {.lags = 3, .blocks = 1, .channels = 8},
    {.lags = 3, .blocks = 1, .channels = 4},
    {.lags = 5, .blocks = 1, .channels = 4},
    {.lags = 7, .blocks = 1, .channels = 4},
    {.lags = 8, .blocks = 3, .channels = 2, .in_parts = true},
    {.lags = 5, .blocks = 3, .channels = 2, .in_parts = true},
    {.step = 2, .lags = 2, .blocks = 2, .channels = 4},
    {.step = 2, .lags = 4, .blocks = 2, .channels = 4},
    {.period = 2, .lags = 2, .blocks = 1, .channels = 4},
    {.period = 2, .lags = 4, .blocks = 1, .channels = 4},
    {.lags = 1, .width = 4},
    {.lags = 1, .width = 32},
    {.lags = 3, .width = 3},
    {.lags = 5, .width = 5},
    {.lags = 7, .width = 7},
    {.step = 2, .lags = 2, .width = 3},
    {.step = 2, .lags = 3, .width = 5},
    {.period = 2, .lags = 2, .width = 2},
    {.period = 2, .lags = 3, .width = 3},
    {.lags = 3, .blocks = 1, .channels = 4, .depths = 3},
    {.lags = 7, .blocks = 1, .channels = 4, .in_parts = true},
    {.lags = 1, .blocks = 3, .channels = 8, .in_parts = true},
    {.lags = 3, .width = 3, .depths = 3},
    {.lags = 5, .width = 5, .in_parts = true},
    {.lags = 7, .width = 7, .in_parts = true},
    {.lags = 4, .width = 16, .in_parts = true},
    {.lags = 1, .width = 32, .in_parts = true},
    {.lags = 3, .blocks = 1, .channels = 4, .has_producers = true},
    {.lags = 5, .blocks = 1, .channels = 4, .has_producers = true},
    {.lags = 7, .blocks = 1, .channels = 4, .has_producers = true},
    {.step = 2, .lags = 2, .blocks = 2, .channels = 4, .has_producers = true},
    {.period = 2, .lags = 2, .blocks = 1, .channels = 4, .has_producers = true},
    {.lags = 7, .blocks = 1, .channels = 4, .has_producers = true, .by_tma = true},
    {.lags = 7, .blocks = 1, .channels = 4, .has_producers = true, .by_tma = true, .in_pairs = true},
    {.lags = 1, .blocks = 3, .channels = 4, .of_bytes = true},
    {.lags = 3, .blocks = 1, .channels = 4, .of_bytes = true},
    {.lags = 7, .blocks = 1, .channels = 2, .of_bytes = true},
    {.lags = 5, .blocks = 3, .channels = 2, .in_parts = true, .of_bytes = true},
    {.step = 2, .lags = 2, .blocks = 2, .channels = 4, .of_bytes = true},
    {.step = 2, .lags = 4, .blocks = 2, .channels = 2, .of_bytes = true},
    {.period = 2, .lags = 2, .blocks = 1, .channels = 4, .of_bytes = true},
    {.lags = 3, .blocks = 1, .channels = 4, .has_producers = true, .of_bytes = true},
    {.lags = 7, .blocks = 1, .channels = 2, .has_producers = true, .of_bytes = true},
    {.step = 2, .lags = 2, .blocks = 2, .channels = 4, .has_producers = true, .of_bytes = true},
    {.lags = 3, .blocks = 1, .channels = 2, .depths = 3, .of_bytes = true},
};

// The index of a tile in the table, or -1.
constexpr int DepthwiseTileIndex(const DepthwiseTile& tile) {
  int i = 0;
  for (const DepthwiseTile& other : kDepthwiseTiles) {
    if (other == tile) return i;
    ++i;
  }
  return -1;
}

// The same tile where producer warps copy instead of TMA, and where all warps do everything.
constexpr DepthwiseTile WithoutTma(DepthwiseTile tile) {
  tile.by_tma = tile.in_pairs = false;
  return tile;
}
constexpr DepthwiseTile WithoutProducers(DepthwiseTile tile) {
  tile.has_producers = tile.by_tma = tile.in_pairs = false;
  return tile;
}

constexpr bool HasTilesWithoutProducers() {
  for (const DepthwiseTile& tile : kDepthwiseTiles) {
    if ((tile.by_tma && !tile.has_producers) || (tile.in_pairs && !tile.by_tma)) return false;
    if (DepthwiseTileIndex(WithoutTma(tile)) < 0 || DepthwiseTileIndex(WithoutProducers(tile)) < 0) return false;
  }
  return true;
}
static_assert(HasTilesWithoutProducers(),
              "plans are for any device: another tile takes the place of one that it lacks");

}  // namespace jaxconv
