// Convolutions to few output channels: every source pixel is multiplied with all taps at once, and each output adds up
// the products that its taps find. So a vector's lanes are pairs (tap, k), and there are enough of them. A pixel is
// packed once, not once for each tap.
//
//   products[pixel, (tap, k)] = src[pixel, c] * filter[c, (tap, k)]
//   dst[position, k]          = sum over its taps of products[pixel(position, tap), (tap, k)]
//
// A thread computes the products of a block of positions and adds them. Pixels that two blocks see are multiplied
// twice; every sum is in the same order for any number of blocks and threads.
#include <cstdint>

#include "common/call.h"
#include "common/chain.h"
#include "common/epilogue.h"
#include "common/items.h"
#include "common/pack.h"
#include "common/storage.h"
#include "gemm/arithmetic.h"
#include "gemm/panels.h"
#include "gemm/tap_products.h"
#include "gemm/tile.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int64_t kPixels = 96;  // packed at a time
static_assert(kPixels % kTileM == 0, "a block of pixels is whole tiles");

constexpr int64_t kProductBytes = 1024 * 1024;  // of a block, about: of more, few are left in the second-level cache
constexpr int64_t kLine = 64;                   // positions along w whose sums are in the first-level cache

// A range of indices along each dimension.
struct Region {
  int64_t first[kSpatial];
  int64_t size[kSpatial];

  int64_t count() const { return size[0] * size[1] * size[2]; }

  // An element's index in the region.
  int64_t Index(int64_t d, int64_t h, int64_t w) const {
    return ((d - first[0]) * size[1] + h - first[1]) * size[2] + w - first[2];
  }
};

// An output cut into blocks of positions, whose products are not too many.
class Blocks {
 public:
  // least: blocks of an image that there should be.
  Blocks(const ConvCall& call, int64_t pixel_bytes, int64_t least) : call_(call), p_(call.problem) {
    int64_t bytes = pixel_bytes * p_.src_size[0] * p_.src_size[1] * p_.src_size[2];
    for (int i = 0; i < kSpatial; ++i) {
      const int64_t middle = p_.dst_size[i] / 2, size = Max<int64_t>(p_.src_size[i], 1);
      const int64_t seen = Max<int64_t>(Pixels(i, middle, middle + p_.period[i]).size, 1);
      const int64_t length = Max(kProductBytes * size / Max<int64_t>(bytes, 1), 2 * seen);
      const int64_t most = Min(p_.dst_size[i], Max<int64_t>(size / seen, 1));
      count_[i] = Min(Max(CeilDiv(size, length), CeilDiv(least, count())), most);
      bytes = bytes * Min(CeilDiv(size, count_[i]) + seen, size) / size;
    }
  }

  int64_t count() const { return count_[0] * count_[1] * count_[2]; }

  // That all blocks of an image see, some of them twice.
  int64_t pixels() const {
    int64_t sum = 0;
    for (int64_t i = 0; i < count(); ++i) sum += Pixels(i).count();
    return sum;
  }

  // The positions of a class in a block.
  Region Positions(const ResidueClass& cls, int64_t block) const {
    return EachAxis(block, [&](int i, int64_t begin, int64_t end) { return Positions(cls, i, begin, end); });
  }

  // The pixels that a block's positions see, of an image.
  Region Pixels(int64_t block) const {
    return EachAxis(block, [&](int i, int64_t begin, int64_t end) { return Pixels(i, begin, end); });
  }

 private:
  struct Range {
    int64_t first;
    int64_t size;
  };

  template <typename F>
  Region EachAxis(int64_t block, const F& range_of) const {
    Region region;
    for (int i = 0; i < kSpatial; ++i) {
      const int64_t at = Take(&block, count_[i]), size = p_.dst_size[i];
      const Range range = range_of(i, at * size / count_[i], (at + 1) * size / count_[i]);
      region.first[i] = range.first;
      region.size[i] = range.size;
    }
    return region;
  }

  Range Positions(const ResidueClass& cls, int axis, int64_t begin, int64_t end) const {
    const auto before = [&](int64_t o) {
      return Min<int64_t>(CeilDiv(Max<int64_t>(o - cls.phase[axis], 0), p_.period[axis]), cls.count[axis]);
    };
    return {before(begin), before(end) - before(begin)};
  }

