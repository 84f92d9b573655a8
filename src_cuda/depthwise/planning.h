// Planning of the depthwise family: which streams of a tile take a problem, and how long they take.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/planning.h"
#include "common/product.h"
#include "common/resident.h"
#include "common/tiled_product.h"
#include "depthwise/config.h"
#include "depthwise/layout.h"
#include "depthwise/params.h"
#include "depthwise/settings.h"
#include "depthwise/support.h"
#include "depthwise/window.h"

namespace jaxconv {

class DepthwisePlanner {
 public:
  using Settings = DepthwiseSettings;

  static constexpr const char* kName = DepthwiseSettings::kFamily;

  DepthwisePlanner(const Product& product, const Device& device)
      : product_(product), conv_(product.conv), device_(device), costs_(device.CostsOf(kName)) {
    unsupported_ = UnsupportedProduct();
    if (unsupported_) return;
    window_ = depthwise::FindWindow(product);
    if (!window_) unsupported_ = "nothing is to be computed";
  }

  static int64_t TileCount() { return std::size(kDepthwiseTiles); }
  static std::string TileName(int64_t tile) { return kDepthwiseTiles[tile].name(); }
  static TileFields FieldsOfTile(int64_t tile) {
    const DepthwiseTile& t = kDepthwiseTiles[tile];
    return {{"step", t.step},           {"period", t.period},         {"lags", t.lags},
            {"blocks", t.blocks},       {"channels", t.channels},     {"width", t.width},
            {"depths", t.depths},       {"has_pieces", t.has_pieces}, {"has_copiers", t.has_copiers},
            {"by_tma", t.by_tma},       {"in_pairs", t.in_pairs},     {"on_cuda_cores", t.on_cuda_cores()},
            {"has_conv", t.has_conv()}, {"has_wgrad", t.has_wgrad()}};
  }

  Reason UnsupportedReason() const { return unsupported_; }
  Reason UnsupportedUnlessNamed() const { return std::nullopt; }
  bool IsFor(int64_t tile) const { return kDepthwiseTiles[tile].IsFor(conv_.src_type); }

  // All that take the problem, or the first.
  std::vector<DepthwiseSettings> Candidates(int64_t tile, const Asked& asked) const {
    const auto split = asked.Find("split");
    const DepthwiseSettings none{.tile = tile, .split = split.value_or(1)};
    if (UnsupportedTile(kDepthwiseTiles[tile])) return {none};
    const auto rows = asked.Find("rows"), cols = asked.Find("cols");
    if (rows.value_or(1) < 1 || cols.value_or(1) < 1) {
      return {{.tile = tile, .split = none.split, .rows = rows.value_or(1), .cols = cols.value_or(1)}};
    }
    std::vector<DepthwiseSettings> all;
    for (const DepthwiseSettings& s : Areas(OfWindow(none), asked)) {
      for (const int64_t n : split ? std::vector{*split} : Splits(s)) {
        all.push_back(s);
        all.back().split = n;
      }
    }
    if (all.empty()) return {none};
    const DepthwiseSettings first = all.front();
    std::erase_if(all, [&](const DepthwiseSettings& s) { return UnsupportedReason(s).has_value(); });
    return all.empty() ? std::vector{first} : all;
  }

  Reason UnsupportedReason(const DepthwiseSettings& s) const {
    const DepthwiseTile& tile = TileOf(s);
    if (Reason why = UnsupportedTile(tile)) return why;
    if (s.rows == 0 && s.cols == 0) return "no tile of strips fits into shared memory";
    if (s.rows < 1 || s.cols < 1) return "an area of (" + std::to_string(s.rows) + ", " + std::to_string(s.cols) + ")";
    const auto text = std::to_string(s.split);
    if (product_.pass == Pass::kConv && s.split != 1) return "a split of " + text + ": its conv has none";
    if (s.split < 1) return "a split of " + text;
    if (Reason why = depthwise::UnsupportedStream(conv_, tile, s.stream())) return why;
    const DepthwiseShape shape = Shape(s);
    if (Reason why = depthwise::UnsupportedShape(shape, tile)) return why;
    return TooMuchSharedMemory(shape.places.end, device_);
  }

