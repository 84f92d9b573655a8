// The compiled kernels of the depthwise family: a file for each type.
#pragma once

#include "depthwise/maps.cuh"
#include "depthwise/params.cuh"

namespace jaxconv {

using DepthwiseKernel = void (*)(DepthwiseParams);
using DepthwiseTmaKernel = void (*)(DepthwiseParams, DepthwiseMaps);

// Null where a tile is of other types, or lacks the pass.
template <typename T>
DepthwiseKernel FindDepthwise(int64_t tile, Pass pass, bool has_epilogue);

// Of tiles whose rows TMA copies.
template <typename T>
DepthwiseTmaKernel FindDepthwiseByTma(int64_t tile, Pass pass, bool has_epilogue);

}  // namespace jaxconv
