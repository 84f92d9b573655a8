// Packs an operand's numbers.
#pragma once

#include <cstdint>

#include "common/simd.h"
#include "common/storage.h"
#include "conv_problem.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// Where the rows of a matrix begin: row r at offsets[r], or at r * stride if there are no offsets.
struct Rows {
  int64_t count;
  int64_t stride;
  const int64_t* offsets = nullptr;
};

template <typename T, typename S, typename F>
void PackRows(const S* from, int64_t rows, const F& begin_of, int64_t columns, int64_t stride, T* to,
              int64_t to_stride) {
  if (stride == 1 && columns == kLanes<T>) {
    for (int64_t r = 0; r < rows; ++r) StoreVector(LoadVector<T>(from + begin_of(r)), to + r * to_stride);
  } else if (stride == 1) {
    for (int64_t r = 0; r < rows; ++r) Convert(from + begin_of(r), columns, to + r * to_stride);
  } else {
    constexpr int64_t kRows = 96;  // so many packed rows stay in the first-level cache
    for (int64_t first = 0; first < rows; first += kRows)
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t r = first; r < Min(first + kRows, rows); ++r)
          to[r * to_stride + c] = Load<T>(from[begin_of(r) + c * stride]);
  }
}

template <typename T, typename S>
void PackRows(const void* data, const Rows& rows, int64_t columns, int64_t stride, T* to, int64_t to_stride) {
  const auto pack = [&](const auto& begin_of) {
    PackRows(static_cast<const S*>(data), rows.count, begin_of, columns, stride, to, to_stride);
  };
  if (const int64_t* offsets = rows.offsets) pack([offsets](int64_t r) { return offsets[r]; });
  else pack([by = rows.stride](int64_t r) { return r * by; });
}

// An operand whose numbers are packed as T.
template <typename T>
class Operand {
 public:
  Operand(const void* data, DType type) : data_(data), type_(type) {
    WithStorage<T>(type, [this](auto s) { pack_ = PackRows<T, decltype(s)>; });
  }

  // Packs a matrix that begins at element `origin`. Its columns are `stride` elements apart, its packed rows
  // `to_stride`.
  void Pack(int64_t origin, const Rows& rows, int64_t columns, int64_t stride, T* to, int64_t to_stride) const {
    pack_(Offset(data_, type_, origin), rows, columns, stride, to, to_stride);
  }

  // The same as a panel [rows][panel_columns], with zeros where there are fewer columns.
  void PackPanel(int64_t origin, const Rows& rows, int64_t columns, int64_t stride, T* panel,
                 int64_t panel_columns) const {
    if (columns < panel_columns) Zero(rows.count * panel_columns, panel);
    Pack(origin, rows, columns, stride, panel, panel_columns);
  }

 private:
  const void* data_;
  DType type_;
  void (*pack_)(const void* data, const Rows& rows, int64_t columns, int64_t stride, T* to, int64_t to_stride);
};

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
