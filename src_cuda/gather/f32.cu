// The gather family's kernels for float32 operands.
#include "gather/kernel.cuh"

namespace jaxconv {

template GatherKernelPtr FindGather<float>(int64_t tile, bool has_epilogue);

}  // namespace jaxconv
