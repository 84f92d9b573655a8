// Decodes the buffers and attributes of an FFI call to a ConvProblem, for the handlers of the host and of CUDA.
//
// Sizes come from the buffers and not from attributes, so that a program exported with a symbolic batch runs with any
// batch.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>

#include "conv_problem.h"
#include "make_problem.h"
#include "operand_traits.h"
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
  bool src_batch_grouped;   // the source's groups are on its batch axis, not its channel axis
  bool dst_batch_grouped;   // the same for the destination
  bool filter_in_grouped;   // the filter's groups are on its `in` axis (dgrad), not its `out` axis
  int64_t format;           // kFormat of the jaxconv that compiled the program
  std::string_view family;  // the kernel family
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
    default: return false;
  }
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

// Makes the problem of a call, or an error if the operands do not fit together. Any of the three arrays may be the
// result.
inline ffi::ErrorOr<ConvProblem> DecodeProblem(ffi::AnyBuffer src, ffi::AnyBuffer filter, ffi::AnyBuffer dst,
                                               ffi::AnyBuffer taps, ffi::AnyBuffer classes, const ConvAttributes& a) {
  const auto refuse = [&](const std::string& why) {
    return ffi::Unexpected(
        ffi::Error::InvalidArgument(Describe(src.dimensions(), filter.dimensions(), dst.dimensions(), a) + ": " + why));
  };
  if (const auto why = UnsupportedFormat(a)) return refuse(*why);
  using internal::Of;
  ProblemArguments arguments{{Of(src.dimensions()), Of(a.src_spec), {}},
                             {Of(filter.dimensions()), Of(a.filter_spec), {}},
                             {Of(dst.dimensions()), Of(a.dst_spec), {}},
                             Of(a.window_strides),
                             Of(a.lhs_dilation),
                             a.groups,
                             a.src_batch_grouped,
                             a.dst_batch_grouped,
                             a.filter_in_grouped,
                             Of(taps.dimensions()),
                             Of(classes.dimensions())};
  if (!internal::ToDType(src.element_type(), &arguments.src.type) ||
      !internal::ToDType(filter.element_type(), &arguments.filter.type) ||
      !internal::ToDType(dst.element_type(), &arguments.dst.type))
    return refuse("dtypes are float32, float64, bfloat16, float16, int8 and int32");
  if (taps.element_type() != ffi::DataType::S32 || classes.element_type() != ffi::DataType::S32)
    return refuse("the offset tables must be int32");
  ConvProblem problem;
  if (const char* why = MakeProblem(arguments, &problem)) return refuse(why);
  return problem;
}

// Finds the optional bias, the operand after the tables: sets `bias`, or null. Returns why it does not fit the problem.
inline std::optional<std::string> ReadBias(const ffi::RemainingArgs& more, const ConvProblem& p, Pass pass,
                                           const void** bias) {
  *bias = nullptr;
  if (more.size() == 0) return std::nullopt;
  if (more.size() > 1) return "there are operands behind the bias";
  if (pass != Pass::kConv) return "a wgrad has no bias";
  const ffi::ErrorOr<ffi::AnyBuffer> buffer = more.get<ffi::AnyBuffer>(0);
  if (buffer.has_error()) return "the bias is no array";
  const DType sums = SumType(p);
  DType type;
  if (!internal::ToDType(buffer->element_type(), &type) || type != sums) {
    return std::string("the bias must be ") + TraitsOf(sums).name + ", as the sums are";
  }
  const auto channels = static_cast<size_t>(p.groups * p.out_channels);
  if (buffer->element_count() != channels) {
    return "the bias has " + std::to_string(buffer->element_count()) + " numbers for " + std::to_string(channels) +
           " output channels";
  }
  *bias = buffer->untyped_data();
  return std::nullopt;
}

}  // namespace jaxconv

// The members of ConvAttributes, in order. Structs that add attributes of a platform register them, too.
#define JAXCONV_CONV_ATTRIBUTE_MEMBERS                                                                          \
  ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("src_spec"),                                        \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("filter_spec"),                                 \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("dst_spec"),                                    \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("window_strides"),                              \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("padding_low"),                                 \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("lhs_dilation"),                                \
      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("rhs_dilation"),                                \
      ::xla::ffi::StructMember<int64_t>("groups"), ::xla::ffi::StructMember<bool>("src_batch_grouped"),         \
      ::xla::ffi::StructMember<bool>("dst_batch_grouped"), ::xla::ffi::StructMember<bool>("filter_in_grouped"), \
      ::xla::ffi::StructMember<int64_t>("format"), ::xla::ffi::StructMember<std::string_view>("family")

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jaxconv::ConvAttributes, JAXCONV_CONV_ATTRIBUTE_MEMBERS);
