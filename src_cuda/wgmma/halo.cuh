// The main loop of halo tiles: pixels are copied once for all taps of a plane.
//
// In im2col mode each tap reads its pixels anew. Narrow tiles then take more than L2 gives a multiprocessor. Here 64
// rows are a unit: positions of one image, 8 x 8 of them or 64 of a line. TMA copies the halo tile of pixels that all
// taps of a plane see. A tap's rows are in it from some pixel on: eight neighbours eight times, evenly apart. wgmma
// reads them as they lie: its descriptors may begin at any row of 128 bytes, and their groups of eight rows be any rows
// apart. With strides a tap reads pixels a step apart, which TMA copies side by side. Such pixels are a plane: there is
// one for each first row and column that is less than a step from the corner.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/ptx_barrier.cuh"
#include "common/ptx_hopper.cuh"
#include "common/stage_pipeline.cuh"
#include "common/tma_limits.h"
#include "wgmma/cluster.cuh"
#include "wgmma/filter.cuh"
#include "wgmma/params.cuh"
#include "wgmma/sums.cuh"
#include "wgmma/tile_order.cuh"

namespace jaxconv {

// A plane of pixels in one number: its depth from the positions', and its first row and column from their windows'
// corner, less than a step each.
struct HaloPlane {
  static constexpr int kBits = 3;
  static_assert(1 << kBits == kMaxElementStride, "a row, or column, of a step's has its bits");
  static __device__ __forceinline__ int32_t Join(int32_t depth, int32_t row, int32_t col) {
    return (depth << kBits | row) << kBits | col;
  }
  static __device__ __forceinline__ int32_t Depth(int32_t plane) { return plane >> 2 * kBits; }
  static __device__ __forceinline__ int32_t Row(int32_t plane) { return plane >> kBits & (1 << kBits) - 1; }
  static __device__ __forceinline__ int32_t Col(int32_t plane) { return plane & (1 << kBits) - 1; }
};

// A tap as the main loop needs it.
struct alignas(16) HaloTap {
  int32_t pixel;   // of the halo tile, that the first position sees
  int32_t plane;   // a HaloPlane
  int32_t filter;  // the filter's tap
  int32_t end;     // behind the plane's taps
};

// A part of a halo tile: where it lies, or null, and its first pixel of the halo tile.
struct HaloPart {
  const CUtensorMap* map;
  ptx::PixelCoord at;
  int32_t pixel;
};

template <typename T, WgmmaTile kTile, bool kKMajor>
struct WgmmaHaloStages {
  using Filter = WgmmaFilter<T, kTile, kKMajor>;
  // Stages of halo tiles. Of large ones there is one less.
  static constexpr int kStages = HaloStages(kTile), kLeastStages = kTile.ctas_per_sm == 1 ? 2 : 1;
  static constexpr int kProducers = kTile.ctas_per_sm == 1 ? 2 : 1;  // threads
  static constexpr int kUnits = kTile.rows / kUnitRows;
  static constexpr int kUnitBytes = HaloPixels(kTile) * kSwizzleBytes;
  static constexpr int kHaloBarriers = StagePipeline<kStages>::kBarriers;
  static constexpr int kBarriers = kHaloBarriers + StagePipeline<kTile.stages>::kBarriers;
  static_assert(HaloPixels(kTile) >= kLeastStages * kMostHaloPixels,
                "the next halo tiles are copied while these are read");
  static_assert(kUnitBytes % 1024 == 0, "what lies behind begins a turn of its swizzle");
  static_assert(kBlockK<T> * sizeof(T) == kSwizzleBytes,
                "a descriptor begins at any row of 128 bytes: it is swizzled by its address");
  static_assert(kUnitRows == 64 && kUnitRows % kResultRows == 0, "a unit is of the rows of one multiplication");
  static_assert(kMostHaloTaps < WgmmaThreads(kTile), "each tap has a thread that puts it in the table");
  static_assert(sizeof(HaloTap) * (kMostHaloTaps + 1) % 1024 == 0, "results behind it begin a turn of their swizzle");
  static_assert(kTile.cluster() == 1, "halo tiles are not shared");
  static_assert(!kTile.swap_ab, "units of positions are a multiplication's rows");

