// How thread blocks of the direct family share out a pass, and how each lays out its shared memory. Planning asks it
// about the output tiles that it makes, the launch about the one of a plan. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "common/product.h"
#include "common/types.h"
#include "conv_problem.h"
#include "direct/config.h"
#include "direct/memory.h"
#include "direct/settings.h"
#include "operand_traits.h"

namespace jaxconv {

// A tile in a pass. The last three features of a tile are those of a conv.
struct DirectPass {
  const ConvProblem& problem;
  Pass pass;
  const DirectTile& tile;

  bool is_conv() const { return pass == Pass::kConv; }
  bool streams_rows() const { return is_conv() && tile.streams_rows(); }
  // Whether stages have rows. All warps have the same output channels then.
  bool stages_rows() const { return is_conv() && tile.row_stream.stages_rows(); }
  // Whether N is (tap, output channel).
  bool taps_in_n() const { return is_conv() && tile.taps_in_n; }

  // Elements of a 16-byte vector.
  int vector() const { return TraitsOf(problem.src_type).vector(); }
  int stages() const { return stages_rows() ? kRowStages : kDirectStages; }
  // CTAs per SM, as registers allow.
  int blocks() const { return is_conv() ? tile.conv_blocks() : tile.wgrad_blocks(); }
  // Blocks of eight output channels that a warp has.
  int warp_col_blocks() const { return is_conv() ? tile.col_blocks() : tile.set; }
  // Output channels that are stored at once.
  int out_unit() const {
    if (taps_in_n()) return 1;
    return streams_rows() && tile.col_blocks() == 1 ? 2 : kColBlock;
  }
  // With taps in N: source pixels that the warps hold the products of.
  int64_t pixels_held() const { return tile.warps * tile.positions * 16; }
  // With packed K: elements from one position to the next.
  int64_t position_elements() const { return problem.step[2] * problem.in_channels; }
};

namespace direct {

// How many groups a channel block has: the most that a tile's vectors hold. Their source channels are whole vectors,
// and their output channels whole blocks. All channel blocks have about as many. 0 where no groups fit.
inline int32_t BlockGroups(const ConvProblem& p, const DirectTile& tile) {
  const int64_t vector = TraitsOf(p.src_type).vector();
  const auto whole = [](int64_t channels, int64_t unit) { return unit / std::gcd(channels, unit); };
  const int64_t least = std::lcm(whole(p.in_channels, vector), whole(p.out_channels, kColBlock));
  const int64_t most = tile.vectors * vector / std::max(p.in_channels, p.out_channels) / least * least;
  if (most == 0) return 0;
  const int64_t blocks = CeilDiv(p.groups, most);
  return static_cast<int32_t>(CeilDiv(CeilDiv(p.groups, blocks), least) * least);
}

// The vectors of source channels that a set of output channels reads. It is a power of two, and each set begins at a
// multiple of it, if that is less than all.
inline int32_t EntryVectors(const ConvProblem& p, int32_t groups, int32_t set_cols) {
  const int64_t vector = TraitsOf(p.src_type).vector(), all = groups * p.in_channels / vector;
  int64_t vectors = 1;
  for (int64_t col = 0; col < groups * p.out_channels; col += set_cols) {
    const int64_t last = std::min(col + set_cols, groups * p.out_channels) - 1;
    const int64_t first_vector = col / p.out_channels * p.in_channels / vector;
    const int64_t last_vector = ((last / p.out_channels + 1) * p.in_channels - 1) / vector;
    while (first_vector / vectors != last_vector / vectors) vectors *= 2;
  }
  return static_cast<int32_t>(all % vectors == 0 ? vectors : all);
}

// Vectors of packed K: the (tap, channel)s of a row of taps, which may begin with an element that is none of them. A
// conv reads two at a time, but for row streaming: a multiplication's lie one behind the other.
inline int32_t PackedVectors(const DirectPass& d, int32_t packed) {
  const int64_t channels = d.problem.in_channels, vectors = CeilDiv(packed * channels + channels % 2, kPackedVector);
  return static_cast<int32_t>(d.is_conv() && !d.tile.streams_rows() ? CeilDiv(vectors, 2) * 2 : vectors);
}

inline PixelLayout LayoutOf(int64_t vectors) {
  return {static_cast<int32_t>(vectors), static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(vectors) - 1))};
}

}  // namespace direct

