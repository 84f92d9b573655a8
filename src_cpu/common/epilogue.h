// The epilogue: accumulators in, results out. Every result of every kernel is written here, once.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common/simd.h"
#include "common/storage.h"
#include "conv_epilogue.h"
#include "conv_problem.h"
#include "operand_traits.h"

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

// Calls f(column) for each column. Most tiles have one or two vectors of them: such loops have a constant length. GCC
// would unroll 16 iterations before it looks for vectors, and then finds none.
template <typename T, typename F>
void ForEachColumn(int64_t columns, const F& f) {
  constexpr int64_t kVector = kLanes<T>;
  if (columns == 2 * kVector) {
#pragma GCC unroll 1
    for (int64_t c = 0; c < 2 * kVector; ++c) f(c);
  } else if (columns == kVector) {
#pragma GCC unroll 1
    for (int64_t c = 0; c < kVector; ++c) f(c);
  } else {
    for (int64_t c = 0; c < columns; ++c) f(c);
  }
}

// Rows of one or two vectors, as most are, are copied without a call: with few taps it would take as long as their
// sums.
template <typename T>
inline void CopyRow(const T* from, int64_t columns, T* to) {
  constexpr int64_t kVector = kLanes<T>;
  if (columns != kVector && columns != 2 * kVector) return Convert(from, columns, to);
  for (int64_t c = 0; c < columns; c += kVector) StoreVector(LoadVector<T>(from + c), to + c);
}

template <typename S, typename T>
void StoreTile(const T* sums, int64_t sums_stride, const OutputTile& tile, void* result) {
  S* out = static_cast<S*>(result);
  if (tile.stride == 1) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      const T* row = sums + r * sums_stride;
      S* to = out + tile.offsets[r];
      if constexpr (std::is_same_v<S, T>) CopyRow(row, tile.columns, to);
      else ForEachColumn<T>(tile.columns, [&](int64_t c) { to[c] = Store<S>(row[c]); });
    }
  } else {
    for (int64_t c = 0; c < tile.columns; ++c)
      for (int64_t r = 0; r < tile.rows; ++r)
        out[tile.offsets[r] + c * tile.stride] = Store<S>(sums[r * sums_stride + c]);
  }
}

// Calls f(sum, column) for each sum of a tile.
template <typename T, typename F>
void ForEachSum(T* sums, int64_t sums_stride, const OutputTile& tile, const F& f) {
  for (int64_t r = 0; r < tile.rows; ++r)
    ForEachColumn<T>(tile.columns, [&](int64_t c) { f(sums[r * sums_stride + c], c); });
}

// Adds the residual, of type S, to sums. Products with its scale are rounded before they are added, as anywhere in an
// epilogue: so its bits are those of the same expression elsewhere. The compiler would fuse both in one loop.
template <typename S, typename T>
void AddResidual(const void* residual, T scale, T* sums, int64_t sums_stride, const OutputTile& tile) {
  const S* from = static_cast<const S*>(residual) + tile.origin;
  T summand[2 * kLanes<T>];
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t c = 0; c < tile.columns; ++c) summand[c] = scale * Load<T>(from[tile.offsets[r] + c * tile.stride]);
    for (int64_t c = 0; c < tile.columns; ++c) sums[r * sums_stride + c] += summand[c];
  }
}

// exp in a few instructions of vectors: 2^n times the exponential of what is left, by a polynomial (Cephes, expf).
// Beyond 88.4 it is infinite, below -87.3 as there. NaN stays NaN.
inline float Exp(float x) {
  constexpr float kMost = 89.0f, kLeast = -87.3f, kLog2E = 1.44269504f, kHigh = 0.693359375f, kLow = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: a sum with it has the nearest whole number in its last bits
  x = x > kMost ? kMost : x;
  x = x < kLeast ? kLeast : x;
  const float shifted = x * kLog2E + kRound, n = shifted - kRound;
  const float r = (x - n * kHigh) - n * kLow;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  uint32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  bits = (bits + 127) << 23;  // what is not n falls out at the top
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return p * power;
}
inline double Exp(double x) { return std::exp(x); }

// Calls f with the activation as a function of a number, or with one after the other. NaN stays NaN.
template <typename T, typename F>
void WithActivation(const Epilogue& epilogue, const F& f) {
  const T n0 = epilogue.numbers[0], n1 = epilogue.numbers[1], n2 = epilogue.numbers[2];
  switch (epilogue.activation) {
    case Activation::kNone: return;
    case Activation::kPiecewise:
      if (n0 != 1) {
        f([=](T z) {  // -0 becomes 0: the derivative is had from the result's sign, and only a negative number bends
          const T below = n0 * z, others = z + T{0};
          return z < 0 ? below : others;
        });
      }
      return f([=](T z) {  // a zero at an end becomes the end, whatever its sign
        z = z <= n1 ? n1 : z;
        return z >= n2 ? n2 : z;
      });
    case Activation::kSigmoid:
      return f([=](T z) {
        constexpr T kLarge = 10'000;  // sigmoid is 0 or 1 from here on, and no product below becomes infinite
        const T x = z > kLarge ? kLarge : z < -kLarge ? -kLarge : z;
        return z * (1 / (1 + Exp(-x * (n0 + n1 * x * x))));
      });
    case Activation::kHardSigmoid:
      return f([](T z) { return z * ((z + 3 < 0 ? T{0} : z + 3 > 6 ? T{6} : z + 3) / 6); });
  }
}

