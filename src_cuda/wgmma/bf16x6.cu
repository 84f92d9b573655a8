// The wgmma family's kernels for float32 operands, by products of bfloat16.
#include "wgmma/kernel.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgmma<float, true>(int64_t tile, bool k_major, WgmmaEpilogueKind epilogue_kind);

}  // namespace jaxconv
