// A wgrad of groups with one input or one output channel.
#include <cstdint>

#include "common/call.h"
#include "common/epilogue.h"
#include "common/items.h"
#include "common/pack.h"
#include "common/storage.h"
#include "depthwise/strip.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// n taps over a strip: sums[tap] += sum over the positions of source * grad[position].
template <typename T, bool whole, int n, typename S>
void SumTaps(const Strip& strip, const StripTap* taps, const SourceStrides& strides, const S* src, const T* grad,
             T* sums) {
  constexpr int kTogether = 2;  // positions, with their own sums: additions take several cycles
  const auto product = [&](const StripTap& tap, int64_t q) {
    return LoadLanes<T, whole>(src + tap.src + q * strides.position, strides.lane, strides.lanes) *
           LoadVector<T>(grad + (q - strip.first) * kLanes<T>);
  };
  int64_t low = taps[0].low, high = taps[0].high;  // the positions that all n taps see
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
void SumAllTaps(const Strip& strip, const StripTaps& seen, const SourceStrides& strides, const S* src, const T* grad,
                T* sums) {
  constexpr int kTaps = whole ? 4 : 1;  // in registers
  const int64_t parts = CeilDiv(seen.count, kTaps);
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = part * seen.count / parts, last = (part + 1) * seen.count / parts;
    const StripTap* taps = seen.taps + first;
    switch (last - first) {
      case 1: SumTaps<T, whole, 1>(strip, taps, strides, src, grad, sums); break;
      case 2: SumTaps<T, whole, Min(2, kTaps)>(strip, taps, strides, src, grad, sums); break;
      case 3: SumTaps<T, whole, Min(3, kTaps)>(strip, taps, strides, src, grad, sums); break;
      default: SumTaps<T, whole, kTaps>(strip, taps, strides, src, grad, sums);
    }
  }
}

template <typename T, typename S>
void SumAllTapsOf(const Strip& strip, const StripTaps& seen, const SourceStrides& strides, const void* src,
                  const T* grad, T* sums) {
  const S* from = static_cast<const S*>(src);
  if (strides.lane == 1 && strides.lanes == kLanes<T>) SumAllTaps<T, true>(strip, seen, strides, from, grad, sums);
  else SumAllTaps<T, false>(strip, seen, strides, from, grad, sums);
}

// K is all positions. It is split along strips. The splits depend on the problem only, and their sums are added in
// order. So the bits are the same for any number of threads.
template <typename T>
class Wgrad {
 public:
  Wgrad(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        lanes_{p_.groups, kLanes<T>},
        splits_(Splits()),
        sums_(splits_ * SumsSize()),
        offsets_(p_.tap_count),
        strip_taps_(workers.threads() * p_.tap_count),
        grad_(call.rhs, p_.dst_type),
        packed_grad_(workers.threads() * kStrip * kLanes<T>),
        epilogue_(call.result, p_.filter_type, call.epilogue) {
    for (int32_t t = 0; t < p_.tap_count; ++t) offsets_[t] = call.taps[t].filter_delta;
    WithStorage<T>(p_.src_type, [&](auto s) { sum_taps_ = SumAllTapsOf<T, decltype(s)>; });
  }

  void Run(const Workers& workers) const {
    workers.For(splits_, MultiplyAdds(call_), [this](int64_t worker, int64_t split) {
      Zero(SumsSize(), sums_.data() + split * SumsSize());
      for (int32_t c = 0; c < p_.class_count; ++c) Sum(worker, split, call_.classes[c]);
    });
    workers.For(FilterCount(), static_cast<double>(splits_) * SumsSize(),
                [this](int64_t, int64_t item) { StoreFilter(item); });
  }

 private:
  int64_t FilterCount() const { return lanes_.count() * p_.out_channels * p_.in_channels; }
  int64_t FilterSize() const { return p_.tap_count * kLanes<T>; }
  int64_t SumsSize() const { return FilterCount() * FilterSize(); }

  int64_t Splits() const {
    constexpr int64_t kSplits = 32, kSumsOfAllSplits = int64_t{1} << 22;
    int64_t strips = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) strips = Max(strips, StripCount(p_, call_.classes[c]));
    const int64_t affordable = kSumsOfAllSplits / Max<int64_t>(SumsSize(), 1);
    return Max<int64_t>(Min(kSplits, Min(strips, affordable)), 1);
  }

  void Sum(int64_t worker, int64_t split, const ResidueClass& cls) const {
    const int64_t strips = StripCount(p_, cls);
    const SourceStrides strides{p_.step[2] * p_.src.spatial[2], p_.src.channel, p_.in_channels, p_.src.group,
                                lanes_.used()};
    T* grad = packed_grad_.data() + worker * kStrip * kLanes<T>;
    for (int64_t i = split * strips / splits_; i < (split + 1) * strips / splits_; ++i) {
      const Strip strip = LocateStrip(p_, cls, i);
      const StripTaps seen = FindStripTaps(call_, cls, strip, strip_taps_.data() + worker * p_.tap_count);
      T* sums = sums_.data() + split * SumsSize();
      for (int64_t b = 0; b < lanes_.count(); ++b) {
        const int64_t group = lanes_.first(b), grad_step = p_.period[2] * p_.dst.spatial[2];
        for (int64_t k = 0; k < p_.out_channels; ++k) {
          const int64_t dst = strip.dst + strip.first * grad_step + group * p_.dst.group + k * p_.dst.channel;
          grad_.PackPanel(dst, Rows{strip.last - strip.first, grad_step}, lanes_.used(), p_.dst.group, grad, kLanes<T>);
          for (int64_t c = 0; c < p_.in_channels; ++c, sums += FilterSize())
            sum_taps_(strip, seen, strides, Offset(call_.src, p_.src_type, group * p_.src.group + c * p_.src.channel),
                      grad, sums);
        }
      }
    }
  }

  void StoreFilter(int64_t item) const {
    T* sums = sums_.data() + item * FilterSize();
    AddSplits(FilterSize(), splits_, SumsSize(), sums);
    const int64_t c = Take(&item, p_.in_channels), k = Take(&item, p_.out_channels);
    epilogue_(sums, kLanes<T>,
              OutputTile{.origin = lanes_.first(item) * p_.filter.group + c * p_.filter.in + k * p_.filter.out,
                         .offsets = offsets_.data(),
                         .rows = p_.tap_count,
                         .columns = lanes_.used(),
                         .stride = p_.filter.group});
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const Lanes lanes_;
  const int64_t splits_;
  const Buffer<T> sums_;  // [split][vector of lanes][k][c][tap][lane]
  const Buffer<int64_t> offsets_;
  const Buffer<StripTap> strip_taps_;
  const Operand<T> grad_;
  const Buffer<T> packed_grad_;
  StripFunction<T>* sum_taps_;
  const EpilogueOf<T> epilogue_;
};

}  // namespace

void DepthwiseWgrad(const ConvCall& call, const Workers& workers) {
  WithSums(call.problem, [&](auto t) { Wgrad<decltype(t)>(call, workers).Run(workers); });
}

}  // namespace jaxconv::JAXCONV_ISA
