// The simt family's kernels where operands or results may be float8, or results int8. Their sums are in float32.
#include "simt/kernel.cuh"

namespace jaxconv {

SimtKernelPtr FindSimtOfFloat8(int64_t tile, int access, bool has_epilogue) {
  return FindSimt<float, SimtTypes::kFloat8>(tile, access, has_epilogue);
}

}  // namespace jaxconv
