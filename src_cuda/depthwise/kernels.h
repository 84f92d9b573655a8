// The compiled kernels of the depthwise family: a file for each type.
#pragma once

#include <cstdint>

#include "common/family.h"
#include "depthwise/params.h"

namespace jaxconv {

// As cudaLaunchKernel takes it: a kernel of DepthwiseParams, and of DepthwiseMaps if TMA copies the tile's rows. Null
// where the tile is for other types, or lacks the pass.
template <typename T>
const void* FindDepthwise(int64_t tile, Pass pass, DepthwiseEpilogueKind epilogue_kind);

}  // namespace jaxconv
