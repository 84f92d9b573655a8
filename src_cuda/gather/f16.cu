// The gather family's kernels for float16 operands.
#include "gather/kernel.cuh"

namespace jaxconv {

template GatherKernelPtr FindGather<__half>(int64_t tile, bool has_epilogue);

}  // namespace jaxconv
