// The direct family's kernels for float16 operands.
#include "direct/kernel.cuh"

namespace jaxconv {

template DirectKernel FindDirect<__half>(int64_t tile, Pass pass, bool has_epilogue, bool is_odd);

}  // namespace jaxconv
