// The mma family's kernels for float16 operands.
#include "mma/kernel.cuh"

namespace jaxconv {

template CompiledMma FindMma<__half>(int64_t tile, MmaAccess access, bool has_epilogue);

}  // namespace jaxconv
