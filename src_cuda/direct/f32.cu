// The direct family's kernels for float32 operands, multiplied as tf32.
#include "direct/kernel.cuh"

namespace jaxconv {

template DirectKernel FindDirect<float>(int64_t tile, Pass pass, bool has_epilogue, bool is_odd);

}  // namespace jaxconv
