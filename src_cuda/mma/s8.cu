// The mma family's kernels for int8 operands.
#include "mma/kernel.cuh"

namespace jaxconv {

template MmaKernelOfType FindMma<int8_t>(const MmaVariant& variant);

}  // namespace jaxconv
