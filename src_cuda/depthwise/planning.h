// Planning of the depthwise family: the settings of a tile that support a problem, and their estimated time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/ctas_per_sm.h"
#include "common/planning.h"
#include "common/product.h"
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
  static constexpr const auto& kRules = depthwise::kRules;

  DepthwisePlanner(const Product& product, const Device& device)
      : product_(product), conv_(depthwise::InElements(product.conv)), device_(device), costs_(device.CostsOf(kName)) {
    unsupported_ = UnsupportedProduct();
    if (unsupported_) return;
    window_ = depthwise::FindWindow(product);
    if (!window_) unsupported_ = "nothing is to be computed";
  }

  static TileFields FieldsOfTile(int64_t tile) {
    const DepthwiseTile& t = kDepthwiseTiles[tile];
    const bool has_conv = t.Has(Pass::kConv), has_wgrad = t.Has(Pass::kWgrad);
    return {{"step", t.step},
            {"period", t.period},
            {"lags", t.lags},
            {"blocks", t.blocks},
            {"channels", t.channels},
            {"width", t.width},
            {"depths", t.depths},
            {"in_parts", t.in_parts},
            {"has_producers", t.has_producers},
            {"by_tma", t.by_tma},
            {"in_pairs", t.in_pairs},
            {"on_cuda_cores", t.on_cuda_cores()},
            {"has_conv", has_conv},
            {"has_wgrad", has_wgrad},
            {"of_bytes", t.of_bytes},
            {"sums_gradient", t.may_sum_gradient()}};
  }

  Reason UnsupportedReason() const { return unsupported_; }
  Reason UnsupportedUnlessNamed() const { return std::nullopt; }
  bool IsFor(int64_t tile) const { return kDepthwiseTiles[tile].IsFor(product_.conv.src_type); }

  // All settings that support the problem, or else the first, for its reason.
  std::vector<DepthwiseSettings> Candidates(int64_t tile, const Requested& requested) const {
    const auto split = requested.Find("split");
    const DepthwiseSettings fallback{
        .tile = tile, .split = split.value_or(1), .gradient_sums = requested.Find("gradient_sums").value_or(0)};
    if (UnsupportedTile(kDepthwiseTiles[tile])) return {fallback};
    const auto rows = requested.Find("rows"), cols = requested.Find("cols");
    if (rows.value_or(1) < 1 || cols.value_or(1) < 1) {
      return {{.tile = tile, .split = fallback.split, .rows = rows.value_or(1), .cols = cols.value_or(1)}};
    }
    std::vector<DepthwiseSettings> all;
    for (const DepthwiseSettings& s : OutputTiles(OfWindow(fallback), requested)) {
      for (const int64_t n : split ? std::vector{*split} : Splits(s)) {
        all.push_back(s);
        all.back().split = n;
      }
    }
    if (all.empty()) return {fallback};
    const DepthwiseSettings first = all.front();
    std::erase_if(all, [&](const DepthwiseSettings& s) { return UnsupportedReason(s).has_value(); });
    return all.empty() ? std::vector{first} : all;
  }

  Reason UnsupportedReason(const DepthwiseSettings& s) const {
    if (Reason why = UnsupportedTile(TileOf(s))) return why;
    if (s.rows == 0 && s.cols == 0) return "no output tile fits into shared memory";
    if (s.rows < 1 || s.cols < 1) return depthwise::NoStrips(s.rows, s.cols);
    if (Reason why = kRules.unsupported_reason(product_.conv, product_.pass, s)) return why;
    if (s.gradient_sums && window_->pixels >= TileOf(s).pixels()) {
      return "sums of a gradient where the window takes the last pixel";
    }
    return TooMuchSharedMemory(kRules.shared_bytes(product_.conv, product_.pass, s), device_);
  }

  // The CTAs of an SM share its rate of multiplications, a CTA may wait for its copies, and device memory takes time.
  // Then come the start and the end of the kernel, and the split-K reduction.
  double Seconds(const DepthwiseSettings& s) const {
    const DepthwiseTile& tile = TileOf(s);
    const DepthwiseShape shape = Shape(s);
    const CopyCosts copying = Copying(tile, shape);
    const int64_t capacity = CtaCapacity(s, shape), ctas_per_sm = capacity / device_.multiprocessors;
    const int64_t workers =
        is_conv() ? PersistentCtas(capacity, shape.channel_tiles, depthwise::Tiles(shape)) : s.split;
    const int64_t blocks = depthwise::ThreadBlocks(shape, product_.pass, workers);
    const int64_t at_once = std::min(ctas_per_sm, CeilDiv(blocks, device_.multiprocessors));
    const double step = StepClocks(tile, copying);
    const double clocks = Clocks(s, shape, workers, std::max(at_once * step, step + copying.latency_clocks)) +
                          Cuts(shape, workers) * copying.cut_clocks;
    const double seen = tile.in_parts && s.images == 1 ? window_->depths_seen / s.depth_parts : 1;
    const double compute = CeilDiv(blocks, capacity) * clocks * seen / device_.clock_hz;
    const double memory = BytesRead(shape) / (device_.bandwidth * copying.bandwidth);
    const double slices = 2.0 * WorkspaceBytes(s) / device_.bandwidth + (s.split > 1 ? device_.next_kernel_seconds : 0);
    return Overlapped(compute, memory) + copying.begin_seconds + device_.launch_seconds + slices;
  }

  int64_t GradientSumRows(const DepthwiseSettings& s) const { return jaxconv::GradientSumRows(s); }

  int64_t WorkspaceBytes(const DepthwiseSettings& s) const {
    return kRules.workspace_bytes(product_.conv, product_.pass, s);
  }

 private:
  static const DepthwiseTile& TileOf(const DepthwiseSettings& s) { return kDepthwiseTiles[s.tile]; }
  bool is_conv() const { return product_.pass == Pass::kConv; }
  bool is_volume() const { return product_.spatial_rank == kSpatial; }
  // Whether a CTA computes all parts of the window, one after another: see ThreadBlocks of layout.h.
  bool LoopsOverWindowParts(const DepthwiseTile& tile) const { return is_conv() && tile.in_parts; }

  DepthwiseShape Shape(const DepthwiseSettings& s) const { return depthwise::ShapeOf(product_.conv, product_.pass, s); }

  Reason UnsupportedProduct() const {
    if (Reason why = UnsupportedArrays(product_)) return why;
    if (Reason why = depthwise::UnsupportedProblem(product_.conv)) return why;
    if (product_.spatial_rank == 0) return "0 spatial dimensions";
    if (!is_conv() && std::ranges::max(product_.lhs_dilation) > 1)
      return "it has no weight gradients of a dilated input";
    return std::nullopt;
  }

  Reason UnsupportedTile(const DepthwiseTile& tile) const {
    if (tile.has_producers && !device_.wgmma) return "warps that copy are in kernels for compute capability 9.0";
    if (is_volume() && !tile.has_planes()) return "it does not take three spatial dimensions";
    if (!is_volume() && tile.depths > 1) return "it is for taps in several planes";
    if (Reason why = depthwise::UnsupportedTile(product_.conv, product_.pass, tile)) return why;
    return depthwise::UnsupportedReach(*window_, conv_, product_.pass, tile);
  }

  // Adds the settings that the window determines: its parts, and the channels of a CTA.
  DepthwiseSettings OfWindow(DepthwiseSettings s) const {
    const auto window_parts = depthwise::WindowPartsOf(*window_, conv_, TileOf(s));
    s.channels = ChannelBytes(TileOf(s)) / ElementBytes(conv_.src_type);
    s.first_depth = window_->first[0], s.first_row = window_->first[1], s.first_col = window_->first[2];
    s.depth_parts = window_parts[0], s.row_parts = window_parts[1], s.col_parts = window_parts[2];
    s.rows_apart = window_->apart[0], s.cols_apart = window_->apart[1];
    return s;
  }

  // Bytes of a pixel's channels in a CTA. More are better, because memory copies neighbours faster. But few of them
  // should be after the last channel.
  int64_t ChannelBytes(const DepthwiseTile& tile) const {
    constexpr double kMostWaste = 1.125;
    const int64_t all = conv_.groups * ElementBytes(conv_.src_type);
    int64_t bytes = MostChannelBytes(tile);
    while (bytes > kVectorBytes && CeilDiv(all, bytes) * bytes > kMostWaste * all) bytes /= 2;
    return bytes;
  }

  // Adds an output tile, and the images that a CTA then covers. The images are joined into one with all rows, if
  // otherwise many strips of the tile would be outside of all images.
  DepthwiseSettings WithOutputTile(DepthwiseSettings s, int64_t rows, int64_t cols) const {
    const bool joins = JoinsImages(s) && 2 * cols > StripsOf(s) * kStripCols;
    const int64_t all_rows = depthwise::AllRows(conv_, s.stream()) * (joins ? product_.images() : 1);
    s.rows = std::min(rows, all_rows), s.cols = cols;
    s.images = joins ? 0 : std::max<int64_t>(1, StripsOf(s) / std::max<int64_t>(1, cols / kStripCols));
    Stream stream = s.stream();
    depthwise::FitImages(conv_, TileOf(s), &stream);
    s.images = stream.images;
    return s;
  }

  // Images with three spatial dimensions are never joined, even if they have one plane.
  bool JoinsImages(const DepthwiseSettings& s) const {
    return !is_volume() && depthwise::CanJoinImages(conv_, TileOf(s), s.stream());
  }

  int64_t StripsOf(const DepthwiseSettings& s) const {
    return MostStrips(TileOf(s), static_cast<int>(s.channels * ElementBytes(conv_.src_type)));
  }

  // The requested output tile, or several. Each width is tried with the most rows, and with fewer, until there are
  // tiles for all CTAs. A conv with a window in parts keeps the sums of a tile in shared memory, so it goes on until
  // few rows are left.
  std::vector<DepthwiseSettings> OutputTiles(const DepthwiseSettings& s, const Requested& requested) const {
    const auto rows = requested.Find("rows"), cols = requested.Find("cols");
    if (rows && cols) return {WithOutputTile(s, *rows, *cols)};
    std::vector<DepthwiseSettings> tiles;
    for (const int64_t width : cols ? std::vector{*cols} : Widths(s)) AddOutputTiles(s, rows, width, &tiles);
    return tiles;
  }

  // Widths to try: with as few tiles across as possible, with twice as many, and on CUDA cores with four times as many.
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

  // Adds output tiles of a width, with the requested rows or with several numbers of rows.
  void AddOutputTiles(const DepthwiseSettings& s, std::optional<int64_t> rows, int64_t width,
                      std::vector<DepthwiseSettings>* tiles) const {
    const DepthwiseTile& tile = TileOf(s);
    const int64_t most_rows = depthwise::AllRows(conv_, s.stream()) * (JoinsImages(s) ? product_.images() : 1);
    constexpr int64_t kLeastRows = 2;  // of a conv: small layers wait for their steps, and have few of them then
    const int64_t least_rows = tile.in_parts ? tile.lags : is_conv() ? kLeastRows : 2 * tile.lags;
    int64_t last = 0;
    for (const int64_t segments : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64}) {
      const int64_t high = rows.value_or(CeilDiv(most_rows, segments));
      if (high == last || (segments > 1 && high < least_rows)) return;
      const DepthwiseSettings candidate = WithOutputTile(s, high, width);
      const bool has_shape = !depthwise::UnsupportedStream(conv_, tile, candidate.stream());  // see Candidates
      const DepthwiseShape shape = has_shape ? Shape(candidate) : DepthwiseShape{};
      if (has_shape && !depthwise::CoversOutputTile(shape, tile)) return;
      if (LoopsOverWindowParts(tile) && shape.offsets.end > device_.shared_bytes) continue;
      tiles->push_back(candidate);
      last = high;
      if (has_shape && HasEnoughTiles(tile, shape, high)) return;
    }
  }

  // Whether tiles with fewer rows are not worth a try.
  bool HasEnoughTiles(const DepthwiseTile& tile, const DepthwiseShape& shape, int64_t rows) const {
    constexpr int64_t kFewRows = 8, kWaves = 4, kCtasPerSm = 3;
    if (LoopsOverWindowParts(tile)) return rows <= std::max<int64_t>(kFewRows, 2 * tile.lags);
    return depthwise::Tiles(shape) * shape.channel_tiles > kWaves * kCtasPerSm * device_.multiprocessors;
  }

  // As many CTAs as fit at the same time: for all parts of the window together, or for each part.
  std::vector<int64_t> Splits(const DepthwiseSettings& s) const {
    if (is_conv() || depthwise::UnsupportedStream(conv_, TileOf(s), s.stream())) return {1};
    const DepthwiseShape shape = Shape(s);
    const int64_t capacity = CtaCapacity(s, shape),
                  all = PersistentCtas(capacity, shape.channel_tiles, depthwise::Tiles(shape));
    const int64_t each =
        PersistentCtas(capacity, int64_t{shape.channel_tiles} * shape.window_parts, depthwise::Tiles(shape));
    return each < all ? std::vector{each, all} : std::vector{all};
  }

  // Bytes of activations that are moved. In a wgrad, CTAs of each window part read all of them. What L2 has counts
  // less.
  double BytesRead(const DepthwiseShape& shape) const {
    const auto bytes = static_cast<double>(product_.activation_bytes());
    const bool is_cached = bytes <= device_.cached_bytes;
    const double first = is_cached ? costs_["cached_activations"] : 1;
    if (is_conv()) return bytes * first;
    return bytes * (first + (shape.window_parts - 1) * (is_cached ? costs_["cached_read"] : 1));
  }

  // CTAs that the device runs at the same time.
  int64_t CtaCapacity(const DepthwiseSettings& s, const DepthwiseShape& shape) const {
    const int most = depthwise::MaxCtasPerSm(TileOf(s), product_.pass);
    return device_.multiprocessors * CtasPerSm(device_.shared_bytes + kBlockBytes, shape.offsets.end, most);
  }

  // How many tiles a CTA starts. Each start begins a new column of rows.
  static int64_t Cuts(const DepthwiseShape& shape, int64_t workers) {
    const int64_t rows = CeilDiv(shape.stream_rows, workers);
    return CeilDiv(rows, shape.rows) + (rows % shape.rows > 0);
  }

  // The clocks of a CTA: for its rows, and at each start of a column also for the other rows of the window. At the
  // edge of an image, half of the latter have no source row and are skipped, but not in a conv that loops over parts of
  // the window.
  double Clocks(const DepthwiseSettings& s, const DepthwiseShape& shape, int64_t workers, double step) const {
    const DepthwiseTile& tile = TileOf(s);
    const int64_t rows = CeilDiv(shape.stream_rows, workers), cuts = Cuts(shape, workers);
    if (!LoopsOverWindowParts(tile)) return (rows + (cuts + 1) * (tile.lags - 1) / 2) * step;
    return shape.window_parts * ((rows + cuts * (tile.lags - 1)) * step + cuts * costs_["window_part_clocks"]);
  }

  // The fitted costs of one way to copy rows.
  struct CopyCosts {
    double step_factor;     // multiplies the clocks of a step
    double latency_clocks;  // the least from one step to the next
    double cut_clocks;      // from one tile of a CTA to the next
    double begin_seconds;   // start and end of a CTA
    double bandwidth;       // fraction of the memory's bandwidth, by the bytes of neighbouring channels
  };

  CopyCosts Copying(const DepthwiseTile& tile, const DepthwiseShape& shape) const {
    const std::string way = tile.by_tma ? "by_tma_" : tile.has_producers ? "by_producers_" : "by_all_";
    const std::string pass = is_conv() ? "conv_" : "wgrad_";
    const int64_t bytes = shape.channels * ElementBytes(conv_.src_type);
    return {costs_[way + pass + "step_factor"], costs_[way + "latency_clocks"], costs_[way + "cut_clocks"],
            costs_[way + pass + "begin_seconds"],
            costs_[way + "bandwidth_" + std::to_string(bytes)] * costs_[way + pass + "bandwidth_factor"]};
  }

  // The clocks of a step of one CTA: its multiplications, which are mma of each warp or fused multiply-adds of each
  // lane. On tensor cores also the reads of 16 source pixels for each strip.
  double StepClocks(const DepthwiseTile& tile, const CopyCosts& copying) const {
    if (tile.on_cuda_cores()) {
      return tile.slots() * tile.width * kStripCols * costs_["fma_clocks"] + costs_["step_clocks"];
    }
    // In pairs, two rows share a multiplication.
    const double slots = tile.in_pairs ? tile.pairs() : tile.slots() * tile.blocks;
    const double blocks = tile.sources() * tile.blocks / (tile.in_pairs ? 2.0 : 1.0);
    const double multiplied = tile.channels * slots * costs_["multiplication_clocks"];
    return copying.step_factor * (multiplied + blocks * costs_["pixel_clocks"] + costs_["step_clocks"]);
  }

  const Product& product_;
  const ConvProblem conv_;  // InElements
  const Device& device_;
  const Numbers& costs_;
  Reason unsupported_;
  std::optional<depthwise::Window> window_;
};

}  // namespace jaxconv
