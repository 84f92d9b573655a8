// The simt family's kernels whose sums are in float32.
#include "simt/kernel.cuh"

namespace jaxconv {

template SimtKernelPtr FindSimt<float>(int64_t tile, int access, SimtTypes types, bool has_epilogue);

}  // namespace jaxconv
