// How far the taps of a problem reach, in source pixels. For planning: kernels know it by their settings, as the host
// cannot read the tables of a call. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>

#include "common/planning.h"
#include "conv_problem.h"

namespace jaxconv {

// Calls f(tap, its residue class) for each tap that a position sees.
template <typename F>
void ForEachSeenTap(const Product& product, F&& f) {
  for (const ResidueClass& c : product.residue_classes) {
    if (c.count[0] == 0 || c.count[1] == 0 || c.count[2] == 0) continue;
    for (int t = 0; t < c.tap_count; ++t) f(product.taps[c.first_tap + t], c);
  }
}

// The least and the most of the shifts of taps that a position sees, and their greatest common distance.
struct TapReach {
  std::array<int64_t, kSpatial> least, most, apart;

  explicit TapReach(const Product& product) {
    least.fill(std::numeric_limits<int64_t>::max());
    most.fill(std::numeric_limits<int64_t>::min());
    apart.fill(0);
    const Tap* any = nullptr;
    ForEachSeenTap(product, [&](const Tap& tap, const ResidueClass&) {
      if (any == nullptr) any = &tap;
      Add(tap, *any);
    });
  }

  bool is_empty() const { return least[0] > most[0]; }
  int64_t size(int d) const { return most[d] - least[d] + 1; }

 private:
  void Add(const Tap& tap, const Tap& other) {
    for (int d = 0; d < kSpatial; ++d) {
      least[d] = std::min<int64_t>(least[d], tap.shift[d]);
      most[d] = std::max<int64_t>(most[d], tap.shift[d]);
      if (apart[d] != 1) apart[d] = std::gcd(apart[d], int64_t{tap.shift[d]} - other.shift[d]);
    }
  }
};

}  // namespace jaxconv
