// Planning of the host's kernel families. They have no tiles and no settings. Their cost is in multiply-adds.
//
// Costs are fitted to measurements of float32, with the newest instruction set that kernels are compiled for. Those of
// int8 have about the same ratios.
#pragma once

#include <algorithm>
#include <cstdint>

#include "common/registers.h"
#include "conv_problem.h"
#include "matrix_product.h"
#include "reason.h"
#include "sizes.h"

namespace jaxconv::host {

inline constexpr int kFloats = kAvx512.vector_bytes / sizeof(float);  // of a vector
inline constexpr int kShortFloats = kShortVectorBytes / sizeof(float);

// The share of the last vector that is full, if it is the only one.
inline double Filled(int64_t floats) { return static_cast<double>(std::min<int64_t>(floats, kFloats)) / kFloats; }

inline double MultiplyAdds(const Product& p) {
  return std::max(1.0, 1.0 * p.rows() * p.cols() * p.steps() * p.conv.groups);
}

// Takes any problem. Vectors go along output channels: those of a narrow group are mostly empty.
struct GemmPlanner {
  static constexpr const char* kName = "gemm";

  static Reason UnsupportedReason(const Product&) { return std::nullopt; }

  static double Cost(const Product& p) {
    if (p.pass == Pass::kWgrad) return WgradCost(p);
    const bool has_groups = p.conv.groups > 1;
    return MultiplyAdds(p) * (has_groups ? 1 + 1 / Filled(std::max<int64_t>(p.cols(), 1)) : 1);
  }

 private:
  // Each position packs its (tap, channel)s, which are a tile's rows, and for each residue class its columns.
  static double WgradCost(const Product& p) {
    constexpr double kOfShortVector = 0.5;  // two of them cost as much as one vector
    const double vectors = p.cols() <= kShortFloats ? kOfShortVector : CeilDiv(p.cols(), kFloats);
    const int64_t tiles = CeilDiv(CeilDiv(p.rows(), p.classes()), kAvx512.tile_m);
    const double rows = p.rows() / 4.0 + 5.0 * p.kernel[0] * p.kernel[1] * p.kernel[2];
    const double each_class = tiles * kAvx512.tile_m * vectors + p.cols() / 4.0 + 10;
    return std::max(1.0, kFloats * static_cast<double>(p.conv.groups * p.steps()) * (rows + p.classes() * each_class));
  }
};

// Vectors go along groups.
struct DepthwisePlanner {
  static constexpr const char* kName = "depthwise";

  static Reason UnsupportedReason(const Product& p) {
    const bool has_one_channel = p.conv.groups > 1 && (p.conv.in_channels == 1 || p.cols() == 1);
    return has_one_channel ? std::nullopt : Reason("it is for groups of one channel");
  }

  // The numbers of a vector that is not full are loaded one by one.
  static double Cost(const Product& p) {
    constexpr double kOneByOne = 4;  // what a vector costs then
    const double filled = Filled(p.conv.groups);
    return MultiplyAdds(p) * (filled < 1 ? kOneByOne / filled : 1);
  }
};

}  // namespace jaxconv::host
