// What kernels assume of the type of their operands: a row a type. A new type is a row here, and its instantiations.
#pragma once

#include "conv_problem.h"

namespace jaxconv {

struct OperandTraits {
  DType type;
  const char* name;
  int bytes;
  DType sums;     // the accumulators' type
  int mma_depth;  // K of a tensor core's instruction; 0: kernels on tensor cores have none for the type

  // Elements of a 16-byte vector, which is the most that a thread or TMA copies at once.
  constexpr int vector() const { return 16 / bytes; }
  // Elements of a row of the 128-byte swizzle: BLOCK_K of kernels whose operands lie so in shared memory.
  constexpr int swizzle_row() const { return 128 / bytes; }
};

inline constexpr OperandTraits kOperandTraits[] = {
    {DType::kF32, "float32", 4, DType::kF32, 8},  // tensor cores read it as tf32
    {DType::kF64, "float64", 8, DType::kF64, 0},  {DType::kBF16, "bfloat16", 2, DType::kF32, 16},
    {DType::kF16, "float16", 2, DType::kF32, 16}, {DType::kS8, "int8", 1, DType::kS32, 32},
    {DType::kS32, "int32", 4, DType::kS32, 0},
};

constexpr const OperandTraits& TraitsOf(DType type) { return kOperandTraits[static_cast<int>(type)]; }

constexpr bool AreInOrder() {
  int i = 0;
  for (const OperandTraits& traits : kOperandTraits) {
    if (static_cast<int>(traits.type) != i++) return false;
  }
  return true;
}
static_assert(AreInOrder(), "TraitsOf takes a type's number for its row's");

inline bool IsInteger(DType type) { return type == DType::kS8 || type == DType::kS32; }

// The type of a problem's sums.
inline DType SumType(const ConvProblem& p) {
  const auto any = [&](DType type) { return p.src_type == type || p.filter_type == type || p.dst_type == type; };
  if (IsInteger(p.src_type)) return DType::kS32;
  return any(DType::kF64) ? DType::kF64 : DType::kF32;
}

}  // namespace jaxconv
