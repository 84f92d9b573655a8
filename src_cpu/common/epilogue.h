// The epilogue: accumulators in, results out. Every result of every kernel is written here, once.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/simd.h"
#include "common/storage.h"
#include "conv_problem.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// Where the results of a block of accumulators [rows][columns] are, and whose they are.
struct OutputTile {
  int64_t origin;          // element of the result; rows begin at offsets from it
  const int64_t* offsets;  // of the rows
  int64_t rows;
  int64_t columns;
  int64_t stride;              // elements from a column to the next
  int64_t channel = 0;         // of column 0, among the output channels of all groups
  int64_t channel_stride = 0;  // channels from a column to the next
};

template <typename S, typename T>
void StoreTile(const T* sums, int64_t sums_stride, const OutputTile& tile, void* result) {
  S* out = static_cast<S*>(result);
  if (tile.stride == 1) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      const T* row = sums + r * sums_stride;
      S* to = out + tile.offsets[r];
      if constexpr (std::is_same_v<S, T>) Convert(row, tile.columns, to);
      else
        for (int64_t c = 0; c < tile.columns; ++c) to[c] = Store<S>(row[c]);
    }
  } else {
    for (int64_t c = 0; c < tile.columns; ++c)
      for (int64_t r = 0; r < tile.rows; ++r)
        out[tile.offsets[r] + c * tile.stride] = Store<S>(sums[r * sums_stride + c]);
  }
}

template <typename T>
class Epilogue {
 public:
  // bias: of type T, a number for each output channel of all groups; or null.
  Epilogue(void* result, DType type, const void* bias)
      : result_(result), type_(type), bias_(static_cast<const T*>(bias)) {
    WithStorage<T>(type, [this](auto s) { store_ = StoreTile<decltype(s), T>; });
  }

  // Takes complete sums, in rows `sums_stride` apart, and may change them. At most two vectors of columns.
  void operator()(T* sums, int64_t sums_stride, const OutputTile& tile) const {
    // What is done to a sum before it is rounded to the result's type stands here, in the type of the sums.
    if (bias_) AddBias(sums, sums_stride, tile);
    store_(sums, sums_stride, tile, const_cast<void*>(Offset(result_, type_, tile.origin)));
  }

 private:
  void AddBias(T* sums, int64_t sums_stride, const OutputTile& tile) const {
    T bias[2 * kLanes<T>];
    for (int64_t c = 0; c < tile.columns; ++c) bias[c] = bias_[tile.channel + c * tile.channel_stride];
    for (int64_t r = 0; r < tile.rows; ++r)
      for (int64_t c = 0; c < tile.columns; ++c) sums[r * sums_stride + c] += bias[c];
  }

  void* result_;
  DType type_;
  const T* bias_;
  void (*store_)(const T* sums, int64_t sums_stride, const OutputTile& tile, void* result);
};

// Panels of `panel_columns` neighbouring columns, whose sums are `panel_size` apart. tile: the first panel, but with
// the columns of all.
template <typename T>
void StorePanels(const Epilogue<T>& epilogue, T* sums, int64_t panel_size, int64_t panel_columns, OutputTile tile) {
  for (int64_t left = tile.columns; left > 0; left -= panel_columns, sums += panel_size) {
    tile.columns = Min(panel_columns, left);
    epilogue(sums, panel_columns, tile);
    tile.origin += panel_columns * tile.stride;
    tile.channel += panel_columns * tile.channel_stride;
  }
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
