// The compiled kernels of the direct family: a file for each type, as they take long to compile.
#pragma once

#include "device/direct_params.cuh"

namespace jaxconv {

using DirectKernel = void (*)(DirectParams);

template <typename T>
DirectKernel FindDirect(int tile, Pass pass);

}  // namespace jaxconv
