// Planning of the wgmma family: implicit GEMM on Hopper. TMA copies the pixels in its im2col mode or as halo tiles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "common/tiled_product.h"
#include "wgmma/config.h"
#include "wgmma/im2col.h"
#include "wgmma/settings.h"
#include "wgmma/support.h"
#include "wgmma/work_tiles.h"

namespace jaxconv {

// Fitted costs, looked up once for many settings. In seconds, unless a comment says otherwise.
struct WgmmaCosts {
  double begin, tile, result;
  double result_of_threads;  // that TMA does not store, because residue classes are not equally large
  double epilogue;           // of a result, besides
  double halo_pixel;
  double halo_int8;  // of an int8 result of a halo tile, besides
  double halos[2];   // of a plane, with one CTA per SM, and with two
  double cluster_wave, cluster_step, cluster_copy, cluster_cta;
  double cluster_held;        // fraction of the CTAs that fit, that clusters really fill, with cluster split-K
  double large_cluster_held;  // the same without, of clusters of more than two CTAs
  double few_channels;        // fraction of the time of skipped multiplications (blocks of few channels) that is saved
  double shared_sector_row;   // to copy a pixel's channels from L2, if neighbours share a sector
  double shared_sector_filter_row;  // the same for the filter: all CTAs read its few lines at the same time
  double reads_apart;               // how often a pixel is read, if windows are several pixels apart
  double activations;               // to move those of a group through device memory
  double wgrad_begin, wgrad_tile, wgrad_result;
  double wgrad_added;                 // to add a sum's slices in a cluster
  double wgrad_activations;           // of a group
  double wgrad_row, wgrad_apart_row;  // to copy 64 channels of a pixel: a line of L2, or parts of two
  double wgrad_wait;                  // from a copy to its operands
  std::vector<double> steps;          // to multiply a block of K, for each tile
};

// The product of each group.
struct GroupProduct {
  Product of_group;
  explicit GroupProduct(const Product& all) : of_group(all) { of_group.conv.groups = 1; }
};

// `product_` is a group's, and `all_` is that of all groups. A launch is of one, or of all: that depends on the tile.
class WgmmaPlanner : private GroupProduct, public TiledPlanner<WgmmaPlanner, WgmmaSettings> {
 public:
  static constexpr const char* kName = WgmmaSettings::kFamily;
  static constexpr const auto& kRules = wgmma::kRules;

  WgmmaPlanner(const Product& all, const Device& device)
      : GroupProduct(all), TiledPlanner(of_group, device), all_(all), unsupported_(FindMaps()) {
    if (!unsupported_) FindCosts();
  }

  Reason UnsupportedReason() const { return unsupported_; }
  bool IsFor(int64_t tile) const {
    const DType type = product_.conv.src_type;
    if (kTiles[tile].is_of_float32() && type != DType::kF32) return false;
    return kTiles[tile].bf16x6 == IsBF16x6() && (!IsByte(type) || kTiles[tile].HasConv(type));
  }
  using TiledPlanner::UnsupportedReason;

  WgmmaSettings WithExtra(const WgmmaSettings& s, const Requested& requested) const {
    WgmmaSettings extra = im2col_;
    extra.tile = s.tile, extra.split = s.split;
    extra.gradient_sums = requested.Find("gradient_sums").value_or(0);
    extra.rows_before = requested.Find("rows_before").value_or(0);
    extra.rows_after = requested.Find("rows_after").value_or(0);
    wgmma::FindRows(all_, &extra);
    return extra;
  }

  const Product& call() const { return all_; }

  Reason UnsupportedExtra(const WgmmaSettings& s) const {
    if (!product_.has_epilogue) return std::nullopt;
    return wgmma::UnsupportedEpilogue(product_.conv, kTiles[s.tile], s.split, product_.has_residual);
  }

