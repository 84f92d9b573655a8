// The direct family's kernels for float16 operands.
#include "device/direct_kernel.cuh"

namespace jaxconv {

template DirectKernel FindDirect<__half>(int tile, Pass pass, bool is_odd);

}  // namespace jaxconv
