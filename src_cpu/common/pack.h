// Packs an operand's numbers, in the type of the sums.
#pragma once

#include <cstdint>

#include "common/simd.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

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
