// The depthwise family's kernels for float32 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template DepthwiseKernel FindDepthwise<float>(int64_t tile, Pass pass);

}  // namespace jaxconv
