// The FFI handlers of the CUDA platform, and the Python module `_cuda` that hands them to JAX.
//
// Handlers only enqueue: they allocate nothing and wait for nothing, so that XLA may record them into a CUDA graph. The
// scratch that a call needs is its second result.
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include <string>

#include "conv_problem.h"
#include "ffi_decode.h"
#include "launch.h"
#include "xla/ffi/api/ffi.h"

namespace jaxconv {

// What the plan of a CUDA kernel adds to a convolution's attributes.
struct CudaAttributes : ConvAttributes {
  int32_t tile;
  int32_t split;
};

}  // namespace jaxconv

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jaxconv::CudaAttributes, JAXCONV_CONV_ATTRIBUTE_MEMBERS,
                                      ::xla::ffi::StructMember<int32_t>("tile"),
                                      ::xla::ffi::StructMember<int32_t>("split"));

namespace jaxconv {
namespace {

// `rhs` and `result` are filter and destination of a gather, the destination's gradient and the filter's of a reduce.
ffi::Error Run(Pass pass, cudaStream_t stream, ffi::AnyBuffer src, ffi::AnyBuffer rhs, ffi::AnyBuffer taps,
               ffi::AnyBuffer classes, ffi::AnyBuffer result, ffi::AnyBuffer scratch,
               const CudaAttributes& attributes) {
  const ffi::AnyBuffer& filter = pass == Pass::kGather ? rhs : result;
  const ffi::AnyBuffer& dst = pass == Pass::kGather ? result : rhs;
  const auto describe = [&](const std::string& what) {
    return Describe(src.dimensions(), filter.dimensions(), dst.dimensions(), attributes) + ": " + what;
  };
  const ffi::ErrorOr<ConvProblem> problem = DecodeProblem(src, filter, dst, taps, classes, attributes);
  if (problem.has_error()) return problem.error();
  if (attributes.family != static_cast<int32_t>(Family::kSimt)) {
    return ffi::Error::InvalidArgument(describe("no such kernel family"));
  }
  const SimtPlan plan{attributes.tile, attributes.split};
  if (const char* why = WhyNotSimt(*problem, pass, plan)) return ffi::Error::InvalidArgument(describe(why));
  if (scratch.size_bytes() < SimtScratchBytes(*problem, pass, plan.split)) {
    return ffi::Error::InvalidArgument(describe("the scratch is too small for the split"));
  }
  const ConvCall call{*problem,
                      pass,
                      static_cast<const Tap*>(taps.untyped_data()),
                      static_cast<const ResidueClass*>(classes.untyped_data()),
                      src.untyped_data(),
                      rhs.untyped_data(),
                      result.untyped_data()};
  const cudaError_t status = LaunchSimt(call, plan, scratch.untyped_data(), stream);
  if (status == cudaSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(describe(cudaGetErrorString(status)));
}

ffi::Error Gather(cudaStream_t stream, ffi::AnyBuffer src, ffi::AnyBuffer filter, ffi::AnyBuffer taps,
                  ffi::AnyBuffer classes, ffi::Result<ffi::AnyBuffer> dst, ffi::Result<ffi::AnyBuffer> scratch,
                  CudaAttributes attributes) {
  return Run(Pass::kGather, stream, src, filter, taps, classes, *dst, *scratch, attributes);
}

ffi::Error Reduce(cudaStream_t stream, ffi::AnyBuffer src, ffi::AnyBuffer grad, ffi::AnyBuffer taps,
                  ffi::AnyBuffer classes, ffi::Result<ffi::AnyBuffer> filter_grad, ffi::Result<ffi::AnyBuffer> scratch,
                  CudaAttributes attributes) {
  return Run(Pass::kReduce, stream, src, grad, taps, classes, *filter_grad, *scratch, attributes);
}

// The signature of both handlers.
auto Signature() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Arg<ffi::AnyBuffer>()  // source
      .Arg<ffi::AnyBuffer>()  // filter, or the destination's gradient
      .Arg<ffi::AnyBuffer>()  // taps
      .Arg<ffi::AnyBuffer>()  // classes
      .Ret<ffi::AnyBuffer>()  // destination, or the filter's gradient
      .Ret<ffi::AnyBuffer>()  // scratch
      .Attrs<CudaAttributes>();
}

XLA_FFI_DEFINE_HANDLER(kGather, Gather, Signature(), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kReduce, Reduce, Signature(), {ffi::Traits::kCmdBufferCompatible});

nanobind::capsule Handler(XLA_FFI_Handler* handler) { return nanobind::capsule(reinterpret_cast<void*>(handler)); }

nanobind::dict Registrations() {
  nanobind::dict handlers;
  handlers["jaxconv_gather"] = Handler(kGather);
  handlers["jaxconv_reduce"] = Handler(kReduce);
  return handlers;
}

}  // namespace
}  // namespace jaxconv

NB_MODULE(_cuda, module) {
  module.def("registrations", &jaxconv::Registrations, "FFI handlers by target name.");
  module.def("ffi_api_version", [] { return nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
             "(major, minor) of the FFI that the handlers were compiled for.");
}
