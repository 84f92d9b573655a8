// The depthwise family's kernels for float16 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template const void* FindDepthwise<__half>(int64_t tile, Pass pass, DepthwiseEpilogueKind epilogue_kind);

}  // namespace jaxconv
