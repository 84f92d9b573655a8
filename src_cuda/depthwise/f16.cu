// The depthwise family's kernels for float16 operands.
#include "depthwise/kernel.cuh"

namespace jaxconv {

template DepthwiseKernel FindDepthwise<__half>(int tile, Pass pass);
template DepthwiseTmaKernel FindDepthwiseByTma<__half>(int tile, Pass pass);

}  // namespace jaxconv
