// Packs the right operand of a matrix product, in panels of a tile's columns: [k][column] of words.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/pack.h"
#include "common/simd.h"
#include "common/storage.h"
#include "conv_problem.h"
#include "gemm/arithmetic.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

// The words of a column of a panel of k numbers.
template <typename A>
constexpr int64_t PanelRows(int64_t k) {
  return CeilDiv(k, A::kDepth) + kIsBiased<A>;
}

// Joins n numbers of each of `depth` rows to n words: the first row's are the lowest bits.
template <int depth, int lanes, typename S>
void JoinRows(const S* const* rows, int64_t n, uint32_t* to) {
  constexpr int kBits = 32 / depth;
  const auto join = [&](int64_t i) {
    Vector<uint32_t, lanes> words = {};
    for (int j = 0; j < depth; ++j)
      words |= (LoadVector<uint32_t, lanes>(rows[j] + i) & ((uint32_t{1} << kBits) - 1)) << (j * kBits);
    StoreVector(words, to + i);
  };
  if (n >= lanes) {
    for (int64_t i = 0; i <= n - lanes; i += lanes) join(i);
    if (n % lanes) join(n - lanes);
  } else if constexpr (lanes > 1) {
    JoinRows<depth, lanes / 2>(rows, n, to);
  }
}

template <int depth, typename S>
void JoinRows(const S* const* rows, int64_t n, uint32_t* to) {
  JoinRows<depth, kLanes<uint32_t>>(rows, n, to);
}

// Packs a matrix in words of `depth` rows. Behind the last row are zeros.
template <int depth>
void PackWords(const void* data, const Rows& rows, int64_t columns, int64_t stride, uint32_t* to, int64_t to_stride) {
  constexpr int8_t kZero = 0;
  const auto* from = static_cast<const int8_t*>(data);
  for (int64_t first = 0; first < rows.count; first += depth, to += to_stride) {
    const int8_t* row[depth];
    for (int j = 0; j < depth; ++j) {
      const int64_t r = Min<int64_t>(first + j, rows.count - 1);
      row[j] = from + (rows.offsets ? rows.offsets[r] : r * rows.stride);
    }
    if (const int64_t there = rows.count - first; stride == 1 && there >= depth) {
      JoinRows<depth>(row, columns, to);
    } else {
      for (int64_t c = 0; c < columns; ++c) {
        const int8_t* number[depth];
        for (int j = 0; j < depth; ++j) number[j] = j < there ? row[j] + c * stride : &kZero;
        JoinRows<depth, 1>(number, 1, to + c);
      }
    }
  }
}

template <typename A>
class RightOperand {
  using T = typename A::Sum;

 public:
  RightOperand(const void* data, DType type) : data_(data), type_(type) {
    if constexpr (A::kDepth > 1) pack_ = PackWords<A::kDepth>;
    else WithStorage<T>(type, [this](auto s) { pack_ = PackRows<T, decltype(s)>; });
  }

  // Packs a matrix that begins at element `origin`, as a panel of `width` columns, with zeros where there are fewer.
  // Its columns are `stride` elements apart.
  void PackPanel(int64_t origin, const Rows& rows, int64_t columns, int64_t stride, T* panel, int64_t width) const {
    if (columns < width) Zero(PanelRows<A>(rows.count) * width, panel);
    PackColumns(origin, rows, columns, stride, panel, width, 0);
    Finish(rows.count, panel, width);
  }

  // Packs some of a panel's columns, from `first` on.
  void PackColumns(int64_t origin, const Rows& rows, int64_t columns, int64_t stride, T* panel, int64_t width,
                   int64_t first) const {
    pack_(Offset(data_, type_, origin), rows, columns, stride, panel + kIsBiased<A> * width + first, width);
  }

  // Ends a panel of k numbers a column, when all columns are packed.
  static void Finish(int64_t k, T* panel, int64_t width) {
    if constexpr (kIsBiased<A>) {
      constexpr int kShort = kShortLanes<T>;
      typename A::Left zeros[A::kDepth];
      Zero(A::kDepth, zeros);
      for (int64_t c = 0; c < width; c += kShort) {
        Vector<T, kShort> of_zeros = {};
        for (int64_t i = 1; i < PanelRows<A>(k); ++i)
          of_zeros = A::MultiplyAdd(of_zeros, BitCast<T>(zeros), LoadVector<T, kShort>(panel + i * width + c));
        StoreVector(-of_zeros, panel + c);
      }
    }
  }

 private:
  const void* data_;
  DType type_;
  void (*pack_)(const void* data, const Rows& rows, int64_t columns, int64_t stride, T* to, int64_t to_stride);
};

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