  Range Pixels(int axis, int64_t begin, int64_t end) const {
    int64_t low = p_.src_size[axis], high = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) {
      const ResidueClass& cls = call_.classes[c];
      const Range q = Positions(cls, axis, begin, end);
      if (q.size == 0) continue;
      const int64_t first = q.first * p_.step[axis], last = first + (q.size - 1) * p_.step[axis];
      for (int32_t t = cls.first_tap; t < cls.first_tap + cls.tap_count; ++t) {
        low = Min(low, first + call_.taps[t].shift[axis]);
        high = Max(high, last + call_.taps[t].shift[axis] + 1);
      }
    }
    low = Max<int64_t>(low, 0);
    return {low, Max<int64_t>(Min(high, p_.src_size[axis]) - low, 0)};
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  int64_t count_[kSpatial] = {1, 1, 1};
};

// Positions [first, first + count) along w of a class, in row (d, h) of its positions.
struct Line {
  const ResidueClass& cls;
  int64_t d;
  int64_t h;
  int64_t first;
  int64_t count;
};

// The products of a block's pixels: of a region, `row` elements each.
template <typename T>
struct Products {
  Region region;
  const T* data;
  int64_t row;
};

template <typename T>
using AddLineFunction = void(const ConvCall& call, const Products<T>& products, const Line& line, T* sums);

// Adds taps [first, last) to sums [position][lanes] of at most `lanes` output channels. Lanes behind the last one add
// up what they find.
template <typename T, int lanes>
void AddTaps(const ConvCall& call, const Products<T>& products, const Line& line, int32_t first, int32_t last,
             T* sums) {
  const ConvProblem& p = call.problem;
  const int64_t end = line.first + line.count, step = p.step[2];
  for (int32_t t = first; t < last; ++t) {
    const int32_t* shift = call.taps[t].shift;
    const int64_t d = line.d * p.step[0] + shift[0], h = line.h * p.step[1] + shift[1];
    if (!Inside(d, p.src_size[0]) || !Inside(h, p.src_size[1])) continue;
    const int64_t low = Max(CeilDiv(Max(-shift[2], 0), step), line.first);
    const int64_t high = Min(CeilDiv(Max<int64_t>(p.src_size[2] - shift[2], 0), step), end);
    if (low >= high) continue;
    const T* from =
        products.data + products.region.Index(d, h, low * step + shift[2]) * products.row + t * p.out_channels;
    for (int64_t q = low; q < high; ++q, from += step * products.row) {
      T* sum = sums + (q - line.first) * lanes;
      StoreVector(LoadVector<T, lanes>(sum) + LoadVector<T, lanes>(from), sum);
    }
  }
}

// The sums of all taps, as a sum of chains.
template <typename T, int lanes>
void AddLine(const ConvCall& call, const Products<T>& products, const Line& line, T* sums) {
  const int32_t first = line.cls.first_tap, count = line.cls.tap_count;
  const int32_t length = static_cast<int32_t>(ChainLength<T>(count));
  Zero(line.count * lanes, sums);
  if (count <= length) return AddTaps<T, lanes>(call, products, line, first, first + count, sums);
  alignas(kAlignment) T chain[kLine * lanes];
  for (int32_t t = 0; t < count; t += length) {
    Zero(line.count * lanes, chain);
    AddTaps<T, lanes>(call, products, line, first + t, first + Min(t + length, count), chain);
    for (int64_t i = 0; i < line.count * lanes; ++i) sums[i] += chain[i];
  }
}

template <typename A>
class TapProducts {
  using T = typename A::Sum;
  using L = typename A::Left;