  // With cluster split-K, the divisors of the tile's cluster size.
  std::vector<int64_t> SplitsOf(const WgmmaSettings& whole) const {
    if (IsWgrad()) return UnsupportedReason(whole) ? std::vector<int64_t>{1} : WgradSplitsOf(whole);
    const int most = kTiles[whole.tile].cluster_split;
    if (most == 0) return TiledPlanner::SplitsOf(whole);
    std::vector<int64_t> splits;
    for (int n = 1; n <= most; ++n) {
      if (most % n == 0) splits.push_back(n);
    }
    return splits;
  }

  int64_t GradientSumRows(const WgmmaSettings& s) const { return jaxconv::GradientSumRows(all_.conv, s); }

  int64_t Blocks(const WgmmaSettings& s) const { return WorkTilesOf(s) * CtasOfCluster(s); }

  // An operand is split once, and slices are added once, for all groups.
  double Seconds(const WgmmaSettings& s) const {
    const int64_t split = kTiles[s.tile].workspace_split(all_.pass, s.split);
    const auto launches = static_cast<double>(all_.conv.groups / GroupsOfLaunch(s));
    return launches * SecondsOfLaunch(s) + (launches - 1) * device_.next_group_seconds + PartsSeconds() +
           SlicesSeconds(all_, device_, costs_, split);
  }

 private:
  static constexpr int64_t kSectorBytes = 32;  // that L2 reads or writes at least

  int64_t GroupsOfLaunch(const WgmmaSettings& s) const {
    return GroupsAreColumns(all_.conv, all_.pass, kTiles[s.tile]) ? all_.conv.groups : 1;
  }

  // The tiles that a cluster computes one after another.
  double SecondsOfLaunch(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    if (IsWgrad()) return SecondsOfWgrad(s);
    if (tile.cluster_split > 0) return SecondsOfClusterSplit(s);
    const double steps = std::max(fitted_.steps[s.tile], StepsSeconds(s) / s.split);
    const double results = tile.rows * tile.cols;
    const double epilogue = s.split > 1 ? 0 : fitted_.epilogue;  // behind split-K another kernel ends sums
    const bool by_threads = s.split == 1 && LiveClasses(product_.conv) > 1 && !HasEqualClasses(product_.conv);
    const double stored = by_threads ? fitted_.result_of_threads : fitted_.result;
    const double end = fitted_.tile + results * (ResultWords(s.split) * stored + epilogue);
    const int64_t waves = CeilDiv(WorkTilesOf(s), ClustersHeld(tile.cluster(), 1));
    const int64_t ends = CeilDiv(waves, tile.ctas_per_sm);  // epilogues that no multiplication hides
    const double longest = steps * product_.longest_class(ScheduledClasses(s));
    const double multiplied = std::max({waves * steps, longest, SharedSectorSeconds(s)});
    const double reads = !tile.halo && AreApart() ? fitted_.reads_apart : 1;
    const double activations = reads * fitted_.activations * static_cast<double>(GroupsOfLaunch(s));
    const double copies = activations + end / tile.ctas_per_sm, busy = multiplied + ends * end;
    const double both = Overlapped(busy, copies);
    const bool is_slow = tile.halo && s.split == 1 && ResultType(product_.conv, product_.pass) == DType::kS8;
    const double int8 = is_slow ? static_cast<double>(waves) * results * fitted_.halo_int8 : 0;
    return fitted_.begin + both + int8;
  }

  // 16-bit words of a result, or of a slice's sum, which is float32.
  double ResultWords(int64_t split) const {
    return TraitsOf(split == 1 ? ResultType(product_.conv, product_.pass) : DType::kF32).bytes / 2.0;
  }

  bool IsWgrad() const { return product_.pass == Pass::kWgrad; }
  bool IsBF16x6() const { return product_.MultipliesFloat32(Float32::kBF16x6); }

  int64_t KBlocks() const { return jaxconv::KBlocks(product_.conv, IsBF16x6()); }

  // To split an operand into parts, where one is.
  double PartsSeconds() const {
    constexpr double kMovedBytes = 4 + kBF16Parts * 2;
    if (!IsBF16x6()) return 0;
    const auto elements = static_cast<double>(SplitElements(all_.conv, all_.pass));
    return device_.next_kernel_seconds + elements * kMovedBytes / device_.bandwidth;
  }

