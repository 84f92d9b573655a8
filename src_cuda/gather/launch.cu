// The gather family: chooses the kernel for a call and launches it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "common/call_epilogue.h"
#include "common/enqueue.cuh"
#include "common/fast_division.h"
#include "common/layout.h"
#include "common/product.h"
#include "common/stand_in.h"
#include "gather/config.h"
#include "gather/family.h"
#include "gather/kernels.h"
#include "gather/settings.h"
#include "gather/support.h"

namespace jaxconv {
namespace {

using namespace gather;

GatherKernelPtr Find(DType type, int64_t tile, bool has_epilogue) {
  switch (type) {
    case DType::kBF16: return FindGather<__nv_bfloat16>(tile, has_epilogue);
    case DType::kF16: return FindGather<__half>(tile, has_epilogue);
    default: return FindGather<float>(tile, has_epilogue);
  }
}

// The call is supported, so what kernels count in 32 bits fits.
GatherParams MakeParams(const ConvCall& call, const GatherSettings& s) {
  const ConvProblem& p = call.problem;
  const GatherTile& tile = kGatherTiles[s.tile];
  const GatherWindow w = s.window();
  const int64_t element = ElementBytes(p.src_type);
  const auto bytes = [&](int64_t elements) { return static_cast<int32_t>(elements * element); };
  GatherParams g{};
  g.src = call.src;
  g.filter = static_cast<const std::byte*>(call.rhs) + w.filter_first * element;
  g.out = call.result;
  g.src_batch = bytes(p.src.batch);
  g.out_batch = bytes(p.dst.batch);
  g.threads = static_cast<int32_t>(Threads(p, tile));
  g.by_vectors = FastDivmod(static_cast<int32_t>(p.groups / TraitsOf(p.src_type).vector()));
  g.by_col_groups = FastDivmod(static_cast<int32_t>(CeilDiv(p.dst_size[2], tile.cols)));
  g.by_rows = FastDivmod(static_cast<int32_t>(p.dst_size[1]));
  g.by_depths = FastDivmod(static_cast<int32_t>(p.dst_size[0]));
  g.cols = static_cast<int32_t>(p.dst_size[2]);
  for (int d = 0; d < kSpatial; ++d) {
    g.src_size[d] = static_cast<uint32_t>(p.src_size[d]);
    g.first[d] = w.first[d];
    g.step[d] = static_cast<int32_t>(p.step[d]);
    g.taps[d] = w.taps[d];
    g.apart[d] = w.apart[d];
    g.src_stride[d] = bytes(p.src.spatial[d]);
    g.src_apart[d] = bytes(p.src.spatial[d] * w.apart[d]);
    g.filter_apart[d] = bytes(w.filter_apart[d]);
    g.out_stride[d] = bytes(p.dst.spatial[d]);
  }
  g.epilogue = call.epilogue;
  return g;
}

Reason UnsupportedReason(const ConvProblem& p, Pass pass, const GatherSettings& s) {
  if (Reason why = UnsupportedSettings(p, pass, s)) return why;
  return ResultElements(p, pass) == 0 ? std::nullopt : UnsupportedStandIn(p, pass, {s.split});
}

cudaError_t Launch(const ConvCall& call, const GatherSettings& s, cudaStream_t stream) {
  static_assert(GatherSettings::kNeedsAligned, "arrays that are not aligned go to a slower kernel");
  if (!AreAligned({call.src, call.rhs, call.result, call.epilogue.residual})) {
    return LaunchStandIn(call, {s.split}, stream);
  }
  const ConvProblem& p = call.problem;
  return Enqueue(Find(p.src_type, s.tile, HasEpilogue(call)), ThreadBlocks(p, kGatherTiles[s.tile]), kGatherThreads,
                 stream, MakeParams(call, s));
}

}  // namespace

const KernelFamily<GatherSettings> kGather = {{UnsupportedReason, SplitWorkspace, SharedBytes}, Launch};

}  // namespace jaxconv
