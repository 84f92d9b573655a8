// Packs blocks of the two operands of a matrix product, in the type of the sums: rows of the source's im2col matrix,
// found through the tap table, and panels of the right operand.
#pragma once

#include <cstdint>

#include "conv_problem.h"
#include "kernels.h"
#include "simd.h"
#include "tile.h"
#include "work.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int64_t kMostRows = 192;  // of a block

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
  int64_t src[kMostRows];
  int64_t dst[kMostRows];
  int64_t base[kMostRows][kSpatial];
  int64_t lines;
  int64_t line[kMostRows + 1];  // where they begin: the positions of a line are neighbours along w

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
class TapRuns {
 public:
  explicit TapRuns(const ConvCall& call) : taps_(call.problem.tap_count), runs_(call.problem.tap_count) {
    for (int32_t c = 0; c < call.problem.class_count; ++c) {
      const ResidueClass& cls = call.classes[c];
      const Tap* from = call.taps + cls.first_tap;
      const int32_t last = cls.tap_count - 1;
      const bool backwards = last > 0 && from[last].src_delta < from[0].src_delta;
      for (int32_t t = last; t >= 0; --t) {
        taps_[cls.first_tap + t] = from[backwards ? last - t : t];
        runs_[cls.first_tap + t] = t < last && Joined(call.problem, cls.first_tap + t) ? runs(cls)[t + 1] + 1 : 1;
      }
    }
  }

  const Tap* taps(const ResidueClass& cls) const { return taps_.data() + cls.first_tap; }
  const int32_t* runs(const ResidueClass& cls) const { return runs_.data() + cls.first_tap; }

 private:
  bool Joined(const ConvProblem& p, int32_t t) const {
    const Tap &tap = taps_[t], &next = taps_[t + 1];
    return p.src.channel == 1 && next.src_delta == tap.src_delta + p.in_channels && next.shift[0] == tap.shift[0] &&
           next.shift[1] == tap.shift[1] && next.shift[2] == tap.shift[2] + 1;
  }

  const Buffer<Tap> taps_;
  const Buffer<int32_t> runs_;
};

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
// In rows of the matrix, or in rows of its transpose.
template <typename T, typename S, bool transposed>
void PackStridedTap(const Source& source, const Positions& at, const Tap& tap, const Slice& slice, T* out) {
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
    const S* from = static_cast<const S*>(source.data) + at.src[begin] + tap.src_delta + slice.channel * p.src.channel;
    T* to = out + begin * next;
    for (int64_t c = 0; c < slice.channels; ++c, from += p.src.channel, to += next_channel) {
      for (int64_t r = 0; r < low; ++r) to[r * next] = T{};
      if (transposed && distance == 1) Convert(from + low, high - low, to + low);
      else
        for (int64_t r = low; r < high; ++r) to[r * next] = Load<T>(from[r * distance]);
      for (int64_t r = high; r < count; ++r) to[r * next] = T{};
    }
  }
}

// Whether neighbours in a row of the matrix are neighbours in the source.
inline bool HasContiguousRows(const ConvProblem& p) { return p.src.channel == 1 && p.in_channels > 1; }

template <typename T>
using PackRowsFunction = void(const Source& source, const Positions& at, const Slice& slice, T* rows);

// Packs the slice of the positions' im2col rows, with zeros where a tile reaches over the end.
template <typename T, typename S>
void PackRows(const Source& source, const Positions& at, const Slice& slice, T* rows) {
  const int64_t columns = slice.columns();
  if (HasContiguousRows(source.problem)) {
    for (int64_t r = 0; r < at.count; ++r) PackContiguousRow<T, S>(source, at, r, slice, rows + r * kRowStride<T>);
  } else {
    for (int32_t t = 0; t < slice.taps; ++t)
      PackStridedTap<T, S, false>(source, at, source.taps[slice.tap + t], slice, rows + t * slice.channels);
  }
  for (int64_t r = 0; r < at.count; ++r)
    for (int i = 0; i < kTileRows; ++i) rows[r * kRowStride<T> + columns + i] = T{};
  for (int64_t r = at.count; r < RoundUp(at.count, kTileRows); ++r) Zero(columns, rows + r * kRowStride<T>);
}

// The same as a block [column][position], for sources where that is less work.
template <typename T, typename S>
void PackColumns(const Source& source, const Positions& at, const Slice& slice, T* columns) {
  static_assert(kMostRows <= kRowStride<T>, "a column of a block is a row of the transpose");
  for (int32_t t = 0; t < slice.taps; ++t)
    PackStridedTap<T, S, true>(source, at, source.taps[slice.tap + t], slice,
                               columns + t * slice.channels * kRowStride<T>);
  for (int64_t i = slice.columns(); i < RoundUp(slice.columns(), kTileRows); ++i)
    Zero(at.count, columns + i * kRowStride<T>);
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

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
