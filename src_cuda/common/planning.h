// What planning asks of a kernel family: which settings of a tile take a problem, why not, and how long they take.
//
// Host-only: without CUDA. planning.cc hands it to Python.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
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

// What a tile is, by the names of its fields: for explanations and tests.
using TileFields = std::map<std::string, int64_t>;

// Numbers by name: fitted costs, and what is asked of settings.
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

// A GPU, and what was fitted to measurements on it.
struct Device {
  int64_t multiprocessors;
  double clock_hz;
  double bandwidth;      // bytes/s
  int64_t shared_bytes;  // that a thread block may have
  bool wgmma;
  std::map<std::string, Numbers> costs;  // by family

  const Numbers& CostsOf(const std::string& family) const {
    const auto found = costs.find(family);
    if (found == costs.end()) throw std::out_of_range("the device's data have no costs of " + family);
    return found->second;
  }
};

// An array as lax sees it: its sizes, and which axes are (batch, channel) or (out, in), then spatial.
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

// The matrix product that a pass of a problem is. `conv` has the sizes and strides, as a kernel sees them.
struct Product {
  ConvProblem conv;
  Pass pass;
  bool is_exact;  // float32 is to be multiplied as such, not as tf32
  ArrayShape src, filter, dst;
  bool src_batch_grouped, dst_batch_grouped;
  std::array<int64_t, kSpatial> kernel, window_strides, lhs_dilation, rhs_dilation;  // leading ones are 1
  int spatial_rank;
  // What belongs to one member of a vmap. Numbers of one member do not reach another's results.
  int64_t member_groups, member_in_channels, member_out_channels;
  std::vector<Tap> taps;
  std::vector<ResidueClass> residue_classes;

  int64_t images() const { return conv.batch; }
  int64_t positions() const { return Positions(conv); }
  int64_t channel_taps() const { return ChannelTaps(conv); }
  int64_t rows() const { return Rows(conv, pass); }
  int64_t cols() const { return conv.out_channels; }
  // Residue classes that have positions; at least one.
  int64_t classes() const {
    int64_t classes = 1;
    for (int d = 0; d < kSpatial; ++d) classes *= std::min(conv.period[d], std::max<int64_t>(conv.dst_size[d], 1));
    return classes;
  }
  // A result's reduction's length: a position sees the taps of its class, on average their share of all.
  int64_t steps() const { return CeilDiv(pass == Pass::kConv ? channel_taps() : positions(), classes()); }
  // Of the taps that positions see, on average: what no kernel multiplies less than.
  double seen_multiply_adds() const {
    return static_cast<double>(positions()) * channel_taps() / classes() * cols() * conv.groups;
  }
  DType sum_type() const { return SumType(conv); }
  // Of the whole result, in the type of the sums.
  int64_t sums_bytes() const { return rows() * cols() * conv.groups * ElementBytes(sum_type()); }
  // Of a row of the column matrix: a position's (tap, channel)s, of all groups.
  int64_t column_bytes() const { return conv.groups * channel_taps() * ElementBytes(conv.src_type); }

  // Bytes of the source's pixels that windows see, and of the destination, each once.
  int64_t activation_bytes() const {
    int64_t seen = 1, out = 1;
    for (int d = 0; d < kSpatial; ++d) seen *= Seen(d), out *= conv.dst_size[d];
    const int64_t src_bytes = seen * conv.in_channels * ElementBytes(conv.src_type);
    return images() * conv.groups * (src_bytes + out * conv.out_channels * ElementBytes(conv.dst_type));
  }

  // Whether the channels of source and destination, of all groups, are the last axis, and multiples of as many.
  bool HasPixelsOf(int64_t src_unit, int64_t dst_unit) const {
    return src.axes[1] == src.rank() - 1 && dst.axes[1] == dst.rank() - 1 && src.sizes.back() % src_unit == 0 &&
           dst.sizes.back() % dst_unit == 0;
  }

  // Whether both operands' channels are contiguous in runs of as many, which begin at their multiples: by either axis
  // of a filter.
  bool HasRunsOf(int64_t elements) const {
    if (!IsInnermost(src, src.axes[1])) return false;
    const auto is_run = [&](const ArrayShape& other, int64_t axis, int64_t channels) {
      return IsInnermost(other, axis) && std::gcd(conv.in_channels, channels) % elements == 0;
    };
    if (pass == Pass::kWgrad) return is_run(dst, dst.axes[1], conv.out_channels);
    return is_run(filter, filter.axes[0], conv.out_channels) || is_run(filter, filter.axes[1], conv.in_channels);
  }

 private:
  // Pixels of a dimension that windows see, which leave some out if they are further apart than wide.
  int64_t Seen(int d) const {
    const int64_t size = conv.src_size[d], stride = window_strides[d];
    if (stride == 1 || lhs_dilation[d] > 1) return size;
    return CeilDiv(size * std::min(kernel[d], stride / std::gcd(stride, rhs_dilation[d])), stride);
  }

  // Whether neighbours along an axis are neighbours in memory.
  static bool IsInnermost(const ArrayShape& array, int64_t axis) {
    return std::all_of(array.sizes.begin() + axis + 1, array.sizes.end(), [](int64_t size) { return size == 1; });
  }
};

// What is asked of settings, by the names of their fields; the rest is the planner's choice.
struct Asked {
  std::map<std::string, int64_t> settings;

  std::optional<int64_t> Find(const std::string& name) const {
    const auto found = settings.find(name);
    return found == settings.end() ? std::nullopt : std::optional(found->second);
  }
};

}  // namespace jaxconv
