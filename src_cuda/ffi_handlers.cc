// The FFI handlers of the CUDA platform, and the Python module `_cuda` that hands them to JAX.
//
// Handlers only enqueue: they allocate nothing and wait for nothing, so that XLA may record them into a CUDA graph. The
// scratch that a call needs is its second result. A conv has a number of its own as long as its program is loaded.
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>

#include "common/call_slot.h"
#include "common/device_attribute.h"
#include "conv_problem.h"
#include "families.h"
#include "ffi_decode.h"
#include "xla/ffi/api/ffi.h"

namespace jaxconv {

// What the plan of a CUDA kernel adds to a convolution's attributes.
struct CudaAttributes : ConvAttributes {
  int32_t tile;
  int32_t split;
  int64_t chunk;
  int32_t units;
  ffi::Span<const int64_t> shape;
};

}  // namespace jaxconv

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jaxconv::CudaAttributes, JAXCONV_CONV_ATTRIBUTE_MEMBERS,
                                      ::xla::ffi::StructMember<int32_t>("tile"),
                                      ::xla::ffi::StructMember<int32_t>("split"),
                                      ::xla::ffi::StructMember<int64_t>("chunk"),
                                      ::xla::ffi::StructMember<int32_t>("units"),
                                      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("shape"));

namespace jaxconv {
namespace {

// What the running device gives a thread block, for kernels that ask for it.
cudaError_t SharedMemoryLimit(int* bytes) {
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device)) return status;
  return cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

Plan DecodePlan(const CudaAttributes& attributes) {
  Plan plan{attributes.tile, attributes.split, attributes.chunk, attributes.units, {}};
  for (size_t i = 0; i < std::min(attributes.shape.size(), std::size(plan.shape)); ++i) {
    plan.shape[i] = static_cast<int32_t>(attributes.shape[i]);
  }
  return plan;
}

// `rhs` and `result` are filter and destination of a conv, the destination's gradient and the filter's of a wgrad.
ffi::Error Run(Pass pass, CallSlot* slot, cudaStream_t stream, ffi::AnyBuffer src, ffi::AnyBuffer rhs,
               ffi::AnyBuffer taps, ffi::AnyBuffer classes, ffi::AnyBuffer result, ffi::AnyBuffer scratch,
               const CudaAttributes& attributes) {
  const ffi::AnyBuffer& filter = pass == Pass::kConv ? rhs : result;
  const ffi::AnyBuffer& dst = pass == Pass::kConv ? result : rhs;
  const auto describe = [&](const std::string& what) {
    return Describe(src.dimensions(), filter.dimensions(), dst.dimensions(), attributes) + ": " + what;
  };
  const auto refuse = [&](const std::string& why) { return ffi::Error::InvalidArgument(describe(why)); };
  const auto fail = [&](cudaError_t status) { return ffi::Error::Internal(describe(cudaGetErrorString(status))); };

  const ffi::ErrorOr<ConvProblem> problem = DecodeProblem(src, filter, dst, taps, classes, attributes);
  if (problem.has_error()) return problem.error();
  if (attributes.family < 0 || attributes.family >= static_cast<int>(std::size(kFamilies))) {
    return refuse("no such kernel family");
  }
  const KernelFamily& family = *kFamilies[attributes.family];
  const Plan plan = DecodePlan(attributes);
  if (const char* why = family.why_not(*problem, pass, plan)) return refuse(why);
  if (const size_t need = family.scratch_bytes(*problem, pass, plan); scratch.size_bytes() < need) {
    return refuse("needs " + std::to_string(need) + " bytes of scratch, got " + std::to_string(scratch.size_bytes()));
  }
  int limit = 0;
  if (const cudaError_t status = SharedMemoryLimit(&limit)) return fail(status);
  if (const size_t need = family.shared_bytes(*problem, pass, plan); static_cast<size_t>(limit) < need) {
    return refuse("needs " + std::to_string(need) + " bytes of shared memory, the device has " + std::to_string(limit) +
                  " for a thread block");
  }
  const ConvCall call{*problem,
                      pass,
                      static_cast<const Tap*>(taps.untyped_data()),
                      static_cast<const ResidueClass*>(classes.untyped_data()),
                      src.untyped_data(),
                      rhs.untyped_data(),
                      result.untyped_data(),
                      scratch.untyped_data(),
                      slot};
  const cudaError_t status = family.launch(call, plan, stream);
  return status == cudaSuccess ? ffi::Error::Success() : fail(status);
}

// What XLA keeps of a conv as long as its program is loaded.
struct ConvState {
  inline static ffi::TypeId id{};  // given when the type is registered