 public:
  TapProducts(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        tile_(ChooseTile<A, false>(p_.tap_count * p_.out_channels)),
        panels_(CeilDiv(p_.tap_count * p_.out_channels, tile_.n)),
        row_(panels_ * tile_.n),
        lanes_(p_.out_channels <= kShortLanes<T> ? kShortLanes<T> : kLanes<T>),
        add_line_(lanes_ == kShortLanes<T> ? AddLine<T, kShortLanes<T>> : AddLine<T, kLanes<T>>),
        blocks_(call, row_ * sizeof(T), CeilDiv(2 * workers.threads(), Max<int64_t>(p_.batch * p_.groups, 1))),
        products_size_(MostPixels() * row_ + kLanes<T>),  // the last pixel's last lanes are read with those behind
        src_(call.src, p_.src_type),
        filter_(call.rhs, p_.filter_type),
        packed_filter_(p_.groups * GroupRows() * row_),
        rows_(workers.threads() * kPixels * kRowStride<T>),
        products_(workers.threads() * products_size_),
        epilogue_(call.result, p_.dst_type, call.epilogue) {}

  void Run(const Workers& workers) const {
    const double filter_size = static_cast<double>(p_.groups) * p_.in_channels * row_;
    workers.For(p_.groups * panels_, filter_size, [this](int64_t, int64_t item) { PackPanel(item); });
    workers.For(p_.groups * p_.batch * blocks_.count(), MultiplyAdds(call_), [this](int64_t worker, int64_t item) {
      const int64_t block = Take(&item, blocks_.count()), image = Take(&item, p_.batch);
      const Region region = blocks_.Pixels(block);
      T* products = products_.data() + worker * products_size_;
      Multiply(worker, item, image, region, products);
      Add(item, image, block, Products<T>{region, products, row_});
    });
  }

 private:
  int64_t MostPixels() const {
    int64_t most = 0;
    for (int64_t i = 0; i < blocks_.count(); ++i) most = Max(most, blocks_.Pixels(i).count());
    return RoundUp(most, kTileM);
  }

  // Channels are summed in blocks. Each has its own panels.
  int64_t BlockRows() const { return PanelRows<A>(Min(kBlockK<L>, p_.in_channels)); }
  int64_t GroupRows() const { return Max<int64_t>(CeilDiv(p_.in_channels, kBlockK<L>), 1) * BlockRows(); }

  T* FilterOf(int64_t group) const { return packed_filter_.data() + group * GroupRows() * row_; }

  void PackPanel(int64_t item) const {
    const int64_t panel = Take(&item, panels_), first = panel * tile_.n;
    T* to = FilterOf(item) + first * GroupRows();
    Zero(GroupRows() * tile_.n, to);
    for (int64_t c = 0; c < p_.in_channels; c += kBlockK<L>, to += BlockRows() * tile_.n)
      PackChannels(item, first, c, Min(kBlockK<L>, p_.in_channels - c), to);
  }

  // The columns of a panel from `first` on, of a block of channels.
  void PackChannels(int64_t group, int64_t first, int64_t channel, int64_t channels, T* to) const {
    const int64_t n = Min(tile_.n, p_.tap_count * p_.out_channels - first);
    for (int64_t i = 0, columns; i < n; i += columns) {  // the panel's columns of one tap
      const int64_t tap = (first + i) / p_.out_channels, k = (first + i) % p_.out_channels;
      const int64_t origin = call_.taps[tap].filter_delta + group * p_.filter.group + channel * p_.filter.in;
      columns = Min(p_.out_channels - k, n - i);
      filter_.PackColumns(origin + k * p_.filter.out, Rows{channels, p_.filter.in}, columns, p_.filter.out, to, tile_.n,
                          i);
    }
    filter_.Finish(channels, to, tile_.n);
  }

  void Multiply(int64_t worker, int64_t group, int64_t image, const Region& region, T* products) const {
    T* words = rows_.data() + worker * kPixels * kRowStride<T>;
    L* rows = reinterpret_cast<L*>(words);
    int64_t offsets[kPixels];
    for (int64_t first = 0; first < region.count(); first += kPixels) {
      const int64_t count = Min(kPixels, region.count() - first);
      Locate(region, first, count, group * p_.src.group + image * p_.src.batch, offsets);
      int64_t c = 0;
      do {  // once even with nothing to sum: those products are zero
        const int64_t channels = Min(kBlockK<L>, p_.in_channels - c);
        src_.Pack(c * p_.src.channel, Rows{count, 0, offsets}, channels, p_.src.channel, rows, kRowStride<L>);
        for (int64_t r = count; r < RoundUp(count, kTileM); ++r) Zero(channels, rows + r * kRowStride<L>);
        Sweep(tile_, CeilDiv(channels, A::kDepth), words, kTileM * kRowStride<T>, CeilDiv(count, kTileM),
              FilterOf(group) + c / kBlockK<L> * BlockRows() * tile_.n, GroupRows() * tile_.n, panels_,
              Sums<T>{products + first * row_, row_, tile_.n}, c > 0);
      } while ((c += kBlockK<L>) < p_.in_channels);
    }
  }

  // Where the pixels [first, first + count) of a region lie.
  void Locate(const Region& region, int64_t first, int64_t count, int64_t origin, int64_t* offsets) const {
    int64_t d = first, w = Take(&d, region.size[2]), h = Take(&d, region.size[1]);
    for (int64_t i = 0; i < count; w = 0) {  // a row of pixels
      const int64_t row =
          origin + (region.first[0] + d) * p_.src.spatial[0] + (region.first[1] + h) * p_.src.spatial[1];
      for (const int64_t end = Min(count, i + region.size[2] - w); i < end; ++i, ++w)
        offsets[i] = row + (region.first[2] + w) * p_.src.spatial[2];
      if (++h < region.size[1]) continue;
      h = 0;
      ++d;
    }
  }

  void Add(int64_t group, int64_t image, int64_t block, const Products<T>& products) const {
    for (int32_t c = 0; c < p_.class_count; ++c) {
      const ResidueClass& cls = call_.classes[c];
      const Region q = blocks_.Positions(cls, block);
      const int64_t end = q.first[2] + q.size[2];
      for (int64_t d = q.first[0]; d < q.first[0] + q.size[0]; ++d)
        for (int64_t h = q.first[1]; h < q.first[1] + q.size[1]; ++h)
          for (int64_t w = q.first[2]; w < end; w += kLine)
            AddAndStore(products, Line{cls, d, h, w, Min(kLine, end - w)}, group, image);
    }
  }

  void AddAndStore(const Products<T>& products, const Line& line, int64_t group, int64_t image) const {
    alignas(kAlignment) T sums[kLine * kLanes<T>];
    int64_t offsets[kLine];
    const int64_t q[kSpatial] = {line.d, line.h, line.first};
    int64_t origin = group * p_.dst.group + image * p_.dst.batch;
    for (int i = 0; i < kSpatial; ++i) origin += (line.cls.phase[i] + q[i] * p_.period[i]) * p_.dst.spatial[i];
    for (int64_t i = 0; i < line.count; ++i) offsets[i] = i * p_.period[2] * p_.dst.spatial[2];
    add_line_(call_, products, line, sums);
    epilogue_(sums, lanes_,
              OutputTile{.origin = origin,
                         .offsets = offsets,
                         .rows = line.count,
                         .columns = p_.out_channels,
                         .stride = p_.dst.channel,
                         .channel = group * p_.out_channels,
                         .channel_stride = 1});
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const TileShape<T> tile_;
  const int64_t panels_;
  const int64_t row_;
  const int64_t lanes_;
  AddLineFunction<T>* const add_line_;
  const Blocks blocks_;
  const int64_t products_size_;  // of a block
  const Operand<L> src_;
  const RightOperand<A> filter_;
  const Buffer<T> packed_filter_;  // [group][panel][block of channels][c][tap, k]
  const Buffer<T> rows_;           // [thread][pixel][c]
  const Buffer<T> products_;       // [thread][pixel][panel, column]
  const EpilogueOf<T> epilogue_;
};

// Whether this takes fewer vector operations than a product of im2col rows, about. A position's sums must fit a vector.
// It does not depend on the number of threads, on which no bit of a result may depend.
template <typename A>
bool IsCheaper(const ConvCall& call) {
  using T = typename A::Sum;
  const ConvProblem& p = call.problem;
  const double channels = static_cast<double>(p.in_channels) / A::kDepth, lanes = kLanes<T>;
  if (p.out_channels > lanes) return false;
  double reads = 0;  // of pixels, by all taps of all positions of an image
  for (int32_t c = 0; c < p.class_count; ++c) {
    const ResidueClass& cls = call.classes[c];
    reads += static_cast<double>(cls.count[0]) * cls.count[1] * cls.count[2] * cls.tap_count;
  }
  const int64_t vectors = CeilDiv(p.tap_count * p.out_channels, kLanes<T>);
  const double pixels = Blocks(call, vectors * kRegisters.vector_bytes, 1).pixels();
  // Fitted to measurements: copying takes a quarter of an operation, which on a short vector is half of one.
  const double by_rows = reads * (channels * (p.out_channels <= kShortLanes<T> ? 0.75 : 1.25) + 5);
  const double products = pixels * channels * (vectors + 0.25);
  return products + reads * (2 + p.out_channels * 8 / lanes) < by_rows;
}

template <typename F>
void WithArithmeticOf(const ConvCall& call, const F& f) {
  WithArithmetic(call.problem, call.problem.src_type, call.problem.filter_type, f);
}

}  // namespace

bool PrefersTapProducts(const ConvCall& call) {
  bool prefers = false;
  WithArithmeticOf(call, [&](auto a) { prefers = IsCheaper<decltype(a)>(call); });
  return prefers;
}

void TapProductsConv(const ConvCall& call, const Workers& workers) {
  WithArithmeticOf(call, [&](auto a) { TapProducts<decltype(a)>(call, workers).Run(workers); });
}

}  // namespace jaxconv::JAXCONV_ISA
