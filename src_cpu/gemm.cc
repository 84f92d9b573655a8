// Convolutions as matrix products, without a matrix in memory: blocks of the source's im2col rows are packed through
// the tap table when their turn comes.
//
//   gather  dst[position, k] = rows[position, (tap, c)] * filter[(tap, c), k]
//   reduce  filter[(tap, c), k] = rows[position, (tap, c)]^T * grad[position, k]
//
// Both pack the same row-major block of rows (the left operand, transposed in a reduce) and panels of the right
// operand, in the type of the sums, and sweep the same register tile over them. Only packing and storing know
// number formats.
#include <cstdint>

#include "kernels.h"
#include "simd.h"
#include "work.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// The register tile is kTileRows x up to two vectors: as many accumulators as there are registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 12;
#elif defined(__AVX2__)
constexpr int kTileRows = 6;
#elif defined(__aarch64__)
constexpr int kTileRows = 8;
#else
constexpr int kTileRows = 4;
#endif

// Columns of a packed block, at most. The distance between its rows is fixed, so that a tile's rows are one pointer and
// constant displacements, and an odd number of cache lines, so that they fall into different cache sets.
template <typename T>
constexpr int64_t kDepth = 2048 / sizeof(T);
template <typename T>
constexpr int64_t kRowStride = kDepth<T> + 192 / sizeof(T);

constexpr int64_t kGatherRows = 96;   // rows of a block: it should fill a part of the second-level cache
constexpr int64_t kReduceRows = 192;  // here they are the reduction: the longer, the fewer passes over the sums
static_assert(kGatherRows % kTileRows == 0 && kReduceRows % kTileRows == 0);

constexpr int64_t kGatherColumns = 512;  // output channels of a block
constexpr int64_t kReduceColumns = 256;

// ---- The register tile ----------------------------------------------------------------------------------------------

template <typename T>
using TileFunction = void(int64_t depth, const T* a, const T* b, T* c, bool accumulate);

// c[r][k] (+)= sum over p of a(r, p) * b[p][k]; a(r, p) is a[r][p], or a[p][r] if transposed.
template <typename T, int vectors, int lanes, bool transposed>
void Tile(int64_t depth, const T* __restrict a, const T* __restrict b, T* __restrict c, bool accumulate) {
  using V = Vector<T, lanes>;
  constexpr int kColumns = vectors * lanes;
  V sums[kTileRows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v)
      sums[r][v] = accumulate ? LoadVector<T, lanes>(c + r * kColumns + v * lanes) : V{};

  for (int64_t p = 0; p < depth; ++p) {
    V right[vectors];
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) right[v] = LoadVector<T, lanes>(b + p * kColumns + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < kTileRows; ++r) {
      const T left = transposed ? a[p * kRowStride<T> + r] : a[r * kRowStride<T> + p];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] += left * right[v];
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kTileRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) StoreVector(sums[r][v], c + r * kColumns + v * lanes);
}

template <typename T>
struct TileShape {
  int64_t columns;
  TileFunction<T>* run;
};

// The tile for so many output channels: a narrower one where the wider one would compute more padding.
template <typename T, bool transposed>
TileShape<T> ChooseTile(int64_t channels) {
  constexpr int kShort = 16 / sizeof(T), kLong = kLanes<T>;
  if (channels <= kShort) return {kShort, Tile<T, 1, kShort, transposed>};
  if (RoundUp(channels, kLong) < RoundUp(channels, 2 * kLong)) return {kLong, Tile<T, 1, kLong, transposed>};
  return {2 * kLong, Tile<T, 2, kLong, transposed>};
}

// Sweeps the tile over a block of sums [panels][tiles][kTileRows][columns].
template <typename T>
void Sweep(const TileShape<T>& tile, int64_t depth, const T* a, int64_t a_stride, int64_t tiles, const T* b,
           int64_t b_stride, int64_t panels, T* c, bool accumulate) {
  for (int64_t j = 0; j < panels; ++j)
    for (int64_t i = 0; i < tiles; ++i, c += kTileRows * tile.columns)
      tile.run(depth, a + i * a_stride, b + j * b_stride, c, accumulate);
}

// ---- Packing --------------------------------------------------------------------------------------------------------

// Columns of the im2col rows of one class: whole taps, or a part of one tap's channels.
struct Slice {
  int32_t tap;
  int32_t taps;
  int64_t channel;
  int64_t channels;

  int64_t columns() const { return taps * channels; }
};

