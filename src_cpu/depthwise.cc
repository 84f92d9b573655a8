// Convolutions of groups with one input or one output channel: no matrix product, so the groups are a vector's lanes.
//
// Positions are taken in strips along w. A strip sees a list of taps, each with the part of the strip for which it
// reads inside the source, so that inner loops have no bounds to check. Right for any number of channels in a group.
#include <cstdint>

#include "kernels.h"
#include "simd.h"
#include "work.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int64_t kStrip = 64;  // positions; their vectors stay in the first-level cache

struct Strip {
  int64_t first;  // positions [first, last) of the class along w
  int64_t last;
  int64_t src;  // where position 0 of this row reads and writes
  int64_t dst;
  int64_t base[2];  // source row that the taps' shifts are relative to
};

int64_t StripCount(const ConvProblem& p, const ResidueClass& cls) {
  return p.batch * cls.count[0] * cls.count[1] * CeilDiv(cls.count[2], kStrip);
}

Strip LocateStrip(const ConvProblem& p, const ResidueClass& cls, int64_t index) {
  Strip strip;
  strip.first = Take(&index, CeilDiv(cls.count[2], kStrip)) * kStrip;
  strip.last = Min<int64_t>(strip.first + kStrip, cls.count[2]);
  strip.src = 0;
  strip.dst = cls.phase[2] * p.dst.spatial[2];
  for (int i = 1; i >= 0; --i) {
    const int64_t q = Take(&index, cls.count[i]);
    strip.base[i] = q * p.step[i];
    strip.src += strip.base[i] * p.src.spatial[i];
    strip.dst += (cls.phase[i] + q * p.period[i]) * p.dst.spatial[i];
  }
  strip.src += index * p.src.batch;
  strip.dst += index * p.dst.batch;
  return strip;
}

// A tap that a strip sees, and the positions [low, high) for which it reads inside the source.
struct Reach {
  int32_t tap;
  int64_t src;  // where position 0 reads
  int64_t low;
  int64_t high;
};

struct Reaches {
  const Reach* taps;
  int64_t count;
  int64_t low;  // the positions that all taps reach: empty if low >= high
  int64_t high;
};

Reaches FindReaches(const ConvCall& call, const ResidueClass& cls, const Strip& strip, Reach* taps) {
  const ConvProblem& p = call.problem;
  Reaches reaches{taps, 0, strip.first, strip.last};
  for (int32_t t = cls.first_tap; t < cls.first_tap + cls.tap_count; ++t) {
    const Tap& tap = call.taps[t];
    if (!Inside(strip.base[0] + tap.shift[0], p.src_size[0]) || !Inside(strip.base[1] + tap.shift[1], p.src_size[1]))
      continue;
    const int64_t before = Max(-tap.shift[2], 0), inside = Max<int64_t>(p.src_size[2] - tap.shift[2], 0);
    Reach reach{t, strip.src + tap.src_delta, Max(CeilDiv(before, p.step[2]), strip.first),
                Min(CeilDiv(inside, p.step[2]), strip.last)};
    if (reach.low >= reach.high) continue;
    reaches.low = Max(reaches.low, reach.low);
    reaches.high = Min(reaches.high, reach.high);
    taps[reaches.count++] = reach;
  }
  return reaches;
}

// The groups cut into vectors; the last one overlaps its neighbour, which computes the same twice and needs no rest.
struct Lanes {
  int64_t groups;
  int64_t width;  // of a vector

  int64_t count() const { return CeilDiv(groups, width); }
  int64_t first(int64_t i) const { return Max<int64_t>(Min(i * width, groups - width), 0); }
  int64_t used() const { return Min(width, groups); }
};

// Reads a vector of lanes; `whole` if they are adjacent and all there.
template <typename T, bool whole, typename S>
Vector<T> LoadLanes(const S* from, int64_t stride, int64_t lanes) {
  if constexpr (whole) {
    return LoadVector<T>(from);
  } else {
    T values[kLanes<T>] = {};
    for (int64_t l = 0; l < lanes; ++l) values[l] = Load<T>(from[l * stride]);
    return LoadVector<T>(values);
  }
}

