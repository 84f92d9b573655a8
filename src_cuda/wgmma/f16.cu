// The wgmma family's kernels for float16 operands.
#include "wgmma/kernel.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgmma<__half, false>(int64_t tile, bool k_major, WgmmaEpilogueKind epilogue_kind);

}  // namespace jaxconv