  char halos[kUnits][kUnitBytes];
  char filter[kTile.stages][Filter::kBytes];
  HaloTap taps[kMostHaloTaps + 1];

  static __device__ __forceinline__ StagePipeline<kStages> HaloPipeline(const WgmmaParams& p, uint32_t barriers) {
    const int stages = kTile.ctas_per_sm == 1 ? min(kStages, HaloPixels(kTile) / (p.halo_rows * p.halo_cols)) : 1;
    return StagePipeline<kStages>(barriers, 0, stages);
  }
  __device__ __forceinline__ uint32_t Halo(const WgmmaParams& p, int unit, int stage) const {
    return ptx::SharedAddress(halos[unit]) + stage * p.halo_rows * p.halo_cols * kSwizzleBytes;
  }

  static __device__ void InitBarriers(uint32_t barriers) {
    StagePipeline<kStages>(barriers).Init(1, ConsumerWarps(kTile));
    StagePipeline<kTile.stages>(barriers + kHaloBarriers * 8).Init(1, ConsumerWarps(kTile));
  }

  // Sorts the taps by their planes. Behind them is one that the filter does not have. To be called by all threads,
  // before the barrier behind which taps are read. They are the first residue class's: behind it is at most one of taps
  // that no position sees.
  __device__ void FillTaps(const WgmmaParams& p) {
    WgmmaWorkTile all;
    all.residue = 0;
    FindTaps(p, &all);
    const int32_t i = static_cast<int32_t>(threadIdx.x), count = all.steps.taps;
    if (count > kMostHaloTaps) __trap();
    HaloTap tap{0, 0, p.filter_taps, i + 1};
    if (i < count) tap = InHalo(p, p.taps[all.first_tap + i]);
    const bool is_one_plane = p.rank < kSpatial + 2 && p.step[1] == 1 && p.step[2] == 1;
    if (is_one_plane && i < count) tap.end = count;
    if (i <= count) taps[i] = tap;
    __syncthreads();
    if (is_one_plane) return;
    int32_t index = 0, end = 0;
    for (int32_t other = 0; other < count; ++other) {
      const int32_t plane = taps[other].plane;
      index += plane < tap.plane || (plane == tap.plane && other < i);
      end += plane <= tap.plane;
    }
    __syncthreads();
    if (i < count) taps[index] = {tap.pixel, tap.plane, tap.filter, end};
  }

  // Calls round(first tap, end, block of K, steps behind them) for each halo tile of a unit. Steps are a block of K's
  // taps, plane by plane.
  template <typename F>
  __device__ __forceinline__ void Rounds(const WgmmaSteps& steps, int32_t k_blocks, F&& round) const {
    int32_t k_block = 0, first = 0;
    if (steps.first == steps.taps * k_blocks) {  // zeros
      first = steps.taps;
    } else if (steps.first > 0) {  // a division takes long, and most tiles begin with the first step
      k_block = steps.first / steps.taps, first = steps.first % steps.taps;
    }
#pragma unroll 1
    for (int32_t left = steps.end - steps.first; left > 0;) {
      const int32_t last = min(taps[first].end, first + left);
      left -= last - first;
      round(first, last, k_block, left);
      first = last == steps.taps ? 0 : last;
      k_block += first == 0;
    }
  }

