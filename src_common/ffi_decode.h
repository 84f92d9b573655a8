// Decodes the buffers and attributes of an FFI call to a ConvProblem, for the handlers of the host and of CUDA.
//
// Sizes come from the buffers and not from attributes, so that a program exported with a symbolic batch runs with any
// batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "conv_epilogue.h"
#include "conv_problem.h"
#include "make_problem.h"
#include "operand_traits.h"
#include "supported_types.h"
#include "xla/ffi/api/ffi.h"

namespace jaxconv {

namespace ffi = ::xla::ffi;

// The attributes of a convolution: those of `_attributes` in ffi.py. Specs are (batch, channel, spatial...) for
// activations and (out, in, spatial...) for the filter, as in lax.ConvDimensionNumbers.
struct ConvAttributes {
  ffi::Span<const int64_t> src_spec;
  ffi::Span<const int64_t> filter_spec;
  ffi::Span<const int64_t> dst_spec;
  ffi::Span<const int64_t> window_strides;
  ffi::Span<const int64_t> padding_low;
  ffi::Span<const int64_t> lhs_dilation;
  ffi::Span<const int64_t> rhs_dilation;
  int64_t groups;
  bool src_batch_grouped;     // the source's groups are on its batch axis, not its channel axis
  bool dst_batch_grouped;     // the same for the destination
  bool filter_in_grouped;     // the filter's groups are on its `in` axis (dgrad), not its `out` axis
  bool dst_in_blocks;         // the destination's first spatial axis is blocks of its channels
  int64_t format;             // kFormat of the jaxconv that compiled the program
  std::string_view family;    // the kernel family
  std::string_view operands;  // the names of those behind the tables, separated by spaces, in their order
  // Of the epilogue.
  std::string_view activation;
  ffi::Span<const double> activation_numbers;
};

// Why this version cannot read the program's attributes.
inline std::optional<std::string> UnsupportedFormat(const ConvAttributes& a) {
  if (a.format == kFormat) return std::nullopt;
  return "the program was compiled by another version of jaxconv: its format is " + std::to_string(a.format) +
         ", this version reads " + std::to_string(kFormat);
}

namespace internal {

inline std::string Join(ffi::Span<const int64_t> v) {
  std::ostringstream s;
  s << '(';
  for (size_t i = 0; i < v.size(); ++i) s << (i ? ", " : "") << v[i];
  s << ')';
  return s.str();
}

inline bool ToDType(ffi::DataType type, DType* out) {
  switch (type) {
    case ffi::DataType::F32: *out = DType::kF32; return true;
    case ffi::DataType::F64: *out = DType::kF64; return true;
    case ffi::DataType::BF16: *out = DType::kBF16; return true;
    case ffi::DataType::F16: *out = DType::kF16; return true;
    case ffi::DataType::S8: *out = DType::kS8; return true;
    case ffi::DataType::S32: *out = DType::kS32; return true;
    case ffi::DataType::F8E4M3FN: *out = DType::kE4M3; return true;
    case ffi::DataType::F8E5M2: *out = DType::kE5M2; return true;
    default: return false;
  }
}

inline std::string AllTypes() {
  std::string names;
  for (const OperandTraits& traits : kOperandTraits) names += (names.empty() ? "" : ", ") + std::string(traits.name);
  return names;
}

inline Numbers64 Of(ffi::Span<const int64_t> numbers) { return {numbers.begin(), numbers.size()}; }

}  // namespace internal

// The problem in one line, for error messages.
inline std::string Describe(ffi::Span<const int64_t> src, ffi::Span<const int64_t> filter, ffi::Span<const int64_t> dst,
                            const ConvAttributes& a) {
  using internal::Join;
  std::ostringstream s;
  s << "jaxconv: convolution of source " << Join(src) << " spec " << Join(a.src_spec) << ", filter " << Join(filter)
    << " spec " << Join(a.filter_spec) << ", destination " << Join(dst) << " spec " << Join(a.dst_spec)
    << ", window_strides " << Join(a.window_strides) << ", padding_low " << Join(a.padding_low) << ", lhs_dilation "
    << Join(a.lhs_dilation) << ", rhs_dilation " << Join(a.rhs_dilation) << ", groups " << a.groups;
  return s.str();
}

// Those of a call, without the types of its arrays.
inline ProblemArguments ArgumentsOf(ffi::AnyBuffer src, ffi::AnyBuffer filter, ffi::AnyBuffer dst, ffi::AnyBuffer taps,
                                    ffi::AnyBuffer classes, const ConvAttributes& a) {
  using internal::Of;
  return {{Of(src.dimensions()), Of(a.src_spec), {}},
          {Of(filter.dimensions()), Of(a.filter_spec), {}},
          {Of(dst.dimensions()), Of(a.dst_spec), {}},
          Of(a.window_strides),
          Of(a.lhs_dilation),
          a.groups,
          a.src_batch_grouped,
          a.dst_batch_grouped,
          a.filter_in_grouped,
          a.dst_in_blocks,
          Of(taps.dimensions()),
          Of(classes.dimensions())};
}

// Makes the problem of a call, or an error if the operands do not fit together. Any of the three arrays may be the
// result.
inline ffi::ErrorOr<ConvProblem> DecodeProblem(ffi::AnyBuffer src, ffi::AnyBuffer filter, ffi::AnyBuffer dst,
                                               ffi::AnyBuffer taps, ffi::AnyBuffer classes, const ConvAttributes& a) {
  const auto refuse = [&](const std::string& why) {
    return ffi::Unexpected(
        ffi::Error::InvalidArgument(Describe(src.dimensions(), filter.dimensions(), dst.dimensions(), a) + ": " + why));
  };
  if (const auto why = UnsupportedFormat(a)) return refuse(*why);
  ProblemArguments arguments = ArgumentsOf(src, filter, dst, taps, classes, a);
  if (!internal::ToDType(src.element_type(), &arguments.src.type) ||
      !internal::ToDType(filter.element_type(), &arguments.filter.type) ||
      !internal::ToDType(dst.element_type(), &arguments.dst.type))
    return refuse("dtypes are " + internal::AllTypes());
  if (taps.element_type() != ffi::DataType::S32 || classes.element_type() != ffi::DataType::S32)
    return refuse("the offset tables must be int32");
  ConvProblem problem;
  if (const char* why = MakeProblem(arguments, &problem)) return refuse(why);
  if (!CountsPositions(problem)) return refuse(kTooManyPositions);
  return problem;
}

namespace internal {

// The operands behind the tables, one after the other. `rows`: null on a platform whose kernels take none.
class OperandReader {
 public:
  OperandReader(const ffi::RemainingArgs& operands, const ConvProblem& problem, Epilogue* epilogue, NeighbourRows* rows)
      : operands_(operands), problem_(problem), epilogue_(epilogue), rows_(rows) {}

