// A conv of groups with one input or one output channel.
#include <cstdint>

#include "common/call.h"
#include "common/chain.h"
#include "common/epilogue.h"
#include "common/items.h"
#include "common/pack.h"
#include "common/storage.h"
#include "depthwise/strip.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// Adds source * filter[tap][channel] of taps [t, end) to n adjacent positions from `first` on.
template <typename T, bool whole, int n, typename S>
inline __attribute__((always_inline)) void AddTaps(const StripTaps& seen, int64_t t, int64_t end,
                                                   const SourceStrides& strides, const S* src, const T* filter,
                                                   int64_t first, Vector<T>* sums) {
  const bool inside = first >= seen.low && first + n <= seen.high;
  for (; t < end; ++t) {
    const StripTap& each = seen.taps[t];
    for (int64_t c = 0; c < strides.channels; ++c) {
      const Vector<T> weight = LoadVector<T>(filter + (each.tap * strides.channels + c) * kLanes<T>);
      const S* from = src + each.src + first * strides.position + c * strides.channel;
#pragma GCC unroll 8
      for (int i = 0; i < n; ++i)
        if (inside || (first + i >= each.low && first + i < each.high))
          sums[i] += LoadLanes<T, whole>(from + i * strides.position, strides.lane, strides.lanes) * weight;
    }
  }
}

// The sums of n adjacent positions, as a sum of chains. Most windows are one chain.
template <typename T, bool whole, int n, typename S>
void SumPositions(const StripTaps& seen, const SourceStrides& strides, const S* src, const T* filter, int64_t first,
                  T* sums) {
  const int64_t channels = Max<int64_t>(strides.channels, 1);
  const int64_t taps = CeilDiv(ChainLength<T>(seen.count * channels), channels);  // of a chain
  Vector<T> sum[n] = {};
  AddTaps<T, whole, n>(seen, 0, Min(taps, seen.count), strides, src, filter, first, sum);
  for (int64_t t = taps; t < seen.count; t += taps) {
    Vector<T> chain[n] = {};
    AddTaps<T, whole, n>(seen, t, Min(t + taps, seen.count), strides, src, filter, first, chain);
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) sum[i] += chain[i];
  }
#pragma GCC unroll 8
  for (int i = 0; i < n; ++i) StoreVector(sum[i], sums + i * kLanes<T>);
}

// All positions of a strip, n at a time; the last ones overlap.
template <typename T, bool whole, int n, typename S>
void SumStrip(const Strip& strip, const StripTaps& seen, const SourceStrides& strides, const S* src, const T* filter,
              T* sums) {
  const int64_t count = strip.last - strip.first;
  if (count >= n) {
    for (int64_t i = 0; i < count; i += n) {
      const int64_t at = Min(i, count - n);
      SumPositions<T, whole, n>(seen, strides, src, filter, strip.first + at, sums + at * kLanes<T>);
    }
  } else if constexpr (n > 1) {
    SumStrip<T, whole, n / 2>(strip, seen, strides, src, filter, sums);
  }
}

template <typename T, typename S>
void SumStripOf(const Strip& strip, const StripTaps& seen, const SourceStrides& strides, const void* src,
                const T* filter, T* sums) {
  constexpr int kPositions = 8;  // in registers
  const S* from = static_cast<const S*>(src);
  const bool whole = strides.lane == 1 && strides.lanes == kLanes<T>;
  if (whole) SumStrip<T, true, kPositions>(strip, seen, strides, from, filter, sums);
  else SumStrip<T, false, 1>(strip, seen, strides, from, filter, sums);
}

