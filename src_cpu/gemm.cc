// Convolutions as matrix products, without a matrix in memory: blocks of the source's im2col rows are packed through
// the tap table when their turn comes.
//
//   conv  dst[position, k] = rows[position, (tap, c)] * filter[(tap, c), k]
//   wgrad  filter[(tap, c), k] = rows[position, (tap, c)]^T * grad[position, k]
//
// Both pack the same row-major block of rows (the left operand, transposed in a wgrad) and panels of the right
// operand, in the type of the sums, and sweep the same register tile over them. Only packing and storing know
// number formats. A conv to few channels is left to tap_products.cc where that is cheaper.
#include <cstdint>

#include "kernels.h"
#include "pack.h"
#include "simd.h"
#include "tile.h"
#include "work.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int64_t kConvRows = 96;          // rows of a block: it should fill a part of the second-level cache
constexpr int64_t kWgradRows = kMostRows;  // here they are the reduction: the longer, the fewer passes over the sums
static_assert(kConvRows % kTileRows == 0 && kConvRows <= kMostRows, "a block of rows is whole tiles");

constexpr int64_t kConvColumns = 512;  // output channels of a block
constexpr int64_t kWgradColumns = 256;

template <typename T>
class Conv {
 public:
  Conv(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        tile_(ChooseTile<T, false>(p_.out_channels)),
        panels_(CeilDiv(p_.out_channels, tile_.columns)),
        block_panels_(BlockPanels(workers.threads())),
        column_blocks_(CeilDiv(panels_, block_panels_)),
        blocks_(p_, [&](int32_t c) { return RowBlocks(c) * column_blocks_ * p_.groups; }),
        taps_(call),
        filter_(p_.tap_count * p_.groups * p_.in_channels * panels_ * tile_.columns),
        scratch_(workers.threads() * ScratchSize()),
        positions_(workers.threads()) {
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
  int64_t RowBlocks(int32_t c) const { return CeilDiv(PositionCount(p_, call_.classes[c]), kConvRows); }

  // Panels of one block: all that fit, unless that leaves threads without work.
  int64_t BlockPanels(int64_t threads) const {
    constexpr int64_t kBlocksPerThread = 4;
    int64_t row_blocks = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) row_blocks += RowBlocks(c) * p_.groups;
    const int64_t wanted = CeilDiv(kBlocksPerThread * threads, Max<int64_t>(row_blocks, 1));
    return Min(kConvColumns / tile_.columns, CeilDiv(panels_, wanted));
  }

  int64_t ScratchSize() const { return kConvRows * kRowStride<T> + block_panels_ * kConvRows * tile_.columns; }

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
      const int64_t offset = taps_.taps(cls)[t].filter_delta + group * p_.filter.group + k * p_.filter.out;
      pack_panel_(call_.rhs, &offset, 1, p_.in_channels, p_.filter.in, p_.filter.out,
                  Min(tile_.columns, p_.out_channels - k), tile_.columns, to);
    }
  }

  void Block(int64_t slot, int64_t item) const {
    const int32_t c = blocks_.Find(&item);
    const ResidueClass& cls = call_.classes[c];
    const int64_t row = Take(&item, RowBlocks(c)) * kConvRows;
    const int64_t panel = Take(&item, column_blocks_) * block_panels_, group = item;
    const int64_t panels = Min(block_panels_, panels_ - panel);

    Positions& at = positions_[slot];
    at.Locate(p_, cls, row, Min(kConvRows, PositionCount(p_, cls) - row));
    T* rows = scratch_.data() + slot * ScratchSize();
    T* sums = rows + kConvRows * kRowStride<T>;
    const int64_t tiles = CeilDiv(at.count, kTileRows);

    const Source source{p_, Offset(call_.src, p_.src_type, group * p_.src.group), taps_.taps(cls), taps_.runs(cls)};
    const T* filter = FilterPanel(cls, group, panel);
    const Slices slices(cls.tap_count, p_.in_channels, kDepth<T>);
    int64_t i = 0;
    do {  // once even with nothing to sum: those positions are zero
      const Slice slice = slices[i];
      pack_rows_(source, at, slice, rows);
      Sweep(tile_, slice.columns(), rows, kTileRows * kRowStride<T>, tiles,
            filter + (slice.tap * p_.in_channels + slice.channel) * tile_.columns,
            cls.tap_count * p_.in_channels * tile_.columns, panels,
            Sums<T>{sums, tile_.columns, tiles * kTileRows * tile_.columns}, i > 0);
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
  const TapRuns taps_;
  const Buffer<T> filter_;  // [class][group][panel][tap, c][column]
  const Buffer<T> scratch_;
  const Buffer<Positions> positions_;
  PackRowsFunction<T>* pack_rows_;
  PackPanelFunction<T>* pack_panel_;
  StoreRowsFunction<T>* store_rows_;
};

// Rows are packed as they lie in the source: by position, or by (tap, channel).
//
// The sums of a weight gradient run over all positions. Where there are few outputs, the positions are split into parts
// that depend on the problem only, and the parts' sums are added in their order: the same bits for any threads.
template <typename T>
class Wgrad {
 public:
  Wgrad(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        by_column_(!HasContiguousRows(p_)),
        tile_(by_column_ ? ChooseTile<T, false>(p_.out_channels) : ChooseTile<T, true>(p_.out_channels)),
        panels_(CeilDiv(p_.out_channels, tile_.columns)),
        block_panels_(Min(kWgradColumns / tile_.columns, panels_)),
        column_blocks_(CeilDiv(panels_, block_panels_)),
        blocks_(p_, [&](int32_t c) { return ClassSlices(c).count() * column_blocks_ * p_.groups; }),
        parts_(Parts()),
        block_rows_(BlockRows()),
        taps_(call),
        sums_((parts_ > 1 ? blocks_.total() * parts_ : workers.threads()) * SumsSize()),
        scratch_(workers.threads() * ScratchSize()),
        positions_(workers.threads()) {
    WithStorage<T>(p_.src_type,
                   [&](auto s) { pack_rows_ = by_column_ ? PackColumns<T, decltype(s)> : PackRows<T, decltype(s)>; });
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
    workers.For(blocks_.total() * parts_, work,
                [this](int64_t slot, int64_t item) { Sum(slot, item / parts_, item % parts_, PartSums(item)); });
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
    constexpr int64_t kItems = 32, kPositionsPerPart = 2 * kWgradRows;
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
  int64_t RowsSize() const { return (by_column_ ? block_rows_ : kWgradRows) * kRowStride<T>; }
  int64_t ScratchSize() const { return RowsSize() + kWgradRows * block_panels_ * tile_.columns; }
  T* PartSums(int64_t i) const { return sums_.data() + i * SumsSize(); }

  void Sum(int64_t slot, int64_t block, int64_t part, T* sums) const {
    const Place place = Locate(block);
    const ResidueClass& cls = call_.classes[place.cls];
    const int64_t count = PositionCount(p_, cls), end = (part + 1) * count / parts_;
    const int64_t tiles = CeilDiv(place.slice.columns(), kTileRows);

    Positions& at = positions_[slot];
    T* rows = scratch_.data() + slot * ScratchSize();
    T* grad = rows + RowsSize();
    const Source source{p_, Offset(call_.src, p_.src_type, place.group * p_.src.group), taps_.taps(cls),
                        taps_.runs(cls)};
    const int64_t begin = part * count / parts_;
    int64_t first = begin;
    do {  // once even with nothing to sum: the gradient is zero then
      at.Locate(p_, cls, first, Min(kWgradRows, end - first));
      pack_rows_(source, at, place.slice, rows);
      PackGrad(at, place, grad);
      Sweep(tile_, at.count, rows, kTileRows * (by_column_ ? kRowStride<T> : 1), tiles, grad,
            kWgradRows * tile_.columns, place.panels, Sums<T>{sums, tile_.columns, tiles * kTileRows * tile_.columns},
            first > begin);
    } while ((first += kWgradRows) < end);
  }

  void PackGrad(const Positions& at, const Place& place, T* grad) const {
    for (int64_t j = 0; j < place.panels; ++j) {
      const int64_t k = (place.panel + j) * tile_.columns;
      const int64_t offset = place.group * p_.dst.group + k * p_.dst.channel;
      pack_panel_(Offset(call_.rhs, p_.dst_type, offset), at.dst, at.count, 1, 0, p_.dst.channel,
                  Min(tile_.columns, p_.out_channels - k), tile_.columns, grad + j * kWgradRows * tile_.columns);
    }
  }

  void StoreBlock(int64_t block, const T* sums) const {
    const Place place = Locate(block);
    const ResidueClass& cls = call_.classes[place.cls];
    const int64_t columns = place.slice.columns(), panel_size = RoundUp(columns, kTileRows) * tile_.columns;
    int64_t offsets[kDepth<T>];
    for (int64_t i = 0; i < columns; ++i)
      offsets[i] = taps_.taps(cls)[place.slice.tap + i / place.slice.channels].filter_delta +
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
  const bool by_column_;
  const TileShape<T> tile_;
  const int64_t panels_;
  const int64_t block_panels_;
  const int64_t column_blocks_;
  const ClassItems blocks_;
  const int64_t parts_;
  const int64_t block_rows_;
  const TapRuns taps_;
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

void GemmConv(const ConvCall& call, const Workers& workers) {
  if (PrefersTapProducts(call)) TapProductsConv(call, workers);
  else RunPass<Conv>(call, workers);
}

void GemmWgrad(const ConvCall& call, const Workers& workers) { RunPass<Wgrad>(call, workers); }

}  // namespace jaxconv::JAXCONV_ISA
