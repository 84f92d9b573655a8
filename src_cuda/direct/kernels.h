// The compiled kernels of the direct family: a file for each type, as they take long to compile.
#pragma once

#include "direct/params.cuh"

namespace jaxconv {

using DirectKernel = void (*)(DirectParams);

// `has_epilogue`: it ends with one, which only a conv may. `is_odd`: the source is read in runs, and positions are an
// odd number of elements apart.
template <typename T>
DirectKernel FindDirect(int64_t tile, Pass pass, bool has_epilogue, bool is_odd);

}  // namespace jaxconv
