// The direct family's kernels for bfloat16 operands.
#include "direct/kernel.cuh"

namespace jaxconv {

template DirectKernel FindDirect<__nv_bfloat16>(int64_t tile, Pass pass, bool has_epilogue, bool is_odd);

}  // namespace jaxconv
