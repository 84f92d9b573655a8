// The wgmma family's kernels for float16 operands.
#include "device/wgmma_kernel.cuh"

namespace jaxconv {

template WgmmaKernelOfTile FindWgmma<__half>(int tile, bool along_steps);

}  // namespace jaxconv
