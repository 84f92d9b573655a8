// The compiled kernels of the simt family: a file for each type of sums.
#pragma once

#include <cstdint>

#include "common/product.cuh"
#include "common/tile_loader.cuh"

namespace jaxconv {

struct OperandAccess {
  Access src;
  Access rhs;
};

// The preferred first. Quads: a conv with dense channels, and with a filter dense in its channels out or in (the data
// gradient of the former); a wgrad with dense channels. The rest take any layout.
constexpr OperandAccess kAccesses[] = {
    {Access::kStepQuads, Access::kLineQuads}, {Access::kStepQuads, Access::kStepQuads},
    {Access::kLineQuads, Access::kLineQuads}, {Access::kLines, Access::kLines},
    {Access::kLines, Access::kSteps},         {Access::kSteps, Access::kLines},
    {Access::kSteps, Access::kSteps},
};
constexpr int kAccessCount = std::size(kAccesses);

using SimtKernelPtr = void (*)(ProductParams);

// access: a place in kAccesses. is_mixed: operands may have other types than the sums.
template <typename Acc>
SimtKernelPtr FindSimt(int64_t tile, int access, bool is_mixed, bool has_epilogue);

}  // namespace jaxconv