// The columns of a class cut into slices of at most `depth`, about equally long.
class Slices {
 public:
  Slices(int32_t taps, int64_t channels, int64_t depth) : taps_(taps), channels_(channels) {
    if (taps * channels == 0) return;
    channel_cuts_ = CeilDiv(channels, depth);
    tap_cuts_ = channel_cuts_ > 1 ? taps : CeilDiv(taps, depth / channels);
  }

  int64_t count() const { return tap_cuts_ * channel_cuts_; }

  Slice operator[](int64_t i) const {
    if (count() == 0) return {};
    const int64_t t = i / channel_cuts_, c = i % channel_cuts_;
    const int64_t tap = t * taps_ / tap_cuts_, channel = c * channels_ / channel_cuts_;
    return {static_cast<int32_t>(tap), static_cast<int32_t>((t + 1) * taps_ / tap_cuts_ - tap), channel,
            (c + 1) * channels_ / channel_cuts_ - channel};
  }

 private:
  int64_t taps_, channels_;
  int64_t tap_cuts_ = 0, channel_cuts_ = 0;
};

// Where the positions of a block read and write, relative to their group.
struct Positions {
  int64_t count;
  int64_t src[kReduceRows];
  int64_t dst[kReduceRows];
  int64_t base[kReduceRows][kSpatial];

  void Locate(const ConvProblem& p, const ResidueClass& cls, int64_t first, int64_t n) {
    count = n;
    if (n <= 0) return;
    int64_t q[kSpatial], image = first;
    for (int i = kSpatial - 1; i >= 0; --i) {
      q[i] = image % cls.count[i];
      image /= cls.count[i];
    }
    for (int64_t r = 0; r < n; ++r) {
      src[r] = image * p.src.batch;
      dst[r] = image * p.dst.batch;
      for (int i = 0; i < kSpatial; ++i) {
        base[r][i] = q[i] * p.step[i];
        src[r] += base[r][i] * p.src.spatial[i];
        dst[r] += (cls.phase[i] + q[i] * p.period[i]) * p.dst.spatial[i];
      }
      int i = kSpatial - 1;
      while (i >= 0 && ++q[i] == cls.count[i]) q[i--] = 0;
      image += i < 0;
    }
  }
};

// For each tap, how many taps from it on in its class are neighbours in a source row: those are copied at once.
void FindRuns(const ConvCall& call, int32_t* runs) {
  const ConvProblem& p = call.problem;
  for (int32_t c = 0; c < p.class_count; ++c) {
    const ResidueClass& cls = call.classes[c];
    for (int32_t t = cls.first_tap + cls.tap_count - 1; t >= cls.first_tap; --t) {
      const Tap &tap = call.taps[t], &next = call.taps[t + 1];
      const bool joined = t + 1 < cls.first_tap + cls.tap_count && p.src.channel == 1 &&
                          next.src_delta == tap.src_delta + p.in_channels && next.shift[0] == tap.shift[0] &&
                          next.shift[1] == tap.shift[1] && next.shift[2] == tap.shift[2] + 1;
      runs[t] = joined ? runs[t + 1] + 1 : 1;
    }
  }
}

// One group of the source, seen by one class.
struct Source {
  const ConvProblem& problem;
  const void* data;
  const Tap* taps;
  const int32_t* runs;
};

template <typename T, typename S>
void PackContiguousRow(const Source& source, const Positions& at, int64_t r, const Slice& slice, T* out) {
  const int64_t* size = source.problem.src_size;
  const S* from = static_cast<const S*>(source.data) + at.src[r] + slice.channel;
  const int32_t end = slice.tap + slice.taps;
  for (int32_t t = slice.tap; t < end;) {
    const Tap& tap = source.taps[t];
    const int64_t length = Min(source.runs[t], end - t);
    const int64_t w = at.base[r][2] + tap.shift[2];
    int64_t low = 0, high = 0;  // the part of the run that lies in the source
    if (Inside(at.base[r][0] + tap.shift[0], size[0]) && Inside(at.base[r][1] + tap.shift[1], size[1])) {
      low = Min(Max<int64_t>(-w, 0), length);
      high = Max(Min(size[2] - w, length), low);
    }
    if (low > 0) Zero(low * slice.channels, out);
    Convert(from + tap.src_delta + low * slice.channels, (high - low) * slice.channels, out + low * slice.channels);
    if (high < length) Zero((length - high) * slice.channels, out + high * slice.channels);
    out += length * slice.channels;
    t += length;
  }
}