template <typename T>
using StageFunction = void(const void* data, int64_t n, int64_t stride, int64_t lane_stride, int64_t lanes, T* to);

// Brings n vectors of lanes, each `stride` after the last, into the type of the sums.
template <typename T, typename S>
void Stage(const void* data, int64_t n, int64_t stride, int64_t lane_stride, int64_t lanes, T* to) {
  const S* from = static_cast<const S*>(data);
  const bool whole = lane_stride == 1 && lanes == kLanes<T>;
  for (int64_t i = 0; i < n; ++i, from += stride, to += kLanes<T>)
    StoreVector(whole ? LoadLanes<T, true>(from, 1, lanes) : LoadLanes<T, false>(from, lane_stride, lanes), to);
}

// How a kernel walks the source: positions and channels within one vector of lanes.
struct Walk {
  int64_t position;
  int64_t channel;
  int64_t channels;
  int64_t lane;
  int64_t lanes;
};

// The work on one vector of lanes of a strip; `right` is the filter in a conv, dst's gradient in a wgrad.
template <typename T>
using StripFunction = void(const Strip& strip, const Reaches& reaches, const Walk& walk, const void* src,
                           const T* right, T* sums);

// ---- Conv ---------------------------------------------------------------------------------------------------------

// n adjacent positions from `first` on: sums[i] = sum over the taps and channels of source * filter[tap][channel].
template <typename T, bool whole, int n, typename S>
void SumPositions(const Reaches& reaches, const Walk& walk, const S* src, const T* filter, int64_t first, T* sums) {
  Vector<T> sum[n] = {};
  const bool inside = first >= reaches.low && first + n <= reaches.high;
  for (int64_t t = 0; t < reaches.count; ++t) {
    const Reach& reach = reaches.taps[t];
    for (int64_t c = 0; c < walk.channels; ++c) {
      const Vector<T> weight = LoadVector<T>(filter + (reach.tap * walk.channels + c) * kLanes<T>);
      const S* from = src + reach.src + first * walk.position + c * walk.channel;
#pragma GCC unroll 8
      for (int i = 0; i < n; ++i)
        if (inside || (first + i >= reach.low && first + i < reach.high))
          sum[i] += LoadLanes<T, whole>(from + i * walk.position, walk.lane, walk.lanes) * weight;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) StoreVector(sum[i], sums + i * kLanes<T>);
}

// All positions of a strip, n at a time; the last ones overlap.
template <typename T, bool whole, int n, typename S>
void SumStrip(const Strip& strip, const Reaches& reaches, const Walk& walk, const S* src, const T* filter, T* sums) {
  const int64_t count = strip.last - strip.first;
  if (count >= n) {
    for (int64_t i = 0; i < count; i += n) {
      const int64_t at = Min(i, count - n);
      SumPositions<T, whole, n>(reaches, walk, src, filter, strip.first + at, sums + at * kLanes<T>);
    }
  } else if constexpr (n > 1) {
    SumStrip<T, whole, n / 2>(strip, reaches, walk, src, filter, sums);
  }
}

template <typename T, typename S>
void SumStripOf(const Strip& strip, const Reaches& reaches, const Walk& walk, const void* src, const T* filter,
                T* sums) {
  constexpr int kPositions = 8;  // in registers
  const S* from = static_cast<const S*>(src);
  const bool whole = walk.lane == 1 && walk.lanes == kLanes<T>;
  if (whole) SumStrip<T, true, kPositions>(strip, reaches, walk, from, filter, sums);
  else SumStrip<T, false, 1>(strip, reaches, walk, from, filter, sums);
}

template <typename T>
class Conv {
 public:
  Conv(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        lanes_{p_.groups, kLanes<T>},
        items_(p_, [&](int32_t c) { return StripCount(p_, call.classes[c]); }),
        filter_(lanes_.count() * p_.out_channels * FilterSize()),
        reaches_(workers.threads() * p_.tap_count),
        sums_(workers.threads() * kStrip * kLanes<T>) {
    WithStorage<T>(p_.src_type, [&](auto s) { sum_strip_ = SumStripOf<T, decltype(s)>; });
    WithStorage<T>(p_.filter_type, [&](auto s) { stage_ = Stage<T, decltype(s)>; });
    WithStorage<T>(p_.dst_type, [&](auto s) { store_rows_ = StoreRows<decltype(s), T>; });
  }

  void Run(const Workers& workers) const {
    workers.For(lanes_.count() * p_.out_channels, static_cast<double>(lanes_.count()) * p_.out_channels * FilterSize(),
                [this](int64_t, int64_t item) { StageFilter(item); });
    // Strips can be short work: a thread takes several at a time.
    const int64_t chunk = CeilDiv(items_.total(), workers.threads() * kChunksPerThread);
    if (chunk == 0) return;
    workers.For(CeilDiv(items_.total(), chunk), MultiplyAdds(call_), [&](int64_t slot, int64_t item) {
      for (int64_t i = item * chunk; i < Min((item + 1) * chunk, items_.total()); ++i) OneStrip(slot, i);
    });
  }

 private:
  static constexpr int64_t kChunksPerThread = 8;

  int64_t FilterSize() const { return p_.tap_count * p_.in_channels * kLanes<T>; }

  void StageFilter(int64_t item) const {
    T* to = filter_.data() + item * FilterSize();
    const int64_t k = Take(&item, p_.out_channels);
    for (int32_t t = 0; t < p_.tap_count; ++t) {
      const int64_t offset = call_.taps[t].filter_delta + lanes_.first(item) * p_.filter.group + k * p_.filter.out;
      stage_(Offset(call_.rhs, p_.filter_type, offset), p_.in_channels, p_.filter.in, p_.filter.group, lanes_.used(),
             to + t * p_.in_channels * kLanes<T>);
    }
  }

  void OneStrip(int64_t slot, int64_t item) const {
    const ResidueClass& cls = call_.classes[items_.Find(&item)];
    const Strip strip = LocateStrip(p_, cls, item);
    const Reaches reaches = FindReaches(call_, cls, strip, reaches_.data() + slot * p_.tap_count);
    const Walk walk{p_.step[2] * p_.src.spatial[2], p_.src.channel, p_.in_channels, p_.src.group, lanes_.used()};
    int64_t offsets[kStrip];
    for (int64_t q = strip.first; q < strip.last; ++q)
      offsets[q - strip.first] = strip.dst + q * p_.period[2] * p_.dst.spatial[2];

    T* sums = sums_.data() + slot * kStrip * kLanes<T>;
    for (int64_t b = 0; b < lanes_.count(); ++b) {
      const int64_t group = lanes_.first(b);
      const void* src = Offset(call_.src, p_.src_type, group * p_.src.group);
      for (int64_t k = 0; k < p_.out_channels; ++k) {
        sum_strip_(strip, reaches, walk, src, filter_.data() + (b * p_.out_channels + k) * FilterSize(), sums);
        const int64_t dst = group * p_.dst.group + k * p_.dst.channel;
        store_rows_(sums, kLanes<T>, offsets, strip.last - strip.first, p_.dst.group, lanes_.used(),
                    const_cast<void*>(Offset(call_.result, p_.dst_type, dst)));
      }
    }
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const Lanes lanes_;
  const ClassItems items_;
  const Buffer<T> filter_;  // [vector of lanes][k][tap][c][lane]
  const Buffer<Reach> reaches_;
  const Buffer<T> sums_;
  StripFunction<T>* sum_strip_;
  StageFunction<T>* stage_;
  StoreRowsFunction<T>* store_rows_;
};

// ---- Wgrad ---------------------------------------------------------------------------------------------------------

// n taps over a strip: sums[tap] += sum over the positions of source * grad[position].
template <typename T, bool whole, int n, typename S>
void SumTaps(const Strip& strip, const Reach* taps, const Walk& walk, const S* src, const T* grad, T* sums) {
  constexpr int kTogether = 2;  // positions, with their own sums: additions take several cycles
  const auto product = [&](const Reach& tap, int64_t q) {
    return LoadLanes<T, whole>(src + tap.src + q * walk.position, walk.lane, walk.lanes) *
           LoadVector<T>(grad + (q - strip.first) * kLanes<T>);
  };
  int64_t low = taps[0].low, high = taps[0].high;  // the positions that all n taps reach
  for (int t = 1; t < n; ++t) {
    low = Max(low, taps[t].low);
    high = Min(high, taps[t].high);
  }
  high -= Max<int64_t>(high - low, 0) % kTogether;
  Vector<T> sum[n][kTogether] = {};
  for (int64_t q = low; q < high; q += kTogether)
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t)
#pragma GCC unroll 2
      for (int i = 0; i < kTogether; ++i) sum[t][i] += product(taps[t], q + i);
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) {
    Vector<T> total = sum[t][0] + sum[t][1];
    for (int64_t q = taps[t].low; q < taps[t].high; ++q) {
      if (q == low && low < high) q = high;
      if (q < taps[t].high) total += product(taps[t], q);
    }
    T* to = sums + taps[t].tap * kLanes<T>;
    StoreVector(LoadVector<T>(to) + total, to);
  }
}

// All taps that a strip sees, up to n at a time in about equal parts.
template <typename T, bool whole, typename S>
void SumAllTaps(const Strip& strip, const Reaches& reaches, const Walk& walk, const S* src, const T* grad, T* sums) {
  constexpr int kTaps = whole ? 4 : 1;  // in registers
  const int64_t parts = CeilDiv(reaches.count, kTaps);
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = part * reaches.count / parts, last = (part + 1) * reaches.count / parts;
    const Reach* taps = reaches.taps + first;
    switch (last - first) {
      case 1: SumTaps<T, whole, 1>(strip, taps, walk, src, grad, sums); break;
      case 2: SumTaps<T, whole, Min(2, kTaps)>(strip, taps, walk, src, grad, sums); break;
      case 3: SumTaps<T, whole, Min(3, kTaps)>(strip, taps, walk, src, grad, sums); break;
      default: SumTaps<T, whole, kTaps>(strip, taps, walk, src, grad, sums);
    }
  }
}