  // A multiprocessor's thread blocks multiply at once, or one waits for its copies; or memory takes longer. Then the
  // beginning and the end, and the slices' sum.
  double Seconds(const DepthwiseSettings& s) const {
    const DepthwiseTile& tile = TileOf(s);
    const DepthwiseShape shape = Shape(s);
    const CopyCosts copying = Copying(tile, shape);
    const int64_t places = Places(s, shape), resident = places / device_.multiprocessors;
    const int64_t workers = is_conv() ? Sharers(places, shape.channel_tiles, depthwise::Tiles(shape)) : s.split;
    const int64_t blocks = depthwise::ThreadBlocks(shape, product_.pass, workers);
    const int64_t at_once = std::min(resident, CeilDiv(blocks, device_.multiprocessors));
    const double step = StepClocks(tile, copying);
    const double clocks = Clocks(s, shape, workers, std::max(at_once * step, step + copying.latency_clocks)) +
                          Cuts(shape, workers) * copying.cut_clocks;
    const double seen = tile.has_pieces && s.images == 1 ? window_->depths_seen / s.depth_pieces : 1;
    const double compute = CeilDiv(blocks, places) * clocks * seen / device_.clock_hz;
    const double memory = product_.activation_bytes() / (device_.bandwidth * copying.bandwidth);
    const double slices = 2.0 * WorkspaceBytes(s) / device_.bandwidth + (s.split > 1 ? kLaunchSeconds : 0);
    return std::max(compute, memory) + copying.begin_seconds + kLaunchSeconds + slices;
  }

  int64_t WorkspaceBytes(const DepthwiseSettings& s) const { return SplitBytes(conv_, product_.pass, s.split); }

 private:
  static const DepthwiseTile& TileOf(const DepthwiseSettings& s) { return kDepthwiseTiles[s.tile]; }
  bool is_conv() const { return product_.pass == Pass::kConv; }
  bool is_volume() const { return product_.spatial_rank == kSpatial; }
  // See ThreadBlocks of layout.h.
  bool TakesPiecesInTurn(const DepthwiseTile& tile) const { return is_conv() && tile.has_pieces; }

  DepthwiseShape Shape(const DepthwiseSettings& s) const {
    return depthwise::MakeShape(conv_, product_.pass, TileOf(s), s.stream());
  }

  Reason UnsupportedProduct() const {
    const auto is_empty = [](const ArrayShape& array) { return std::ranges::count(array.sizes, 0) > 0; };
    if (product_.src_batch_grouped || product_.dst_batch_grouped) return "groups of images";
    if (is_empty(product_.src) || is_empty(product_.filter) || is_empty(product_.dst)) {
      return "nothing is to be computed";
    }
    if (Reason why = depthwise::UnsupportedProblem(conv_)) return why;
    if (product_.spatial_rank == 0) return "0 spatial dimensions";
    if (!is_conv() && std::ranges::max(product_.lhs_dilation) > 1) return "an input that is dilated";
    return std::nullopt;
  }

  Reason UnsupportedTile(const DepthwiseTile& tile) const {
    if (tile.has_copiers && !device_.wgmma) return "warps that copy are in kernels for compute capability 9.0";
    if (is_volume() && !tile.has_planes()) return "three spatial dimensions";
    if (!is_volume() && tile.depths > 1) return "taps in one plane";
    if (Reason why = depthwise::UnsupportedTile(conv_, product_.pass, tile)) return why;
    return depthwise::UnsupportedReach(*window_, conv_, product_.pass, tile);
  }

  // What the window lays down: its pieces, and a thread block's channels.
  DepthwiseSettings OfWindow(DepthwiseSettings s) const {
    const auto pieces = depthwise::PiecesOf(*window_, conv_, TileOf(s));
    s.channels = ChannelBytes(TileOf(s)) / ElementBytes(conv_.src_type);
    s.first_depth = window_->first[0], s.first_row = window_->first[1], s.first_col = window_->first[2];
    s.depth_pieces = pieces[0], s.row_pieces = pieces[1], s.col_pieces = pieces[2];
    s.rows_apart = window_->apart[0], s.cols_apart = window_->apart[1];
    return s;
  }

  // The most, if few of the channels are not there: neighbours in memory are copied faster.
  int64_t ChannelBytes(const DepthwiseTile& tile) const {
    constexpr double kMostWaste = 1.125;
    const int64_t there = conv_.groups * ElementBytes(conv_.src_type);
    int64_t bytes = MostChannelBytes(tile);
    while (bytes > kPieceBytes && CeilDiv(there, bytes) * bytes > kMostWaste * there) bytes /= 2;
    return bytes;
  }

