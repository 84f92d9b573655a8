// The compiled kernels of the wgmma family. They take long to compile: each type has a file.
#pragma once

#include <cstddef>

#include "wgmma/params.cuh"

namespace jaxconv {

struct WgmmaKernelOfTile {
  void (*function)(WgmmaParams);
  size_t shared_bytes;
};

// `k_major`: the filter's source channels are neighbours in memory, not its output channels.
template <typename T>
WgmmaKernelOfTile FindWgmma(int64_t tile, bool k_major, bool has_epilogue);

}  // namespace jaxconv
