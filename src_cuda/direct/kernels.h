// The compiled kernels of the direct family: a file for each type, as they take long to compile.
#pragma once

#include "direct/params.cuh"

namespace jaxconv {

using DirectKernel = void (*)(DirectParams);

// `has_epilogue`: only of a conv. `is_odd`: with packed K, positions are an odd number of elements apart.
template <typename T>
DirectKernel FindDirect(int64_t tile, Pass pass, bool has_epilogue, bool is_odd);

}  // namespace jaxconv
