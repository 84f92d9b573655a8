// The mma family's kernels for float32 operands, which tensor cores take as tf32.
#include "mma/kernel.cuh"

namespace jaxconv {

template CompiledMma FindMma<float>(int64_t tile, MmaAccess access, bool has_epilogue);

}  // namespace jaxconv