  // Reads the next operand, which has this name. Returns why it does not fit the problem.
  std::optional<std::string> Read(const std::string& name) {
    if (read_ == operands_.size()) return "the " + name + " is missing";
    const ffi::ErrorOr<ffi::AnyBuffer> buffer = operands_.get<ffi::AnyBuffer>(read_++);
    if (buffer.has_error()) return "the " + name + " is no array";
    if (name == "scale") return ReadPerChannel(name, *buffer, &epilogue_->scale);
    if (name == "bias") return ReadPerChannel(name, *buffer, &epilogue_->bias);
    if (name == "out_scale") return ReadPerChannel("out scale", *buffer, &epilogue_->out_scale);
    if (name == "residual") return ReadResidual(*buffer);
    if (name == "residual_scale") return ReadNumber("residual scale", *buffer, &epilogue_->residual_scale);
    if (rows_ && name == "rows_before") return ReadRows(*buffer, &rows_->before, &rows_->elements_before);
    if (rows_ && name == "rows_after") return ReadRows(*buffer, &rows_->after, &rows_->elements_after);
    return "there is no operand " + name;
  }

  bool has_more() const { return read_ < operands_.size(); }

 private:
  static std::optional<std::string> TypeMustBe(const std::string& name, const ffi::AnyBuffer& buffer, DType expected,
                                               const char* as) {
    DType type;
    if (ToDType(buffer.element_type(), &type) && type == expected) return std::nullopt;
    return "the " + name + " must be " + TraitsOf(expected).name + ", as the " + as;
  }

  static std::string Numbers(const std::string& name, const ffi::AnyBuffer& buffer, int64_t expected, const char* of) {
    return "the " + name + " has " + std::to_string(buffer.element_count()) + " numbers for " +
           std::to_string(expected) + of;
  }

  // Of the numbers that the epilogue computes with.
  std::optional<std::string> NumberTypeMustFit(const std::string& name, const ffi::AnyBuffer& buffer) const {
    const bool is_of_sums = EpilogueType(problem_) == SumType(problem_);
    return TypeMustBe(name, buffer, EpilogueType(problem_), is_of_sums ? "sums are" : "epilogue of integers is");
  }

  std::optional<std::string> ReadPerChannel(const std::string& name, const ffi::AnyBuffer& buffer,
                                            PerChannel* operand) const {
    if (auto why = NumberTypeMustFit(name, buffer)) return why;
    const int64_t channels = problem_.groups * problem_.out_channels;
    const auto count = static_cast<int64_t>(buffer.element_count());
    if (count != 1 && count != channels) return Numbers(name, buffer, channels, " output channels");
    *operand = {buffer.untyped_data(), count == channels ? 1 : 0};
    return std::nullopt;
  }

  // Of any type: handlers ask which ones kernels take.
  std::optional<std::string> ReadResidual(const ffi::AnyBuffer& buffer) const {
    if (!ToDType(buffer.element_type(), &epilogue_->residual_type))
      return "there are no kernels for the residual's dtype";
    int64_t count = problem_.batch * problem_.groups * problem_.out_channels;
    for (const int64_t size : problem_.dst_size) count *= size;
    if (static_cast<int64_t>(buffer.element_count()) != count) {
      return Numbers("residual", buffer, count, " of the result");
    }
    epilogue_->residual = buffer.untyped_data();
    return std::nullopt;
  }

