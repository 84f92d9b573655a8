// What runs a call whose operands do not begin where a family's kernels need it.
#pragma once

#include <cuda_runtime_api.h>

#include "launch.h"

namespace jaxconv {

// simt loads and stores single elements, and has slices of the same size.
inline cudaError_t LaunchUnaligned(const ConvCall& call, const Plan& plan, cudaStream_t stream) {
  constexpr int kTile = 2;
  static_assert(!kSimtTiles[kTile].only_f32, "the tile is for sums of every type");
  const Plan of_simt{kTile, plan.split, 0, 0, {}};
  if (kSimt.why_not(call.problem, call.pass, of_simt) != nullptr) return cudaErrorMisalignedAddress;
  return kSimt.launch(call, of_simt, stream);
}

}  // namespace jaxconv
