// The compiled kernels of the wgmma family: a file for each type, as they take long to compile.
#pragma once

#include <cstddef>

#include "wgmma/params.cuh"

namespace jaxconv {

struct WgmmaKernelOfTile {
  void (*function)(WgmmaParams);
  size_t shared_bytes;
};

// `along_steps`: the filter's source channels are neighbours in memory, not its output channels.
template <typename T>
WgmmaKernelOfTile FindWgmma(int64_t tile, bool along_steps, bool has_epilogue);

}  // namespace jaxconv
