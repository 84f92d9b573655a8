// Planning of the direct family: a halo tile in shared memory serves all taps, on tensor cores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/ctas_per_sm.h"
#include "common/planning.h"
#include "common/tiled_product.h"
#include "direct/cost.h"
#include "direct/layout.h"
#include "direct/settings.h"
#include "direct/support.h"
#include "direct/window.h"

namespace jaxconv {

class DirectPlanner {
 public:
  using Settings = DirectSettings;
  static constexpr const char* kName = DirectSettings::kFamily;
  static constexpr const auto& kRules = direct::kRules;

  DirectPlanner(const Product& product, const Device& device)
      : product_(product), device_(device), costs_(device.CostsOf(kName)), types_(UnsupportedTypes(product)) {
    if (!types_) window_.emplace(product.taps, product.residue_classes);
  }

  static TileFields FieldsOfTile(int64_t tile) {
    const DirectTile& t = kDirectTiles[tile];
    return {{"columns", 8 * t.set},
            {"sets", t.sets},
            {"positions", 16 * t.positions},
            {"warps", t.warps},
            {"vectors", t.vectors},
            {"filter_rows", 16 * t.filter_rows},
            {"stream_rows", t.row_stream.rows},
            {"stream_step", t.row_stream.step},
            {"stream_depth", 2 * t.vector() * t.row_stream.steps},
            {"stages_rows", t.row_stream.stages_rows()},
            {"packed", t.packed},
            {"taps_in_n", t.taps_in_n},
            {"of_bytes", t.of_bytes()},
            {"of_floats", t.of_floats()},
            {"has_wgrad", t.has_wgrad()}};
  }

  Reason UnsupportedReason() const { return types_; }
  Reason UnsupportedUnlessNamed() const { return std::nullopt; }
  bool IsFor(int64_t tile) const { return kDirectTiles[tile].IsFor(product_.conv.src_type); }

  // One candidate: the best output tile. A wgrad is split over as many CTAs as fill the device.
  std::vector<DirectSettings> Candidates(int64_t tile, const Requested& requested) const {
    DirectSettings s{.tile = tile,
                     .split = requested.Find("split").value_or(1),
                     .gradient_sums = requested.Find("gradient_sums").value_or(0)};
    if (UnsupportedTile(tile)) return {s};
    const DirectChannels channels = ChannelsOf(tile);
    const auto [rows, cols] = BestExtent(channels);
    s.rows = requested.Find("rows").value_or(rows), s.cols = requested.Find("cols").value_or(cols);
    if (UnsupportedExtent(s.rows, s.cols)) return {s};
    SetTile(channels, &s);
    s.rows_before = requested.Find("rows_before").value_or(0);
    s.rows_after = requested.Find("rows_after").value_or(0);
    s.rows_along = s.has_rows() ? kSpatial - product_.spatial_rank : 0;
    if (!channels.is_conv() && !requested.Find("split")) s.split = Slices(DirectLayout(channels, s.out_tile()));
    return {s};
  }

  Reason UnsupportedReason(const DirectSettings& s) const {
    if (Reason why = UnsupportedTile(s.tile)) return why;
    if (Reason why = UnsupportedExtent(s.rows, s.cols)) return why;  // it has no halo tile then
    if (Reason why = kRules.unsupported_reason(product_.conv, product_.pass, s)) return why;
    if (s.has_rows() && !device_.wgmma) return "rows of neighbours come by TMA";
    return TooMuchSharedMemory(kRules.shared_bytes(product_.conv, product_.pass, s), device_);
  }

  // The time of the multiplications, from shared memory's bandwidth and the tensor cores' rate, and of device memory;
  // then the start of the kernel, the stores of a wgrad, and the split-K reduction.
  double Seconds(const DirectSettings& s) const {
    const DirectLayout layout(ChannelsOf(s.tile), s.out_tile());
    const double clocks = layout.is_conv() ? ConvClocks(layout) : WgradClocks(layout, s.split);
    const double ends = layout.is_conv() ? ConvEndsSeconds(layout) : WgradEndsSeconds(s.split);
    const double memory =
        ActivationSeconds(product_, device_, costs_) * (IsNarrow(layout) ? costs_["narrow_reads"] : 1);
    const char* const epilogue = layout.tile.holds_scales() ? "held_epilogue_seconds" : "epilogue_seconds";
    return Overlapped(clocks / device_.clock_hz, memory) + ends + device_.launch_seconds +
           SlicesSeconds(product_, device_, costs_, s.split) + EpilogueSeconds(product_, device_, costs_, epilogue);
  }

