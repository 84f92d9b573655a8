// The wgmma family's weight gradients of float32 operands, which tensor cores take as tf32.
#include "wgmma/wgrad.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgrad<float, false>(int64_t tile);

}  // namespace jaxconv
