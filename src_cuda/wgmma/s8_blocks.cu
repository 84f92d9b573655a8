// The wgmma family's kernels for int8 results with channels in blocks.
#include "wgmma/kernel.cuh"

namespace jaxconv {

WgmmaKernelPtr FindInBlocks(int64_t tile) {
  return [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    constexpr WgmmaKernelPtr kKernels[] = {CompiledInBlocks<kIndex>()...};
    return kKernels[tile];
  }(std::make_index_sequence<std::size(kWgmmaTiles)>());
}

}  // namespace jaxconv
