// What a conv does with complete sums before it stores them. Plain data for host and device. A wgrad has no epilogue.
//
//   result = activation(scale * sum + bias + residual_scale * residual), rounded once, to the result's type
//
// The host's kernels have all of it, CUDA's the bias.
#pragma once

#include <cstdint>

#include "conv_problem.h"

namespace jaxconv {

// A function of one number, z, with up to three parameters: ConvEpilogue::numbers.
enum class Activation : int32_t {
  kNone,
  kPiecewise,    // (slope, low, high): slope * z below zero, else z; then at least `low`, and at most `high`
  kSigmoid,      // (a, b): z * sigmoid(z * (a + b * z * z)). It is silu, and gelu in its tanh form.
  kHardSigmoid,  // z * min(max(z + 3, 0), 6) / 6
};

// A number for each output channel of all groups, `stride` apart, in the type of the sums. With stride 0 there is one
// number for all. Without data there is none.
struct PerChannel {
  const void* data = nullptr;
  int64_t stride = 0;
};

struct ConvEpilogue {
  bool is_there = false;
  Activation activation = Activation::kNone;
  PerChannel scale;
  PerChannel bias;
  const void* residual = nullptr;        // lies as the result does, in its type; or null
  const void* residual_scale = nullptr;  // one number, in the type of the sums; or null
  double numbers[3] = {};
};

}  // namespace jaxconv
