// Planning of the direct family: a box of source pixels in shared memory serves all taps, on tensor cores.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/planning.h"
#include "common/resident.h"
#include "common/tiled_product.h"
#include "direct/cost.h"
#include "direct/feasibility.h"
#include "direct/layout.h"
#include "direct/settings.h"
#include "direct/window.h"

namespace jaxconv {

class DirectPlanner {
 public:
  using Settings = DirectSettings;
  static constexpr const char* kName = DirectSettings::kFamily;

  DirectPlanner(const Product& product, const Device& device)
      : product_(product),
        device_(device),
        costs_(device.CostsOf(kName)),
        types_(direct::UnsupportedTypes(product.conv, product.pass)) {
    if (!types_) window_.emplace(product.taps, product.residue_classes);
  }

  static int64_t TileCount() { return std::size(kDirectTiles); }
  static std::string TileName(int64_t tile) { return kDirectTiles[tile].name(); }
  static TileFields FieldsOfTile(int64_t tile) {
    const DirectTile& t = kDirectTiles[tile];
    return {{"columns", 8 * t.set},
            {"sets", t.sets},
            {"positions", 16 * t.positions},
            {"warps", t.warps},
            {"vectors", t.pieces},
            {"filter_rows", 16 * t.filter_rows},
            {"walk_rows", t.walk.rows},
            {"walk_step", t.walk.step},
            {"walk_depth", 16 * t.walk.steps},
            {"streams", t.walk.streams()},
            {"run", t.run},
            {"taps_across", t.taps_across}};
  }

  Reason UnsupportedReason() const { return types_; }
  Reason UnsupportedUnlessNamed() const { return std::nullopt; }
  bool IsFor(int64_t) const { return true; }

  // One: the area that is worth most, and of a weight gradient slices for all thread blocks that the device holds.
  std::vector<DirectSettings> Candidates(int64_t tile, const Asked& asked) const {
    DirectSettings s{.tile = tile, .split = asked.Find("split").value_or(1)};
    if (UnsupportedTile(tile)) return {s};
    const DirectChannels channels = ChannelsOf(tile);
    const auto [rows, cols] = BestExtent(channels);
    s.rows = asked.Find("rows").value_or(rows), s.cols = asked.Find("cols").value_or(cols);
    if (UnsupportedExtent(s.rows, s.cols)) return {s};
    SetArea(channels, &s);
    if (!channels.is_conv() && !asked.Find("split")) s.split = Slices(DirectLayout(channels, s.area()));
    return {s};
  }

  Reason UnsupportedReason(const DirectSettings& s) const {
    if (Reason why = UnsupportedTile(s.tile)) return why;
    if (Reason why = UnsupportedExtent(s.rows, s.cols)) return why;
    if (product_.pass == Pass::kConv && s.split != 1) return SplitOf(s) + ": its conv has none";
    if (s.split < 1) return SplitOf(s);
    const DirectChannels channels = ChannelsOf(s.tile);
    if (Reason why = UnsupportedArea(channels, s.area())) return why;
    const DirectLayout layout(channels, s.area());
    if (Reason why = UnsupportedLayout(layout)) return why;
    return TooMuchSharedMemory(layout.shared_bytes, device_);
  }

  // Shared memory's bandwidth, or the tensor cores' rate, and part of the other; or memory. And the beginning.
  double Seconds(const DirectSettings& s) const {
    const DirectLayout layout(ChannelsOf(s.tile), s.area());
    const double seconds = Turns(layout) * direct::AreaClocks(layout, costs_) / device_.clock_hz;
    const double filter = layout.is_conv() ? 1.0 * layout.filter_bytes() / layout.tile.warps : 0;
    return std::max(seconds, ActivationSeconds(product_, device_, costs_)) + costs_["begin_seconds"] + kLaunchSeconds +
           filter / costs_["filter_bytes_per_second"] + SlicesSeconds(product_, device_, costs_, s.split);
  }

  int64_t WorkspaceBytes(const DirectSettings& s) const { return s.split > 1 ? s.split * product_.sums_bytes() : 0; }

 private:
  using Extent = std::pair<int64_t, int64_t>;  // rows and columns of an area

  DirectChannels ChannelsOf(int64_t tile) const {
    const DirectTile& t = kDirectTiles[tile];
    const int64_t run = t.run > 0 ? product_.kernel[2] : 0;
    return {{product_.conv, product_.pass, t}, window_->taps, static_cast<int32_t>(run)};
  }

