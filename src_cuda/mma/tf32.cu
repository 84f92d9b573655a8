// The mma family's kernels for float32 operands, which tensor cores take as tf32.
#include "mma/kernel.cuh"

namespace jaxconv {

template MmaKernelOfType FindMma<float>(const MmaVariant& variant);

}  // namespace jaxconv