// The type that the epilogue of sums of type T is computed in: EpilogueType.
template <typename T>
using EpilogueNumber = std::conditional_t<std::is_integral_v<T>, float, T>;

template <typename T>
class EpilogueOf {
  using Number = EpilogueNumber<T>;

 public:
  EpilogueOf(void* result, DType type, const Epilogue& epilogue) : result_(result), type_(type), epilogue_(epilogue) {
    if constexpr (std::is_integral_v<T>) {
      if (type == DType::kS32) store_sums_ = StoreTile<int32_t, T>;
    }
    WithRounded<Number>(type, [this](auto s) {
      store_ = StoreTile<decltype(s), Number>;
      if constexpr (kIsFloat8<decltype(s)>) largest_ = Load<Number>(decltype(s){kLargestBits<decltype(s)>});
    });
    WithRounded<Number>(epilogue.residual_type, [this](auto s) { add_residual_ = AddResidual<decltype(s), Number>; });
  }

  // Takes complete sums, in rows `sums_stride` apart, and may change them. At most two vectors of columns.
  void operator()(T* sums, int64_t sums_stride, const OutputTile& tile) const {
    void* const to = const_cast<void*>(Offset(result_, type_, tile.origin));
    if (store_sums_) return store_sums_(sums, sums_stride, tile, to);
    Number* numbers = InNumbers(sums, sums_stride, tile);
    if (epilogue_.is_there) Apply(numbers, sums_stride, tile);
    store_(numbers, sums_stride, tile, to);
  }

 private:
  // The sums as the epilogue's numbers, in their place. Those of integers are rounded to nearest even.
  static Number* InNumbers(T* sums, int64_t sums_stride, const OutputTile& tile) {
    if constexpr (std::is_same_v<T, Number>) {
      return sums;
    } else {
      ForEachSum(sums, sums_stride, tile,
                 [](T& sum, int64_t) { StoreVector(static_cast<Number>(static_cast<int32_t>(sum)), &sum); });
      return reinterpret_cast<Number*>(sums);
    }
  }

  // What is done to a number before it is rounded to the result's type. Each step is a loop of its own, because the
  // compiler would fuse a product and a sum in one.
  void Apply(Number* numbers, int64_t stride, const OutputTile& tile) const {
    ForEachChannel(epilogue_.scale, numbers, stride, tile, [](Number& z, Number scale) { z *= scale; });
    ForEachChannel(epilogue_.bias, numbers, stride, tile, [](Number& z, Number bias) { z += bias; });
    if (epilogue_.residual) {
      const auto* scale = static_cast<const Number*>(epilogue_.residual_scale);
      add_residual_(epilogue_.residual, scale ? *scale : Number{1}, numbers, stride, tile);
    }
    WithActivation<Number>(epilogue_, [&](const auto& activation) {
      ForEachSum(numbers, stride, tile, [&](Number& z, int64_t) { z = activation(z); });
    });
    ForEachChannel(epilogue_.out_scale, numbers, stride, tile, [](Number& y, Number scale) { y *= scale; });
    if (largest_ > 0) {
      ForEachSum(numbers, stride, tile, [largest = largest_](Number& y, int64_t) {
        y = y < -largest ? -largest : y;
        y = y > largest ? largest : y;
      });
    }
  }

  // Calls f(number, operand of its channel), if there is such an operand.
  template <typename F>
  static void ForEachChannel(const PerChannel& operand, Number* numbers, int64_t stride, const OutputTile& tile,
                             const F& f) {
    if (!operand.data) return;
    Number of_column[2 * kLanes<T>];
    for (int64_t c = 0; c < tile.columns; ++c) {
      const int64_t channel = tile.channel + c * tile.channel_stride;
      of_column[c] = static_cast<const Number*>(operand.data)[channel * operand.stride];
    }
    ForEachSum(numbers, stride, tile, [&](Number& number, int64_t c) { f(number, of_column[c]); });
  }

  void* result_;
  DType type_;
  const Epilogue& epilogue_;
  Number largest_ = 0;  // of a float8 result
  void (*store_sums_)(const T* sums, int64_t sums_stride, const OutputTile& tile, void* result) = nullptr;
  void (*store_)(const Number* numbers, int64_t stride, const OutputTile& tile, void* result);
  void (*add_residual_)(const void* residual, Number scale, Number* numbers, int64_t stride, const OutputTile& tile);
};

// Panels of `panel_columns` neighbouring columns, whose sums are `panel_size` apart. tile: the first panel, but with
// the columns of all.
template <typename T>
void StorePanels(const EpilogueOf<T>& epilogue, T* sums, int64_t panel_size, int64_t panel_columns, OutputTile tile) {
  for (int64_t left = tile.columns; left > 0; left -= panel_columns, sums += panel_size) {
    tile.columns = Min(panel_columns, left);
    epilogue(sums, panel_columns, tile);
    tile.origin += panel_columns * tile.stride;
    tile.channel += panel_columns * tile.channel_stride;
  }
}

}  // namespace
}  // namespace jaxconv::JAXCONV_ISA