  int64_t GradientSumRows(const DirectSettings& s) const {
    return direct::GradientSumRows(product_.conv, product_.pass, s);
  }

  int64_t WorkspaceBytes(const DirectSettings& s) const {
    return kRules.workspace_bytes(product_.conv, product_.pass, s);
  }

 private:
  using Extent = std::pair<int64_t, int64_t>;  // rows and columns of an output tile

  DirectChannels ChannelsOf(int64_t tile) const {
    const DirectTile& t = kDirectTiles[tile];
    const int64_t packed = t.packed > 0 ? product_.kernel[2] : 0;
    return {{product_.conv, product_.pass, t}, window_->taps, static_cast<int32_t>(packed)};
  }

  static Reason UnsupportedTypes(const Product& product) {
    if (Reason why = direct::UnsupportedTypes(product.conv, product.pass)) return why;
    const bool is_tf32 = product.conv.src_type != DType::kF32 || product.MultipliesFloat32(Float32::kTF32);
    return is_tf32 ? std::nullopt : Reason("float32 is to be multiplied as it is");
  }

  // Why a tile does not support the product, whatever the output tile.
  Reason UnsupportedTile(int64_t tile) const {
    const DirectTile& t = kDirectTiles[tile];
    const DirectPass pass{product_.conv, product_.pass, t};
    if (product_.src_batch_grouped || product_.dst_batch_grouped) return "groups of images";
    if (Reason why = UnsupportedProblem(pass)) return why;
    const bool is_dilated = *std::ranges::max_element(product_.lhs_dilation) > 1;
    if (is_dilated && !pass.is_conv()) return kDilatedInput;
    if (t.packed > 0 && (is_dilated || product_.rhs_dilation[2] > 1)) return kDilatedTaps;
    const DirectChannels channels = ChannelsOf(tile);
    if (Reason why = UnsupportedMembers(channels)) return why;
    if (Reason why = pass.streams_rows() ? UnsupportedTapRows(t.row_stream) : std::nullopt) return why;
    if (Reason why = UnsupportedChannels(channels)) return why;
    return TooMuchSharedMemory(pass.is_conv() ? channels.filter_bytes() : 0, device_);
  }

  // In a conv, a set of output channels reads whole vectors of source channels, which may belong to several groups. A
  // member of a vmap must not read the numbers of another. So it must have whole sets, and vectors of its own. A wgrad
  // discards the products of two groups.
  Reason UnsupportedMembers(const DirectChannels& d) const {
    const int64_t groups = product_.member_groups, cols = d.tile.set * 8;
    if (!d.is_conv() || groups == product_.conv.groups) return std::nullopt;
    const int64_t ins = product_.conv.in_channels, outs = product_.conv.out_channels;
    const bool has_sets = groups * outs % cols == 0;
    const bool has_vectors = groups * ins % (d.entry_vectors * d.vector()) == 0;
    const bool blocks_have_sets =
        d.channel_blocks == 1 || (d.block_groups * outs % cols == 0 && d.src_pixel.vectors % d.entry_vectors == 0);
    if (has_sets && has_vectors && blocks_have_sets) return std::nullopt;
    return "sets of " + std::to_string(cols) + " channels would be of several members of a vmap, which have " +
           std::to_string(groups) + " groups each";
  }

  Reason UnsupportedTapRows(const RowStream& stream) const {
    const auto& rows = window_->rows;
    if (rows && rows->most == stream.rows && rows->least >= stream.least_rows()) return std::nullopt;
    return NotInRows(stream);
  }

