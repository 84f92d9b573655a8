// The mma family's kernels for bfloat16 operands.
#include "mma/kernel.cuh"

namespace jaxconv {

template MmaKernelOfType FindMma<__nv_bfloat16>(const MmaVariant& variant);

}  // namespace jaxconv