// Channels apart from each other, or a single one: position after position, because those are more likely neighbours.
template <typename T, typename S>
void PackStridedTap(const Source& source, const Positions& at, const Tap& tap, const Slice& slice, T* out) {
  const ConvProblem& p = source.problem;
  int64_t offset[kReduceRows];
  bool inside[kReduceRows];
  for (int64_t r = 0; r < at.count; ++r) {
    inside[r] = true;
    for (int i = 0; i < kSpatial; ++i) inside[r] &= Inside(at.base[r][i] + tap.shift[i], p.src_size[i]);
    offset[r] = at.src[r] + tap.src_delta;
  }
  for (int64_t c = 0; c < slice.channels; ++c) {
    const S* from = static_cast<const S*>(source.data) + (slice.channel + c) * p.src.channel;
    for (int64_t r = 0; r < at.count; ++r)
      out[r * kRowStride<T> + c] = inside[r] ? Load<T>(from[offset[r]]) : T{};
  }
}

template <typename T>
using PackRowsFunction = void(const Source& source, const Positions& at, const Slice& slice, T* rows);

// Packs the slice of the positions' im2col rows, with zeros where a tile reaches over the end.
template <typename T, typename S>
void PackRows(const Source& source, const Positions& at, const Slice& slice, T* rows) {
  const int64_t columns = slice.columns();
  if (source.problem.src.channel == 1 && source.problem.in_channels > 1) {
    for (int64_t r = 0; r < at.count; ++r)
      PackContiguousRow<T, S>(source, at, r, slice, rows + r * kRowStride<T>);
  } else {
    for (int32_t t = 0; t < slice.taps; ++t)
      PackStridedTap<T, S>(source, at, source.taps[slice.tap + t], slice, rows + t * slice.channels);
  }
  for (int64_t r = 0; r < at.count; ++r)
    for (int i = 0; i < kTileRows; ++i) rows[r * kRowStride<T> + columns + i] = T{};
  for (int64_t r = at.count; r < RoundUp(at.count, kTileRows); ++r) Zero(columns, rows + r * kRowStride<T>);
}

template <typename T>
using PackPanelFunction = void(const void* data, const int64_t* offsets, int64_t n, int64_t inner, int64_t inner_stride,
                               int64_t lane_stride, int64_t lanes, int64_t columns, T* panel);

// Packs a panel [n][inner][columns] of the right operand, of which `lanes` columns exist.
template <typename T, typename S>
void PackPanel(const void* data, const int64_t* offsets, int64_t n, int64_t inner, int64_t inner_stride,
               int64_t lane_stride, int64_t lanes, int64_t columns, T* panel) {
  if (lanes < columns) Zero(n * inner * columns, panel);
  for (int64_t i = 0; i < n; ++i, panel += inner * columns) {
    const S* from = static_cast<const S*>(data) + offsets[i];
    if (lane_stride == 1) {
      for (int64_t c = 0; c < inner; ++c) Convert(from + c * inner_stride, lanes, panel + c * columns);
      continue;
    }
    constexpr int64_t kInnerBlock = 32;  // so many lines of the panel stay in the first-level cache
    for (int64_t first = 0; first < inner; first += kInnerBlock)
      for (int64_t l = 0; l < lanes; ++l)
        for (int64_t c = first; c < Min(first + kInnerBlock, inner); ++c)
          panel[c * columns + l] = Load<T>(from[c * inner_stride + l * lane_stride]);
  }
}

// ---- Work -----------------------------------------------------------------------------------------------------------

