// The gather family's kernels for bfloat16 operands.
#include "gather/kernel.cuh"

namespace jaxconv {

template GatherKernelPtr FindGather<__nv_bfloat16>(int64_t tile, bool has_epilogue);

}  // namespace jaxconv