  // Settings with an area, and with as many images as a thread block then covers. All images' rows are one's if else
  // many of its strips would be of no image.
  DepthwiseSettings WithArea(DepthwiseSettings s, int64_t rows, int64_t cols) const {
    const bool joins = JoinsImages(s) && 2 * cols > StripsOf(s) * kStripCols;
    const int64_t all_rows = depthwise::AllRows(conv_, s.stream()) * (joins ? product_.images() : 1);
    s.rows = std::min(rows, all_rows), s.cols = cols;
    s.images = joins ? 0 : std::max<int64_t>(1, StripsOf(s) / std::max<int64_t>(1, cols / kStripCols));
    Stream stream = s.stream();
    depthwise::FitImages(conv_, TileOf(s), &stream);
    s.images = stream.images;
    return s;
  }

  // Planes of volumes stay apart, also where there is one.
  bool JoinsImages(const DepthwiseSettings& s) const {
    return !is_volume() && depthwise::CanJoinImages(conv_, TileOf(s), s.stream());
  }

  int64_t StripsOf(const DepthwiseSettings& s) const {
    return MostStrips(TileOf(s), static_cast<int>(s.channels * ElementBytes(conv_.src_type)));
  }

  // The area that is asked for, or several: of each number of strips the most rows, and fewer, until there are tiles
  // for all thread blocks. Of a conv in pieces of the window until few rows are left, as a tile's sums are in shared
  // memory.
  std::vector<DepthwiseSettings> Areas(const DepthwiseSettings& s, const Asked& asked) const {
    const auto rows = asked.Find("rows"), cols = asked.Find("cols");
    if (rows && cols) return {WithArea(s, *rows, *cols)};
    std::vector<DepthwiseSettings> areas;
    for (const int64_t width : cols ? std::vector{*cols} : Widths(s)) AddAreas(s, rows, width, &areas);
    return areas;
  }

  // Columns that as few areas share as cover all; then twice as many areas, and on CUDA cores four times.
  std::vector<int64_t> Widths(const DepthwiseSettings& s) const {
    const int64_t strips = CeilDiv(CeilDiv(conv_.dst_size[2], s.cols_apart), kStripCols);
    const int64_t fewest = CeilDiv(strips, StripsOf(s)), most_times = TileOf(s).on_cuda_cores() ? 4 : 2;
    std::vector<int64_t> widths;
    for (int64_t times = 1; times <= most_times; times *= 2) {
      const int64_t width = CeilDiv(strips, fewest * times) * kStripCols;
      if (widths.empty() || width < widths.back()) widths.push_back(width);
    }
    return widths;
  }

  // Those of a width: of the rows that are asked for, or of several.
  void AddAreas(const DepthwiseSettings& s, std::optional<int64_t> rows, int64_t width,
                std::vector<DepthwiseSettings>* areas) const {
    const DepthwiseTile& tile = TileOf(s);
    const int64_t most_rows = depthwise::AllRows(conv_, s.stream()) * (JoinsImages(s) ? product_.images() : 1);
    const int64_t least_rows = tile.has_pieces ? tile.lags : 2 * tile.lags;
    int64_t last = 0;
    for (const int64_t segments : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64}) {
      const int64_t high = rows.value_or(CeilDiv(most_rows, segments));
      if (high == last || (segments > 1 && high < least_rows)) return;
      const DepthwiseSettings area = WithArea(s, high, width);
      const bool has_shape = !depthwise::UnsupportedStream(conv_, tile, area.stream());  // or Candidates says why
      const DepthwiseShape shape = has_shape ? Shape(area) : DepthwiseShape{};
      if (has_shape && !depthwise::CoversArea(shape, tile)) return;
      if (TakesPiecesInTurn(tile) && shape.places.end > device_.shared_bytes) continue;
      areas->push_back(area);
      last = high;
      if (has_shape && IsCutEnough(tile, shape, high)) return;
    }
  }

  // Whether areas of fewer rows would be of no use.
  bool IsCutEnough(const DepthwiseTile& tile, const DepthwiseShape& shape, int64_t rows) const {
    constexpr int64_t kFewRows = 8, kWaves = 4, kResident = 3;
    if (TakesPiecesInTurn(tile)) return rows <= std::max<int64_t>(kFewRows, 2 * tile.lags);
    return depthwise::Tiles(shape) * shape.channel_tiles > kWaves * kResident * device_.multiprocessors;
  }