  static std::string SplitOf(const DirectSettings& s) { return "a split of " + std::to_string(s.split); }

  // Why a tile does not take the product with any area.
  Reason UnsupportedTile(int64_t tile) const {
    const DirectTile& t = kDirectTiles[tile];
    const DirectPass pass{product_.conv, product_.pass, t};
    if (product_.src_batch_grouped || product_.dst_batch_grouped) return "groups of images";
    if (Reason why = UnsupportedProblem(pass)) return why;
    const bool is_dilated = *std::ranges::max_element(product_.lhs_dilation) > 1;
    if (is_dilated && !pass.is_conv()) return kDilatedInput;
    if (t.run > 0 && (is_dilated || product_.rhs_dilation[2] > 1)) return "taps that are not neighbours";
    const DirectChannels channels = ChannelsOf(tile);
    if (Reason why = UnsupportedMembers(channels)) return why;
    if (Reason why = pass.walks() ? UnsupportedTapRows(t.walk) : std::nullopt) return why;
    if (Reason why = UnsupportedChannels(channels)) return why;
    return TooMuchSharedMemory(pass.is_conv() ? channels.filter_bytes() : 0, device_);
  }

  // A set of output channels reads whole pieces of source channels, which may be of several groups. So a member of a
  // vmap must have whole sets, of pieces of its own. In weight gradients what is between two groups is thrown away.
  Reason UnsupportedMembers(const DirectChannels& d) const {
    const int64_t groups = product_.member_groups, cols = d.tile.set * 8;
    if (!d.is_conv() || groups == product_.conv.groups) return std::nullopt;
    const int64_t ins = product_.conv.in_channels, outs = product_.conv.out_channels;
    const bool has_sets = groups * outs % cols == 0;
    const bool has_pieces = groups * ins % (d.entry_pieces * d.vector()) == 0;
    const bool blocks_have_sets =
        d.channel_blocks == 1 || (d.block_groups * outs % cols == 0 && d.src_pixel.pieces % d.entry_pieces == 0);
    if (has_sets && has_pieces && blocks_have_sets) return std::nullopt;
    return "sets of " + std::to_string(cols) + " channels would be of several members of a vmap, which have " +
           std::to_string(groups) + " groups each";
  }

  Reason UnsupportedTapRows(const Walk& walk) const {
    const auto& rows = window_->rows;
    if (rows && rows->most == walk.rows && rows->least >= walk.least_rows()) return std::nullopt;
    return "taps in other than " + std::to_string(walk.rows) + " rows";
  }

  // Rows in whole walks: as many walks as warps hold, and as a dilation's rows lie abreast; and their box.
  void SetArea(const DirectChannels& d, DirectSettings* s) const {
    const Window& w = *window_;
    const auto& step = product_.conv.step;
    s->walks = s->rows;
    if (d.walks()) {
      const int64_t least = d.tile.walk.lags() - 1, dilation = w.rows->dilation;
      const int64_t most = std::min(d.positions_held() / s->cols, s->rows / least) / dilation;
      s->walks = std::max<int64_t>(1, most) * dilation;
      s->walk = std::max(least, CeilDiv(s->rows, s->walks));
    }
    const int64_t unit = d.has_taps_across() ? 1 : kRun, width = (s->cols - 1) * step[2] + w.reach[2];
    s->box_depth = w.reach[0];
    s->box_height = (s->walks * s->walk - 1) * step[1] + w.reach[1];
    s->box_width = d.run > 0 ? d.RowPieces(s->cols) : CeilDiv(width, unit) * unit;
    s->taps = d.taps, s->run = d.run;
    s->corner_depth = w.corner[0], s->corner_row = w.corner[1], s->corner_col = w.corner[2];
  }

  // The extent whose boxes and multiplications are least, if two thread blocks' shared memory holds it.
  Extent BestExtent(const DirectChannels& d) const {
    const int64_t height = window_->count[1];
    Extent best{1, d.run > 0 ? 2 * kRun : kRun};
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [rows, cols] : Extents(d)) {
      DirectSettings s{.rows = CeilDiv(height, CeilDiv(height, rows)), .cols = cols};
      SetArea(d, &s);
      const Area area = s.area();
      if (UnsupportedArea(d, area) || (d.has_taps_across() && BoxPixels(area) > d.pixels_held())) continue;
      const DirectLayout layout(d, area);
      if (const double cost = Work(layout) * Crowding(layout); cost < least) best = {s.rows, s.cols}, least = cost;
    }
    return best;
  }

