// The depthwise family's kernels for bfloat16 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template const void* FindDepthwise<__nv_bfloat16>(int64_t tile, Pass pass, DepthwiseEpilogueKind epilogue_kind);

}  // namespace jaxconv
