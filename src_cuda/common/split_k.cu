// The kernel of split-K. All families call it, so it is compiled once.
#include "common/split_k.h"

#include <cstdint>

#include "common/call_epilogue.h"
#include "common/convert.cuh"
#include "common/enqueue.cuh"
#include "common/epilogue.cuh"
#include "common/layout.h"
#include "common/product.h"
#include "common/ptx.cuh"
#include "common/types.h"

namespace jaxconv {
namespace {

constexpr int kAddSlicesThreads = 256;

// Adds `split` slices to `sums`, in order. The first slice is at `from`, the next one `step` elements further. The loop
// is not unrolled: most calls need one iteration, and a short kernel also waits for its instructions to be fetched.
template <typename Acc, int kPack>
__device__ __forceinline__ void AddEach(Pack<Acc, kPack>& sums, const Acc* from, int64_t step, int split) {
  constexpr int kLoads = 8;  // in flight
#pragma unroll 1
  for (; split > 0; split -= kLoads) {
    Pack<Acc, kPack> slices[kLoads] = {};
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (j < split) slices[j] = *reinterpret_cast<const Pack<Acc, kPack>*>(from);
      from += step;
      ptx::Keep(from);  // otherwise the compiler computes each address from the first
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int v = 0; v < kPack; ++v) sums.v[v] += slices[j].v[v];
    }
  }
}

// An epilogue, and how to find the output channel of an element of the result.
struct ElementEpilogue {
  Epilogue epilogue;
  int64_t channel_stride, channels, group_stride, groups;

  __device__ int64_t Channel(int64_t element) const {
    return element / group_stride % groups * channels + element / channel_stride % channels;
  }
};

// Adds the slices of split-K. kParts threads share kPack results: each adds every kParts-th slice, in order, and then
// the kParts sums are added in order. So the result does not depend on timing.
template <typename Acc, int kParts, int kPack, bool kHasEpilogue>
__global__ void AddSlicesKernel(const Acc* slices, void* out, DType type, int64_t elements, int split,
                                const ElementEpilogue element_epilogue) {
  constexpr int kPacks = kAddSlicesThreads / kParts;
  const int pack = threadIdx.x % kPacks, part = threadIdx.x / kPacks;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kPacks + pack) * kPack;
  Pack<Acc, kPack> sums{};
  if (i < elements) {
    AddEach(sums, slices + part * elements + i, kParts * elements, CeilDiv(split - part, kParts));
  }
  if constexpr (kParts > 1) {
    static_assert(kPack == 1, "each part has one sum");
    __shared__ Acc parts[kParts][kPacks];
    parts[part][pack] = sums.v[0];
    __syncthreads();
    sums.v[0] = parts[0][pack];
#pragma unroll
    for (int p = 1; p < kParts; ++p) sums.v[0] += parts[p][pack];
  }
  if (part != 0 || i >= elements) return;
  if constexpr (kHasEpilogue) {
    const EpilogueOf<Acc, true, true> epilogue(element_epilogue.epilogue, 0);
    Pack<EpilogueNumber<Acc>, kPack> results;
#pragma unroll
    for (int v = 0; v < kPack; ++v) results.v[v] = epilogue(sums.v[v], element_epilogue.Channel(i + v), i + v);
    StoreNarrowed<true>(results, out, i, type);
  } else {
    StoreNarrowed(sums, out, i, type);
  }
}

template <typename Acc, bool kHasEpilogue>
cudaError_t EnqueueAddition(const ConvCall& call, int64_t split, cudaStream_t stream) {
  constexpr int kParts = 8;  // for many slices: a single thread would wait for each round of its loads
  constexpr int kPack = 2;   // for few slices: with fewer threads, the kernel starts faster
  const ConvProblem p = BlocksAsGroups(call.problem);
  const int64_t elements = ResultElements(p, call.pass);
  const DType type = ResultType(p, call.pass);
  const bool packs = elements % kPack == 0 && AreAligned({call.workspace, call.result});
  const ElementEpilogue epilogue{call.epilogue, p.dst.channel, p.out_channels, p.dst.group, p.groups};
  const auto add = [&](auto* kernel, int parts, int pack) {
    return Enqueue(kernel, CeilDiv(elements / pack * parts, kAddSlicesThreads), kAddSlicesThreads, stream,
                   static_cast<const Acc*>(call.workspace), call.result, type, elements, static_cast<int>(split),
                   epilogue);
  };
  if (split >= 2 * kParts) return add(AddSlicesKernel<Acc, kParts, 1, kHasEpilogue>, kParts, 1);
  return packs ? add(AddSlicesKernel<Acc, 1, kPack, kHasEpilogue>, 1, kPack)
               : add(AddSlicesKernel<Acc, 1, 1, kHasEpilogue>, 1, 1);
}

}  // namespace

cudaError_t AddSlices(const ConvCall& call, int64_t split, cudaStream_t stream) {
  return WithSumType(call.problem, [&](auto acc) {
    using Acc = decltype(acc);
    return HasEpilogue(call) ? EnqueueAddition<Acc, true>(call, split, stream)
                             : EnqueueAddition<Acc, false>(call, split, stream);
  });
}

}  // namespace jaxconv
