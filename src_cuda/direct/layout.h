// How thread blocks of the direct family share out a pass, and how each lays out its shared memory. Planning asks it of
// the areas that it makes, the launch of the one that a plan brings. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <numeric>

#include "common/operand_traits.h"
#include "common/product.h"
#include "common/types.h"
#include "conv_problem.h"
#include "direct/config.h"
#include "direct/memory.h"
#include "direct/settings.h"

namespace jaxconv {

// A tile in a pass. The last three of its features are those of a conv.
struct DirectPass {
  const ConvProblem& problem;
  Pass pass;
  const DirectTile& tile;

  bool is_conv() const { return pass == Pass::kConv; }
  bool walks() const { return is_conv() && tile.walks(); }
  // Whether the source passes by, a row of each walk at a time. All warps have the same output channels then.
  bool streams() const { return is_conv() && tile.walk.streams(); }
  // Whether columns are (tap, output channel)s.
  bool has_taps_across() const { return is_conv() && tile.taps_across; }

  // Elements of a 16-byte vector.
  int vector() const { return TraitsOf(problem.src_type).vector(); }
  int stages() const { return streams() ? kRowStages : kDirectStages; }
  // Thread blocks that a multiprocessor's registers hold.
  int blocks() const { return is_conv() ? tile.conv_blocks() : tile.wgrad_blocks(); }
  // Blocks of eight output channels that a warp has.
  int warp_col_blocks() const { return is_conv() ? tile.col_blocks() : tile.set; }
  // Output channels that are stored at once.
  int out_unit() const {
    if (has_taps_across()) return 1;
    return walks() && tile.col_blocks() == 1 ? 2 : kColBlock;
  }
  // Where taps are across: source pixels that the warps hold the products of.
  int64_t pixels_held() const { return tile.warps * tile.positions * 16; }
  // Where the source is read in runs: elements from one position to the next.
  int64_t position_elements() const { return problem.step[2] * problem.in_channels; }
};

namespace direct {

// How many groups a channel block has: the most that a tile's pieces hold, whole ones of source and output channels,
// equally many in each block as far as that goes; 0 where they do not.
inline int32_t BlockGroups(const ConvProblem& p, const DirectTile& tile) {
  const int64_t vector = TraitsOf(p.src_type).vector();
  const auto whole = [](int64_t channels, int64_t unit) { return unit / std::gcd(channels, unit); };
  const int64_t least = std::lcm(whole(p.in_channels, vector), whole(p.out_channels, kColBlock));
  const int64_t most = tile.pieces * vector / std::max(p.in_channels, p.out_channels) / least * least;
  if (most == 0) return 0;
  const int64_t blocks = CeilDiv(p.groups, most);
  return static_cast<int32_t>(CeilDiv(CeilDiv(p.groups, blocks), least) * least);
}

// The pieces of source channels that a set of output channels reads: a power of two, at whose multiples each set's
// begin, if that is less than all.
inline int32_t EntryPieces(const ConvProblem& p, int32_t groups, int32_t set_cols) {
  const int64_t vector = TraitsOf(p.src_type).vector(), all = groups * p.in_channels / vector;
  int64_t pieces = 1;
  for (int64_t col = 0; col < groups * p.out_channels; col += set_cols) {
    const int64_t last = std::min(col + set_cols, groups * p.out_channels) - 1;
    const int64_t first_piece = col / p.out_channels * p.in_channels / vector;
    const int64_t last_piece = ((last / p.out_channels + 1) * p.in_channels - 1) / vector;
    while (first_piece / pieces != last_piece / pieces) pieces *= 2;
  }
  return static_cast<int32_t>(all % pieces == 0 ? pieces : all);
}

// Pieces of a run: (tap, channel)s of a row of taps, which may begin with an element that is none of them. By twos in a
// conv whose warps do not walk: a multiplication's are one behind the other.
inline int32_t RunPieces(const DirectPass& d, int32_t run) {
  const int64_t channels = d.problem.in_channels, pieces = CeilDiv(run * channels + channels % 2, kRunVector);
  return static_cast<int32_t>(d.is_conv() && !d.tile.walks() ? CeilDiv(pieces, 2) * 2 : pieces);
}

inline PixelLayout LayoutOf(int64_t pieces) {
  return {static_cast<int32_t>(pieces), static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(pieces) - 1))};
}

}  // namespace direct

