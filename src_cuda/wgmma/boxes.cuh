// The main loop of wgmma's tiles of boxes, whose pixels are copied once for all taps of a plane.
//
// L2 gives a multiprocessor less than its tensor cores take of narrow tiles, as each tap reads their pixels anew. Here
// 64 rows are positions of one image, 8 x 8 of them or 64 of a line, and TMA copies the box of pixels that all taps of
// a plane see. A tap's rows are in it from some pixel on: eight neighbours eight times, evenly apart. wgmma reads them
// as they lie, as its descriptors may begin at any row of 128 bytes, and their groups of eight rows be any rows apart.
// Of windows that are a step of several pixels apart, a tap reads pixels a step apart, which TMA copies side by side: a
// plane is of these, and each first row and column, less than a step from the corner, has one.
#pragma once

#include <cstdint>

#include "common/ptx_barrier.cuh"
#include "common/ptx_hopper.cuh"
#include "common/stage_ring.cuh"
#include "common/tma_limits.h"
#include "wgmma/filter.cuh"
#include "wgmma/params.cuh"
#include "wgmma/scheduler.cuh"
#include "wgmma/sums.cuh"

namespace jaxconv {

// A plane of pixels in one number: its depth from the positions' own, and its first row and column from their windows'
// corner, which are less than a step.
struct BoxPlane {
  static constexpr int kBits = 3;
  static_assert(1 << kBits == kMostElementStride, "a row, or column, of a step's has its bits");
  static __device__ __forceinline__ int32_t Join(int32_t depth, int32_t row, int32_t col) {
    return (depth << kBits | row) << kBits | col;
  }
  static __device__ __forceinline__ int32_t Depth(int32_t plane) { return plane >> 2 * kBits; }
  static __device__ __forceinline__ int32_t Row(int32_t plane) { return plane >> kBits & (1 << kBits) - 1; }
  static __device__ __forceinline__ int32_t Col(int32_t plane) { return plane & (1 << kBits) - 1; }
};

// A tap as the main loop needs it.
struct alignas(16) BoxTap {
  int32_t pixel;   // of a box, that the first position sees
  int32_t plane;   // a BoxPlane
  int32_t filter;  // the filter's tap
  int32_t end;     // behind the plane's taps
};

template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct WgmmaBoxStages {
  using Filter = WgmmaFilter<T, kTile, kAlongSteps>;
  // Of boxes, or, of large ones, one less.
  static constexpr int kStages = BoxStages(kTile), kLeastStages = kTile.resident == 1 ? 2 : 1;
  static constexpr int kCopiers = kTile.resident == 1 ? 2 : 1;  // threads
  static constexpr int kUnits = kTile.rows / kUnitRows;
  static constexpr int kUnitBytes = BoxPixels(kTile) * kSwizzleBytes;
  static constexpr int kBoxBarriers = StageRing<kStages>::kBarriers;
  static constexpr int kBarriers = kBoxBarriers + StageRing<kTile.stages>::kBarriers;
  static_assert(BoxPixels(kTile) >= kLeastStages * kMostBoxPixels, "the next ones are copied while boxes are read");
  static_assert(kUnitBytes % 1024 == 0, "what lies behind begins a turn of its swizzle");
  static_assert(kBlockK<T> * sizeof(T) == kSwizzleBytes,
                "boxes begin at any row of 128 bytes: it is swizzled by its address");
  static_assert(kUnitRows == 64 && kUnitRows % kResultRows == 0, "a unit is of the rows of one multiplication");
  static_assert(kMostBoxTaps < WgmmaThreads(kTile), "each tap has a thread that puts it in the table");
  static_assert(sizeof(BoxTap) * (kMostBoxTaps + 1) % 1024 == 0, "results behind it begin a turn of their swizzle");
  static_assert(kTile.cluster() == 1, "boxes are not shared");
  static_assert(!kTile.transposed, "units of positions are a multiplication's rows");

  char boxes[kUnits][kUnitBytes];
  char filter[kTile.stages][Filter::Tile::kBytes];
  BoxTap taps[kMostBoxTaps + 1];

  static __device__ __forceinline__ StageRing<kStages> BoxRing(const WgmmaParams& p, uint32_t barriers) {
    const int stages = kTile.resident == 1 ? min(kStages, BoxPixels(kTile) / (p.box_rows * p.box_cols)) : 1;
    return StageRing<kStages>(barriers, 0, stages);
  }
  __device__ __forceinline__ uint32_t Box(const WgmmaParams& p, int unit, int stage) const {
    return ptx::SharedAddress(boxes[unit]) + stage * p.box_rows * p.box_cols * kSwizzleBytes;
  }

  static __device__ void InitBarriers(uint32_t barriers) {
    StageRing<kStages>(barriers).Init(1, WgmmaReaders(kTile));
    StageRing<kTile.stages>(barriers + kBoxBarriers * 8).Init(1, WgmmaReaders(kTile));
  }

  // To be called by all threads, before the barrier behind which taps are read. They are sorted by their planes. Behind
  // a class's taps is one that the filter does not have.
  __device__ void FillTaps(const WgmmaParams& p) {
    const ResidueClass& all = p.classes[0];
    const auto i = static_cast<int32_t>(threadIdx.x);
    if (all.tap_count > kMostBoxTaps) __trap();
    BoxTap tap{0, 0, p.problem.tap_count, i + 1};
    if (i < all.tap_count) tap = InBoxes(p, p.taps[all.first_tap + i]);
    if (i <= all.tap_count) taps[i] = tap;
    __syncthreads();
    int32_t place = 0, end = 0;
    for (int32_t other = 0; other < all.tap_count; ++other) {
      const int32_t plane = taps[other].plane;
      place += plane < tap.plane || (plane == tap.plane && other < i);
      end += plane <= tap.plane;
    }
    __syncthreads();
    if (i < all.tap_count) taps[place] = {tap.pixel, tap.plane, tap.filter, end};
  }

  // Calls round(first tap, last, chunk, steps behind them) for all boxes of a work: steps are those of a chunk's taps,
  // plane by plane.
  template <typename F>
  __device__ __forceinline__ void Rounds(const WgmmaSteps& steps, int32_t chunks, F&& round) const {
    const bool are_zeros = steps.first == steps.taps * chunks;
    int32_t chunk = are_zeros ? 0 : steps.first / steps.taps;
    int32_t first = are_zeros ? steps.taps : steps.first % steps.taps;
#pragma unroll 1
    for (int32_t left = steps.end - steps.first; left > 0;) {
      const int32_t last = min(taps[first].end, first + left);
      left -= last - first;
      round(first, last, chunk, left);
      first = last == steps.taps ? 0 : last;
      chunk += first == 0;
    }
  }

 private:
  // The plan is of another problem, if a tap is where boxes do not reach.
  static __device__ __forceinline__ BoxTap InBoxes(const WgmmaParams& p, const Tap& tap) {
    const uint32_t row_step = p.problem.step[1], col_step = p.problem.step[2];
    const uint32_t row = static_cast<uint32_t>(tap.shift[1]) - p.corner[1];
    const uint32_t col = static_cast<uint32_t>(tap.shift[2]) - p.corner[2];
    const int32_t filter = tap.filter_delta / p.tap_stride;
    const bool is_in_box = row / row_step <= static_cast<uint32_t>(p.box_rows - p.unit_rows) &&
                           col / col_step <= static_cast<uint32_t>(p.box_cols - p.unit_cols);
    const bool is_tap = static_cast<uint32_t>(filter) < static_cast<uint32_t>(p.problem.tap_count);
    if (!is_in_box || !is_tap || filter * p.tap_stride != tap.filter_delta) __trap();
    return {static_cast<int32_t>(row / row_step * p.box_cols + col / col_step),
            BoxPlane::Join(tap.shift[0], row % row_step, col % col_step), filter};
  }
};

// What fills the stages: a thread for boxes, and one for the filter, so that the next boxes are asked for as soon as
// there is room, not behind the taps before them.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaBoxCopies {
 public:
  using Stages = WgmmaBoxStages<T, kTile, kAlongSteps>;

