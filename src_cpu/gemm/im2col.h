// Packs blocks of the source's im2col matrix, as the left operand. The tap table says where they lie.
//
// The matrix is [position][tap, c].
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/call.h"
#include "common/items.h"
#include "common/storage.h"
#include "conv_problem.h"
#include "gemm/arithmetic.h"
#include "gemm/panels.h"
#include "gemm/tile.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int64_t kMostPositions = 192;  // of a block

// Some (tap, channel)s of one class: whole taps, or a part of one tap's channels.
struct TapBlock {
  int32_t tap;
  int32_t taps;
  int64_t channel;
  int64_t channels;

  int64_t size() const { return taps * channels; }
};

// The (tap, channel)s of a class cut into blocks of at most `most`, about equally long.
class TapBlocks {
 public:
  TapBlocks(int32_t taps, int64_t channels, int64_t most) : taps_(taps), channels_(channels) {
    if (taps * channels == 0) return;
    channel_cuts_ = CeilDiv(channels, most);
    tap_cuts_ = channel_cuts_ > 1 ? taps : CeilDiv(taps, most / channels);
  }

  int64_t count() const { return tap_cuts_ * channel_cuts_; }

  // The size of the largest one.
  int64_t most() const { return count() == 0 ? 0 : CeilDiv(taps_, tap_cuts_) * CeilDiv(channels_, channel_cuts_); }

  TapBlock operator[](int64_t i) const {
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
  int64_t src[kMostPositions];
  int64_t dst[kMostPositions];
  int64_t base[kMostPositions][kSpatial];
  int64_t lines;
  int64_t line[kMostPositions + 1];  // where they begin: the positions of a line are neighbours along w

  void Locate(const ConvProblem& p, const ResidueClass& cls, int64_t first, int64_t n) {
    count = n;
    lines = 0;
    if (n <= 0) return;
    int64_t q[kSpatial], image = first;
    for (int i = kSpatial - 1; i >= 0; --i) {
      q[i] = image % cls.count[i];
      image /= cls.count[i];
    }
    for (int64_t r = 0; r < n;) {
      line[lines++] = r;
      const int64_t d = q[0] * p.step[0], h = q[1] * p.step[1];
      const int64_t from = image * p.src.batch + d * p.src.spatial[0] + h * p.src.spatial[1];
      int64_t to = image * p.dst.batch;
      for (int i = 0; i < kSpatial - 1; ++i) to += (cls.phase[i] + q[i] * p.period[i]) * p.dst.spatial[i];
      for (const int64_t end = Min(n, r + cls.count[2] - q[2]); r < end; ++r, ++q[2]) {
        const int64_t w = q[2] * p.step[2];
        src[r] = from + w * p.src.spatial[2];
        dst[r] = to + (cls.phase[2] + q[2] * p.period[2]) * p.dst.spatial[2];
        base[r][0] = d;
        base[r][1] = h;
        base[r][2] = w;
      }
      int i = kSpatial - 1;
      while (i >= 0 && q[i] == cls.count[i]) {
        q[i--] = 0;
        ++(i >= 0 ? q[i] : image);
      }
    }
    line[lines] = n;
  }
};

// The taps of each class in the order of what they read: those of a data gradient come the other way round. For each,
// how many from it on are neighbours in a source row: those are copied at once.
class ContiguousTaps {
 public:
  explicit ContiguousTaps(const ConvCall& call) : taps_(call.problem.tap_count), counts_(call.problem.tap_count) {
    for (int32_t c = 0; c < call.problem.class_count; ++c) {
      const ResidueClass& cls = call.classes[c];
      const Tap* from = call.taps + cls.first_tap;
      const int32_t last = cls.tap_count - 1;
      const bool backwards = last > 0 && from[last].src_delta < from[0].src_delta;
      for (int32_t t = last; t >= 0; --t) {
        taps_[cls.first_tap + t] = from[backwards ? last - t : t];
        counts_[cls.first_tap + t] = t < last && Joined(call.problem, cls.first_tap + t) ? counts(cls)[t + 1] + 1 : 1;
      }
    }
  }