 private:
  // If halo tiles do not reach a tap, the plan is of another problem.
  static __device__ __forceinline__ HaloTap InHalo(const WgmmaParams& p, const Tap& tap) {
    const auto along = [&](int d, int32_t* rest) {
      const FastDivmod<int32_t> by_step(p.step[d], p.step_reciprocals[d - 1]);
      return by_step.Divide(tap.shift[d] - p.corner[d], rest);
    };
    int32_t row_phase, col_phase, rest;
    const int32_t row = along(1, &row_phase), col = along(2, &col_phase);
    const int32_t filter = FastDivmod<int32_t>(p.tap_stride, p.tap_reciprocal).Divide(tap.filter_delta, &rest);
    const bool has_depth = p.rank == kSpatial + 2 || tap.shift[0] == 0;
    const bool is_in_halo = has_depth && tap.shift[1] >= p.corner[1] && row <= p.halo_rows - p.unit_rows &&
                            tap.shift[2] >= p.corner[2] && col <= p.halo_cols - p.unit_cols;
    const bool is_tap = tap.filter_delta >= 0 && filter < p.filter_taps && rest == 0;
    if (!is_in_halo || !is_tap) __trap();
    return {row * p.halo_cols + col, HaloPlane::Join(tap.shift[0], row_phase, col_phase), filter};
  }
};

// Fills the stages: a thread with halo tiles, and one with the filter. So the next halo tiles are asked for as soon as
// there is room, not behind the taps before them.
template <typename T, WgmmaTile kTile, bool kKMajor>
class WgmmaHaloProducer {
 public:
  using Stages = WgmmaHaloStages<T, kTile, kKMajor>;

  __device__ WgmmaHaloProducer(const WgmmaParams& p, const Stages& stages, uint32_t barriers, int warp)
      : params_(p),
        rows_(p),
        stages_(stages),
        halos_(Stages::HaloPipeline(p, barriers)),
        filter_(barriers + Stages::kHaloBarriers * 8),
        copies_halos_(warp == 0),
        copies_filter_(warp == Stages::kProducers - 1) {}

  __device__ __forceinline__ void Find(const WgmmaWorkTile&) {}  // its taps are in shared memory

  // Copies this warp's share of a tile's halo tiles, and of the taps that follow each.
  __device__ __forceinline__ void Copy(const WgmmaWorkTile& tile) {
    params_.has_rows ? CopyRounds<true>(tile) : CopyRounds<false>(tile);
  }

 private:
  template <bool kHasRows>
  __device__ __forceinline__ void CopyRounds(const WgmmaWorkTile& tile) {
    const OperandOrigin origin(params_, tile.first_col);
    stages_.Rounds(tile.steps, params_.k_blocks, [&](int32_t first, int32_t last, int32_t k_block, int32_t) {
      const int32_t channel = k_block * params_.block_k;
      if (copies_halos_) {
        CopyHalos<kHasRows>(tile.first_row, stages_.taps[first].plane, origin.src_channel + channel,
                            first == tile.steps.taps);
      }
      if (!copies_filter_ || !ptx::ElectOne()) return;
      for (int32_t tap = first; tap < last; ++tap) {
        filter_.WaitUntilEmpty();
        ptx::ArriveExpecting(filter_.full(), Stages::Filter::kCols * Stages::Filter::kElementBytes * params_.block_k);
        Stages::Filter::Copy(params_, ptx::SharedAddress(stages_.filter[filter_.stage()]), filter_.full(),
                             origin.filter_channel + channel, origin.filter_col, stages_.taps[tap].filter,
                             ClusterCoord<kTile>());
        filter_.Advance();
      }
    });
  }

