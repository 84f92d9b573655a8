// The mma family's kernels for float16 operands.
#include "device/mma_kernel.cuh"

namespace jaxconv {

template CompiledMma FindMma<__half>(int tile, MmaAccess access);

}  // namespace jaxconv