template <typename T, typename S>
void SumAllTapsOf(const Strip& strip, const Reaches& reaches, const Walk& walk, const void* src, const T* grad,
                  T* sums) {
  const S* from = static_cast<const S*>(src);
  if (walk.lane == 1 && walk.lanes == kLanes<T>) SumAllTaps<T, true>(strip, reaches, walk, from, grad, sums);
  else SumAllTaps<T, false>(strip, reaches, walk, from, grad, sums);
}

// The strips are split into parts that depend on the problem only; the parts' sums are added in their order.
template <typename T>
class Wgrad {
 public:
  Wgrad(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        lanes_{p_.groups, kLanes<T>},
        parts_(Parts()),
        sums_(parts_ * SumsSize()),
        offsets_(p_.tap_count),
        reaches_(workers.threads() * p_.tap_count),
        grad_(workers.threads() * kStrip * kLanes<T>) {
    for (int32_t t = 0; t < p_.tap_count; ++t) offsets_[t] = call.taps[t].filter_delta;
    WithStorage<T>(p_.src_type, [&](auto s) { sum_taps_ = SumAllTapsOf<T, decltype(s)>; });
    WithStorage<T>(p_.dst_type, [&](auto s) { stage_ = Stage<T, decltype(s)>; });
    WithStorage<T>(p_.filter_type, [&](auto s) { store_rows_ = StoreRows<decltype(s), T>; });
  }

  void Run(const Workers& workers) const {
    workers.For(parts_, MultiplyAdds(call_), [this](int64_t slot, int64_t part) {
      Zero(SumsSize(), sums_.data() + part * SumsSize());
      for (int32_t c = 0; c < p_.class_count; ++c) Sum(slot, part, call_.classes[c]);
    });
    workers.For(FilterCount(), static_cast<double>(parts_) * SumsSize(),
                [this](int64_t, int64_t item) { StoreFilter(item); });
  }

 private:
  int64_t FilterCount() const { return lanes_.count() * p_.out_channels * p_.in_channels; }
  int64_t FilterSize() const { return p_.tap_count * kLanes<T>; }
  int64_t SumsSize() const { return FilterCount() * FilterSize(); }

  int64_t Parts() const {
    constexpr int64_t kParts = 32, kSumsOfAllParts = int64_t{1} << 22;
    int64_t strips = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) strips = Max(strips, StripCount(p_, call_.classes[c]));
    const int64_t affordable = kSumsOfAllParts / Max<int64_t>(SumsSize(), 1);
    return Max<int64_t>(Min(kParts, Min(strips, affordable)), 1);
  }