  // A lane copies a unit's, or where there are rows of neighbours, one of its parts. Zeros lie behind the last image.
  template <bool kHasRows>
  __device__ __forceinline__ void CopyHalos(int32_t first_row, int32_t plane, int32_t channel, bool are_zeros) {
    const int32_t corner[] = {HaloPlane::Depth(plane), params_.corner[1] + HaloPlane::Row(plane),
                              params_.corner[2] + HaloPlane::Col(plane)};
    const int lane = threadIdx.x % 32, unit = kHasRows ? lane % kPartLanes : lane;
    const ptx::PixelCoord at = InPixels(rows_.OfUnit(first_row / kUnitRows + unit), params_.step, corner);
    halos_.WaitUntilEmpty();
    if (lane == 0) {
      const int32_t pixels = Stages::kUnits * params_.halo_rows * params_.halo_cols;
      ptx::ArriveExpecting(halos_.full(), pixels * params_.block_k * sizeof(T));
    }
    __syncwarp();
    const HaloPart part = kHasRows ? PartOf(at, lane / kPartLanes) : HaloPart{&params_.src_map, at, 0};
    if (unit < Stages::kUnits && part.map != nullptr) {
      ptx::CopyBoxByTma(stages_.Halo(params_, unit, halos_.stage()) + part.pixel * kSwizzleBytes, *part.map,
                        halos_.full(), channel, part.at.w, part.at.h, part.at.d,
                        are_zeros ? static_cast<int32_t>(params_.problem.batch) : part.at.image);
    }
    halos_.Advance();
  }

  // The pixels of a halo tile that are in the image (0), in the rows before it (1), or in the rows after it (2). TMA
  // has no order of copies, so no two of them write to the same pixel.
  __device__ __forceinline__ HaloPart PartOf(const ptx::PixelCoord& at, int part) const {
    const WgmmaParams& p = params_;
    if (part > 2) return {nullptr, at, 0};
    const int32_t dim = p.rows_dim, first = Along(dim, at);
    const int32_t size = dim == 2 ? p.halo_cols : dim == 1 ? p.halo_rows : 1;
    const int32_t row = dim == 2 ? 1 : dim == 1 ? p.halo_cols : 0;  // pixels of it
    const int32_t before = first >= 0 ? 0 : dim == 0 ? min(1, p.rows_count[0]) : p.rows_count[0];
    const bool ends_behind = first + size > p.problem.src_size[dim];
    const int32_t after = !ends_behind ? 0 : dim == 0 ? min(1, p.rows_count[1]) : p.rows_count[1];
    if (part == 1) return {before > 0 ? &p.rows_maps[0] : nullptr, MovedAlong(dim, p.rows_shift[0], at), 0};
    if (part == 2) {
      const int32_t to = size - after;
      return {after > 0 ? &p.rows_maps[1] : nullptr, MovedAlong(dim, to + p.rows_shift[1], at), to * row};
    }
    if (before + after == 0) return {&p.src_map, at, 0};
    const CUtensorMap* const map = &p.part_maps[before == 0 ? 1 : after == 0 ? 0 : 2];
    return {before + after < size ? map : nullptr, MovedAlong(dim, before, at), before * row};
  }

  static constexpr int kPartLanes = 8;
  static_assert(Stages::kUnits <= kPartLanes, "a lane copies each part of each unit");

  const WgmmaParams& params_;
  RowPositions<kTile> rows_;
  const Stages& stages_;
  StagePipeline<Stages::kStages> halos_;
  StagePipeline<kTile.stages> filter_;
  bool copies_halos_;
  bool copies_filter_;
};

// A consumer warpgroup.
template <typename T, WgmmaTile kTile, bool kKMajor>
class WgmmaHaloConsumer : public WgmmaSumsOf<T, kTile, kKMajor> {
 public:
  using Stages = WgmmaHaloStages<T, kTile, kKMajor>;

  __device__ WgmmaHaloConsumer(const WgmmaParams& p, const Stages& stages, uint32_t barriers)
      : params_(p),
        stages_(stages),
        halos_(Stages::HaloPipeline(p, barriers)),
        filter_(barriers + Stages::kHaloBarriers * 8),
        first_unit_(this->FirstRow() / kUnitRows),
        line_(p.unit_rows == 1 ? 8 : p.halo_cols),
        layout_(Unit::Layout(line_)) {}

