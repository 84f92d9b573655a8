// How a problem is cut into the items of a parallel loop.
#pragma once

#include <cstdint>

#include "common/call.h"
#include "common/storage.h"
#include "conv_problem.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

inline int64_t PositionCount(const ConvProblem& p, const ResidueClass& cls) {
  return p.batch * cls.count[0] * cls.count[1] * cls.count[2];
}

inline bool Inside(int64_t i, int64_t size) { return static_cast<uint64_t>(i) < static_cast<uint64_t>(size); }

// Items numbered through all classes. A class has as many as it needs.
class ClassItems {
 public:
  template <typename F>
  ClassItems(const ConvProblem& p, const F& items_of) : first_(p.class_count + 1) {
    first_[0] = 0;
    for (int32_t c = 0; c < p.class_count; ++c) first_[c + 1] = first_[c] + items_of(c);
    total_ = first_[p.class_count];
  }

  int64_t total() const { return total_; }
  int64_t first(int32_t c) const { return first_[c]; }

  // Finds the class of an item, and makes the item relative to it.
  int32_t Find(int64_t* item) const {
    int32_t c = 0;
    while (first_[c + 1] <= *item) ++c;
    *item -= first_[c];
    return c;
  }

 private:
  Buffer<int64_t> first_;
  int64_t total_;
};

// Takes the fastest index off a composed one.
inline int64_t Take(int64_t* index, int64_t size) {
  const int64_t fastest = *index % size;
  *index /= size;
  return fastest;
}

inline double MultiplyAdds(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  double steps = 0;
  for (int32_t c = 0; c < p.class_count; ++c)
    steps += static_cast<double>(PositionCount(p, call.classes[c])) * call.classes[c].tap_count;
  return steps * p.groups * p.in_channels * p.out_channels;
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
