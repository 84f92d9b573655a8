// The epilogue on the device: from complete sums to results. Every kernel ends with it.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/epilogue.h"

namespace jaxconv {

// The epilogue of one output channel, with its operands in registers. For threads with many results of one channel.
template <typename Acc, bool kHasEpilogue>
struct EpilogueOfChannel {
  Acc bias;

  __device__ __forceinline__ Acc operator()(Acc sum) const { return kHasEpilogue ? sum + bias : sum; }
};

// The epilogue. Output channels are numbered from channel `first` of all groups. Each kernel is compiled with an
// epilogue and without one: without one, this class generates no code.
template <typename Acc, bool kHasEpilogue>
class EpilogueOf {
 public:
  __device__ __forceinline__ EpilogueOf(const Epilogue& epilogue, int64_t first)
      : bias_(kHasEpilogue ? static_cast<const Acc*>(epilogue.bias) + first : nullptr) {}

  // The result of one sum. The channel must exist.
  __device__ __forceinline__ Acc operator()(Acc sum, int64_t channel) const { return Of(channel)(sum); }

  // The epilogue of one channel, for several results.
  __device__ __forceinline__ EpilogueOfChannel<Acc, kHasEpilogue> Of(int64_t channel) const {
    return {kHasEpilogue ? __ldg(bias_ + channel) : Acc{}};
  }

  // The results of neighbouring channels.
  template <int N>
  __device__ __forceinline__ decltype(auto) operator()(const Pack<Acc, N>& sums, int64_t channel) const {
    if constexpr (kHasEpilogue) {
      Pack<Acc, N> results;
#pragma unroll
      for (int v = 0; v < N; ++v) results.v[v] = (*this)(sums.v[v], channel + v);
      return results;
    } else {
      return (sums);
    }
  }

 private:
  const Acc* bias_;
};

}  // namespace jaxconv
