// The mma family's kernels for float16 operands.
#include "mma/kernel.cuh"

namespace jaxconv {

template MmaKernelOfType FindMma<__half>(const MmaVariant& variant);

}  // namespace jaxconv