// The thread blocks' channels and taps: what does not depend on the output tile.
struct DirectChannels : DirectPass {
  int32_t taps;    // of the class that has most
  int32_t packed;  // with packed K: taps of a row; else 0
  int32_t channel_blocks = 0;
  int32_t channel_parts = 1;  // parts of the source channels, of the only group
  int32_t block_groups = 0;   // groups of a channel block; 0: a part of the only group's channels
  int32_t col_blocks = 0;     // blocks of eight output channels of a channel block
  PixelLayout src_pixel{};
  PixelLayout dst_pixel{};    // of a wgrad
  int32_t entry_vectors = 0;  // vectors of source channels that a set of output channels reads of each tap
  int32_t row_taps = 0;       // with row streaming: taps of a row
  int32_t items = 1;          // of a wgrad: warps that have a thread block's sums
  int32_t parts = 1;          // and of its positions, among so many warps each

  DirectChannels(const DirectPass& pass, int32_t taps, int32_t packed) : DirectPass(pass), taps(taps), packed(packed) {
    if (problem.groups > 1) {
      SetGroups();
    } else {
      SetChannels();
    }
    dst_pixel = direct::LayoutOf(col_blocks);
    if (streams_rows()) row_taps = taps / tile.row_stream.rows;
    if (is_conv()) return;
    const int64_t rows = CeilDiv(entries(), 2);
    items = static_cast<int>(std::max<int64_t>(1, CeilDiv(rows, tile.filter_rows))) * sets();
    parts = std::max(1, kWgradWarps / items);
  }

  // Sets of output channels of a channel block.
  int32_t sets() const { return col_blocks / tile.set; }
  // Of a conv: warps that share out the output channels, and warps that share out an output tile's positions.
  int warps_across() const { return col_blocks / tile.col_blocks(); }
  int warps_down() const { return tile.warps / warps_across(); }
  int64_t positions_held() const { return warps_down() * tile.positions * 16; }

  // (tap, vector)s.
  int32_t entries() const { return FilterSteps(taps, entry_vectors, 0, packed).entries; }
  FilterSteps steps() const { return FilterSteps(taps_in_n() ? 1 : taps, entry_vectors, row_taps, packed); }
  // Of a conv's filter. A thread block begins with it.
  int64_t filter_bytes() const { return channel_parts * int64_t{steps().all} * col_blocks * kColBlockBytes; }
  bool has_odd_positions() const { return packed > 0 && position_elements() % 2 == 1; }

  // With packed K: vectors of a row of a halo tile. It begins with the vector of the first element, which is an even
  // one. It ends with the last that a warp reads: whole multiplications, two elements at a time.
  int64_t RowVectors(int64_t cols) const {
    const int64_t in_front = kPackedVector - 2, behind = has_odd_positions() ? 2 : 0;
    const int64_t read = (streams_rows() ? tile.packed : entry_vectors) * kPackedVector;
    return CeilDiv(in_front + behind + (cols - 1) * position_elements() + read, kPackedVector);
  }

 private:
  void SetGroups() {
    const ConvProblem& p = problem;
    const int64_t warp_cols = warp_col_blocks() * 8;
    block_groups = direct::BlockGroups(p, tile);
    channel_blocks = static_cast<int32_t>(CeilDiv(p.groups, block_groups));
    src_pixel = direct::LayoutOf(block_groups * p.in_channels / vector());
    entry_vectors = direct::EntryVectors(p, block_groups, tile.set * 8);
    col_blocks = static_cast<int32_t>(CeilDiv(block_groups * p.out_channels, warp_cols) * warp_col_blocks());
  }

  void SetChannels() {
    const int64_t vectors = packed > 0 ? 1 : problem.in_channels / vector(), warp_cols = warp_col_blocks() * 8;
    channel_parts = static_cast<int32_t>(CeilDiv(vectors, tile.vectors));
    src_pixel = direct::LayoutOf(CeilDiv(vectors, channel_parts));
    entry_vectors = packed > 0 ? direct::PackedVectors(*this, packed) : src_pixel.vectors;
    const int64_t most = stages_rows() ? 1 : std::max<int64_t>(1, tile.vectors * vector() / warp_cols);
    col_blocks = static_cast<int32_t>(std::min(CeilDiv(problem.out_channels, warp_cols), most) * warp_col_blocks());
    channel_blocks = static_cast<int32_t>(CeilDiv(problem.out_channels, col_blocks * 8));
  }
};