  int64_t CtasOfCluster(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    return tile.cluster() * (IsWgrad() ? tile.wgrad_cluster_split(s.split) : 1);
  }

  // Clusters that run at the same time, of so many CTAs each. Larger ones do not fill a GPU, because its
  // multiprocessors are in groups.
  int64_t ClustersHeld(int64_t ctas, int ctas_per_sm) const {
    const double held = ctas > 2 ? fitted_.large_cluster_held : 1;
    return std::max<int64_t>(1, static_cast<int64_t>(held * ctas_per_sm * device_.multiprocessors) / ctas);
  }
  int64_t WgradClustersHeld(const WgmmaTile& tile, int64_t parts) const {
    return ClustersHeld(tile.cluster() * parts, tile.ctas_per_sm);
  }

  // Of wgrad: for each number of slices that a cluster adds, those that fill waves of clusters. Each slice keeps
  // several steps.
  std::vector<int64_t> WgradSplitsOf(const WgmmaSettings& whole) const {
    const WgmmaTile& tile = kTiles[whole.tile];
    const int64_t tiles = WorkTilesOf(whole), most = std::min(kMaxSplit, WgradSteps(product_.conv, tile) / 4);
    std::set<int64_t> splits{1};
    // Steps of bf16x6 are long, so that the last wave's end counts more.
    const int64_t most_waves = tile.bf16x6 ? 2 * kMaxWaves : kMaxWaves;
    for (int64_t parts = 1; parts <= most && tile.TakesParts(parts); parts *= 2) {
      for (int64_t waves = 1; waves <= most_waves; ++waves) {
        const int64_t slices = std::min(waves * WgradClustersHeld(tile, parts) / tiles, most / parts);
        const int64_t even = tile.TakesParts(2 * parts) && slices % 2 == 0;  // a cluster would add twice as many
        splits.insert(parts * std::max<int64_t>(1, slices - even));
      }
    }
    return {splits.begin(), splits.end()};
  }

  Reason FindMaps() {
    const ConvProblem& p = all_.conv;
    if (Reason why = wgmma::UnsupportedTypes(p, product_.pass)) return why;
    if (product_.MultipliesFloat32(Float32::kFloat32)) return "float32 is to be multiplied as it is";
    if (Reason why = WithoutWgmmaInstruction(device_)) return why;
    if (Reason why = wgmma::UnsupportedSizes(p, product_.pass, IsBF16x6())) return why;
    if (Reason why = wgmma::FindIm2col(all_, &im2col_)) return why;
    if (!wgmma::UnsupportedHalo(p, im2col_)) plane_taps_ = wgmma::TapsOfPlanes(product_, im2col_);
    return std::nullopt;
  }

  // Residue classes with tiles to schedule.
  int64_t ScheduledClasses(const WgmmaSettings& s) const {
    return product_.classes() - ClassesOfZeros(product_.conv, s);
  }
  int64_t WorkTilesOf(const WgmmaSettings& s) const {
    const int64_t of_group = IsWgrad() ? WgradWorkTiles(product_.conv, s)
                                       : ClassWorkTiles(product_.conv, kTiles[s.tile], s.split) * ScheduledClasses(s);
    return of_group * GroupsOfLaunch(s);
  }

  // Pixels of the halo tile of kUnitRows positions.
  int64_t UnitPixels() const { return HaloSize(product_.conv, im2col_, 1) * HaloSize(product_.conv, im2col_, 2); }

  // Whether windows are several pixels apart, and have several taps within a plane of pixels.
  bool AreApart() const {
    const auto& step = product_.conv.step;
    return (step[1] != 1 || step[2] != 1) && UnitPixels() > kUnitRows;
  }

  // Blocks of K of a tile, on average: of all taps that its residue class sees. One with few channels saves a part of
  // the multiplications that are left out, but none in halo tiles of float32, which wait for copies.
  double Steps(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    const double k_blocks = KBlocks(), left_out = k_blocks - MultipliedKBlocks(tile);
    const bool is_tf32 = product_.conv.src_type == DType::kF32 && !tile.bf16x6;
    const bool saves = !tile.halo || !is_tf32;
    const double saved = saves ? fitted_.few_channels * left_out : 0;
    return (static_cast<double>(product_.conv.tap_count) + TapsOfRows(s)) / ScheduledClasses(s) * (k_blocks - saved);
  }

