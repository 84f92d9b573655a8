// The end of every kernel: accumulators in, results out.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/simd.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// Stores rows of a tile [rows][columns], of which `lanes` columns count, each row at its own offset.
template <typename S, typename T>
void StoreRows(const T* tile, int64_t columns, const int64_t* offsets, int64_t rows, int64_t lane_stride, int64_t lanes,
               void* result) {
  S* out = static_cast<S*>(result);
  if (lane_stride == 1) {
    for (int64_t r = 0; r < rows; ++r) {
      if constexpr (std::is_same_v<S, T>) Convert(tile + r * columns, lanes, out + offsets[r]);
      else
        for (int64_t l = 0; l < lanes; ++l) out[offsets[r] + l] = Store<S>(tile[r * columns + l]);
    }
  } else {
    for (int64_t l = 0; l < lanes; ++l)
      for (int64_t r = 0; r < rows; ++r) out[offsets[r] + l * lane_stride] = Store<S>(tile[r * columns + l]);
  }
}

template <typename T>
using StoreRowsFunction = void(const T* tile, int64_t columns, const int64_t* offsets, int64_t rows,
                               int64_t lane_stride, int64_t lanes, void* result);

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
