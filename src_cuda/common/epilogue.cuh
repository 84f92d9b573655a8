// The epilogue on the device: from complete sums to results.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "conv_epilogue.h"

namespace jaxconv {

// Activations of a number. NaN stays NaN.

// The backward pass reads the sign of the result, where -0 is a negative number that was rounded. So a zero becomes +0.
// One product for both signs: with two results to choose from, kernels spill several times as many registers.
template <typename Acc>
__device__ __forceinline__ Acc Slope(Acc slope, Acc z) {
  return (z < 0 ? slope : Acc{1}) * (z + 0);
}
__device__ __forceinline__ float Clip(const FloatActivation& activation, float z) {
  return ptx::MinOrNan(ptx::MaxOrNan(z, activation.low), activation.high);
}
__device__ __forceinline__ double Clip(const Epilogue& epilogue, double z) {
  z = z < epilogue.numbers[1] ? epilogue.numbers[1] : z;
  return z > epilogue.numbers[2] ? epilogue.numbers[2] : z;
}

// z * sigmoid(z * (a + b * z * z)).
template <typename Acc>
__device__ __forceinline__ Acc Sigmoid(Acc a, Acc b, Acc z) {
  constexpr Acc kLarge = 100'000'000;  // sigmoid is 0 or 1 from here on, and b * infinity is not
  const Acc square = min(z * z, kLarge);
  if constexpr (std::is_same_v<Acc, float>) {
    constexpr float kLog2E = 1.44269504f;
    const float power = -z * (a * kLog2E + b * kLog2E * square);
    return z * ptx::Reciprocal(1 + ptx::Exp2(power));
  } else {
    return z / (1 + exp(static_cast<double>(-z * (a + b * square))));
  }
}
template <typename Acc>
__device__ __forceinline__ Acc HardSigmoid(Acc z) {
  const Acc gate = min(max(z + 3, Acc{0}), Acc{6});
  return z * (gate * Acc{1.0 / 6});
}

// Calls f with an activation, but for its clipping, as a function of a number. A loop over many has no branches then.
// a, b: its parameters.
template <typename Acc, typename F>
__device__ __forceinline__ void WithBend(Activation activation, Acc a, Acc b, const F& f) {
  if (activation == Activation::kSigmoid) {
    f([=](Acc z) { return Sigmoid(a, b, z); });
  } else if (activation == Activation::kHardSigmoid) {
    f([](Acc z) { return HardSigmoid(z); });
  } else {
    f([=](Acc z) { return Slope(a, z); });
  }
}
template <typename F>
__device__ __forceinline__ void WithBend(const Epilogue& epilogue, const F& f) {
  WithBend(epilogue.activation, epilogue.of_floats.numbers[0], epilogue.of_floats.numbers[1], f);
}

// The order of an epilogue's steps. Kernels differ in where sums and operands are, so each says how it does a step, for
// one sum or for all in its registers.
template <typename Scale, typename AddResidual, typename Activate, typename ScaleResults>
__device__ __forceinline__ void EndSums(const Scale& scale_and_add_bias, const AddResidual& add_residual,
                                        const Activate& activate, const ScaleResults& scale_results) {
  scale_and_add_bias();
  add_residual();
  activate();
  scale_results();
}

// The type in which an epilogue computes: that of the sums, or float32 of integers.
template <typename Acc>
using EpilogueNumber = std::conditional_t<std::is_integral_v<Acc>, float, Acc>;

// A function that kernels call for a few of their sums at a time: inlined for every sum, it would take minutes to
// compile. Numbers are passed by value, not as a reference to the kernel's parameters: that would be read from memory.
template <typename Acc, int N>
__device__ __noinline__ Pack<Acc, N> BendByCall(Activation activation, Acc a, Acc b, Pack<Acc, N> z) {
  WithBend(activation, a, b, [&](const auto& bend) {
#pragma unroll
    for (Acc& number : z.v) number = bend(number);
  });
  return z;
}

// N elements of a residual, as loaded. Number: of the epilogue.
template <typename Number, int N>
using RawResidual = RawPack<Number, N, std::is_same_v<Number, float>, std::is_same_v<Number, float>>;

template <typename Number>
__device__ __noinline__ Number ResidualByCall(const void* data, DType type, int64_t element) {
  RawResidual<Number, 1> raw;
  raw.Load(data, element, type);
  return raw.Widen(type).v[0];
}

// Adds numbers of the residual, times the call's factor, to scaled sums.
template <typename Number>
class ResidualAdder {
 public:
  __device__ __forceinline__ explicit ResidualAdder(const Epilogue& epilogue)
      : scale_(epilogue.residual_scale ? __ldg(static_cast<const Number*>(epilogue.residual_scale)) : Number{1}) {}