  __device__ WgmmaBoxCopies(const WgmmaParams& p, const Stages& stages, uint32_t barriers, int copier)
      : params_(p),
        rows_(p),
        stages_(stages),
        boxes_(Stages::BoxRing(p, barriers)),
        filter_(barriers + Stages::kBoxBarriers * 8),
        copies_boxes_(copier == 0),
        copies_filter_(copier == Stages::kCopiers - 1) {}

  __device__ __forceinline__ void Find(const WgmmaWork&) {}  // its taps are in shared memory

  // Copies this warp's share of a work's boxes, and of the taps that follow each.
  __device__ __forceinline__ void Copy(const WgmmaWork& work) {
    stages_.Rounds(work.steps, params_.chunks, [&](int32_t first, int32_t last, int32_t chunk, int32_t) {
      if (copies_boxes_) {
        CopyBoxes(work.first_row, stages_.taps[first].plane, chunk * kBlockK<T>, first == work.steps.taps);
      }
      if (!copies_filter_ || threadIdx.x % 32 != 0) return;
      for (int32_t tap = first; tap < last; ++tap) {
        filter_.WaitUntilEmpty();
        ptx::ArriveExpecting(filter_.full(), Stages::Filter::Tile::kBytes);
        Stages::Filter::Copy(params_, ptx::SharedAddress(stages_.filter[filter_.stage()]), filter_.full(),
                             chunk * kBlockK<T>, work.first_col, stages_.taps[tap].filter, 0);
        filter_.Advance();
      }
    });
  }

