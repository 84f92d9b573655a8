// The simt family's kernels whose sums are in int32.
#include "simt/kernel.cuh"

namespace jaxconv {

template SimtKernelPtr FindSimt<int32_t>(int64_t tile, int access, bool is_mixed, bool has_epilogue);

}  // namespace jaxconv
