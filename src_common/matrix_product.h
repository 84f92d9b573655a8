// A pass of a convolution as a matrix product, as planning sees it. Host-only: without CUDA.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <vector>

#include "conv_problem.h"
#include "operand_traits.h"
#include "sizes.h"

namespace jaxconv {

// An array as lax sees it: its sizes, and its axes in the order (batch, channel, spatial...) or (out, in, spatial...).
struct ArrayShape {
  std::vector<int64_t> sizes;
  std::vector<int64_t> axes;

  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  int64_t Stride(int64_t axis) const { return StrideAlong(sizes, axis); }
};

// Whether neighbours along an axis are adjacent in memory.
inline bool IsInnermost(const ArrayShape& array, int64_t axis) {
  return std::all_of(array.sizes.begin() + axis + 1, array.sizes.end(), [](int64_t size) { return size == 1; });
}

// Whether both operands of a pass can be loaded in vectors of as many channels: contiguous and aligned. A filter may
// have them along its input or its output channels.
inline bool HasChannelVectors(Pass pass, const ArrayShape& src, const ArrayShape& filter, const ArrayShape& dst,
                              int64_t in_channels, int64_t out_channels, int64_t elements) {
  if (!IsInnermost(src, src.axes[1])) return false;
  const auto has_vectors = [&](const ArrayShape& other, int64_t axis, int64_t channels) {
    return IsInnermost(other, axis) && std::gcd(in_channels, channels) % elements == 0;
  };
  if (pass == Pass::kWgrad) return has_vectors(dst, dst.axes[1], out_channels);
  return has_vectors(filter, filter.axes[0], out_channels) || has_vectors(filter, filter.axes[1], in_channels);
}

// How operands of float32 are multiplied, by the precision that is asked for: as what sum of rounded numbers. kBF16 is
// left only where results are float64, which no tensor core has. Else the operands are bfloat16, or float32 as kTF32.
enum class Float32 {
  kBF16,
  kTF32,
  kBF16x6,   // three bfloat16, or as it is
  kFloat32,  // as it is
};

// The matrix product of one pass of a problem. `conv` has the sizes and strides, as kernels see them.
struct Product {
  ConvProblem conv;
  Pass pass;
  Float32 float32;
  ArrayShape src, filter, dst;
  bool src_batch_grouped, dst_batch_grouped;
  bool has_epilogue, has_residual;
  std::array<int64_t, kSpatial> kernel, window_strides, lhs_dilation, rhs_dilation;  // leading ones are 1
  int spatial_rank;
  // Of one member of a vmap. NaN or infinity in one member must not reach the results of another.
  int64_t member_groups;
  std::vector<Tap> taps;
  std::vector<ResidueClass> residue_classes;

  bool MultipliesFloat32(Float32 how) const { return conv.src_type == DType::kF32 && float32 == how; }
  int64_t images() const { return conv.batch; }
  int64_t positions() const { return Positions(conv); }
  int64_t channel_taps() const { return ChannelTaps(conv); }
  int64_t rows() const { return Rows(conv, pass); }
  int64_t cols() const { return conv.out_channels; }
  // Residue classes with positions; at least one.
  int64_t classes() const {
    int64_t classes = 1;
    for (int d = 0; d < kSpatial; ++d) classes *= std::max<int64_t>(LivePhases(conv, d), 1);
    return classes;
  }
  // K, on average: a position sees only the taps of its residue class.
  int64_t steps() const { return CeilDiv(pass == Pass::kConv ? channel_taps() : positions(), classes()); }
  // The share of a conv's residue classes that have taps. Results of the others are zeros.
  double share_with_taps() const {
    if (pass != Pass::kConv || residue_classes.empty()) return 1;
    const auto with_taps =
        std::ranges::count_if(residue_classes, [](const ResidueClass& c) { return c.tap_count > 0; });
    return static_cast<double>(std::max<int64_t>(1, with_taps)) / static_cast<double>(residue_classes.size());
  }
  // The taps of the longest residue class, as a multiple of what so many classes have on average.
  double longest_class(int64_t classes) const {
    if (pass != Pass::kConv || taps.empty()) return 1;
    const auto by_taps = [](const ResidueClass& a, const ResidueClass& b) { return a.tap_count < b.tap_count; };
    const int64_t most = std::ranges::max_element(residue_classes, by_taps)->tap_count;
    return static_cast<double>(most * classes) / static_cast<double>(taps.size());
  }
  DType sum_type() const { return SumType(conv); }
  // All results, and their bytes in the type of the sums.
  int64_t sums() const { return rows() * cols() * conv.groups; }
  int64_t sums_bytes() const { return sums() * TraitsOf(sum_type()).bytes; }

  // Bytes of the destination, of the residual, and of the source pixels that windows see, each counted once.
  int64_t activation_bytes() const {
    int64_t seen = 1, out = 1;
    for (int d = 0; d < kSpatial; ++d) seen *= Seen(d), out *= conv.dst_size[d];
    const int64_t src_bytes = seen * conv.in_channels * TraitsOf(conv.src_type).bytes;
    const int64_t out_bytes = out * conv.out_channels * TraitsOf(conv.dst_type).bytes;
    return images() * conv.groups * (src_bytes + (has_residual ? 2 : 1) * out_bytes);
  }

  bool HasChannelVectors(int64_t elements) const {
    return jaxconv::HasChannelVectors(pass, src, filter, dst, conv.in_channels, conv.out_channels, elements);
  }

 private:
  // Pixels of a dimension that windows see. With a stride greater than the window, some are skipped.
  int64_t Seen(int d) const {
    const int64_t size = conv.src_size[d], stride = window_strides[d];
    if (stride == 1 || lhs_dilation[d] > 1) return size;
    return CeilDiv(size * std::min(kernel[d], stride / std::gcd(stride, rhs_dilation[d])), stride);
  }
};

}  // namespace jaxconv