  // Extents that are worth a look: by columns, the most rows that warps hold; of walks several.
  std::vector<Extent> Extents(const DirectChannels& d) const {
    const int64_t height = window_->count[1];
    std::vector<Extent> extents;
    for (int64_t cols : Widths(d)) {
      if (d.walks()) {
        for (int64_t parts : {1, 2, 4, 7}) extents.push_back({CeilDiv(height, parts), cols});
      } else {
        extents.push_back({std::clamp<int64_t>(MostRows(d, cols), 1, height), cols});
      }
    }
    return extents;
  }

  // Columns of areas: powers of two, and as many as a row has, or warps hold, or a box. Of equals the first is best: of
  // long rows, one that reads long pieces of memory.
  std::vector<int64_t> Widths(const DirectChannels& d) const {
    const int64_t in_box = (kMostBoxExtent - window_->reach[2]) / product_.conv.step[2] + 1;
    const int64_t in_row = CeilDiv(window_->count[2], kRun) * kRun;
    const int64_t widest = std::min({MostPositions(d), in_row, std::max<int64_t>(kRun, in_box / kRun * kRun)});
    const int64_t unit = d.run > 0 ? 2 * kRun : kRun, abreast = d.walks() ? window_->rows->dilation : 1;
    std::vector<int64_t> widths;
    const auto add = [&](int64_t cols) {
      const int64_t whole = CeilDiv(cols, unit) * unit;
      const bool fits = cols <= widest && (!d.walks() || whole * abreast <= MostPositions(d));
      if (fits && std::ranges::find(widths, whole) == widths.end()) widths.push_back(whole);
    };
    for (int64_t cols : {32, 64, 128}) {
      if (widest > 64) add(cols);
    }
    for (int64_t cols : {8, 16, 32, 64}) add(cols);
    add(widest);
    return widths;
  }

  // That warps hold the sums of, or where taps are across the pixels.
  static int64_t MostPositions(const DirectChannels& d) {
    constexpr int64_t kMostReduced = 256;
    if (!d.is_conv()) return kMostReduced;
    return d.has_taps_across() ? d.pixels_held() : d.positions_held();
  }

  int64_t MostRows(const DirectChannels& d, int64_t cols) const {
    if (!d.has_taps_across()) return MostPositions(d) / cols;
    const auto& reach = window_->reach;
    const auto& step = product_.conv.step;
    const int64_t box_height = d.pixels_held() / (reach[0] * ((cols - 1) * step[2] + reach[2]));
    return (box_height - reach[1]) / step[1] + 1;
  }

  // What areas of an extent are compared by.
  double Work(const DirectLayout& d) const {
    if (d.streams()) return Turns(d) * direct::AreaClocks(d, costs_);  // areas are large
    if (d.walks() || d.has_taps_across()) return Areas(d) * direct::AreaClocks(d, costs_);
    constexpr int64_t kPixelTaps = 6;  // a pixel of a box takes as long as so many taps of a position
    return static_cast<double>(Areas(d)) * (int64_t{d.positions} * d.taps + kPixelTaps * BoxPixels(d.area));
  }

  // Where a thread block is alone on its multiprocessor, nothing hides its waits.
  double Crowding(const DirectLayout& d) const {
    if (d.shared_bytes > device_.shared_bytes) return 100;
    return Resident(d) > 1 ? 1 : 1.3;
  }

  int64_t Resident(const DirectLayout& d) const {
    return ResidentBlocks(device_.shared_bytes + kBlockBytes, d.shared_bytes, d.blocks());
  }

  // Of all classes and images.
  int64_t Areas(const DirectLayout& d) const {
    const auto& [depth, height, width] = window_->count;
    const int64_t of_class = depth * CeilDiv(height, d.area.rows) * CeilDiv(width, d.area.cols);
    return product_.images() * window_->classes * of_class;
  }

  // Areas that a multiprocessor computes, one after the other.
  int64_t Turns(const DirectLayout& d) const {
    return CeilDiv(Areas(d) * d.channel_blocks * d.chunks, device_.multiprocessors);
  }

  int64_t Slices(const DirectLayout& d) const {
    const int64_t blocks = d.channel_blocks * window_->classes * d.chunks;
    return std::min(kMostSplit, Sharers(Resident(d) * device_.multiprocessors, blocks, Areas(d)));
  }

  const Product& product_;
  const Device& device_;
  const Numbers& costs_;
  Reason types_;                  // why the family has no kernels of the product's
  std::optional<Window> window_;  // if it has
};

}  // namespace jaxconv
