// What kernels know about the types of operands. A new type needs a row here, and instantiations of kernels.
#pragma once

#include "conv_problem.h"

namespace jaxconv {

inline constexpr int kVectorBytes = 16;    // the most that a thread loads, stores or copies at once
inline constexpr int kSwizzleBytes = 128;  // a swizzled row of shared memory: BLOCK_K channels of one tap, of all types

struct OperandTraits {
  DType type;
  const char* name;
  int bytes;
  DType sums;     // the accumulator type
  int mma_depth;  // K of the mma instruction; 0 if there are no kernels on tensor cores for the type

  // Elements of a vector, and of a swizzled row. Kernels with the swizzle have the latter as BLOCK_K.
  constexpr int vector() const { return kVectorBytes / bytes; }
  constexpr int swizzle_row() const { return kSwizzleBytes / bytes; }
  // Whether wgmma reads operands of the type in no other order than K-major. Those of 16 bits may be MN-major, and it
  // has none of 64.
  constexpr bool is_k_major_alone() const { return bytes == 1 || bytes == 4; }
};

inline constexpr OperandTraits kOperandTraits[] = {
    {DType::kF32, "float32", 4, DType::kF32, 8},  // tensor cores read it as tf32
    {DType::kF64, "float64", 8, DType::kF64, 0},       {DType::kBF16, "bfloat16", 2, DType::kF32, 16},
    {DType::kF16, "float16", 2, DType::kF32, 16},      {DType::kS8, "int8", 1, DType::kS32, 32},
    {DType::kS32, "int32", 4, DType::kS32, 0},         {DType::kE4M3, "float8_e4m3fn", 1, DType::kF32, 32},
    {DType::kE5M2, "float8_e5m2", 1, DType::kF32, 32},
};

constexpr const OperandTraits& TraitsOf(DType type) { return kOperandTraits[static_cast<int>(type)]; }

constexpr bool AreInOrder() {
  int i = 0;
  for (const OperandTraits& traits : kOperandTraits) {
    if (static_cast<int>(traits.type) != i++) return false;
  }
  return true;
}
static_assert(AreInOrder(), "TraitsOf uses the type as an index");

inline bool IsInteger(DType type) { return type == DType::kS8 || type == DType::kS32; }
constexpr bool IsFloat8(DType type) { return type == DType::kE4M3 || type == DType::kE5M2; }
// Floats of 16 or 32 bits.
constexpr bool IsHalfOrFloat32(DType type) { return TraitsOf(type).sums == DType::kF32 && !IsFloat8(type); }
constexpr bool IsByte(DType type) { return TraitsOf(type).bytes == 1; }  // int8 or float8

inline bool HasFloat8(const ConvProblem& p) {
  return IsFloat8(p.src_type) || IsFloat8(p.filter_type) || IsFloat8(p.dst_type);
}

// The types of the second operand (B) and of the result.
inline DType RhsType(const ConvProblem& p, Pass pass) { return pass == Pass::kConv ? p.filter_type : p.dst_type; }
inline DType ResultType(const ConvProblem& p, Pass pass) { return pass == Pass::kConv ? p.dst_type : p.filter_type; }

// The type in which a problem's sums are accumulated.
inline DType SumType(const ConvProblem& p) {
  const auto any = [&](DType type) { return p.src_type == type || p.filter_type == type || p.dst_type == type; };
  if (IsInteger(p.src_type)) return DType::kS32;
  return any(DType::kF64) ? DType::kF64 : DType::kF32;
}

// The type in which a problem's epilogue is computed. Sums of integers are converted to it first.
inline DType EpilogueType(const ConvProblem& p) {
  const DType sums = SumType(p);
  return sums == DType::kS32 ? DType::kF32 : sums;
}

}  // namespace jaxconv