  // Sums up a tile; calls last() while the last halo tiles are multiplied. Halo tiles are released when they have been
  // multiplied: meanwhile the tensor cores have the other warpgroup's. A block with one stage of them calls last()
  // behind that: its next halo tile is copied meanwhile.
  template <typename Epilogue, typename Last>
  __device__ __forceinline__ void Multiply(const WgmmaSteps& steps, Epilogue&& epilogue, Last&& last) {
    constexpr auto kBlockKs = BlockKs(kBlockK<T>, Stages::Filter::kMmaDepth);
    constexpr bool kHasLast = std::decay_t<Epilogue>::kTakesBlocks && kBlockKs[3] < kBlockKs[2];
    bool adds = false;
    stages_.Rounds(steps, params_.k_blocks, [&](int32_t first, int32_t end, int32_t k_block, int32_t left) {
      const auto channels = static_cast<int32_t>(params_.problem.in_channels) - k_block * params_.block_k;
      uint32_t read;
      if (kHasLast && min(channels, params_.block_k) <= kBlockKs[3]) {
        read = MultiplyHalos<kBlockKs[kHasLast ? 3 : 2]>(first, end, adds, epilogue);
      } else if (min(channels, params_.block_k) <= kBlockKs[2]) {  // the rest of the block has no channels
        read = MultiplyHalos<kBlockKs[2]>(first, end, adds, epilogue);
      } else if (params_.block_k <= kBlockKs[1]) {
        read = MultiplyHalos<kBlockKs[1]>(first, end, adds, epilogue);
      } else {
        read = MultiplyHalos<kBlockKs[0]>(first, end, adds, epilogue);
      }
      if (Stages::kStages > 1 && left == 0) last();
      ptx::WarpgroupWait<0>();
      ReleaseInCluster<kTile>(read);
      ReleaseInCluster<kTile>(halos_.empty());
      if (Stages::kStages == 1 && left == 0) last();
      halos_.Advance();
      adds = true;
    });
    this->FinishAll();
  }

 private:
  // Units of 64 rows, as wgmma's descriptors say them.
  struct Unit {
    static __device__ __forceinline__ uint64_t Layout(uint32_t rows_apart) {
      return uint64_t{1} << 62 | static_cast<uint64_t>(rows_apart * 8) << 32 | 1 << 16;
    }
    static constexpr uint64_t Advance(int lines, int k) {
      return (lines / kUnitRows * Stages::kUnitBytes + k * kTraits<T>.mma_depth * sizeof(T)) / 16;
    }
  };

  // Begins the multiplications of taps with the halo tiles they see. Returns the last one's barrier, to be released.
  template <int kChannels, typename Epilogue>
  __device__ __forceinline__ uint32_t MultiplyHalos(int32_t first, int32_t end, bool adds, Epilogue&& epilogue) {
    halos_.WaitUntilFull();
    const uint32_t halo = stages_.Halo(params_, first_unit_, halos_.stage());
    return this->MultiplySteps(end - first, epilogue, [&](int32_t step) {
      return MultiplyTap<kChannels>(halo, first + step, adds || step > 0);
    });
  }

  // Begins a tap's multiplications. Returns its barrier, to be released.
  template <int kChannels>
  __device__ __forceinline__ uint32_t MultiplyTap(uint32_t halo, int32_t tap, bool adds) {
    filter_.WaitUntilFull();
    const uint32_t filter = ptx::SharedAddress(stages_.filter[filter_.stage()]), empty = filter_.empty();
    const uint32_t first = halo + stages_.taps[tap].pixel * kSwizzleBytes;
    if constexpr (kTile.bf16x6) {
      this->template MultiplyKBlock<kChannels>({first, line_ * kSwizzleBytes, Stages::kUnitBytes}, filter, adds);
    } else {
      this->template BeginKBlock<Unit, kChannels>(layout_ | first >> 4, filter, adds);
    }
    filter_.Advance();
    return empty;
  }

  const WgmmaParams& params_;
  const Stages& stages_;
  StagePipeline<Stages::kStages> halos_;
  StagePipeline<kTile.stages> filter_;
  int first_unit_;
  uint32_t line_;  // pixels from eight positions to the next eight
  uint64_t layout_;
};

}  // namespace jaxconv
