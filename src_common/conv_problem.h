// One convolution as kernels see it: sizes, strides and offset tables. Plain data for host and device.
//
// Two products cover every pass (C = input channels, K = output channels, both per group):
//   conv  dst[n, o, k] = sum over (tap, c) of src[n, i(o, tap), c] * filter[tap, c, k]       fprop and dgrad
//   wgrad  filter[tap, c, k] = sum over (n, o) of src[n, i(o, tap), c] * dst[n, o, k]         wgrad (dst is read)
// 1-D and 2-D convolutions are 3-D with leading dimensions of size 1.
#pragma once

#include <cstddef>
#include <cstdint>

namespace jaxconv {

inline constexpr int kSpatial = 3;  // (d, h, w)

// The format of custom calls: the columns of the offset tables, the attributes and the families' settings. Increase it
// when a column or a name's meaning changes. A new name needs no other format: an older version refuses it by itself.
// Compiled programs of another format are refused.
inline constexpr int64_t kFormat = 11;

// Coordinates in an image are less: kernels add them to that of a point outside of it, which is -2^30.
inline constexpr int32_t kCoordinateLimit = 1 << 30;
// Output positions are fewer: kernels count the steps of K of a weight gradient in 31 bits, of eight positions each.
inline constexpr int64_t kPositionsLimit = int64_t{1} << 34;
inline constexpr const char* kTooManyPositions = "2^34 output positions or more";

enum class DType : int32_t { kF32, kF64, kBF16, kF16, kS8, kS32, kE4M3, kE5M2 };

// The two products above.
enum class Pass { kConv, kWgrad };

// A filter tap, a row of the table `taps`: where it reads relative to an output position, in elements for the address
// and in pixels for the bounds check. The taps of a residue class are adjacent. Each tap of the filter is in exactly
// one row. Behind them is a row of other numbers: XLA fills a table of equal numbers, as that of a 1x1 window would be,
// by a kernel of its own, in each call.
struct Tap {
  int32_t src_delta;        // elements from the position's source base to the tap's source element
  int32_t filter_delta;     // elements from the filter's origin to the tap
  int32_t shift[kSpatial];  // source index = base + shift, in source pixels
};
inline constexpr int64_t kTapColumns = sizeof(Tap) / sizeof(int32_t);
static_assert(kTapColumns == 5, "Tap is a row of an int32[taps + 1, 5] table made in offsets.py");

// A residue class, a row of the table `classes`: output positions that see the same taps. In each dimension, it has the
// positions o = phase + q * period for 0 <= q < count, and their source bases are q * step. Without lhs dilation there
// is one class. Taps that no position sees are in a last class without positions, because wgrad must write their zeros.
struct ResidueClass {
  int32_t first_tap;
  int32_t tap_count;  // may be 0: the positions are zero
  int32_t phase[kSpatial];
  int32_t count[kSpatial];
};
inline constexpr int64_t kClassColumns = sizeof(ResidueClass) / sizeof(int32_t);
static_assert(kClassColumns == 8, "ResidueClass is a row of an int32[classes, 8] table made in offsets.py");

// Channels of a block, where an activation has them in blocks: [batch, channels / 32, spatial..., 32].
inline constexpr int64_t kBlockChannels = 32;

// Strides of an activation (source or destination), in elements.
struct TensorStrides {
  int64_t batch;
  int64_t spatial[kSpatial];
  int64_t group;
  int64_t channel;  // inside of a block, if there are blocks
  int64_t block;    // from a block to the next; 0: channels are not in blocks. Only a destination's are, of one group
};

// Strides of a filter, in elements. The offsets of its taps are in the table.
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
  int64_t period[kSpatial];  // distance between the output positions of a class
  int64_t step[kSpatial];    // distance between their source bases
  TensorStrides src;
  TensorStrides dst;
  FilterStrides filter;
  DType src_type;
  DType filter_type;
  DType dst_type;
  int32_t tap_count;    // all taps of the filter
  int32_t class_count;  // rows of `classes`
};

// Rows of pixels before the source's first row and behind its last one. They are arrays of their own: where devices
// split an image, a device receives them from its neighbours. Null: there are none, and zeros in their place.
struct NeighbourRows {
  const void* before = nullptr;
  const void* after = nullptr;
  int64_t elements_before = 0;
  int64_t elements_after = 0;

  bool are_there() const { return elements_before > 0 || elements_after > 0; }
};

// A problem whose destination has channels in blocks, as one with a group for each block. All of them read the same
// source. For kernels that know no blocks.
inline ConvProblem BlocksAsGroups(ConvProblem p) {
  if (p.dst.block == 0) return p;
  p.groups = p.out_channels / kBlockChannels;
  p.out_channels = kBlockChannels;
  p.src.group = 0;
  p.filter.group = kBlockChannels * p.filter.out;
  p.dst.group = p.dst.block, p.dst.block = 0;
  return p;
}

}  // namespace jaxconv
