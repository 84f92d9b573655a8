// The types of a call's operands, sums and result, on the host.
#pragma once

#include <cstddef>
#include <string>

#include "conv_problem.h"
#include "operand_traits.h"
#include "reason.h"

namespace jaxconv {

inline std::string Name(DType type) { return TraitsOf(type).name; }

constexpr size_t ElementBytes(DType type) { return TraitsOf(type).bytes; }

// Calls f(Acc{}) with the type of the sums.
template <typename F>
auto WithSumType(const ConvProblem& p, F&& f) {
  switch (SumType(p)) {
    case DType::kF64: return f(double{});
    case DType::kS32: return f(int32_t{});
    default: return f(float{});
  }
}

// Whether results are int8, and operands are not.
inline bool RoundsFloatsToInt8(const ConvProblem& p) { return p.dst_type == DType::kS8 && !IsInteger(p.src_type); }

inline constexpr const char* kBlocks = "results with channels in blocks";

// For kernels on tensor cores: operands of one type, and float32 sums. Results are of either type.
inline Reason UnsupportedOperands(const ConvProblem& p, Pass pass) {
  if (p.src_type != RhsType(p, pass)) {
    return "operands of two types, " + Name(p.src_type) + " and " + Name(RhsType(p, pass));
  }
  if (TraitsOf(p.src_type).sums != DType::kF32) return "operands of " + Name(p.src_type);
  if (p.dst.block != 0) return kBlocks;
  if (SumType(p) != DType::kF32) return "sums in " + Name(SumType(p));
  const DType result = ResultType(p, pass);
  return result == p.src_type || result == DType::kF32 ? std::nullopt : Reason("results of " + Name(result));
}

// For convs of int8 on tensor cores. Sums are int32, and results, through an epilogue, of other types.
inline Reason UnsupportedBytes(const ConvProblem& p, Pass pass) {
  if (pass == Pass::kWgrad) return "weight gradients of " + Name(p.src_type);
  if (p.filter_type != p.src_type) {
    return "operands of two types, " + Name(p.src_type) + " and " + Name(p.filter_type);
  }
  const bool has_results = IsInteger(p.dst_type) || IsHalfOrFloat32(p.dst_type);
  return has_results ? std::nullopt : Reason("results of " + Name(p.dst_type));
}

// For those whose operands have 16 bits.
inline Reason UnsupportedHalves(const ConvProblem& p, Pass pass) {
  if (Reason why = UnsupportedOperands(p, pass)) return why;
  return TraitsOf(p.src_type).bytes == 2 ? std::nullopt : Reason("operands of " + Name(p.src_type));
}

}  // namespace jaxconv