  // Taps that see neighbours' rows, on average: in im2col mode they are further steps of the tiles at an image's ends.
  double TapsOfRows(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    if (tile.halo || !s.has_rows()) return 0;
    const int dim = s.rows_dim();
    const auto rows = static_cast<double>(wgmma::RowsOfCluster(product_.conv, tile, dim));
    const double tiles_at_end = std::min(1.0, rows / static_cast<double>(product_.conv.dst_size[dim]));
    return tiles_at_end * static_cast<double>(s.taps_before + s.taps_after);
  }

  // Channels of 128 bytes: a line of L2, and the largest block of K.
  int SwizzleRow() const { return TraitsOf(product_.conv.src_type).swizzle_row(); }

  // Whole blocks of K that a tap's multiplications make up.
  double MultipliedKBlocks(const WgmmaTile& tile) const {
    const int64_t block_k = BlockK(product_.conv, IsBF16x6()), before_last = (KBlocks() - 1) * block_k;
    const int64_t least = std::min<int64_t>(block_k, SwizzleRow() / 2);
    const int64_t last = product_.conv.in_channels - before_last;
    return static_cast<double>(before_last + (tile.halo && last <= least ? least : block_k)) / SwizzleRow();
  }

  void FindCosts() {
    const Numbers& of = costs_;
    const char* const epilogue = IsByte(product_.conv.src_type) ? "epilogue_seconds_of_bytes" : "epilogue_seconds";
    fitted_ = {
        .begin = of["begin_seconds"],
        .tile = of["tile_seconds"],
        .result = of["result_seconds"],
        .result_of_threads = of["result_of_threads_seconds"],
        .epilogue = EpilogueSecondsOfResult(product_, of, epilogue),
        .halo_pixel = of["halo_pixel_seconds"],
        .halo_int8 = of["halo_int8_result_seconds"],
        .halos = {of["halos_seconds"], of["halos_seconds_of_two_ctas"]},
        .cluster_wave = of["cluster_wave_seconds"],
        .cluster_step = of["cluster_step_seconds"],
        .cluster_copy = of["cluster_copy_seconds"],
        .cluster_cta = of["cluster_cta_seconds"],
        .cluster_held = of["cluster_held"],
        .large_cluster_held = of["large_cluster_held"],
        .few_channels = of["few_channels"],
        .shared_sector_row = of["shared_sector_row_seconds"],
        .shared_sector_filter_row = of["shared_sector_filter_row_seconds"],
        .reads_apart = of["reads_apart"],
        .activations = ActivationSeconds(product_, device_, of),
        .wgrad_begin = of["wgrad_begin_seconds"],
        .wgrad_tile = of["wgrad_tile_seconds"],
        .wgrad_result = of["wgrad_result_seconds"],
        .wgrad_added = of["wgrad_added_seconds"],
        .wgrad_activations = product_.activation_bytes() / (of["wgrad_bandwidth"] * device_.bandwidth),
        .wgrad_row = of["wgrad_row_seconds"],
        .wgrad_apart_row = of["wgrad_apart_row_seconds"],
        .wgrad_wait = of["wgrad_wait_seconds"],
        .steps = {},
    };
    // Of 16-bit types. A block of K has 128 bytes, and takes as many clocks for other types.
    const double rate_of_halves = TensorCoreRate(device_, DType::kBF16);
    const DType type = product_.conv.src_type;
    const std::string of_type = type == DType::kF32  ? "of tf32 "
                                : type == DType::kS8 ? "of int8 "
                                : IsFloat8(type)     ? "of float8 "
                                                     : "";
    for (const WgmmaTile& tile : kTiles) {
      const bool is_fitted = IsWgrad() ? tile.HasWgrad(type) : tile.HasConv(type) && tile.cluster_split == 0;
      const std::string name = (tile.is_of_float32() ? "" : of_type) + tile.name();
      const double rate = rate_of_halves * device_.clock_hz * (is_fitted ? Efficiency(product_, of, name) : 1);
      // Of half as many channels; and halo tiles of float32 have twice as many positions.
      const double products = tile.bf16x6 ? kBF16x6Products / 2.0 : tile.has_tf32_halos() ? 2 : 1;
      fitted_.steps.push_back(products * tile.rows * tile.cols * kPlannedBlockK / rate);
    }
  }

