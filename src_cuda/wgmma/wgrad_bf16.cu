// The wgmma family's weight gradients of bfloat16 operands.
#include "wgmma/wgrad.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgrad<__nv_bfloat16, false>(int64_t tile);

}  // namespace jaxconv