  __device__ __forceinline__ Number operator()(Number z, Number residual) const { return z + scale_ * residual; }

 private:
  Number scale_;
};

// Several at once: they wait for each other's results less.
template <int kCount>
__device__ __forceinline__ void BendAll(const Epilogue& epilogue, float (&numbers)[kCount]) {
  constexpr int kAtOnce = kCount % 4 == 0 ? 4 : kCount % 2 == 0 ? 2 : 1;
  const auto& [a, b] = epilogue.of_floats.numbers;
  if (epilogue.activation == Activation::kPiecewise) {
#pragma unroll
    for (float& z : numbers) z = Slope(a, z);
  } else {
#pragma unroll
    for (int i = 0; i < kCount; i += kAtOnce) {
      Pack<float, kAtOnce> some;
#pragma unroll
      for (int v = 0; v < kAtOnce; ++v) some.v[v] = numbers[i + v];
      some = BendByCall(epilogue.activation, a, b, some);
#pragma unroll
      for (int v = 0; v < kAtOnce; ++v) numbers[i + v] = some.v[v];
    }
  }
}

// The activation of results.
template <int kCount>
__device__ __forceinline__ void ActivateAll(const Epilogue& epilogue, float (&results)[kCount]) {
  if (epilogue.of_floats.bends) [[unlikely]] {
    BendAll(epilogue, results);
  }
#pragma unroll
  for (float& z : results) z = Clip(epilogue.of_floats, z);
}
template <int kCount>
__device__ __forceinline__ void ActivateAll(const Epilogue& epilogue, double (&results)[kCount]) {
  if (epilogue.activation == Activation::kNone) return;
#pragma unroll
  for (double& z : results) {
    z = BendByCall(epilogue.activation, epilogue.numbers[0], epilogue.numbers[1], Pack<double, 1>{z}).v[0];
    if (epilogue.activation == Activation::kPiecewise) z = Clip(epilogue, z);
  }
}

// Scale and bias of one output channel, in registers. For threads with many results of one channel.
template <typename Acc>
struct EpilogueOfChannel {
  using Number = EpilogueNumber<Acc>;
  Number scale, bias;

  __device__ __forceinline__ Number Scaled(Acc sum) const { return static_cast<Number>(sum) * scale + bias; }
};

// The epilogue. Output channels are numbered from channel `first` of all groups. Each kernel is compiled with an
// epilogue and without one: without one, this class generates no code. kToBytes: results may be int8 or float8, which
// are scaled before they are rounded.
template <typename Acc, bool kHasEpilogue, bool kToBytes = std::is_integral_v<Acc>>
class EpilogueOf {
 public:
  using Number = EpilogueNumber<Acc>;
  using Result = std::conditional_t<kHasEpilogue, Number, Acc>;
  using OfChannel = EpilogueOfChannel<Acc>;
  static constexpr bool kIsNone = !kHasEpilogue;

  __device__ __forceinline__ EpilogueOf(const Epilogue& epilogue, int64_t first) : epilogue_(epilogue), first_(first) {}

  // The numbers of one channel, which must exist, for several results.
  __device__ __forceinline__ OfChannel Of(int64_t channel) const {
    if constexpr (!kHasEpilogue) return {};
    return {Operand(epilogue_.scale, channel, Number{1}), Operand(epilogue_.bias, channel, Number{0})};
  }

  // The activation of many results.
  template <int kCount>
  __device__ __forceinline__ void ActivateAll(Number (&results)[kCount]) const {
    jaxconv::ActivateAll(epilogue_, results);
  }

  // The result of one sum, of an element of the result that exists.
  __device__ __forceinline__ Result operator()(Acc sum, int64_t channel, int64_t element) const {
    const OfChannel of = Of(channel);
    return (*this)(&of, Pack<Acc, 1>{sum}, channel, Residual(element)).v[0];
  }
  // The same of N neighbouring channels, with their numbers and the elements of the residual at hand.
  template <int N>
  __device__ __forceinline__ Pack<Result, N> operator()(const OfChannel* of, const Pack<Acc, N>& sums, int64_t channel,
                                                        const Pack<Number, N>& residual) const {
    if constexpr (!kHasEpilogue) {
      return sums;
    } else {
      Pack<Number, N> results;
      const auto each = [&](const auto& f) {
#pragma unroll
        for (int v = 0; v < N; ++v) f(results.v[v], v);
      };
      EndSums([&] { each([&](Number& z, int v) { z = of[v].Scaled(sums.v[v]); }); },
              [&] {
                if (HasResidual()) each([&](Number& z, int v) { z = Adder()(z, residual.v[v]); });
              },
              [&] { ActivateAll(results.v); },
              [&] { each([&](Number& z, int v) { z *= kToBytes ? OutScale(channel + v) : Number{1}; }); });
      return results;
    }
  }