  const Tap* taps(const ResidueClass& cls) const { return taps_.data() + cls.first_tap; }
  const int32_t* counts(const ResidueClass& cls) const { return counts_.data() + cls.first_tap; }

 private:
  bool Joined(const ConvProblem& p, int32_t t) const {
    const Tap &tap = taps_[t], &next = taps_[t + 1];
    return p.src.channel == 1 && next.src_delta == tap.src_delta + p.in_channels && next.shift[0] == tap.shift[0] &&
           next.shift[1] == tap.shift[1] && next.shift[2] == tap.shift[2] + 1;
  }

  const Buffer<Tap> taps_;
  const Buffer<int32_t> counts_;
};

// Where a block's (tap, channel)s lie in the filter, relative to its group.
inline void LocateInFilter(const ConvProblem& p, const Tap* taps, const TapBlock& block, int64_t* offsets) {
  for (int32_t t = block.tap; t < block.tap + block.taps; ++t)
    for (int64_t c = block.channel; c < block.channel + block.channels; ++c)
      *offsets++ = taps[t].filter_delta + c * p.filter.in;
}

// One group of the source, seen by one class.
struct Source {
  const ConvProblem& problem;
  const void* data;
  const Tap* taps;
  const int32_t* contiguous;  // taps from each one on
};

template <typename T, typename S>
void PackContiguousRow(const Source& source, const Positions& at, int64_t r, const TapBlock& block, T* out) {
  const int64_t* size = source.problem.src_size;
  const S* from = static_cast<const S*>(source.data) + at.src[r] + block.channel;
  const int32_t end = block.tap + block.taps;
  for (int32_t t = block.tap; t < end;) {
    const Tap& tap = source.taps[t];
    const int64_t length = Min(source.contiguous[t], end - t);
    const int64_t w = at.base[r][2] + tap.shift[2];
    int64_t low = 0, high = 0;  // those of the taps that lie in the source
    if (Inside(at.base[r][0] + tap.shift[0], size[0]) && Inside(at.base[r][1] + tap.shift[1], size[1])) {
      low = Min(Max<int64_t>(-w, 0), length);
      high = Max(Min(size[2] - w, length), low);
    }
    if (low > 0) Zero(low * block.channels, out);
    Convert(from + tap.src_delta + low * block.channels, (high - low) * block.channels, out + low * block.channels);
    if (high < length) Zero((length - high) * block.channels, out + high * block.channels);
    out += length * block.channels;
    t += length;
  }
}

// Channels apart from each other, or a single one: position after position, because those are more likely neighbours.
// In rows of the matrix, or in rows of its transpose.
template <typename T, typename S, bool transposed>
void PackStridedTap(const Source& source, const Positions& at, const Tap& tap, const TapBlock& block, T* out) {
  const ConvProblem& p = source.problem;
  const int64_t step = p.step[2], distance = step * p.src.spatial[2];
  const int64_t next = transposed ? 1 : kRowStride<T>, next_channel = transposed ? kRowStride<T> : 1;
  for (int64_t i = 0; i < at.lines; ++i) {
    const int64_t begin = at.line[i], count = at.line[i + 1] - begin, *base = at.base[begin];
    int64_t low = 0, high = 0;  // the part of the line that lies in the source
    if (Inside(base[0] + tap.shift[0], p.src_size[0]) && Inside(base[1] + tap.shift[1], p.src_size[1])) {
      const int64_t w = base[2] + tap.shift[2];
      low = w >= 0 ? 0 : Min(CeilDiv(-w, step), count);
      high = Inside(w + (count - 1) * step, p.src_size[2]) ? count : CeilDiv(Max<int64_t>(p.src_size[2] - w, 0), step);
      high = Max(Min(high, count), low);
    }
    const S* from = static_cast<const S*>(source.data) + at.src[begin] + tap.src_delta + block.channel * p.src.channel;
    T* to = out + begin * next;
    for (int64_t c = 0; c < block.channels; ++c, from += p.src.channel, to += next_channel) {
      for (int64_t r = 0; r < low; ++r) to[r * next] = kZero<T>;
      if (transposed && distance == 1) Convert(from + low, high - low, to + low);
      else
        for (int64_t r = low; r < high; ++r) to[r * next] = Load<T>(from[r * distance]);
      for (int64_t r = high; r < count; ++r) to[r * next] = kZero<T>;
    }
  }
}

// Whether neighbours in a row of the matrix are neighbours in the source.
inline bool HasContiguousRows(const ConvProblem& p) { return p.src.channel == 1 && p.in_channels > 1; }

template <typename T>
using PackIm2colFunction = void(const Source& source, const Positions& at, const TapBlock& block, T* words);

// Packs a block [position][tap, c], with zeros where a tile reaches over the end.
template <typename A, typename S>
void PackIm2col(const Source& source, const Positions& at, const TapBlock& block, typename A::Sum* words) {
  using L = typename A::Left;
  L* const im2col = reinterpret_cast<L*>(words);
  if (HasContiguousRows(source.problem)) {
    for (int64_t r = 0; r < at.count; ++r) PackContiguousRow<L, S>(source, at, r, block, im2col + r * kRowStride<L>);
  } else {
    for (int32_t t = 0; t < block.taps; ++t)
      PackStridedTap<L, S, false>(source, at, source.taps[block.tap + t], block, im2col + t * block.channels);
  }
  for (int64_t r = 0; r < at.count; ++r)
    for (int i = 0; i < kTileM; ++i) im2col[r * kRowStride<L> + block.size() + i] = kZero<L>;
  for (int64_t r = at.count; r < RoundUp(at.count, kTileM); ++r) Zero(block.size(), im2col + r * kRowStride<L>);
}

// Packs a block [tap, c][position].
template <typename A, typename S>
void PackIm2colTransposed(const Source& source, const Positions& at, const TapBlock& block, typename A::Sum* words) {
  using L = typename A::Left;
  static_assert(kMostPositions <= kRowStride<L>, "the positions of a block fit a row");
  L* const im2col = reinterpret_cast<L*>(words);
  for (int32_t t = 0; t < block.taps; ++t)
    PackStridedTap<L, S, true>(source, at, source.taps[block.tap + t], block,
                               im2col + t * block.channels * kRowStride<L>);
  for (int64_t i = block.size(); i < RoundUp(block.size(), kTileM); ++i) Zero(at.count, im2col + i * kRowStride<L>);
}

// Packs a block of contiguous rows as [position][tap, c] where a word is of several positions and one (tap, c).
template <typename A, typename S>
void PackIm2colJoined(const Source& source, const Positions& at, const TapBlock& block, typename A::Sum* words) {
  using L = typename A::Left;
  using T = typename A::Sum;
  using Bits = std::conditional_t<sizeof(L) == 1, int8_t, uint16_t>;
  L rows[A::kDepth][kBlockK<T>] = {};
  const Bits* of_position[A::kDepth];
  for (int j = 0; j < A::kDepth; ++j) of_position[j] = reinterpret_cast<const Bits*>(rows[j]);
  for (int64_t first = 0; first < at.count; first += A::kDepth, words += kRowStride<T>) {
    for (int64_t j = 0; j < A::kDepth; ++j) {
      if (first + j < at.count) PackContiguousRow<L, S>(source, at, first + j, block, rows[j]);
    }
    JoinRows<A::kDepth>(of_position, block.size(), words);
    for (int i = 0; i < kTileM; ++i) words[block.size() + i] = T{};
  }
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