  void Sum(int64_t slot, int64_t part, const ResidueClass& cls) const {
    const int64_t strips = StripCount(p_, cls);
    const Walk walk{p_.step[2] * p_.src.spatial[2], p_.src.channel, p_.in_channels, p_.src.group, lanes_.used()};
    T* grad = grad_.data() + slot * kStrip * kLanes<T>;
    for (int64_t i = part * strips / parts_; i < (part + 1) * strips / parts_; ++i) {
      const Strip strip = LocateStrip(p_, cls, i);
      const Reaches reaches = FindReaches(call_, cls, strip, reaches_.data() + slot * p_.tap_count);
      T* sums = sums_.data() + part * SumsSize();
      for (int64_t b = 0; b < lanes_.count(); ++b) {
        const int64_t group = lanes_.first(b), grad_step = p_.period[2] * p_.dst.spatial[2];
        for (int64_t k = 0; k < p_.out_channels; ++k) {
          const int64_t dst = strip.dst + strip.first * grad_step + group * p_.dst.group + k * p_.dst.channel;
          stage_(Offset(call_.rhs, p_.dst_type, dst), strip.last - strip.first, grad_step, p_.dst.group, lanes_.used(),
                 grad);
          for (int64_t c = 0; c < p_.in_channels; ++c, sums += FilterSize())
            sum_taps_(strip, reaches, walk, Offset(call_.src, p_.src_type, group * p_.src.group + c * p_.src.channel),
                      grad, sums);
        }
      }
    }
  }