template <typename T>
class Conv {
 public:
  Conv(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        lanes_{p_.groups, kLanes<T>},
        items_(p_, [&](int32_t c) { return StripCount(p_, call.classes[c]); }),
        filter_(call.rhs, p_.filter_type),
        packed_filter_(lanes_.count() * p_.out_channels * FilterSize()),
        strip_taps_(workers.threads() * p_.tap_count),
        sums_(workers.threads() * kStrip * kLanes<T>),
        epilogue_(call.result, p_.dst_type, call.epilogue) {
    WithStorage<T>(p_.src_type, [&](auto s) { sum_strip_ = SumStripOf<T, decltype(s)>; });
  }

  void Run(const Workers& workers) const {
    workers.For(lanes_.count() * p_.out_channels, static_cast<double>(lanes_.count()) * p_.out_channels * FilterSize(),
                [this](int64_t, int64_t item) { PackFilter(item); });
    // Strips can be short work: a thread takes several at a time.
    const int64_t strips = CeilDiv(items_.total(), workers.threads() * kItemsPerThread);
    if (strips == 0) return;
    workers.For(CeilDiv(items_.total(), strips), MultiplyAdds(call_), [&](int64_t worker, int64_t item) {
      for (int64_t i = item * strips; i < Min((item + 1) * strips, items_.total()); ++i) OneStrip(worker, i);
    });
  }

 private:
  static constexpr int64_t kItemsPerThread = 8;

  int64_t FilterSize() const { return p_.tap_count * p_.in_channels * kLanes<T>; }

  void PackFilter(int64_t item) const {
    T* to = packed_filter_.data() + item * FilterSize();
    const int64_t k = Take(&item, p_.out_channels);
    for (int32_t t = 0; t < p_.tap_count; ++t) {
      const int64_t offset = call_.taps[t].filter_delta + lanes_.first(item) * p_.filter.group + k * p_.filter.out;
      filter_.PackPanel(offset, Rows{p_.in_channels, p_.filter.in}, lanes_.used(), p_.filter.group,
                        to + t * p_.in_channels * kLanes<T>, kLanes<T>);
    }
  }

  void OneStrip(int64_t worker, int64_t item) const {
    const ResidueClass& cls = call_.classes[items_.Find(&item)];
    const Strip strip = LocateStrip(p_, cls, item);
    const StripTaps seen = FindStripTaps(call_, cls, strip, strip_taps_.data() + worker * p_.tap_count);
    const SourceStrides strides{p_.step[2] * p_.src.spatial[2], p_.src.channel, p_.in_channels, p_.src.group,
                                lanes_.used()};
    int64_t offsets[kStrip];
    for (int64_t q = strip.first; q < strip.last; ++q)
      offsets[q - strip.first] = strip.dst + q * p_.period[2] * p_.dst.spatial[2];

    T* sums = sums_.data() + worker * kStrip * kLanes<T>;
    for (int64_t b = 0; b < lanes_.count(); ++b) {
      const int64_t group = lanes_.first(b);
      const void* src = Offset(call_.src, p_.src_type, group * p_.src.group);
      for (int64_t k = 0; k < p_.out_channels; ++k) {
        sum_strip_(strip, seen, strides, src, packed_filter_.data() + (b * p_.out_channels + k) * FilterSize(), sums);
        epilogue_(sums, kLanes<T>,
                  OutputTile{.origin = group * p_.dst.group + k * p_.dst.channel,
                             .offsets = offsets,
                             .rows = strip.last - strip.first,
                             .columns = lanes_.used(),
                             .stride = p_.dst.group,
                             .channel = group * p_.out_channels + k,
                             .channel_stride = p_.out_channels});
      }
    }
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const Lanes lanes_;
  const ClassItems items_;
  const Operand<T> filter_;
  const Buffer<T> packed_filter_;  // [vector of lanes][k][tap][c][lane]
  const Buffer<StripTap> strip_taps_;
  const Buffer<T> sums_;
  StripFunction<T>* sum_strip_;
  const EpilogueOf<T> epilogue_;
};

// Whether float32 holds all sums of int8: vectors multiply it several times as fast as int32.
bool FitsFloat32(const ConvProblem& p) {
  constexpr int64_t kMostProducts = (int64_t{1} << 24) / (128 * 128);
  return p.src_type == DType::kS8 && p.filter_type == DType::kS8 && p.tap_count * p.in_channels <= kMostProducts;
}

}  // namespace

void DepthwiseConv(const ConvCall& call, const Workers& workers) {
  if (FitsFloat32(call.problem)) return Conv<float>(call, workers).Run(workers);
  WithSums(call.problem, [&](auto t) { Conv<decltype(t)>(call, workers).Run(workers); });
}

}  // namespace jaxconv::JAXCONV_ISA