  // Sets the streams of row streaming and the halo tile. There are as many streams as the warps can hold, a multiple of
  // the dilation, and each has the same number of rows.
  void SetTile(const DirectChannels& d, DirectSettings* s) const {
    const Window& w = *window_;
    const auto& step = product_.conv.step;
    s->streams = s->rows;
    if (d.streams_rows()) {
      const int64_t least = d.tile.row_stream.lags() - 1, dilation = w.rows->dilation;
      const int64_t most = std::min(d.positions_held() / s->cols, s->rows / least) / dilation;
      s->streams = std::max<int64_t>(1, most) * dilation;
      s->stream_rows = std::max(least, CeilDiv(s->rows, s->streams));
    }
    const int64_t unit = d.taps_in_n() ? 1 : kMatrixRows, width = (s->cols - 1) * step[2] + w.size[2];
    s->halo_depth = w.size[0];
    s->halo_height = (s->streams * s->stream_rows - 1) * step[1] + w.size[1];
    s->halo_width = d.packed > 0 ? d.RowVectors(s->cols) : CeilDiv(width, unit) * unit;
    s->taps = d.taps, s->packed_taps = d.packed;
    s->corner_depth = w.corner[0], s->corner_row = w.corner[1], s->corner_col = w.corner[2];
  }

  // The extent with the least cost of halo tiles and multiplications. There should be shared memory for two CTAs per
  // SM.
  Extent BestExtent(const DirectChannels& d) const {
    const int64_t height = window_->count[1];
    Extent best{1, d.packed > 0 ? 2 * kMatrixRows : kMatrixRows};
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [rows, cols] : Extents(d)) {
      DirectSettings s{.rows = CeilDiv(height, CeilDiv(height, rows)), .cols = cols};
      SetTile(d, &s);
      const OutputTile out_tile = s.out_tile();
      if (UnsupportedTileSize(d, out_tile) || (d.taps_in_n() && HaloPixels(out_tile) > d.pixels_held())) continue;
      const DirectLayout layout(d, out_tile);
      if (const double cost = ExtentCost(layout) * OccupancyPenalty(layout); cost < least) {
        best = {s.rows, s.cols}, least = cost;
      }
    }
    return best;
  }

  // Extents to try: for each number of columns the most rows that the warps can hold; with row streaming, several.
  std::vector<Extent> Extents(const DirectChannels& d) const {
    const int64_t height = window_->count[1];
    std::vector<Extent> extents;
    for (int64_t cols : Widths(d)) {
      if (d.streams_rows()) {
        for (int64_t parts : {1, 2, 4, 7}) extents.push_back({CeilDiv(height, parts), cols});
      } else {
        extents.push_back({std::clamp<int64_t>(MostRows(d, cols), 1, height), cols});
      }
    }
    return extents;
  }

  // Columns of output tiles to try: powers of two, and the most that a row, the warps and a halo tile can have. The
  // first of equals wins. So for long rows, 32 to 128 columns come first, which read more neighbouring memory.
  std::vector<int64_t> Widths(const DirectChannels& d) const {
    const int64_t in_box = (kMaxBoxExtent - window_->size[2]) / product_.conv.step[2] + 1;
    const int64_t in_row = CeilDiv(window_->count[2], kMatrixRows) * kMatrixRows;
    const int64_t widest =
        std::min({MostPositions(d), in_row, std::max<int64_t>(kMatrixRows, in_box / kMatrixRows * kMatrixRows)});
    const int64_t unit = d.packed > 0 ? 2 * kMatrixRows : kMatrixRows,
                  abreast = d.streams_rows() ? window_->rows->dilation : 1;
    std::vector<int64_t> widths;
    const auto add = [&](int64_t cols) {
      const int64_t whole = CeilDiv(cols, unit) * unit;
      const bool fits = cols <= widest && (!d.streams_rows() || whole * abreast <= MostPositions(d));
      if (fits && std::ranges::find(widths, whole) == widths.end()) widths.push_back(whole);
    };
    for (int64_t cols : {32, 64, 128}) {
      if (widest > 64) add(cols);
    }
    for (int64_t cols : {8, 16, 32, 64}) add(cols);
    add(widest);
    return widths;
  }

  // The most positions of an output tile, limited by the registers for sums. With taps in N, pixels of the halo tile.
  static int64_t MostPositions(const DirectChannels& d) {
    constexpr int64_t kMostReduced = 256;
    if (!d.is_conv()) return kMostReduced;
    return d.taps_in_n() ? d.pixels_held() : d.positions_held();
  }

