// The depthwise family's kernels for float32 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template DepthwiseKernel FindDepthwise<float>(int64_t tile, Pass pass, bool has_epilogue);
template DepthwiseTmaKernel FindDepthwiseByTma<float>(int64_t tile, Pass pass, bool has_epilogue);

}  // namespace jaxconv
