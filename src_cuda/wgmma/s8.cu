// The wgmma family's kernels for int8 operands.
#include "wgmma/kernel.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgmma<int8_t, false>(int64_t tile, bool k_major, WgmmaEpilogueKind epilogue_kind);

}  // namespace jaxconv
