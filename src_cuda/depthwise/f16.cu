// The depthwise family's kernels for float16 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template DepthwiseKernel FindDepthwise<__half>(int64_t tile, Pass pass, bool has_epilogue);
template DepthwiseTmaKernel FindDepthwiseByTma<__half>(int64_t tile, Pass pass, bool has_epilogue);

}  // namespace jaxconv