  CallSlot slot;
};

ffi::ErrorOr<std::unique_ptr<ConvState>> Instantiate(CudaAttributes) { return std::make_unique<ConvState>(); }

ffi::Error Conv(cudaStream_t stream, ffi::AnyBuffer src, ffi::AnyBuffer filter, ffi::AnyBuffer taps,
                ffi::AnyBuffer classes, ffi::Result<ffi::AnyBuffer> dst, ffi::Result<ffi::AnyBuffer> scratch,
                CudaAttributes attributes, ConvState* state) {
  return Run(Pass::kConv, &state->slot, stream, src, filter, taps, classes, *dst, *scratch, attributes);
}

ffi::Error Wgrad(cudaStream_t stream, ffi::AnyBuffer src, ffi::AnyBuffer grad, ffi::AnyBuffer taps,
                 ffi::AnyBuffer classes, ffi::Result<ffi::AnyBuffer> filter_grad, ffi::Result<ffi::AnyBuffer> scratch,
                 CudaAttributes attributes) {
  return Run(Pass::kWgrad, nullptr, stream, src, grad, taps, classes, *filter_grad, *scratch, attributes);
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

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs<CudaAttributes>());
XLA_FFI_DEFINE_HANDLER(kConv, Conv, Signature().Ctx<ffi::State<ConvState>>(), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kWgrad, Wgrad, Signature(), {ffi::Traits::kCmdBufferCompatible});

nanobind::capsule Handler(XLA_FFI_Handler* handler) { return nanobind::capsule(reinterpret_cast<void*>(handler)); }

nanobind::dict Registrations() {
  nanobind::dict conv, handlers;
  conv["instantiate"] = Handler(kInstantiate);
  conv["execute"] = Handler(kConv);
  handlers["jaxconv_conv"] = conv;
  handlers["jaxconv_wgrad"] = Handler(kWgrad);
  return handlers;
}

// What handlers keep of a program's calls.
nanobind::dict Types() {
  static constexpr ffi::TypeInfo kInfo = ffi::MakeTypeInfo<ConvState>();
  nanobind::dict state, types;
  state["type_id"] = nanobind::capsule(&ConvState::id);
  state["type_info"] = nanobind::capsule(&kInfo);
  types["jaxconv_conv_state"] = state;
  return types;
}

// Why a device, by its number among the visible ones, cannot run the kernels; or None. The thread's device is the same
// before and after.
nanobind::object WhyNotRun(int device) {
  int before = 0;
  cudaError_t status = cudaGetDevice(&before);
  if (status == cudaSuccess) status = cudaSetDevice(device);
  if (status == cudaSuccess) {
    status = LoadProbe();
    cudaSetDevice(before);
  }
  if (status == cudaSuccess) return nanobind::none();
  cudaGetLastError();  // or the next launch would be taken for what failed
  return nanobind::str(cudaGetErrorString(status));
}

}  // namespace
}  // namespace jaxconv

NB_MODULE(_cuda, module) {
  module.def("registrations", &jaxconv::Registrations, "FFI handlers by target name.");
  module.def("types", &jaxconv::Types, "What FFI handlers keep, by name.");
  module.def("why_not_run", &jaxconv::WhyNotRun, nanobind::arg("device"),
             "Why a device, by its number among the visible ones, cannot run the kernels; None if it can.");
  module.def("calls_loaded", &jaxconv::CallSlot::Used, "Numbers that calls of loaded programs have now.");
  module.attr("has_wgmma") = jaxconv::kHasWgmmaCode;
  module.def(
      "ffi_api_version", [] { return nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
      "(major, minor) of the FFI that the handlers were compiled for.");
}