  // Their number is a setting of the kernel.
  std::optional<std::string> ReadRows(const ffi::AnyBuffer& buffer, const void** rows, int64_t* elements) const {
    if (auto why = TypeMustBe("neighbour's rows", buffer, problem_.src_type, "source is")) return why;
    *rows = buffer.untyped_data();
    *elements = static_cast<int64_t>(buffer.element_count());
    return std::nullopt;
  }

  std::optional<std::string> ReadNumber(const std::string& name, const ffi::AnyBuffer& buffer,
                                        const void** number) const {
    if (auto why = NumberTypeMustFit(name, buffer)) return why;
    if (buffer.element_count() != 1) return Numbers(name, buffer, 1, "");
    *number = buffer.untyped_data();
    return std::nullopt;
  }

  const ffi::RemainingArgs& operands_;
  const ConvProblem& problem_;
  Epilogue* epilogue_;
  NeighbourRows* rows_;
  size_t read_ = 0;
};

inline bool ToActivation(std::string_view name, Activation* activation) {
  constexpr std::pair<std::string_view, Activation> kNames[] = {{"", Activation::kNone},
                                                                {"piecewise", Activation::kPiecewise},
                                                                {"sigmoid", Activation::kSigmoid},
                                                                {"hard_sigmoid", Activation::kHardSigmoid}};
  for (const auto& [known, value] : kNames) {
    if (name == known) return *activation = value, true;
  }
  return false;
}

}  // namespace internal

// Reads the operands behind the tables, and what else the attributes say of the epilogue. Returns why it does not fit
// the problem.
inline std::optional<std::string> ReadOperands(const ConvAttributes& a, const ffi::RemainingArgs& operands,
                                               const ConvProblem& p, Pass pass, Epilogue* epilogue,
                                               NeighbourRows* rows = nullptr) {
  if (!internal::ToActivation(a.activation, &epilogue->activation)) {
    return "there is no activation " + std::string(a.activation);
  }
  constexpr size_t kNumbers = std::size(Epilogue{}.numbers);
  if (a.activation_numbers.size() != kNumbers) return "an activation has " + std::to_string(kNumbers) + " numbers";
  std::copy(a.activation_numbers.begin(), a.activation_numbers.end(), epilogue->numbers);
  epilogue->of_floats = OfFloats(epilogue->activation, epilogue->numbers);
  internal::OperandReader reader(operands, p, epilogue, rows);
  for (std::string_view names = a.operands; !names.empty();) {
    const size_t end = std::min(names.find(' '), names.size());
    if (auto why = reader.Read(std::string(names.substr(0, end)))) return why;
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  if (reader.has_more()) return "there are operands that no attribute names";
  if (epilogue->residual_scale && !epilogue->residual) return "there is a residual scale, and no residual";
  const bool is_rounded = pass == Pass::kConv && !TakesTypesOnHost(p, pass, false) && TakesTypesOnHost(p, pass, true);
  const size_t of_rows = rows ? (rows->before != nullptr) + (rows->after != nullptr) : 0;
  epilogue->is_there = operands.size() > of_rows || epilogue->activation != Activation::kNone || is_rounded;
  if (p.dst.block != 0 && pass != Pass::kConv) return "a wgrad has no channels in blocks";
  if (epilogue->is_there && pass != Pass::kConv) return "a wgrad has no epilogue";
  if (epilogue->is_there && p.dst_type == DType::kS32) return "sums of integers that are the result have no epilogue";
  if (epilogue->out_scale.data && !IsQuantised(p.dst_type)) return "an out scale is for a result of int8 or float8";
  return std::nullopt;
}

}  // namespace jaxconv

// The members of ConvAttributes, in order. Structs that add attributes of a platform register them, too.
#define JAXCONV_CONV_ATTRIBUTE_MEMBERS                                                                              \
  ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("src_spec"),                                            \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("filter_spec"),                                     \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("dst_spec"),                                        \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("window_strides"),                                  \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("padding_low"),                                     \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("lhs_dilation"),                                    \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("rhs_dilation"),                                    \
      ::xla::ffi::StructMember<int64_t>("groups"), ::xla::ffi::StructMember<bool>("src_batch_grouped"),             \
      ::xla::ffi::StructMember<bool>("dst_batch_grouped"), ::xla::ffi::StructMember<bool>("filter_in_grouped"),     \
      ::xla::ffi::StructMember<bool>("dst_in_blocks"), ::xla::ffi::StructMember<int64_t>("format"),                 \
      ::xla::ffi::StructMember<std::string_view>("family"), ::xla::ffi::StructMember<std::string_view>("operands"), \
      ::xla::ffi::StructMember<std::string_view>("activation"),                                                     \
      ::xla::ffi::StructMember<::xla::ffi::Span<const double>>("activation_numbers")

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jaxconv::ConvAttributes, JAXCONV_CONV_ATTRIBUTE_MEMBERS);
