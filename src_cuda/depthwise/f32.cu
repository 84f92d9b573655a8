// The depthwise family's kernels for float32 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template DepthwiseKernel FindDepthwise<float>(int tile, Pass pass);

}  // namespace jaxconv
