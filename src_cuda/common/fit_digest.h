// A number that a call carries: of its problem and its settings together. Where windows lie and how far taps reach is
// in the offset tables, which handlers cannot read. So settings of another problem are found by this number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "make_problem.h"

namespace jaxconv {

// FNV-1a, in steps of 64 bits.
class Digest {
 public:
  void Add(int64_t number) { digest_ = (digest_ ^ static_cast<uint64_t>(number)) * 1099511628211u; }
  void Add(Numbers64 numbers) {
    for (const int64_t number : numbers) Add(number);
  }

  int64_t value() const { return static_cast<int64_t>(digest_); }

 private:
  uint64_t digest_ = 14695981039346656037u;
};

// A problem, and where its windows lie.
struct FitArguments {
  ProblemArguments problem;
  Numbers64 padding_low, rhs_dilation;
};

// What the settings of a call add to the digest. They do not change, so a loaded program has these numbers at hand.
template <typename Settings>
std::vector<int64_t> FitNumbers(const Settings& settings) {
  const std::string tile = Settings::kTiles[settings.tile].name();
  std::vector<int64_t> numbers(tile.begin(), tile.end());
  for (const auto& field : Settings::Fields()) numbers.push_back(settings.*field.member);
  return numbers;
}

// A batch may be another one than was planned for. `settings`: their FitNumbers.
inline int64_t FitDigest(const FitArguments& a, Numbers64 settings) {
  const ProblemArguments& p = a.problem;
  Digest digest;
  const auto add = [&](const ArrayArguments& array, int64_t batch_axis) {
    digest.Add(array.axes);
    for (int64_t axis = 0; axis < static_cast<int64_t>(array.sizes.size()); ++axis) {
      if (axis != batch_axis) digest.Add(array.sizes[axis]);
    }
  };
  add(p.src, p.src.axes[0]), add(p.filter, -1), add(p.dst, p.dst.axes[0]);
  for (Numbers64 each : {p.window_strides, a.padding_low, p.lhs_dilation, a.rhs_dilation}) digest.Add(each);
  for (bool each : {p.src_batch_grouped, p.dst_batch_grouped, p.filter_in_grouped, p.dst_in_blocks}) digest.Add(each);
  digest.Add(p.groups);
  digest.Add(settings);
  return digest.value();
}

}  // namespace jaxconv