  int64_t MostRows(const DirectChannels& d, int64_t cols) const {
    if (!d.taps_in_n()) return MostPositions(d) / cols;
    const auto& size = window_->size;
    const auto& step = product_.conv.step;
    const int64_t halo_height = d.pixels_held() / (size[0] * ((cols - 1) * step[2] + size[2]));
    return (halo_height - size[1]) / step[1] + 1;
  }

  // The cost by which extents are compared.
  double ExtentCost(const DirectLayout& d) const {
    if (d.stages_rows()) return ConvClocks(d);  // output tiles are large
    if (d.streams_rows() || d.taps_in_n()) return OutputTiles(d) * direct::ConvTileClocks(d, device_, costs_);
    constexpr int64_t kPixelTaps = 6;  // a pixel of a halo tile costs as much as 6 taps of a position
    return static_cast<double>(OutputTiles(d)) * (int64_t{d.positions} * d.taps + kPixelTaps * HaloPixels(d.out_tile));
  }

  // A single CTA on an SM cannot hide its waits behind another CTA.
  double OccupancyPenalty(const DirectLayout& d) const {
    if (d.shared_bytes > device_.shared_bytes) return 100;
    return CtasPerSm(d) > 1 ? 1 : 1.3;
  }

  int64_t CtasPerSm(const DirectLayout& d) const {
    return jaxconv::CtasPerSm(device_.shared_bytes + kBlockBytes, d.shared_bytes, d.blocks());
  }

  // Output tiles of all residue classes and images.
  int64_t OutputTiles(const DirectLayout& d) const {
    const auto& [depth, height, width] = window_->count;
    const int64_t of_class = depth * CeilDiv(height, d.out_tile.rows) * CeilDiv(width, d.out_tile.cols);
    return product_.images() * window_->classes * of_class;
  }

  // Whether reads are shorter than a line of L2: of a part of each pixel's channels.
  static bool IsNarrow(const DirectLayout& d) {
    constexpr int64_t kLineVectors = 8;
    return d.channel_blocks * d.channel_parts > 1 && d.src_pixel.vectors < kLineVectors;
  }

  double ConvClocks(const DirectLayout& d) const { return TilesPerSm(d) * direct::ConvTileClocks(d, device_, costs_); }

  // A conv begins with its filter. With taps in N, each of its results is added up and stored on its own.
  double ConvEndsSeconds(const DirectLayout& d) const {
    const char* const rate = d.block_groups > 0 ? "groups_filter_bytes_per_second" : "filter_bytes_per_second";
    const double results = d.taps_in_n() ? SumsPerSm(product_, device_) : 0;
    return costs_["conv_begin_seconds"] + 1.0 * d.filter_bytes() / d.tile.warps / costs_[rate] +
           results * costs_["taps_in_n_result_seconds"];
  }

  // Nothing hides a wgrad's stores: one by one, and in slices as pairs.
  double WgradEndsSeconds(int64_t split) const {
    const double sums = split * SumsPerSm(product_, device_);
    return costs_["wgrad_begin_seconds"] + sums * costs_[split == 1 ? "wgrad_result_seconds" : "wgrad_sum_seconds"];
  }

  // Of the thread blocks that one SM has, one turn after another.
  double WgradClocks(const DirectLayout& d, int64_t split) const {
    const int64_t blocks = CeilDiv(Blocks(d) * split, device_.multiprocessors);
    const double tile_clocks = direct::WgradTileClocks(d, device_, costs_, std::min(blocks, CtasPerSm(d)));
    return blocks * CeilDiv(OutputTiles(d), split) * tile_clocks;
  }

  // Thread blocks of a slice of a wgrad, which has one residue class.
  static int64_t Blocks(const DirectLayout& d) { return d.channel_blocks * int64_t{d.channel_parts}; }

  // Tiles that an SM computes, of a conv.
  int64_t TilesPerSm(const DirectLayout& d) const {
    return CeilDiv(OutputTiles(d) * d.channel_blocks * d.channel_parts, device_.multiprocessors);
  }

  int64_t Slices(const DirectLayout& d) const {
    return std::min(kMaxSplit, PersistentCtas(CtasPerSm(d) * device_.multiprocessors, Blocks(d), OutputTiles(d)));
  }

  const Product& product_;
  const Device& device_;
  const Numbers& costs_;
  Reason types_;                  // why the family has no kernels for the product's types
  std::optional<Window> window_;  // if the types are supported
};

}  // namespace jaxconv
