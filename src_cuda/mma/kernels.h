// The compiled kernels of the mma family: a file for each type, as they take long to compile.
#pragma once

#include <cstddef>

#include "mma/block.cuh"

namespace jaxconv {

// Along which axis the source and the other operand are contiguous: steps of the reduction, or lines.
enum class MmaAccess {
  kStepsLines,  // fprop: channels of the source, out channels of the filter
  kStepsSteps,  // dgrad: the filter's in channels are those of the reduction
  kLinesLines,  // wgrad
};

struct MmaKernelOfTile {
  void (*function)(MmaParams) = nullptr;  // null: not compiled
  size_t shared_bytes = 0;
};

struct CompiledMma {
  MmaKernelOfTile of_pieces;    // null: the tile is not made for the type
  MmaKernelOfTile of_elements;  // where an operand is not contiguous, or not aligned
  MmaKernelOfTile merged;       // of pieces, and of merged residue classes; null: the tile merges none
};

template <typename T>
CompiledMma FindMma(int64_t tile, MmaAccess access, bool has_epilogue);

}  // namespace jaxconv