template <typename T>
class Gather {
 public:
  Gather(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        tile_(ChooseTile<T, false>(p_.out_channels)),
        panels_(CeilDiv(p_.out_channels, tile_.columns)),
        block_panels_(BlockPanels(workers.threads())),
        column_blocks_(CeilDiv(panels_, block_panels_)),
        blocks_(p_, [&](int32_t c) { return RowBlocks(c) * column_blocks_ * p_.groups; }),
        runs_(p_.tap_count),
        filter_(p_.tap_count * p_.groups * p_.in_channels * panels_ * tile_.columns),
        scratch_(workers.threads() * ScratchSize()),
        positions_(workers.threads()) {
    FindRuns(call, runs_.data());
    WithStorage<T>(p_.src_type, [&](auto s) { pack_rows_ = PackRows<T, decltype(s)>; });
    WithStorage<T>(p_.filter_type, [&](auto s) { pack_panel_ = PackPanel<T, decltype(s)>; });
    WithStorage<T>(p_.dst_type, [&](auto s) { store_rows_ = StoreRows<decltype(s), T>; });
  }

  void Run(const Workers& workers) const {
    const double filter_size = static_cast<double>(p_.tap_count) * p_.groups * p_.in_channels * p_.out_channels;
    workers.For(p_.class_count * p_.groups * panels_, filter_size, [this](int64_t, int64_t item) { PackFilter(item); });
    workers.For(blocks_.total(), MultiplyAdds(call_), [this](int64_t slot, int64_t item) { Block(slot, item); });
  }

 private:
  int64_t RowBlocks(int32_t c) const { return CeilDiv(PositionCount(p_, call_.classes[c]), kGatherRows); }

  // Panels of one block: all that fit, unless that leaves threads without work.
  int64_t BlockPanels(int64_t threads) const {
    constexpr int64_t kBlocksPerThread = 4;
    int64_t row_blocks = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) row_blocks += RowBlocks(c) * p_.groups;
    const int64_t wanted = CeilDiv(kBlocksPerThread * threads, Max<int64_t>(row_blocks, 1));
    return Min(kGatherColumns / tile_.columns, CeilDiv(panels_, wanted));
  }

  int64_t ScratchSize() const {
    return kGatherRows * kRowStride<T> + block_panels_ * kGatherRows * tile_.columns;
  }

  T* FilterPanel(const ResidueClass& cls, int64_t group, int64_t panel) const {
    const int64_t columns = static_cast<int64_t>(cls.first_tap) * p_.groups + group * cls.tap_count;
    return filter_.data() + (columns * panels_ + panel * cls.tap_count) * p_.in_channels * tile_.columns;
  }

  void PackFilter(int64_t item) const {
    const int64_t panel = Take(&item, panels_), group = Take(&item, p_.groups);
    const ResidueClass& cls = call_.classes[item];
    const int64_t k = panel * tile_.columns;
    T* to = FilterPanel(cls, group, panel);
    for (int32_t t = 0; t < cls.tap_count; ++t, to += p_.in_channels * tile_.columns) {
      const int64_t offset =
          call_.taps[cls.first_tap + t].filter_delta + group * p_.filter.group + k * p_.filter.out;
      pack_panel_(call_.rhs, &offset, 1, p_.in_channels, p_.filter.in, p_.filter.out,
                  Min(tile_.columns, p_.out_channels - k), tile_.columns, to);
    }
  }

  void Block(int64_t slot, int64_t item) const {
    const int32_t c = blocks_.Find(&item);
    const ResidueClass& cls = call_.classes[c];
    const int64_t row = Take(&item, RowBlocks(c)) * kGatherRows;
    const int64_t panel = Take(&item, column_blocks_) * block_panels_, group = item;
    const int64_t panels = Min(block_panels_, panels_ - panel);

    Positions& at = positions_[slot];
    at.Locate(p_, cls, row, Min(kGatherRows, PositionCount(p_, cls) - row));
    T* rows = scratch_.data() + slot * ScratchSize();
    T* sums = rows + kGatherRows * kRowStride<T>;
    const int64_t tiles = CeilDiv(at.count, kTileRows);

    const Source source{p_, Offset(call_.src, p_.src_type, group * p_.src.group), call_.taps + cls.first_tap,
                        runs_.data() + cls.first_tap};
    const T* filter = FilterPanel(cls, group, panel);
    const Slices slices(cls.tap_count, p_.in_channels, kDepth<T>);
    int64_t i = 0;
    do {  // once even with nothing to sum: those positions are zero
      const Slice slice = slices[i];
      pack_rows_(source, at, slice, rows);
      Sweep(tile_, slice.columns(), rows, kTileRows * kRowStride<T>, tiles,
            filter + (slice.tap * p_.in_channels + slice.channel) * tile_.columns,
            cls.tap_count * p_.in_channels * tile_.columns, panels, sums, i > 0);
    } while (++i < slices.count());
    StoreBlock(at, group, panel, panels, sums, tiles * kTileRows * tile_.columns);
  }

