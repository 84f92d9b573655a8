// What a conv does with complete sums before it stores them. Plain data for host and device. A wgrad has no epilogue.
//
//   result = out_scale * activation(scale * sum + bias + residual_scale * residual), rounded once, to the result's type
//
// Sums of integers are int32. They are rounded to float32 first, or else are the result as they are. An int8 result is
// rounded to nearest even, and ends at -128 and 127. A float8 result ends at its largest numbers, but not where there
// is no epilogue: then it is rounded as XLA converts.
//
// To add an operation, add its operands here, read them in ffi_decode.h, and apply it in EpilogueOf of
// src_cpu/common/epilogue.h and in EndSums of src_cuda/common/epilogue.cuh, which has the order on a GPU. Callers of
// EndSums say how they do a step, so the compiler finds all. An activation goes into WithBend there. One kernel ends
// sums in two parts, without it: see WgmmaEpilogue of src_cuda/wgmma/epilogue.cuh, whose RoundToPairs clips after it
// rounds. An operand as large as the result, as the residual is, also needs maps where kernels read it by TMA
// (`residual_maps`), and planning counts it (`has_residual`). CONTRIBUTING.md lists what else to touch.
#pragma once

#include <cstdint>
#include <limits>

#include "conv_problem.h"

namespace jaxconv {

// A function of one number, z, with up to three parameters: Epilogue::numbers.
enum class Activation : int32_t {
  kNone,
  kPiecewise,    // (slope, low, high): slope * z below zero, else z; then at least `low`, and at most `high`
  kSigmoid,      // (a, b): z * sigmoid(z * (a + b * z * z)). It is silu, and gelu in its tanh form.
  kHardSigmoid,  // z * min(max(z + 3, 0), 6) / 6
};

// A number for each output channel of all groups, `stride` apart, in the epilogue's type: EpilogueType. With stride 0
// there is one number for all. Without data there is none, and `stride` is 0.
struct PerChannel {
  const void* data = nullptr;
  int64_t stride = 0;
};

// An activation of float32: most clip, or do nothing, which is to clip at infinities. Others bend results before.
struct FloatActivation {
  float low = -std::numeric_limits<float>::infinity();
  float high = std::numeric_limits<float>::infinity();
  bool bends = false;     // it has a slope, or is smooth
  float numbers[2] = {};  // of what bends: the slope, or a and b
};

inline FloatActivation OfFloats(Activation activation, const double (&numbers)[3]) {
  FloatActivation of;
  of.numbers[0] = static_cast<float>(numbers[0]), of.numbers[1] = static_cast<float>(numbers[1]);
  of.bends = activation == Activation::kPiecewise ? numbers[0] != 1 : activation != Activation::kNone;
  if (activation == Activation::kPiecewise) {
    of.low = static_cast<float>(numbers[1]), of.high = static_cast<float>(numbers[2]);
  }
  return of;
}

struct Epilogue {
  bool is_there = false;
  Activation activation = Activation::kNone;
  DType residual_type = DType::kF32;
  PerChannel scale;
  PerChannel bias;
  PerChannel out_scale;                  // of an int8 or float8 result
  const void* residual = nullptr;        // lies as the result does; or null
  const void* residual_scale = nullptr;  // one number, in the epilogue's type; or null
  double numbers[3] = {};
  FloatActivation of_floats;  // the activation again: ReadOperands makes it of the above, for CUDA
};

}  // namespace jaxconv