// The thread blocks' channels and taps: what does not depend on the area.
struct DirectChannels : DirectPass {
  int32_t taps;  // of the class that has most
  int32_t run;   // taps of a row, if the source is read in runs; else 0
  int32_t channel_blocks = 0;
  int32_t chunks = 1;        // parts of the source channels, of the only group
  int32_t block_groups = 0;  // groups of a channel block; 0: a part of the only group's channels
  int32_t col_blocks = 0;    // blocks of eight output channels of a channel block
  PixelLayout src_pixel{};
  PixelLayout dst_pixel{};   // of a wgrad
  int32_t entry_pieces = 0;  // pieces of source channels that a set of output channels reads of each tap
  int32_t row_taps = 0;      // where warps walk: taps of a row
  int32_t items = 1;         // of a wgrad: warps that have a thread block's sums
  int32_t parts = 1;         // and of its positions, among so many warps each

  DirectChannels(const DirectPass& pass, int32_t taps, int32_t run) : DirectPass(pass), taps(taps), run(run) {
    if (problem.groups > 1) {
      SetGroups();
    } else {
      SetChannels();
    }
    dst_pixel = direct::LayoutOf(col_blocks);
    if (walks()) row_taps = taps / tile.walk.rows;
    if (is_conv()) return;
    const int64_t rows = CeilDiv(entries(), 2);
    items = static_cast<int>(std::max<int64_t>(1, CeilDiv(rows, tile.filter_rows))) * sets();
    parts = std::max(1, kWgradWarps / items);
  }

  // Sets of output channels of a channel block.
  int32_t sets() const { return col_blocks / tile.set; }
  // Of a conv: warps that share out the output channels, and those that share out an area's positions.
  int warps_across() const { return col_blocks / tile.col_blocks(); }
  int warps_down() const { return tile.warps / warps_across(); }
  int64_t positions_held() const { return warps_down() * tile.positions * 16; }

  // (tap, piece)s.
  int32_t entries() const { return FilterSteps(taps, entry_pieces, 0, run).entries; }
  FilterSteps steps() const { return FilterSteps(has_taps_across() ? 1 : taps, entry_pieces, row_taps, run); }
  // Of a conv's filter, with which a thread block begins.
  int64_t filter_bytes() const { return chunks * int64_t{steps().all} * col_blocks * kColBlockBytes; }
  bool has_odd_positions() const { return run > 0 && position_elements() % 2 == 1; }

  // Pieces of a box's row that is read in runs: from the one with the first element, which is an even one, to the last
  // that a warp reads. It reads whole multiplications', two elements at a time.
  int64_t RowPieces(int64_t cols) const {
    const int64_t in_front = kRunVector - 2, behind = has_odd_positions() ? 2 : 0;
    const int64_t read = (walks() ? tile.run : entry_pieces) * kRunVector;
    return CeilDiv(in_front + behind + (cols - 1) * position_elements() + read, kRunVector);
  }

 private:
  void SetGroups() {
    const ConvProblem& p = problem;
    const int64_t warp_cols = warp_col_blocks() * 8;
    block_groups = direct::BlockGroups(p, tile);
    channel_blocks = static_cast<int32_t>(CeilDiv(p.groups, block_groups));
    src_pixel = direct::LayoutOf(block_groups * p.in_channels / vector());
    entry_pieces = direct::EntryPieces(p, block_groups, tile.set * 8);
    col_blocks = static_cast<int32_t>(CeilDiv(block_groups * p.out_channels, warp_cols) * warp_col_blocks());
  }

  void SetChannels() {
    const int64_t pieces = run > 0 ? 1 : problem.in_channels / vector(), warp_cols = warp_col_blocks() * 8;
    chunks = static_cast<int32_t>(CeilDiv(pieces, tile.pieces));
    src_pixel = direct::LayoutOf(CeilDiv(pieces, chunks));
    entry_pieces = run > 0 ? direct::RunPieces(*this, run) : src_pixel.pieces;
    const int64_t most = streams() ? 1 : std::max<int64_t>(1, tile.pieces * vector() / warp_cols);
    col_blocks = static_cast<int32_t>(std::min(CeilDiv(problem.out_channels, warp_cols), most) * warp_col_blocks());
    channel_blocks = static_cast<int32_t>(CeilDiv(problem.out_channels, col_blocks * 8));
  }
};