  void StoreBlock(const Positions& at, int64_t group, int64_t panel, int64_t panels, const T* sums,
                  int64_t panel_size) const {
    for (int64_t j = 0; j < panels; ++j) {
      const int64_t k = (panel + j) * tile_.columns;
      const int64_t offset = group * p_.dst.group + k * p_.dst.channel;
      store_rows_(sums + j * panel_size, tile_.columns, at.dst, at.count, p_.dst.channel,
                  Min(tile_.columns, p_.out_channels - k),
                  const_cast<void*>(Offset(call_.result, p_.dst_type, offset)));
    }
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const TileShape<T> tile_;
  const int64_t panels_;
  const int64_t block_panels_;
  const int64_t column_blocks_;
  const ClassItems blocks_;
  const Buffer<int32_t> runs_;
  const Buffer<T> filter_;  // [class][group][panel][tap, c][column]
  const Buffer<T> scratch_;
  const Buffer<Positions> positions_;
  PackRowsFunction<T>* pack_rows_;
  PackPanelFunction<T>* pack_panel_;
  StoreRowsFunction<T>* store_rows_;
};

// The sums of a weight gradient run over all positions. Where there are few outputs, the positions are split into parts
// that depend on the problem only, and the parts' sums are added in their order: the same bits for any threads.
template <typename T>
class Reduce {
 public:
  Reduce(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        tile_(ChooseTile<T, true>(p_.out_channels)),
        panels_(CeilDiv(p_.out_channels, tile_.columns)),
        block_panels_(Min(kReduceColumns / tile_.columns, panels_)),
        column_blocks_(CeilDiv(panels_, block_panels_)),
        blocks_(p_, [&](int32_t c) { return ClassSlices(c).count() * column_blocks_ * p_.groups; }),
        parts_(Parts()),
        block_rows_(BlockRows()),
        runs_(p_.tap_count),
        sums_((parts_ > 1 ? blocks_.total() * parts_ : workers.threads()) * SumsSize()),
        scratch_(workers.threads() * ScratchSize()),
        positions_(workers.threads()) {
    FindRuns(call, runs_.data());
    WithStorage<T>(p_.src_type, [&](auto s) { pack_rows_ = PackRows<T, decltype(s)>; });
    WithStorage<T>(p_.dst_type, [&](auto s) { pack_panel_ = PackPanel<T, decltype(s)>; });
    WithStorage<T>(p_.filter_type, [&](auto s) { store_rows_ = StoreRows<decltype(s), T>; });
  }

  void Run(const Workers& workers) const {
    const double work = MultiplyAdds(call_);
    if (parts_ == 1) {
      workers.For(blocks_.total(), work, [this](int64_t slot, int64_t block) {
        Sum(slot, block, 0, PartSums(slot));
        StoreBlock(block, PartSums(slot));
      });
      return;
    }
    workers.For(blocks_.total() * parts_, work, [this](int64_t slot, int64_t item) {
      Sum(slot, item / parts_, item % parts_, PartSums(item));
    });
    workers.For(blocks_.total(), static_cast<double>(blocks_.total()) * parts_ * SumsSize(),
                [this](int64_t, int64_t block) {
                  T* sums = PartSums(block * parts_);
                  for (int64_t part = 1; part < parts_; ++part) {
                    const T* more = PartSums(block * parts_ + part);
                    for (int64_t i = 0; i < SumsSize(); ++i) sums[i] += more[i];
                  }
                  StoreBlock(block, sums);
                });
  }

 private:
  // What a block computes: a slice of one class's filter rows x some panels, of one group.
  struct Place {
    int32_t cls;
    Slice slice;
    int64_t panel;
    int64_t panels;
    int64_t group;
  };

  Place Locate(int64_t block) const {
    Place place;
    place.cls = blocks_.Find(&block);
    const Slices slices = ClassSlices(place.cls);
    place.slice = slices[Take(&block, slices.count())];
    place.panel = Take(&block, column_blocks_) * block_panels_;
    place.panels = Min(block_panels_, panels_ - place.panel);
    place.group = block;
    return place;
  }

  Slices ClassSlices(int32_t c) const { return Slices(call_.classes[c].tap_count, p_.in_channels, kDepth<T>); }

  int64_t Parts() const {
    constexpr int64_t kItems = 32, kPositionsPerPart = 2 * kReduceRows;
    int64_t positions = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) positions = Max(positions, PositionCount(p_, call_.classes[c]));
    const int64_t wanted = CeilDiv(kItems, Max<int64_t>(blocks_.total(), 1));
    return Max<int64_t>(Min(wanted, positions / kPositionsPerPart), 1);
  }

