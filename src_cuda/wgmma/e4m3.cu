// The wgmma family's kernels for a source of float8_e4m3fn and a filter of float8_e4m3fn.
#include <cuda_fp8.h>

#include "wgmma/kernel.cuh"

namespace jaxconv {

template WgmmaKernelPtr FindWgmma<__nv_fp8_e4m3, false>(int64_t tile, bool k_major, WgmmaEpilogueKind epilogue_kind);

}  // namespace jaxconv
