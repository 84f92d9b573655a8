// The compiled kernels of the simt family: one .cu file for each type of sums.
#pragma once

#include <cstdint>
#include <iterator>

#include "common/product.cuh"
#include "common/tile_loader.cuh"
#include "conv_epilogue.h"

namespace jaxconv {

struct OperandAccess {
  Access src;
  Access rhs;
};

// In order of preference. The first two are for a conv whose channels are contiguous in the source, and in the filter
// the output channels (fprop) or the input channels (dgrad). The third is for a wgrad with contiguous channels. The
// others together support every layout.
constexpr OperandAccess kAccesses[] = {
    {Access::kKMajorVectors, Access::kMnMajorVectors},
    {Access::kKMajorVectors, Access::kKMajorVectors},
    {Access::kMnMajorVectors, Access::kMnMajorVectors},
    {Access::kMnMajor, Access::kMnMajor},
    {Access::kMnMajor, Access::kKMajor},
    {Access::kKMajor, Access::kMnMajor},
    {Access::kKMajor, Access::kKMajor},
};
constexpr int kAccessCount = std::size(kAccesses);

struct SimtParams : ProductParams {
  Epilogue epilogue;
};

using SimtKernelPtr = void (*)(SimtParams);

// What a kernel knows of the types of operands and result: they are those of the sums; or any that the sums hold, but
// for float8; or also float8, and int8 results.
enum class SimtTypes { kOfSums, kMixed, kFloat8 };

// access: an index of kAccesses.
template <typename Acc>
SimtKernelPtr FindSimt(int64_t tile, int access, SimtTypes types, bool has_epilogue);

// The same where a type is float8, or floats become int8.
SimtKernelPtr FindSimtOfFloat8(int64_t tile, int access, bool has_epilogue);

}  // namespace jaxconv