 private:
  // A lane for each unit. Zeros lie behind the last image.
  __device__ __forceinline__ void CopyBoxes(int32_t first_row, int32_t plane, int32_t channel, bool are_zeros) {
    const int32_t corner[] = {BoxPlane::Depth(plane), params_.corner[1] + BoxPlane::Row(plane),
                              params_.corner[2] + BoxPlane::Col(plane)};
    const int unit = threadIdx.x % 32;
    const ptx::PixelPlace at = InPixels(rows_.OfUnit(first_row / kUnitRows + unit), params_.problem.step, corner);
    boxes_.WaitUntilEmpty();
    if (unit == 0) {
      ptx::ArriveExpecting(boxes_.full(), Stages::kUnits * params_.box_rows * params_.box_cols * kSwizzleBytes);
    }
    __syncwarp();
    if (unit < Stages::kUnits) {
      ptx::CopyBoxByTma(stages_.Box(params_, unit, boxes_.stage()), params_.src_map, boxes_.full(), channel, at.w, at.h,
                        at.d, are_zeros ? static_cast<int32_t>(params_.problem.batch) : at.image);
    }
    boxes_.Advance();
  }

  const WgmmaParams& params_;
  RowPlaces<kTile> rows_;
  const Stages& stages_;
  StageRing<Stages::kStages> boxes_;
  StageRing<kTile.stages> filter_;
  bool copies_boxes_;
  bool copies_filter_;
};

// What a warpgroup multiplies.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
class WgmmaBoxProducts : public WgmmaSums<T, kTile, kAlongSteps> {
 public:
  using Stages = WgmmaBoxStages<T, kTile, kAlongSteps>;

  __device__ WgmmaBoxProducts(const WgmmaParams& p, const Stages& stages, uint32_t barriers)
      : params_(p),
        stages_(stages),
        boxes_(Stages::BoxRing(p, barriers)),
        filter_(barriers + Stages::kBoxBarriers * 8),
        first_unit_(this->FirstRow() / kUnitRows),
        layout_(Unit::Layout(p.unit_rows == 1 ? 8 : p.box_cols)) {}

  // The sums of a work; calls last() while the last boxes' are multiplied. Boxes are released at the end of their
  // multiplications: what the tensor cores do meanwhile is the other warpgroup's.
  template <typename Epilogue, typename Last>
  __device__ __forceinline__ void Multiply(const WgmmaSteps& steps, Epilogue&& epilogue, Last&& last) {
    bool adds = false;
    stages_.Rounds(steps, params_.chunks, [&](int32_t first, int32_t end, int32_t chunk, int32_t left) {
      const auto channels = static_cast<int32_t>(params_.problem.in_channels) - chunk * kBlockK<T>;
      uint32_t read;
      if (channels > kBlockK<T> / 2) {
        read = MultiplyBoxes<kBlockK<T>>(first, end, adds, epilogue);
      } else {
        read = MultiplyBoxes<kBlockK<T> / 2>(first, end, adds, epilogue);  // the other half has no channels
      }
      if (left == 0) last();
      ptx::WaitForMultiplications<0>();
      this->Release(read);
      this->Release(boxes_.empty());
      boxes_.Advance();
      adds = true;
    });
    this->FinishAll();
  }

 private:
  // Units of 64 rows as wgmma's descriptors say them.
  struct Unit {
    static __device__ __forceinline__ uint64_t Layout(uint32_t rows_apart) {
      return uint64_t{1} << 62 | static_cast<uint64_t>(rows_apart * 8) << 32 | 1 << 16;
    }
    static constexpr uint64_t Further(int lines, int k) {
      return (lines / kUnitRows * Stages::kUnitBytes + k * kTraits<T>.mma_depth * sizeof(T)) / 16;
    }
  };

  // Begins the multiplications of taps with the boxes they see; the last one's barrier, to be released.
  template <int kChannels, typename Epilogue>
  __device__ __forceinline__ uint32_t MultiplyBoxes(int32_t first, int32_t end, bool adds, Epilogue&& epilogue) {
    boxes_.WaitUntilFull();
    const uint32_t box = stages_.Box(params_, first_unit_, boxes_.stage());
    return this->MultiplySteps(end - first, epilogue, [&](int32_t step) {
      return MultiplyTap<kChannels>(box, first + step, adds || step > 0);
    });
  }

  // Begins a tap's multiplications; its barrier, to be released.
  template <int kChannels>
  __device__ __forceinline__ uint32_t MultiplyTap(uint32_t box, int32_t tap, bool adds) {
    filter_.WaitUntilFull();
    const uint32_t filter = ptx::SharedAddress(stages_.filter[filter_.stage()]), empty = filter_.empty();
    this->template BeginChunk<Unit, kChannels>(layout_ | (box + stages_.taps[tap].pixel * kSwizzleBytes) >> 4, filter,
                                               adds);
    filter_.Advance();
    return empty;
  }

  const WgmmaParams& params_;
  const Stages& stages_;
  StageRing<Stages::kStages> boxes_;
  StageRing<kTile.stages> filter_;
  int first_unit_;
  uint64_t layout_;
};

// The main loop of boxes.
template <typename T, WgmmaTile kTile, bool kAlongSteps>
struct WgmmaBoxes {
  static constexpr int kCopiers = WgmmaBoxStages<T, kTile, kAlongSteps>::kCopiers;
  using Stages = WgmmaBoxStages<T, kTile, kAlongSteps>;
  using Copies = WgmmaBoxCopies<T, kTile, kAlongSteps>;
  using Products = WgmmaBoxProducts<T, kTile, kAlongSteps>;
};

}  // namespace jaxconv
