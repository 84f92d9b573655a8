// The epilogue on the device: from complete sums to results. Every kernel ends with it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "conv_epilogue.h"

namespace jaxconv {

// Activations of a number. NaN stays NaN.
template <typename Acc>
__device__ __forceinline__ Acc Piecewise(const Epilogue& epilogue, Acc z) {
  const auto number = [&](int i) { return static_cast<Acc>(epilogue.numbers[i]); };
  z = z < 0 ? number(0) * z : z;
  z = z < number(1) ? number(1) : z;
  return z > number(2) ? number(2) : z;
}

template <typename Acc>
__device__ __forceinline__ Acc Smooth(const Epilogue& epilogue, Acc z) {
  if (epilogue.activation == Activation::kHardSigmoid) {
    const Acc gate = z + 3 < 0 ? Acc{0} : z + 3 > 6 ? Acc{6} : z + 3;
    return z * (gate / 6);
  }
  constexpr Acc kLarge = 10'000;  // sigmoid is 0 or 1 from here on, and no product below becomes infinite
  const Acc x = z > kLarge ? kLarge : z < -kLarge ? -kLarge : z;
  const Acc power = -x * (static_cast<Acc>(epilogue.numbers[0]) + static_cast<Acc>(epilogue.numbers[1]) * x * x);
  if constexpr (std::is_same_v<Acc, float>) {
    return z * __fdividef(1, 1 + __expf(power));
  } else {
    return z * (1 / (1 + exp(static_cast<double>(power))));
  }
}

// What kernels with many sums call for each of them is a function: code for each sum would take minutes to compile.
template <typename Acc>
__device__ __noinline__ Acc SmoothByCall(const Epilogue& epilogue, Acc z) {
  return Smooth(epilogue, z);
}

template <typename Acc>
__device__ __noinline__ Acc ResidualByCall(const Epilogue& epilogue, int64_t element) {
  Acc residual{};
  WithType<Acc>(epilogue.residual_type, [&](auto type) {
    residual = static_cast<Acc>(static_cast<const decltype(type)*>(epilogue.residual)[element]);
  });
  return residual;
}

template <typename Acc>
__device__ __forceinline__ Acc Activate(const Epilogue& epilogue, Acc z) {
  if constexpr (std::is_integral_v<Acc>) return z;  // ffi_decode.h refuses activations of integers
  if (epilogue.activation == Activation::kNone) return z;
  return epilogue.activation == Activation::kPiecewise ? Piecewise(epilogue, z) : SmoothByCall(epilogue, z);
}

// The epilogue of one output channel, with its operands in registers. For threads with many results of one channel.
template <typename Acc, bool kHasEpilogue>
struct EpilogueOfChannel {
  const Epilogue* epilogue;
  Acc scale, bias;

  __device__ __forceinline__ Acc operator()(Acc sum) const {
    return kHasEpilogue ? Activate(*epilogue, Scaled(sum)) : sum;
  }

  // Without the activation.
  __device__ __forceinline__ Acc Scaled(Acc sum) const { return sum * scale + bias; }
};

// The epilogue. Output channels are numbered from channel `first` of all groups. Each kernel is compiled with an
// epilogue and without one: without one, this class generates no code.
template <typename Acc, bool kHasEpilogue>
class EpilogueOf {
 public:
  __device__ __forceinline__ EpilogueOf(const Epilogue& epilogue, int64_t first) : epilogue_(epilogue), first_(first) {}

  // The epilogue of one channel, which must exist, for several results without a residual.
  __device__ __forceinline__ EpilogueOfChannel<Acc, kHasEpilogue> Of(int64_t channel) const {
    if constexpr (!kHasEpilogue) return {nullptr, Acc{}, Acc{}};
    return {&epilogue_, Operand(epilogue_.scale, channel, Acc{1}), Operand(epilogue_.bias, channel, Acc{0})};
  }

  // The result of one sum without a residual. The channel must exist.
  __device__ __forceinline__ Acc operator()(Acc sum, int64_t channel) const { return Of(channel)(sum); }

  // The result of one sum, of an element of the result that exists.
  __device__ __forceinline__ Acc operator()(Acc sum, int64_t channel, int64_t element) const {
    if constexpr (!kHasEpilogue) return sum;
    return Activate(epilogue_, WithResidual(Of(channel).Scaled(sum), element));
  }

  // The results of neighbouring channels, `apart` elements from one to the next.
  template <int N>
  __device__ __forceinline__ decltype(auto) operator()(const Pack<Acc, N>& sums, int64_t channel, int64_t element,
                                                       int64_t apart) const {
    if constexpr (kHasEpilogue) {
      Pack<Acc, N> results;
#pragma unroll
      for (int v = 0; v < N; ++v) results.v[v] = (*this)(sums.v[v], channel + v, element + v * apart);
      return results;
    } else {
      return (sums);
    }
  }

  // Adds the residual's element, if there is a residual. It comes before the activation.
  __device__ __forceinline__ Acc WithResidual(Acc z, int64_t element) const {
    return HasResidual() ? z + ResidualScale() * ResidualByCall<Acc>(epilogue_, element) : z;
  }

  __device__ __forceinline__ bool HasResidual() const { return kHasEpilogue && epilogue_.residual != nullptr; }
  __device__ __forceinline__ Acc ResidualScale() const {
    return epilogue_.residual_scale ? *static_cast<const Acc*>(epilogue_.residual_scale) : Acc{1};
  }

 private:
  __device__ __forceinline__ Acc Operand(const PerChannel& operand, int64_t channel, Acc without) const {
    return operand.data ? __ldg(static_cast<const Acc*>(operand.data) + (first_ + channel) * operand.stride) : without;
  }

  const Epilogue& epilogue_;
  int64_t first_;
};

}  // namespace jaxconv
