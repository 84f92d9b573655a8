// The depthwise family's kernels for int8 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template const void* FindDepthwise<int8_t>(int64_t tile, Pass pass, DepthwiseEpilogueKind epilogue_kind);

}  // namespace jaxconv