  int64_t BlockRows() const {
    int64_t rows = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) rows = Max(rows, call_.classes[c].tap_count * p_.in_channels);
    return RoundUp(Min(rows, kDepth<T>), kTileRows);
  }

  int64_t SumsSize() const { return block_rows_ * block_panels_ * tile_.columns; }
  int64_t ScratchSize() const { return kReduceRows * (kRowStride<T> + block_panels_ * tile_.columns); }
  T* PartSums(int64_t i) const { return sums_.data() + i * SumsSize(); }

  void Sum(int64_t slot, int64_t block, int64_t part, T* sums) const {
    const Place place = Locate(block);
    const ResidueClass& cls = call_.classes[place.cls];
    const int64_t count = PositionCount(p_, cls), end = (part + 1) * count / parts_;
    const int64_t tiles = CeilDiv(place.slice.columns(), kTileRows);

    Positions& at = positions_[slot];
    T* rows = scratch_.data() + slot * ScratchSize();
    T* grad = rows + kReduceRows * kRowStride<T>;
    const Source source{p_, Offset(call_.src, p_.src_type, place.group * p_.src.group), call_.taps + cls.first_tap,
                        runs_.data() + cls.first_tap};
    const int64_t begin = part * count / parts_;
    int64_t first = begin;
    do {  // once even with nothing to sum: the gradient is zero then
      at.Locate(p_, cls, first, Min(kReduceRows, end - first));
      pack_rows_(source, at, place.slice, rows);
      PackGrad(at, place, grad);
      Sweep(tile_, at.count, rows, kTileRows, tiles, grad, kReduceRows * tile_.columns, place.panels, sums,
            first > begin);
    } while ((first += kReduceRows) < end);
  }

  void PackGrad(const Positions& at, const Place& place, T* grad) const {
    for (int64_t j = 0; j < place.panels; ++j) {
      const int64_t k = (place.panel + j) * tile_.columns;
      const int64_t offset = place.group * p_.dst.group + k * p_.dst.channel;
      pack_panel_(Offset(call_.rhs, p_.dst_type, offset), at.dst, at.count, 1, 0, p_.dst.channel,
                  Min(tile_.columns, p_.out_channels - k), tile_.columns, grad + j * kReduceRows * tile_.columns);
    }
  }

  void StoreBlock(int64_t block, const T* sums) const {
    const Place place = Locate(block);
    const ResidueClass& cls = call_.classes[place.cls];
    const int64_t columns = place.slice.columns(), panel_size = RoundUp(columns, kTileRows) * tile_.columns;
    int64_t offsets[kDepth<T>];
    for (int64_t i = 0; i < columns; ++i)
      offsets[i] = call_.taps[cls.first_tap + place.slice.tap + i / place.slice.channels].filter_delta +
                   (place.slice.channel + i % place.slice.channels) * p_.filter.in;
    for (int64_t j = 0; j < place.panels; ++j) {
      const int64_t k = (place.panel + j) * tile_.columns;
      const int64_t offset = place.group * p_.filter.group + k * p_.filter.out;
      store_rows_(sums + j * panel_size, tile_.columns, offsets, columns, p_.filter.out,
                  Min(tile_.columns, p_.out_channels - k),
                  const_cast<void*>(Offset(call_.result, p_.filter_type, offset)));
    }
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const TileShape<T> tile_;
  const int64_t panels_;
  const int64_t block_panels_;
  const int64_t column_blocks_;
  const ClassItems blocks_;
  const int64_t parts_;
  const int64_t block_rows_;
  const Buffer<int32_t> runs_;
  const Buffer<T> sums_;  // of every part of every block, or of every thread if there is one part
  const Buffer<T> scratch_;
  const Buffer<Positions> positions_;
  PackRowsFunction<T>* pack_rows_;
  PackPanelFunction<T>* pack_panel_;
  StoreRowsFunction<T>* store_rows_;
};

template <template <typename> class Pass>
void RunPass(const ConvCall& call, const Workers& workers) {
  if (call.problem.out_channels == 0) return;
  WithSums(call.problem, [&](auto t) { Pass<decltype(t)>(call, workers).Run(workers); });
}

}  // namespace

void GemmGather(const ConvCall& call, const Workers& workers) { RunPass<Gather>(call, workers); }

void GemmReduce(const ConvCall& call, const Workers& workers) { RunPass<Reduce>(call, workers); }

}  // namespace jaxconv::JAXCONV_ISA
