// The families that stand in for others: simt, and on tensor cores mma, by tiles that every device can run.
#include "common/stand_in.h"

#include <cuda_runtime_api.h>

#include <cstddef>

#include "mma/config.h"
#include "mma/family.h"
#include "simt/config.h"
#include "simt/family.h"

namespace jaxconv {
namespace {

SimtSettings OfSimt(const StandIn& needed) { return {kStandInTile, needed.split}; }

MmaSettings OfMma(const ConvProblem& p, const StandIn& needed) {
  return {TileWithoutWgmma(p.src_type, needed.tensor_core_cols), needed.split};
}

bool IsForMma(const StandIn& needed) { return needed.tensor_core_cols > 0; }

}  // namespace

Reason UnsupportedStandIn(const ConvProblem& p, Pass pass, const StandIn& needed) {
  if (IsForMma(needed)) return kMma.unsupported_reason(p, pass, OfMma(p, needed));
  return kSimt.unsupported_reason(p, pass, OfSimt(needed));
}

size_t SharedBytesOfStandIn(const ConvProblem& p, Pass pass, const StandIn& needed) {
  return IsForMma(needed) ? kMma.shared_bytes(p, pass, OfMma(p, needed)) : 0;  // simt's kernels have no dynamic one
}

cudaError_t LaunchStandIn(const ConvCall& call, const StandIn& needed, cudaStream_t stream) {
  if (IsForMma(needed)) return kMma.launch(call, OfMma(call.problem, needed), stream);
  return kSimt.launch(call, OfSimt(needed), stream);
}

}  // namespace jaxconv
