// The simt family: chooses the kernel for a call and launches it.
#include "simt/kernels.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <type_traits>

#include "common/call_epilogue.h"
#include "common/enqueue.cuh"
#include "common/layout.h"
#include "common/params.h"
#include "common/product.h"
#include "common/split_k.h"
#include "common/types.h"
#include "simt/config.h"
#include "simt/family.h"
#include "simt/settings.h"
#include "simt/support.h"

namespace jaxconv {
namespace {

template <typename Acc>
SimtKernelPtr Find(const ConvProblem& p, int64_t tile, int access, bool has_epilogue) {
  if constexpr (std::is_same_v<Acc, float>) {
    if (simt::HasBytesOfFloats(p)) return FindSimtOfFloat8(tile, access, has_epilogue);
  }
  const bool is_pure = p.src_type == p.filter_type && p.src_type == p.dst_type && p.src_type == SumType(p);
  return FindSimt<Acc>(tile, access, is_pure ? SimtTypes::kOfSums : SimtTypes::kMixed, has_epilogue);
}

bool Allows(const OperandLayout& layout, Access access) {
  switch (access) {
    case Access::kMnMajorVectors: return layout.MnVectors(4);
    case Access::kKMajorVectors: return layout.KVectors(4);
    default: return (access == Access::kMnMajor) == (layout.mn_stride <= layout.k_stride);
  }
}

int ChooseAccess(const ConvCall& call) {
  const OperandLayout src = SourceLayout(call), rhs = RhsLayout(call);
  const auto fits = [&](const OperandAccess& access) { return Allows(src, access.src) && Allows(rhs, access.rhs); };
  return static_cast<int>(std::find_if(std::begin(kAccesses), std::end(kAccesses), fits) - std::begin(kAccesses));
}

template <typename Acc>
cudaError_t LaunchSums(const ConvCall& call, const SimtSettings& s, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  const SimtKernelPtr kernel = Find<Acc>(p, s.tile, ChooseAccess(call), EndsWithEpilogue(call, s.split));
  const Tile& tile = kSimtTiles[s.tile];
  SimtParams params{MakeParams(call, s.split, tile.block_m, tile.block_n), call.epilogue};
  params.out_vectors = ResultLayout(call, s.split).MnVectors(4) && AreAligned({call.epilogue.residual});
  const cudaError_t status = Enqueue(kernel, simt::ThreadBlocks(p, call.pass, s), tile.threads(), stream, params);
  if (status != cudaSuccess || s.split == 1) return status;
  return AddSlices(call, s.split, stream);
}

cudaError_t Launch(const ConvCall& call, const SimtSettings& s, cudaStream_t stream) {
  const ConvProblem seen = BlocksAsGroups(call.problem);
  return WithSumType(seen, [&](auto acc) { return LaunchSums<decltype(acc)>(call.With(seen), s, stream); });
}

}  // namespace

const KernelFamily<SimtSettings> kSimt = {simt::kRules, Launch};

}  // namespace jaxconv
