// Whether a device can run the kernels of this build.
#pragma once

#include <cuda_runtime_api.h>

namespace jaxconv {

// Loads an empty kernel on the current device, to see that.
cudaError_t LoadProbe();

}  // namespace jaxconv
