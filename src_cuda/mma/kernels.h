// The compiled kernels of the mma family: a file for each type, as they take long to compile.
#pragma once

#include <cstddef>
#include <iterator>

#include "mma/block.cuh"
#include "mma/config.h"

namespace jaxconv {

// Along which axis the source and the other operand are contiguous: steps of the reduction, or lines.
enum class MmaAccess {
  kStepsLines,  // fprop: channels of the source, out channels of the filter
  kStepsSteps,  // dgrad: the filter's in channels are those of the reduction
  kLinesLines,  // wgrad
};

// A kernel, but for the type of its operands.
struct MmaVariant {
  int tile;
  MmaAccess access;
  bool vectors;  // both operands are copied in 16-byte vectors: they are contiguous and aligned
  bool merged;   // columns are those of all residue classes
  bool has_epilogue;

  static constexpr int kCount = 24 * std::size(kMmaTiles);
  static constexpr MmaVariant At(int i) {
    return {i / 24, MmaAccess{i / 8 % 3}, i / 4 % 2 == 1, i / 2 % 2 == 1, i % 2 == 1};
  }
  constexpr int index() const {
    return 24 * tile + 8 * static_cast<int>(access) + 4 * vectors + 2 * merged + has_epilogue;
  }
  constexpr bool wgrad() const { return access == MmaAccess::kLinesLines; }
  // Whether a call may take it. Tensor cores read bytes K-major alone.
  constexpr bool IsFor(DType operands) const {
    if (operands == DType::kS8 && access != MmaAccess::kStepsSteps) return false;
    return kMmaTiles[tile].IsOf(operands) && !(wgrad() && (merged || has_epilogue)) &&
           !(merged && !(vectors && kMmaTiles[tile].merges()));
  }
};

struct MmaKernelOfType {
  void (*function)(MmaParams) = nullptr;  // null: no call may take the variant
  size_t shared_bytes = 0;
};

template <typename T>
MmaKernelOfType FindMma(const MmaVariant& variant);

}  // namespace jaxconv
