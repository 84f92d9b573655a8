// The wgmma family's weight gradients of float32 operands, by products of bfloat16.
#include "wgmma/wgrad.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgrad<float, true>(int64_t tile);

}  // namespace jaxconv
