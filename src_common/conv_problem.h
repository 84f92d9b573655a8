// One convolution as kernels see it: sizes, strides and the offset tables, plain data for host and device.
//
// Two products cover every pass (C = channels in, K = channels out, both per group):
//   conv  dst[n, o, k] = sum over (tap, c) of src[n, i(o, tap), c] * filter[tap, c, k]       fprop and dgrad
//   wgrad  filter[tap, c, k] = sum over (n, o) of src[n, i(o, tap), c] * dst[n, o, k]         wgrad (dst is read)
// One and two spatial dimensions are three with leading unit dimensions.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxconv {

inline constexpr int kSpatial = 3;  // (d, h, w)

// What a program's custom calls mean: the offset tables' columns, the attributes, the families' settings. Raise it when
// that changes: programs of another format are refused.
inline constexpr int64_t kFormat = 2;

enum class DType : int32_t { kF32, kF64, kBF16, kF16, kS8, kS32 };

// The two products above.
enum class Pass { kConv, kWgrad };

// A filter tap, a row of the table `taps`: where it reads relative to the row of an output position, and the bounds
// predicate's displacement. Rows of one residue class are adjacent; every tap of the filter is in exactly one row.
struct Tap {
  int32_t src_delta;        // elements from the source position base[] to the tap's source element
  int32_t filter_delta;     // elements from the filter's origin to the tap
  int32_t shift[kSpatial];  // source index = base + shift, in source pixels
};
static_assert(sizeof(Tap) == 5 * sizeof(int32_t), "Tap is a row of an int32[taps, 5] table made in offsets.py");

// Output positions that see the same taps, a row of the table `classes`. Per dimension, the class holds the positions
// o = phase + q * period for 0 <= q < count, and its source base is q * step. A convolution without lhs dilation has
// one class. Taps that no position sees are in a last class without positions (wgrad must still write their zeros).
struct ResidueClass {
  int32_t first_tap;
  int32_t tap_count;  // may be 0: the positions are zero
  int32_t phase[kSpatial];
  int32_t count[kSpatial];
};
static_assert(sizeof(ResidueClass) == 8 * sizeof(int32_t),
              "ResidueClass is a row of an int32[classes, 8] table made in offsets.py");

// Strides in elements of an activation (source or destination).
struct TensorStrides {
  int64_t batch;
  int64_t spatial[kSpatial];
  int64_t group;
  int64_t channel;
};

// Strides in elements of a filter; the taps' own offsets are in the table.
struct FilterStrides {
  int64_t group;
  int64_t in;   // C
  int64_t out;  // K
};

struct ConvProblem {
  int64_t batch;         // images per batch group
  int64_t groups;        // feature groups or batch groups
  int64_t in_channels;   // C, per group
  int64_t out_channels;  // K, per group
  int64_t src_size[kSpatial];
  int64_t dst_size[kSpatial];
  int64_t period[kSpatial];  // distance between a class's output positions
  int64_t step[kSpatial];    // and between their source bases
  TensorStrides src;
  TensorStrides dst;
  FilterStrides filter;
  DType src_type;
  DType filter_type;
  DType dst_type;
  int32_t tap_count;    // all taps of the filter
  int32_t class_count;  // rows of `classes`
};

}  // namespace jaxconv