  void StoreFilter(int64_t item) const {
    T* sums = sums_.data() + item * FilterSize();
    for (int64_t part = 1; part < parts_; ++part)
      for (int64_t i = 0; i < FilterSize(); ++i) sums[i] += sums[part * SumsSize() + i];
    const int64_t c = Take(&item, p_.in_channels), k = Take(&item, p_.out_channels);
    const int64_t offset = lanes_.first(item) * p_.filter.group + c * p_.filter.in + k * p_.filter.out;
    store_rows_(sums, kLanes<T>, offsets_.data(), p_.tap_count, p_.filter.group, lanes_.used(),
                const_cast<void*>(Offset(call_.result, p_.filter_type, offset)));
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const Lanes lanes_;
  const int64_t parts_;
  const Buffer<T> sums_;  // [part][vector of lanes][k][c][tap][lane]
  const Buffer<int64_t> offsets_;
  const Buffer<Reach> reaches_;
  const Buffer<T> grad_;
  StripFunction<T>* sum_taps_;
  StageFunction<T>* stage_;
  StoreRowsFunction<T>* store_rows_;
};

}  // namespace

void DepthwiseConv(const ConvCall& call, const Workers& workers) {
  WithSums(call.problem, [&](auto t) { Conv<decltype(t)>(call, workers).Run(workers); });
}

void DepthwiseWgrad(const ConvCall& call, const Workers& workers) {
  WithSums(call.problem, [&](auto t) { Wgrad<decltype(t)>(call, workers).Run(workers); });
}

}  // namespace jaxconv::JAXCONV_ISA
