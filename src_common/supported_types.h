// Which types go together in a convolution. Planning and the handlers of all platforms ask. What one family's kernels
// lack is among its own rules.
#pragma once

#include <optional>
#include <string>

#include "conv_problem.h"
#include "operand_traits.h"
#include "reason.h"

namespace jaxconv {

// Whether a forward convolution of operands of a type may have a result of another one. Integers are summed as int32.
// An epilogue, which is in float32, rounds these sums, and those of bfloat16 also to int8.
inline bool MayBeResult(DType operand, DType result, bool has_epilogue) {
  switch (operand) {
    case DType::kS8: return has_epilogue ? result == operand || IsHalfOrFloat32(result) : result == DType::kS32;
    case DType::kS32: return false;
    case DType::kF32: return result == operand || result == DType::kF64;
    case DType::kBF16:
      if (has_epilogue && result == DType::kS8) return true;
      [[fallthrough]];
    default: return result == operand || result == TraitsOf(operand).sums;
  }
}

// Whether kernels take a pass of a problem of these types. float8 goes with what is summed in float32. Else two of the
// three arrays have the type of a forward convolution's operands, and the third one, which is an operand of its
// gradients, that of its result.
inline bool TakesTypes(const ConvProblem& p, Pass pass, bool has_epilogue) {
  const DType rhs = RhsType(p, pass), result = ResultType(p, pass);
  const auto is_summed_in_float32 = [](DType type) { return TraitsOf(type).sums == DType::kF32; };
  if (HasFloat8(p))
    return is_summed_in_float32(p.src_type) && is_summed_in_float32(rhs) && is_summed_in_float32(result);
  if (p.src_type == rhs) return MayBeResult(rhs, result, has_epilogue);
  const bool is_wider = TraitsOf(p.src_type).bytes > TraitsOf(rhs).bytes;
  const DType narrow = is_wider ? rhs : p.src_type, wide = is_wider ? p.src_type : rhs;
  return MayBeResult(narrow, wide, false) && (result == wide || (result == narrow && !IsInteger(result)));
}

// The same on a host. There an epilogue rounds sums of float32 to any type, whatever the operands' is.
inline bool TakesTypesOnHost(const ConvProblem& p, Pass pass, bool has_epilogue) {
  const DType rhs = RhsType(p, pass), result = ResultType(p, pass);
  const auto is_ended = [](DType type) { return TraitsOf(type).sums == DType::kF32 || type == DType::kS8; };
  const bool are_operands = is_ended(p.src_type) && (p.src_type == rhs || (IsFloat8(p.src_type) && IsFloat8(rhs)));
  const bool rounds = pass == Pass::kConv && has_epilogue && are_operands && is_ended(result);
  return rounds || TakesTypes(p, pass, has_epilogue);
}

// Why no kernel adds a residual of a type to the result of a conv. A host's add any that their numbers hold.
inline Reason UnsupportedResidualOnCuda(const ConvProblem& p, DType residual) {
  if (residual == p.dst_type) return std::nullopt;
  return std::string("the residual must be ") + TraitsOf(p.dst_type).name + ", as the result is";
}
inline Reason UnsupportedResidualOnHost(DType numbers, DType residual) {
  const bool is_held = residual == DType::kS8 || residual == numbers || TraitsOf(residual).sums == DType::kF32;
  if (is_held && !(IsFloat8(residual) && numbers == DType::kF64)) return std::nullopt;
  return std::string("no residual of ") + TraitsOf(residual).name + " is added in " + TraitsOf(numbers).name;
}

// Whether results of a type are of a scale of their own, which an epilogue may multiply them by. They end at the type's
// largest numbers.
inline bool IsQuantised(DType result) { return IsByte(result); }

// Whether CUDA's kernels store results of a type with an epilogue alone. Without one, wider results are asked for.
inline bool NeedsEpilogueOnCuda(DType result) { return IsFloat8(result); }

// Why no CUDA kernel stores the results of a pass. Planning and the handler ask.
inline Reason UnsupportedResultOnCuda(const ConvProblem& p, Pass pass, bool has_epilogue) {
  const std::string results = std::string("results of ") + TraitsOf(ResultType(p, pass)).name;
  if (has_epilogue) {
    const bool is_of_host = TakesTypesOnHost(p, pass, true) && !TakesTypes(p, pass, true);
    return is_of_host ? Reason(results + " from operands of " + TraitsOf(p.src_type).name) : std::nullopt;
  }
  return NeedsEpilogueOnCuda(ResultType(p, pass)) ? Reason(results + " without an epilogue") : std::nullopt;
}

}  // namespace jaxconv