  // An element of the residual; zero if there is none.
  __device__ __forceinline__ Pack<Number, 1> Residual(int64_t element) const {
    if (!HasResidual()) return {};
    return {ResidualByCall<Number>(epilogue_.residual, epilogue_.residual_type, element)};
  }
  // Neighbouring elements, as loaded, and as numbers.
  template <int N>
  __device__ __forceinline__ void Load(RawResidual<Number, N>& residual, int64_t element) const {
    residual.Load(epilogue_.residual, element, epilogue_.residual_type);
  }
  template <int N>
  __device__ __forceinline__ Pack<Number, N> Widen(const RawResidual<Number, N>& residual) const {
    return residual.Widen(epilogue_.residual_type);
  }

  // The same residual for threads that have many results: its elements, which are of the result's type.
  template <typename T>
  __device__ __forceinline__ const T* ResidualAs() const {
    return static_cast<const T*>(epilogue_.residual);
  }

  __device__ __forceinline__ Number OutScale(int64_t channel) const {
    return Operand(epilogue_.out_scale, channel, Number{1});
  }
  __device__ __forceinline__ bool HasResidual() const { return kHasEpilogue && epilogue_.residual != nullptr; }
  __device__ __forceinline__ ResidualAdder<Number> Adder() const { return ResidualAdder<Number>(epilogue_); }

 private:
  __device__ __forceinline__ Number Operand(const PerChannel& operand, int64_t channel, Number without) const {
    if (!operand.data) return without;
    return __ldg(static_cast<const Number*>(operand.data) + (first_ + channel) * operand.stride);
  }

  const Epilogue& epilogue_;
  int64_t first_;
};

// The epilogue of N neighbouring channels, with its operands in registers. For threads with several rows of them, whose
// residuals are loaded before the first is needed. Results are of type T, and so is the residual.
template <typename Acc, typename T, int N>
class EpilogueOfChannels {
 public:
  using Number = EpilogueNumber<Acc>;

  // `channel`: the first one, of all groups.
  __device__ __forceinline__ EpilogueOfChannels(const Epilogue& epilogue, int64_t channel)
      : epilogue_(epilogue), add_(epilogue) {
    const EpilogueOf<Acc, true> of(epilogue, channel);
#pragma unroll
    for (int v = 0; v < N; ++v) {
      channels_[v] = of.Of(v);
      out_scales_[v] = kScalesResults ? of.OutScale(v) : Number{1};
    }
  }

  // Of the elements from one on, which exist. Zeros if there is none.
  __device__ __forceinline__ Pack<T, N> Residual(int64_t element) const {
    if (epilogue_.residual == nullptr) return {};
    return *reinterpret_cast<const Pack<T, N>*>(static_cast<const T*>(epilogue_.residual) + element);
  }

  __device__ __forceinline__ Pack<T, N> operator()(const Pack<Acc, N>& sums, const Pack<T, N>& residual) const {
    Number numbers[N];
    const auto each = [&](const auto& f) {
#pragma unroll
      for (int v = 0; v < N; ++v) f(numbers[v], v);
    };
    EndSums([&] { each([&](Number& z, int v) { z = channels_[v].Scaled(sums.v[v]); }); },
            [&] {
              if (epilogue_.residual == nullptr) return;
              each([&](Number& z, int v) { z = add_(z, static_cast<Number>(residual.v[v])); });
            },
            [&] { ActivateAll(epilogue_, numbers); },
            [&] {
              if (kScalesResults) each([&](Number& z, int v) { z *= out_scales_[v]; });
            });
    Pack<T, N> results;
#pragma unroll
    for (int v = 0; v < N; ++v) results.v[v] = RoundTo<T>(numbers[v]);
    return results;
  }

 private:
  static constexpr bool kScalesResults = std::is_same_v<T, int8_t>;

  const Epilogue& epilogue_;
  EpilogueOfChannel<Acc> channels_[N];
  Number out_scales_[N];
  ResidualAdder<Number> add_;
};

}  // namespace jaxconv
