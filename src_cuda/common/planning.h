// Planning of a kernel family: which settings of a tile support a problem, why others do not, and their estimated time.
//
// Host-only: without CUDA. planning.cc exposes it to Python.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/product.h"
#include "common/reason.h"
#include "common/settings.h"
#include "common/types.h"
#include "conv_problem.h"

namespace jaxconv {

// The fields of a tile by name, for `explain` and tests.
using TileFields = std::map<std::string, int64_t>;

// Fitted costs by name.
class Numbers {
 public:
  explicit Numbers(std::map<std::string, double> numbers) : numbers_(std::move(numbers)) {}

  double operator[](const std::string& name) const {
    const auto found = numbers_.find(name);
    if (found == numbers_.end()) throw std::out_of_range("the device's data have no " + name);
    return found->second;
  }

 private:
  std::map<std::string, double> numbers_;
};

// A GPU, and the costs that were fitted to measurements on it.
struct Device {
  int64_t multiprocessors;
  double clock_hz;
  double bandwidth;      // bytes/s
  int64_t shared_bytes;  // the most for a CTA
  bool wgmma;
  std::map<std::string, Numbers> costs;  // by family

  const Numbers& CostsOf(const std::string& family) const {
    const auto found = costs.find(family);
    if (found == costs.end()) throw std::out_of_range("the device's data have no costs of " + family);
    return found->second;
  }
};

// An array as lax sees it: its sizes, and its axes in the order (batch, channel, spatial...) or (out, in, spatial...).
struct ArrayShape {
  std::vector<int64_t> sizes;
  std::vector<int64_t> axes;

  int64_t rank() const { return static_cast<int64_t>(sizes.size()); }
  // Elements between neighbours along an axis.
  int64_t Stride(int64_t axis) const {
    int64_t stride = 1;
    for (int64_t i = axis + 1; i < rank(); ++i) stride *= sizes[i];
    return stride;
  }
};

// How operands of float32 are multiplied, by the precision that is asked for: as what sum of rounded numbers. kBF16 is
// left only where results are float64, which no tensor core has: else the operands are bfloat16.
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
  // The sizes of one member of a vmap. NaN or infinity in one member must not reach the results of another.
  int64_t member_groups, member_in_channels, member_out_channels;
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
    for (int d = 0; d < kSpatial; ++d) classes *= std::min(conv.period[d], std::max<int64_t>(conv.dst_size[d], 1));
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
  int64_t sums_bytes() const { return sums() * ElementBytes(sum_type()); }

  // Bytes of the destination, of the residual, and of the source pixels that windows see, each counted once.
  int64_t activation_bytes() const {
    int64_t seen = 1, out = 1;
    for (int d = 0; d < kSpatial; ++d) seen *= Seen(d), out *= conv.dst_size[d];
    const int64_t src_bytes = seen * conv.in_channels * ElementBytes(conv.src_type);
    const int64_t out_bytes = out * conv.out_channels * ElementBytes(conv.dst_type);
    return images() * conv.groups * (src_bytes + (has_residual ? 2 : 1) * out_bytes);
  }

  // Whether both operands can be loaded in vectors of as many channels: contiguous and aligned. A filter may have them
  // along its input or its output channels.
  bool HasChannelVectors(int64_t elements) const {
    if (!IsInnermost(src, src.axes[1])) return false;
    const auto has_vectors = [&](const ArrayShape& other, int64_t axis, int64_t channels) {
      return IsInnermost(other, axis) && std::gcd(conv.in_channels, channels) % elements == 0;
    };
    if (pass == Pass::kWgrad) return has_vectors(dst, dst.axes[1], conv.out_channels);
    return has_vectors(filter, filter.axes[0], conv.out_channels) ||
           has_vectors(filter, filter.axes[1], conv.in_channels);
  }

 private:
  // Pixels of a dimension that windows see. With a stride greater than the window, some are skipped.
  int64_t Seen(int d) const {
    const int64_t size = conv.src_size[d], stride = window_strides[d];
    if (stride == 1 || lhs_dilation[d] > 1) return size;
    return CeilDiv(size * std::min(kernel[d], stride / std::gcd(stride, rhs_dilation[d])), stride);
  }

  // Whether neighbours along an axis are adjacent in memory.
  static bool IsInnermost(const ArrayShape& array, int64_t axis) {
    return std::all_of(array.sizes.begin() + axis + 1, array.sizes.end(), [](int64_t size) { return size == 1; });
  }
};

// Settings that the user requests, by name. The planner chooses the others.
struct Requested {
  std::map<std::string, int64_t> settings;

  std::optional<int64_t> Find(const std::string& name) const {
    const auto found = settings.find(name);
    return found == settings.end() ? std::nullopt : std::optional(found->second);
  }
};

}  // namespace jaxconv
