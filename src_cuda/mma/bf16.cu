// The mma family's kernels for bfloat16 operands.
#include "mma/kernel.cuh"

namespace jaxconv {

template CompiledMma FindMma<__nv_bfloat16>(int64_t tile, MmaAccess access, bool has_epilogue);

}  // namespace jaxconv
