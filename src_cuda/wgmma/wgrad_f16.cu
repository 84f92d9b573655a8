// The wgmma family's weight gradients of float16 operands.
#include "wgmma/wgrad.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgrad<__half, false>(int64_t tile);

}  // namespace jaxconv
