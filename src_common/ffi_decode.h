// From an FFI call's buffers and attributes to a ConvProblem. Shared by the host's and CUDA's handlers.
//
// Sizes come from the buffers, not from attributes, so that a program exported with a symbolic batch runs with any.
#pragma once

#include <cstdint>
#include <numeric>
#include <sstream>
#include <string>

#include "conv_problem.h"
#include "xla/ffi/api/ffi.h"

namespace jaxconv {

namespace ffi = ::xla::ffi;

// The attributes of a convolution, one for one ffi.py's `_attributes`. Specs are (batch, channel, spatial...) for
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
  bool src_batch_grouped;  // the source's groups are on its batch axis, else on its channel axis
  bool dst_batch_grouped;  // likewise the destination's
  bool filter_in_grouped;  // the filter's groups are on its `in` axis (a data gradient), else on its `out` axis
  int32_t family;          // the plan: which kernel
};

namespace internal {

inline std::string Join(ffi::Span<const int64_t> v) {
  std::ostringstream s;
  s << '(';
  for (size_t i = 0; i < v.size(); ++i) s << (i ? ", " : "") << v[i];
  s << ')';
  return s.str();
}

inline int64_t Stride(ffi::Span<const int64_t> dims, int64_t axis) {
  int64_t stride = 1;
  for (size_t i = axis + 1; i < dims.size(); ++i) stride *= dims[i];
  return stride;
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

// Fills in an activation's sizes and strides; `batch` and `channels` become per-group sizes.
inline bool DecodeTensor(ffi::Span<const int64_t> dims, ffi::Span<const int64_t> spec, int64_t groups,
                         bool batch_grouped, int64_t* batch, int64_t* channels, int64_t* size, TensorStrides* strides) {
  if (spec.size() != dims.size()) return false;
  *batch = dims[spec[0]];
  *channels = dims[spec[1]];
  strides->batch = Stride(dims, spec[0]);
  strides->channel = Stride(dims, spec[1]);
  int64_t* grouped = batch_grouped ? batch : channels;
  if (*grouped % groups) return false;
  *grouped /= groups;
  strides->group = *grouped * (batch_grouped ? strides->batch : strides->channel);
  const int lead = kSpatial - static_cast<int>(dims.size() - 2);
  for (int i = 0; i < kSpatial; ++i) {
    size[i] = i < lead ? 1 : dims[spec[2 + i - lead]];
    strides->spatial[i] = i < lead ? 0 : Stride(dims, spec[2 + i - lead]);
  }
  return true;
}

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

// Builds the problem of a call whose operands may be in any of the three roles; refuses what does not fit together.
inline ffi::ErrorOr<ConvProblem> DecodeProblem(ffi::AnyBuffer src, ffi::AnyBuffer filter, ffi::AnyBuffer dst,
                                               ffi::AnyBuffer taps, ffi::AnyBuffer classes, const ConvAttributes& a) {
  const auto refuse = [&](const char* why) {
    return ffi::Unexpected(
        ffi::Error::InvalidArgument(Describe(src.dimensions(), filter.dimensions(), dst.dimensions(), a) + ": " + why));
  };
  ConvProblem p{};
  p.groups = a.groups;
  if (p.groups < 1) return refuse("groups must be positive");
  const size_t rank = src.dimensions().size();
  if (rank < 2 || rank > 2 + kSpatial) return refuse("0 to 3 spatial dimensions are supported");
  if (a.filter_spec.size() != rank || filter.dimensions().size() != rank) return refuse("ranks differ");
  if (a.window_strides.size() != rank - 2 || a.lhs_dilation.size() != rank - 2)
    return refuse("window_strides and lhs_dilation need an entry for each spatial dimension");
  int64_t dst_batch = 0;
  if (!internal::DecodeTensor(src.dimensions(), a.src_spec, p.groups, a.src_batch_grouped, &p.batch, &p.in_channels,
                              p.src_size, &p.src) ||
      !internal::DecodeTensor(dst.dimensions(), a.dst_spec, p.groups, a.dst_batch_grouped, &dst_batch, &p.out_channels,
                              p.dst_size, &p.dst))
    return refuse("groups do not divide the batch or channels");
  if (dst_batch != p.batch) return refuse("the batches of source and destination differ");

  const auto dims = filter.dimensions();
  const int64_t out = dims[a.filter_spec[0]], in = dims[a.filter_spec[1]];
  p.filter.out = internal::Stride(dims, a.filter_spec[0]);
  p.filter.in = internal::Stride(dims, a.filter_spec[1]);
  p.filter.group = a.filter_in_grouped ? p.in_channels * p.filter.in : p.out_channels * p.filter.out;
  if (in != p.in_channels * (a.filter_in_grouped ? p.groups : 1) ||
      out != p.out_channels * (a.filter_in_grouped ? 1 : p.groups))
    return refuse("the filter's channels do not match the source's and destination's");

  int64_t tap_count = 1;
  for (size_t i = 2; i < rank; ++i) tap_count *= dims[a.filter_spec[i]];
  if (taps.element_type() != ffi::DataType::S32 || classes.element_type() != ffi::DataType::S32)
    return refuse("the offset tables must be int32");
  if (taps.dimensions().size() != 2 || taps.dimensions()[0] != tap_count || taps.dimensions()[1] != 5 ||
      classes.dimensions().size() != 2 || classes.dimensions()[1] != 8)
    return refuse("the offset tables are not those of this problem");
  p.tap_count = static_cast<int32_t>(tap_count);
  p.class_count = static_cast<int32_t>(classes.dimensions()[0]);

  const int lead = kSpatial - static_cast<int>(rank - 2);
  for (int i = 0; i < kSpatial; ++i) {
    const int64_t stride = i < lead ? 1 : a.window_strides[i - lead];
    const int64_t dilation = i < lead ? 1 : a.lhs_dilation[i - lead];
    if (stride < 1 || dilation < 1) return refuse("window_strides and lhs_dilation must be positive");
    p.period[i] = dilation / std::gcd(stride, dilation);
    p.step[i] = stride / std::gcd(stride, dilation);
  }
  if (!internal::ToDType(src.element_type(), &p.src_type) ||
      !internal::ToDType(filter.element_type(), &p.filter_type) || !internal::ToDType(dst.element_type(), &p.dst_type))
    return refuse("dtypes are float32, float64, bfloat16, float16, int8 and int32");
  return p;
}

}  // namespace jaxconv

// The members of ConvAttributes, in order, for this registration and those of structs that add a platform's own.
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
      ::xla::ffi::StructMember<int32_t>("family")

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jaxconv::ConvAttributes, JAXCONV_CONV_ATTRIBUTE_MEMBERS);