  // To multiply a tile. With a halo tile, a plane with few taps is multiplied faster than the next plane is copied.
  double StepsSeconds(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    const double steps = Steps(s) * fitted_.steps[s.tile], k_blocks = KBlocks();
    if (!tile.halo) return steps;
    const double pixels = tile.rows / kUnitRows * UnitPixels();
    const double halos = fitted_.halos[tile.ctas_per_sm - 1] + pixels * fitted_.halo_pixel;
    double seconds = 0;
    for (int64_t taps : plane_taps_) {
      seconds += std::max(static_cast<double>(taps) / product_.residue_classes[0].tap_count * steps, k_blocks * halos);
    }
    return seconds;
  }

  // To copy all tiles' operands from L2 in im2col mode. It counts where rows of channels are no whole sectors: L2 then
  // gives less than TMA asks for. Of the filter it counts where rows are short, so that all CTAs read the same few
  // lines.
  double SharedSectorSeconds(const WgmmaSettings& s) const {
    const ConvProblem& p = product_.conv;
    const WgmmaTile& tile = kTiles[s.tile];
    if (tile.halo) return 0;
    const auto shares = [&](int64_t channels) { return channels * TraitsOf(p.src_type).bytes % kSectorBytes != 0; };
    const int64_t of_filter = IsKMajor(p) ? p.in_channels : p.out_channels;
    double step = 0;  // of a cluster
    if (shares(p.in_channels)) step += tile.row_blocks * tile.rows * fitted_.shared_sector_row;
    if (shares(of_filter) && of_filter < SwizzleRow()) {
      const int64_t rows = IsKMajor(p) ? std::min<int64_t>(tile.cols, p.out_channels) : BlockK(p, IsBF16x6());
      step += static_cast<double>(tile.col_blocks * rows) * fitted_.shared_sector_filter_row;
    }
    return static_cast<double>(WorkTilesOf(s)) * Steps(s) / s.split * step;
  }

  // To copy a step of wgrad in im2col mode.
  double WgradCopySeconds(const WgmmaTile& tile) const {
    const auto seconds = [&](int64_t channels, int64_t of_tile, int ctas) {
      const double row = channels % SwizzleRow() == 0 ? fitted_.wgrad_row : fitted_.wgrad_apart_row;
      return static_cast<double>(CeilDiv(of_tile, kBlockRows)) / ctas * kBlockRows * row;  // of 128 bytes
    };
    return seconds(product_.conv.in_channels, tile.rows, tile.col_blocks) +
           seconds(product_.conv.out_channels, tile.cols, tile.row_blocks);
  }

  // A step's share of the wait for its copy. All stages but the one that is multiplied are on their way, of each CTA of
  // a multiprocessor.
  double WgradWaitSeconds(const WgmmaTile& tile, double ctas) const {
    return fitted_.wgrad_wait / ((tile.stages - 1) * std::min<double>(ctas, tile.ctas_per_sm));
  }