inline int64_t BoxPixels(const Area& area) { return static_cast<int64_t>(area.box[0]) * area.box[1] * area.box[2]; }

// A thread block with an area.
struct DirectLayout : DirectChannels {
  Area area;
  int32_t positions;         // of the area, with those behind its end that make whole multiplications, if it has such
  int32_t row_dilation = 0;  // where warps walk: source rows from one row of taps to the next
  DirectPlaces places{};
  int64_t shared_bytes = 0;

  DirectLayout(const DirectChannels& channels, const Area& area) : DirectChannels(channels), area(area) {
    positions = static_cast<int32_t>(AreaPositions());
    if (walks()) {
      const int64_t reach = area.box[1] - (area.rows - 1) * problem.step[1];
      row_dilation = static_cast<int32_t>((reach - 1) / (tile.walk.rows - 1));
    }
    SetPlaces();
  }

  // Where warps walk: rows of which as many walks begin.
  int32_t walks_abreast() const { return area.rows / area.walk; }

  // Where taps are across: of a box's products with all columns, which take its place.
  int64_t product_bytes() const {
    return has_taps_across() ? col_blocks * int64_t{8} * ProductPitch(static_cast<int32_t>(BoxPixels(area))) * 4 : 0;
  }

 private:
  int64_t AreaPositions() const {
    if (has_taps_across()) return int64_t{area.rows} * area.cols;
    return is_conv() ? positions_held() : CeilDiv(int64_t{area.rows} * area.cols, 32) * 32;
  }

  // Rounded up to what TMA's exchange of pieces begins anew with.
  static int64_t Turns(int64_t bytes) { return CeilDiv(bytes, 1024) * 1024; }
  static int64_t Whole(int64_t bytes) { return CeilDiv(bytes, 128) * 128; }

  void Place(int32_t& where, int64_t bytes) {
    where = static_cast<int32_t>(shared_bytes);
    shared_bytes += Whole(bytes);
  }

  void SetPlaces() {
    SetStages();
    Place(places.entries, has_taps_across() ? col_blocks * 8 * 4 : (entries() + 1) * kRun * 4);
    Place(places.positions, positions * int64_t{8});
    if (!is_conv()) {
      Place(places.position_pixels, positions * int64_t{4});
      Place(places.sums, int64_t{items} * (tile.filter_rows * 16 + tile.set * 8) * 8);
    }
    Place(places.zeros, 16);
    Place(places.barriers, stages() * 16);
    if (is_conv() && !tile.walks() && !tile.taps_across) {
      const int64_t out_bytes = TraitsOf(problem.dst_type).bytes;
      Place(places.results, tile.warps * 16 * (tile.col_blocks() * 8 * out_bytes + 16));
    }
    places.end = static_cast<int32_t>(std::min<int64_t>(shared_bytes, INT32_MAX));
  }

  // And the filter.
  void SetStages() {
    const int64_t copied = streams() ? int64_t{walks_abreast()} * area.box[2] : BoxPixels(area);
    const int64_t box = Turns(std::max((copied << src_pixel.pitch) * 16, product_bytes()));
    const int64_t stage = box + (is_conv() ? 0 : Turns((int64_t{positions} << dst_pixel.pitch) * 16));
    places.gradient = static_cast<int32_t>(box);
    places.stage = static_cast<int32_t>(stage);
    shared_bytes = stages() * stage;
    if (!is_conv()) {  // in the end all warps' sums are in their place
      const int64_t exchanged = tile.filter_rows * tile.set * 4 * 32 * 4 * int64_t{items} * parts;
      shared_bytes = std::max(shared_bytes, exchanged);
    } else if (walks() && !streams()) {  // it is in registers before the second area
      places.filter = places.stage;
      shared_bytes = std::max(shared_bytes, stage + Whole(filter_bytes()));
    } else {
      Place(places.filter, filter_bytes());
    }
  }
};

}  // namespace jaxconv