  // As many thread blocks as there are places for at once; of pieces of the window, or of each of them.
  std::vector<int64_t> Splits(const DepthwiseSettings& s) const {
    if (is_conv() || depthwise::UnsupportedStream(conv_, TileOf(s), s.stream())) return {1};
    const DepthwiseShape shape = Shape(s);
    const int64_t places = Places(s, shape), all = Sharers(places, shape.channel_tiles, depthwise::Tiles(shape));
    const int64_t each = Sharers(places, int64_t{shape.channel_tiles} * shape.pieces, depthwise::Tiles(shape));
    return each < all ? std::vector{each, all} : std::vector{all};
  }

  // Thread blocks that the device holds.
  int64_t Places(const DepthwiseSettings& s, const DepthwiseShape& shape) const {
    const int most = depthwise::MostResident(TileOf(s), product_.pass);
    return device_.multiprocessors * ResidentBlocks(device_.shared_bytes + kBlockBytes, shape.places.end, most);
  }

  // Of columns: tiles of a thread block.
  static int64_t Cuts(const DepthwiseShape& shape, int64_t workers) {
    const int64_t rows = CeilDiv(shape.stream_rows, workers);
    return CeilDiv(rows, shape.rows) + (rows % shape.rows > 0);
  }

  // Of a thread block: its rows, and at each cut of a column those of the window. Where that is an image's edge, half
  // of them, as steps without a source row are left out: but not by a conv that takes the window's pieces in turn.
  double Clocks(const DepthwiseSettings& s, const DepthwiseShape& shape, int64_t workers, double step) const {
    const DepthwiseTile& tile = TileOf(s);
    const int64_t rows = CeilDiv(shape.stream_rows, workers), cuts = Cuts(shape, workers);
    if (!TakesPiecesInTurn(tile)) return (rows + (cuts + 1) * (tile.lags - 1) / 2) * step;
    return shape.pieces * ((rows + cuts * (tile.lags - 1)) * step + cuts * costs_["piece_clocks"]);
  }

  // Of how rows are copied.
  struct CopyCosts {
    double step_factor;     // of a step's clocks
    double latency_clocks;  // from a step to the next, whatever is done there
    double cut_clocks;      // of a thread block, from a tile to the next. Lines of a single row are all tiles of a row
    double begin_seconds;   // of a thread block, and its end
    double bandwidth;       // part of the memory's, of so many bytes of neighbouring channels
  };

  CopyCosts Copying(const DepthwiseTile& tile, const DepthwiseShape& shape) const {
    const std::string way = tile.by_tma ? "by_tma_" : tile.has_copiers ? "by_copiers_" : "by_all_";
    const std::string pass = is_conv() ? "conv_" : "wgrad_";
    const int64_t bytes = shape.channels * ElementBytes(conv_.src_type);
    return {costs_[way + pass + "step_factor"], costs_[way + "latency_clocks"], costs_[way + "cut_clocks"],
            costs_[way + pass + "begin_seconds"],
            costs_[way + "bandwidth_" + std::to_string(bytes)] * costs_[way + pass + "bandwidth_factor"]};
  }

  // A step's share of a multiprocessor: a multiplication of each warp, or a fused multiply-add of each lane; on tensor
  // cores also 16 source pixels of each strip, which are read.
  double StepClocks(const DepthwiseTile& tile, const CopyCosts& copying) const {
    if (tile.on_cuda_cores()) {
      return tile.slots() * tile.width * kStripCols * costs_["fma_clocks"] + costs_["step_clocks"];
    }
    // In pairs each of their rows has half.
    const double slots = tile.in_pairs ? tile.pairs() : tile.slots() * tile.blocks;
    const double blocks = tile.sources() * tile.blocks / (tile.in_pairs ? 2.0 : 1.0);
    const double multiplied = tile.channels * slots * costs_["multiplication_clocks"];
    return copying.step_factor * (multiplied + blocks * costs_["pixel_clocks"] + costs_["step_clocks"]);
  }

  const Product& product_;
  const ConvProblem& conv_;
  const Device& device_;
  const Numbers& costs_;
  Reason unsupported_;
  std::optional<depthwise::Window> window_;
};

}  // namespace jaxconv
