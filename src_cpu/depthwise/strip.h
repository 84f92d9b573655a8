// What the passes of depthwise share. There is no matrix product in a group of one channel, so a vector's lanes are
// groups.
//
// Positions are taken in strips along w. A strip sees a list of taps, each with the part of the strip for which it
// reads inside the source. So inner loops have no bounds to check. Right for any number of channels in a group.
#pragma once

#include <cstdint>

#include "common/call.h"
#include "common/items.h"
#include "common/storage.h"

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
struct StripTap {
  int32_t tap;
  int64_t src;  // where position 0 reads
  int64_t low;
  int64_t high;
};

struct StripTaps {
  const StripTap* taps;
  int64_t count;
  int64_t low;  // the positions that all taps see: empty if low >= high
  int64_t high;
};

StripTaps FindStripTaps(const ConvCall& call, const ResidueClass& cls, const Strip& strip, StripTap* taps) {
  const ConvProblem& p = call.problem;
  StripTaps seen{taps, 0, strip.first, strip.last};
  for (int32_t t = cls.first_tap; t < cls.first_tap + cls.tap_count; ++t) {
    const Tap& tap = call.taps[t];
    if (!Inside(strip.base[0] + tap.shift[0], p.src_size[0]) || !Inside(strip.base[1] + tap.shift[1], p.src_size[1]))
      continue;
    const int64_t before = Max(-tap.shift[2], 0), inside = Max<int64_t>(p.src_size[2] - tap.shift[2], 0);
    StripTap each{t, strip.src + tap.src_delta, Max(CeilDiv(before, p.step[2]), strip.first),
                  Min(CeilDiv(inside, p.step[2]), strip.last)};
    if (each.low >= each.high) continue;
    seen.low = Max(seen.low, each.low);
    seen.high = Min(seen.high, each.high);
    taps[seen.count++] = each;
  }
  return seen;
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

// How far apart neighbours lie in the source, and how many channels and lanes there are, within one vector of lanes.
struct SourceStrides {
  int64_t position;
  int64_t channel;
  int64_t channels;
  int64_t lane;
  int64_t lanes;
};

// The work on one vector of lanes of a strip; `right` is the filter in a conv, dst's gradient in a wgrad.
template <typename T>
using StripFunction = void(const Strip& strip, const StripTaps& seen, const SourceStrides& strides, const void* src,
                           const T* right, T* sums);

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