  // Of wgrad: of the steps of a slice, the share that tiles take on average, and at most: see SeenSteps. A slice of
  // less than an image may be all seen.
  struct StepShares {
    double mean = 1, most = 1;
  };
  StepShares SharesOf(const WgmmaSettings& s) const {
    const ConvProblem& p = product_.conv;
    if (!LeavesOutSteps(p, s) || s.split > p.batch) return {};
    const WgmmaTile& tile = kTiles[s.tile];
    const int64_t k_blocks = CeilDiv(p.in_channels, kBlockRows);
    const int64_t of_cluster = tile.rows / WgradUnit(tile) * tile.row_blocks;
    StepShares shares{0, 0};
    int64_t clusters = 0;
    for (const ResidueClass& of : product_.residue_classes) {
      const int64_t units = of.tap_count * k_blocks;
      const auto shift = [&](int64_t unit) {
        return product_.taps[of.first_tap + unit / k_blocks].shift[s.rows_dim()];
      };
      for (int64_t first = 0; first < units; first += of_cluster, ++clusters) {
        const int64_t of_first = shift(first), of_last = shift(std::min(first + of_cluster, units) - 1);
        const double share = ShareOf(s, std::min(of_first, of_last), std::max(of_first, of_last));
        shares.mean += share, shares.most = std::max(shares.most, share);
      }
    }
    shares.mean /= static_cast<double>(clusters);
    return shares;
  }

  // Of an image's steps, those that taps between two shifts see.
  double ShareOf(const WgmmaSettings& s, int64_t low, int64_t high) const {
    const ConvProblem& p = product_.conv;
    const int dim = s.rows_dim();
    const int64_t count = ClassCounts(p, kTiles[s.tile])[dim];
    const int64_t all = ClassRows(p, kTiles[s.tile]) / p.batch;
    const int positions = WgradPositions(kTiles[s.tile], TraitsOf(p.src_type).bytes);
    const auto rows = [&](int64_t pixels) { return CeilDiv(std::max<int64_t>(0, pixels), p.step[dim]); };
    const int64_t seen = (std::min(rows(p.src_size[dim] - low), count) - rows(-high)) * (all / count);
    if (seen <= 0) return 0;
    return std::min(1.0, static_cast<double>(seen + positions - 1) / all);
  }

  // Tiles that a cluster computes one after another.
  double SecondsOfWgrad(const WgmmaSettings& s) const {
    const WgmmaTile& tile = kTiles[s.tile];
    const double steps = CeilDiv(WgradSteps(product_.conv, tile), s.split);
    const int64_t parts = tile.wgrad_cluster_split(s.split);
    const double sums = tile.rows * tile.cols, results = sums * ResultWords(s.split);
    const double added = parts > 1 ? sums * std::log2(CtasOfCluster(s)) : 0;
    const double end = fitted_.wgrad_tile + results * fitted_.wgrad_result + added * fitted_.wgrad_added;
    // CTAs of one multiprocessor multiply in turns, and end beside each other.
    const double waves = CeilDiv(WorkTilesOf(s), WgradClustersHeld(tile, parts));
    const double turns = CeilDiv(WorkTilesOf(s), ClustersHeld(CtasOfCluster(s), 1));
    const double copied = tile.halo ? 0 : std::max(WgradCopySeconds(tile), WgradWaitSeconds(tile, turns));
    const double step = std::max(fitted_.steps[s.tile], copied);
    const auto [mean, most] = SharesOf(s);  // the last turn has a tile of the most steps
    const double busy = ((turns - 1) * mean + most) * steps * step + waves * end;
    const double copies = fitted_.wgrad_activations * static_cast<double>(GroupsOfLaunch(s));
    return fitted_.wgrad_begin + Overlapped(busy, copies);
  }

  // With cluster split-K, which is not persistent. A block of K takes the time of its multiplication, or of its copies
  // from L2, which all CTAs share.
  double SecondsOfClusterSplit(const WgmmaSettings& s) const {
    const double ctas = WorkTilesOf(s), capacity = kTiles[s.tile].ctas_per_sm * device_.multiprocessors;
    const double held = std::max(1.0, std::floor(fitted_.cluster_held * capacity));
    const double waves = std::max(1.0, std::ceil(ctas / held)), steps = std::ceil(Steps(s) / s.split);
    const double step = std::max(fitted_.cluster_step, ctas / waves * fitted_.cluster_copy);
    return waves * (fitted_.cluster_wave + steps * step) + ctas * fitted_.cluster_cta;
  }

  const Product& all_;
  WgmmaCosts fitted_;
  WgmmaSettings im2col_;             // without tile and split
  std::vector<int64_t> plane_taps_;  // if halo tiles are supported
  Reason unsupported_;
};

}  // namespace jaxconv
