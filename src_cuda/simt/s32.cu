// The simt family's kernels whose sums are in int32.
#include "simt/kernel.cuh"

namespace jaxconv {

template SimtKernelPtr FindSimt<int32_t>(int64_t tile, int access, SimtTypes types, bool has_epilogue);

}  // namespace jaxconv
