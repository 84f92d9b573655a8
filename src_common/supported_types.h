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
// An epilogue, which is in float32, rounds these sums.
inline bool MayBeResult(DType operand, DType result, bool has_epilogue) {
  const bool is_half_or_float32 = TraitsOf(result).sums == DType::kF32 && !IsFloat8(result);
  switch (operand) {
    case DType::kS8: return result == DType::kS32 || (has_epilogue && (result == operand || is_half_or_float32));
    case DType::kS32: return false;
    case DType::kF32: return result == operand || result == DType::kF64;
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

// Whether results of a type are of a scale of their own, which an epilogue may multiply them by. They end at the type's
// largest numbers.
inline bool IsQuantised(DType result) { return IsByte(result); }

// Whether CUDA's kernels store results of a type with an epilogue alone. Without one, wider results are asked for.
inline bool NeedsEpilogueOnCuda(DType result) { return IsFloat8(result); }

// Why no CUDA kernel stores the results of a pass. Planning and the handler ask.
inline Reason UnsupportedResultOnCuda(const ConvProblem& p, Pass pass, bool has_epilogue) {
  const DType result = ResultType(p, pass);
  if (has_epilogue || !NeedsEpilogueOnCuda(result)) return std::nullopt;
  return std::string("results of ") + TraitsOf(result).name + " without an epilogue";
}

}  // namespace jaxconv