inline int64_t HaloPixels(const OutputTile& out_tile) {
  return static_cast<int64_t>(out_tile.halo[0]) * out_tile.halo[1] * out_tile.halo[2];
}

// A thread block with an output tile.
struct DirectLayout : DirectChannels {
  OutputTile out_tile;
  int32_t positions;         // of the output tile, and behind its end as many as make whole multiplications
  int32_t row_dilation = 0;  // with row streaming: source rows from one row of taps to the next
  DirectOffsets offsets{};
  int64_t shared_bytes = 0;

  DirectLayout(const DirectChannels& channels, const OutputTile& out_tile)
      : DirectChannels(channels), out_tile(out_tile) {
    positions = static_cast<int32_t>(TilePositions());
    if (streams_rows()) {
      const int64_t reach = out_tile.halo[1] - (out_tile.rows - 1) * problem.step[1];
      row_dilation = static_cast<int32_t>((reach - 1) / (tile.row_stream.rows - 1));
    }
    SetOffsets();
  }

  // With row streaming: rows that streams begin with.
  int32_t streams_abreast() const { return out_tile.rows / out_tile.stream; }

  // With taps in N: the products of a halo tile with all columns. They take its place.
  int64_t product_bytes() const {
    return taps_in_n() ? col_blocks * int64_t{8} * ProductPitch(static_cast<int32_t>(HaloPixels(out_tile))) * 4 : 0;
  }

 private:
  int64_t TilePositions() const {
    if (taps_in_n()) return int64_t{out_tile.rows} * out_tile.cols;
    return is_conv() ? positions_held() : CeilDiv(int64_t{out_tile.rows} * out_tile.cols, 32) * 32;
  }

  // Rounded up to the period of TMA's swizzle.
  static int64_t Turns(int64_t bytes) { return CeilDiv(bytes, 1024) * 1024; }
  static int64_t Whole(int64_t bytes) { return CeilDiv(bytes, 128) * 128; }

  void Allocate(int32_t& offset, int64_t bytes) {
    offset = static_cast<int32_t>(shared_bytes);
    shared_bytes += Whole(bytes);
  }

  void SetOffsets() {
    SetStages();
    Allocate(offsets.entries, taps_in_n() ? col_blocks * 8 * 4 : (entries() + 1) * kMatrixRows * 4);
    Allocate(offsets.positions, positions * int64_t{8});
    if (!is_conv()) {
      Allocate(offsets.position_pixels, positions * int64_t{4});
      Allocate(offsets.sums, int64_t{items} * (tile.filter_rows * 16 + tile.set * 8) * 8);
      Allocate(offsets.gradient_sums, int64_t{kWgradWarps} * tile.set * 8 * 4);
    }
    Allocate(offsets.zeros, 16);
    Allocate(offsets.barriers, stages() * 16);
    if (is_conv() && !tile.streams_rows() && !tile.taps_in_n) {
      const int64_t out_bytes = TraitsOf(problem.dst_type).bytes;
      Allocate(offsets.results, tile.warps * 16 * (tile.col_blocks() * 8 * out_bytes + 16));
    }
    offsets.end = static_cast<int32_t>(std::min<int64_t>(shared_bytes, INT32_MAX));
  }

  // And the filter.
  void SetStages() {
    const int64_t copied = stages_rows() ? int64_t{streams_abreast()} * out_tile.halo[2] : HaloPixels(out_tile);
    const int64_t box = Turns(std::max((copied << src_pixel.pitch) * 16, product_bytes()));
    const int64_t stage = box + (is_conv() ? 0 : Turns((int64_t{positions} << dst_pixel.pitch) * 16));
    offsets.gradient = static_cast<int32_t>(box);
    offsets.stage = static_cast<int32_t>(stage);
    shared_bytes = stages() * stage;
    if (!is_conv()) {  // in the end all warps' sums are in their place
      const int64_t exchanged = tile.filter_rows * tile.set * 4 * 32 * 4 * int64_t{items} * parts;
      shared_bytes = std::max(shared_bytes, exchanged);
    } else if (streams_rows() && !stages_rows()) {  // it is in registers before the second halo tile arrives
      offsets.filter = offsets.stage;
      shared_bytes = std::max(shared_bytes, stage + Whole(filter_bytes()));
    } else {
      Allocate(offsets.filter, filter_bytes());
    }
  }
};

}  // namespace jaxconv
