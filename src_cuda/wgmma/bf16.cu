// The wgmma family's kernels for bfloat16 operands.
#include "wgmma/kernel.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgmma<__nv_bfloat16, false>(int64_t tile, bool k_major, WgmmaEpilogueKind epilogue_kind);

}  // namespace jaxconv
