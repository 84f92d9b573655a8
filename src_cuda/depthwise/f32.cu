// The depthwise family's kernels for float32 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template const void* FindDepthwise<float>(int64_t tile, Pass pass, DepthwiseEpilogueKind epilogue_kind);

}  // namespace jaxconv
