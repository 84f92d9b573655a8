// The direct family's kernels for int8 operands.
#include "direct/kernel.cuh"

namespace jaxconv {

template DirectKernel FindDirect<int8_t>(int64_t tile, Pass pass, bool has_epilogue, bool is_odd);

}  // namespace jaxconv
