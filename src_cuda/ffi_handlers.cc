// The FFI handlers of the CUDA platform, and the Python module `_cuda` that hands them to JAX.
//
// Handlers only enqueue. They do not allocate or wait, so that XLA can record them in a CUDA graph. The workspace of a
// call is its second result. Settings are read once, when XLA loads the program.
#include <cuda_runtime_api.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <variant>
#include <vector>

#include "common/call_slot.h"
#include "common/device_attribute.h"
#include "common/fit_digest.h"
#include "common/probe.h"
#include "common/settings.h"
#include "conv_problem.h"
#include "families.h"
#include "ffi_decode.h"
#include "supported_types.h"
#include "xla/ffi/api/ffi.h"

namespace jaxconv {

// The attributes of a convolution, the name of its kernel's tile, and its settings. `setting_names` is separated by
// spaces and has the order of `settings`.
struct CudaAttributes : ConvAttributes {
  std::string_view tile;
  std::string_view setting_names;
  ffi::Span<const int64_t> settings;
  int64_t fit_digest;  // of the problem and the settings
};

}  // namespace jaxconv

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(::jaxconv::CudaAttributes, JAXCONV_CONV_ATTRIBUTE_MEMBERS,
                                      ::xla::ffi::StructMember<std::string_view>("tile"),
                                      ::xla::ffi::StructMember<std::string_view>("setting_names"),
                                      ::xla::ffi::StructMember<::xla::ffi::Span<const int64_t>>("settings"),
                                      ::xla::ffi::StructMember<int64_t>("fit_digest"));

namespace jaxconv {
namespace {

// A kernel family and the settings of a call, also as the numbers that its digest has of them.
template <typename Settings>
struct Kernel {
  const KernelFamily<Settings>* family;
  Settings settings;
  std::vector<int64_t> fit_numbers;
};

template <typename Families>
struct AnyKernelOf;
template <typename... Settings>
struct AnyKernelOf<const std::tuple<const KernelFamily<Settings>*...>> {
  using Type = std::variant<Kernel<Settings>...>;
};
using AnyKernel = AnyKernelOf<decltype(kFamilies)>::Type;

// The settings by their names. Returns why the names and the numbers are not as many.
Reason ReadNames(const CudaAttributes& attributes, NamedSettings* named) {
  std::istringstream names{std::string(attributes.setting_names)};
  std::string name;
  for (const int64_t value : attributes.settings) {
    if (!(names >> name)) return "numbers without names";
    (*named)[name] = value;
  }
  return names >> name ? Reason("names without numbers") : std::nullopt;
}

template <typename Settings>
Reason ReadKernel(const KernelFamily<Settings>* family, const CudaAttributes& attributes, AnyKernel* kernel) {
  NamedSettings named;
  Settings settings;
  Reason why = ReadNames(attributes, &named);
  if (!why) why = ReadSettings(attributes.tile, named, &settings);
  if (why) return "settings of " + std::string(Settings::kFamily) + ": " + *why;
  *kernel = Kernel<Settings>{family, settings, FitNumbers(settings)};
  return std::nullopt;
}

// Finds the family that the attributes name and reads its settings. Returns why it cannot.
Reason FindKernel(const CudaAttributes& attributes, AnyKernel* kernel) {
  Reason why = "there is no kernel family " + std::string(attributes.family);
  const auto find = [&]<typename Settings>(const KernelFamily<Settings>* family) {
    if (attributes.family == Settings::kFamily) why = ReadKernel(family, attributes, kernel);
  };
  std::apply([&](const auto*... family) { (find(family), ...); }, kFamilies);
  return why;
}

// The state of a call. XLA keeps it while the program is loaded.
struct CallState {
  inline static ffi::TypeId id{};  // given when the type is registered

  AnyKernel kernel;
  CallSlot slot;
};

ffi::ErrorOr<std::unique_ptr<CallState>> Instantiate(CudaAttributes attributes) {
  auto state = std::make_unique<CallState>();
  Reason why = UnsupportedFormat(attributes);
  if (!why) why = FindKernel(attributes, &state->kernel);
  if (why) return ffi::Unexpected(ffi::Error::InvalidArgument("jaxconv: " + *why));
  return state;
}

// The most shared memory that a CTA can have on the current device.
cudaError_t SharedMemoryLimit(int* bytes) {
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device)) return status;
  return cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
}

// `rhs` and `result` are the filter and the destination of a conv. In a wgrad they are the gradients of the destination
// and of the filter.
struct Buffers {
  ffi::AnyBuffer src, rhs, taps, classes, result, workspace;
  ffi::RemainingArgs more;  // the operands that an attribute names
};

// Why a call's rows of neighbours are not those that its settings name.
template <typename Settings>
Reason MismatchedRows(const ConvProblem& p, const NeighbourRows& rows, const Settings& settings) {
  if constexpr (requires { settings.rows_before; }) {
    const int64_t row = ElementsOfRow(p, settings.rows_dim());
    const bool are_as_many =
        rows.elements_before == settings.rows_before * row && rows.elements_after == settings.rows_after * row;
    return are_as_many ? Reason() : "the neighbours' rows are not those of the settings";
  } else {
    return rows.are_there() ? Reason("the family's kernels take no rows of neighbours") : std::nullopt;
  }
}

ffi::Error Run(Pass pass, CallState* state, cudaStream_t stream, const Buffers& b, const CudaAttributes& attributes) {
  const ffi::AnyBuffer& filter = pass == Pass::kConv ? b.rhs : b.result;
  const ffi::AnyBuffer& dst = pass == Pass::kConv ? b.result : b.rhs;
  const auto describe = [&](const std::string& what) {
    return Describe(b.src.dimensions(), filter.dimensions(), dst.dimensions(), attributes) + ": " + what;
  };
  const auto refuse = [&](const std::string& why) { return ffi::Error::InvalidArgument(describe(why)); };
  const auto fail = [&](cudaError_t status) { return ffi::Error::Internal(describe(cudaGetErrorString(status))); };

  const ffi::ErrorOr<ConvProblem> problem = DecodeProblem(b.src, filter, dst, b.taps, b.classes, attributes);
  if (problem.has_error()) return problem.error();
  Epilogue epilogue;
  NeighbourRows rows;
  if (const Reason why = ReadOperands(attributes, b.more, *problem, pass, &epilogue, &rows)) return refuse(*why);
  if (epilogue.residual) {
    if (const Reason why = UnsupportedResidualOnCuda(*problem, epilogue.residual_type)) return refuse(*why);
  }
  if (!TakesTypes(*problem, pass, epilogue.is_there)) return refuse("there are no kernels for these dtypes");
  if (const Reason why = UnsupportedResultOnCuda(*problem, pass, epilogue.is_there)) return refuse(*why);
  int limit = 0;
  if (const cudaError_t status = SharedMemoryLimit(&limit)) return fail(status);
  const ConvCall call{*problem,
                      pass,
                      static_cast<const Tap*>(b.taps.untyped_data()),
                      static_cast<const ResidueClass*>(b.classes.untyped_data()),
                      b.src.untyped_data(),
                      b.rhs.untyped_data(),
                      b.result.untyped_data(),
                      b.workspace.untyped_data(),
                      &state->slot,
                      epilogue,
                      rows};
  const FitArguments of_fit{ArgumentsOf(b.src, filter, dst, b.taps, b.classes, attributes),
                            internal::Of(attributes.padding_low), internal::Of(attributes.rhs_dilation)};
  const auto run = [&](const auto& kernel) {
    const auto& [family, settings, fit_numbers] = kernel;
    if (HasFloat8(*problem) && !settings.kTakesFloat8) return refuse("the family has no kernels of float8");
    if (const Reason why = MismatchedRows(*problem, rows, settings)) return refuse(*why);
    if (const Reason why = family->unsupported_reason(*problem, pass, settings)) return refuse(*why);
    if (FitDigest(of_fit, fit_numbers) != attributes.fit_digest) {
      return refuse("the settings are those of another problem");
    }
    if (ResultElements(*problem, pass) == 0) return ffi::Error::Success();
    if (const size_t need = family->workspace_bytes(*problem, pass, settings); b.workspace.size_bytes() < need) {
      return refuse("needs " + std::to_string(need) + " bytes of workspace, got " +
                    std::to_string(b.workspace.size_bytes()));
    }
    if (const size_t need = family->shared_bytes(*problem, pass, settings); static_cast<size_t>(limit) < need) {
      return refuse("needs " + std::to_string(need) + " bytes of shared memory, the device has " +
                    std::to_string(limit) + " for a thread block");
    }
    const cudaError_t status = family->launch(call, settings, stream);
    return status == cudaSuccess ? ffi::Error::Success() : fail(status);
  };
  return std::visit(run, state->kernel);
}

template <Pass kPass>
ffi::Error Execute(cudaStream_t stream, ffi::AnyBuffer src, ffi::AnyBuffer rhs, ffi::AnyBuffer taps,
                   ffi::AnyBuffer classes, ffi::RemainingArgs more, ffi::Result<ffi::AnyBuffer> result,
                   ffi::Result<ffi::AnyBuffer> workspace, CudaAttributes attributes, CallState* state) {
  return Run(kPass, state, stream, {src, rhs, taps, classes, *result, *workspace, more}, attributes);
}

auto Signature() {
  return ffi::Ffi::Bind()
      .Ctx<ffi::PlatformStream<cudaStream_t>>()
      .Arg<ffi::AnyBuffer>()  // source
      .Arg<ffi::AnyBuffer>()  // filter, or the destination's gradient
      .Arg<ffi::AnyBuffer>()  // taps
      .Arg<ffi::AnyBuffer>()  // classes
      .RemainingArgs()        // operands of the epilogue, and rows of neighbours
      .Ret<ffi::AnyBuffer>()  // destination, or the filter's gradient
      .Ret<ffi::AnyBuffer>()  // workspace
      .Attrs<CudaAttributes>()
      .Ctx<ffi::State<CallState>>();
}

XLA_FFI_DEFINE_HANDLER(kInstantiate, Instantiate, ffi::Ffi::BindInstantiate().Attrs<CudaAttributes>());
XLA_FFI_DEFINE_HANDLER(kConv, Execute<Pass::kConv>, Signature(), {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(kWgrad, Execute<Pass::kWgrad>, Signature(), {ffi::Traits::kCmdBufferCompatible});

nanobind::dict Stages(XLA_FFI_Handler* execute) {
  const auto capsule = [](XLA_FFI_Handler* handler) { return nanobind::capsule(reinterpret_cast<void*>(handler)); };
  nanobind::dict stages;
  stages["instantiate"] = capsule(kInstantiate);
  stages["execute"] = capsule(execute);
  return stages;
}

nanobind::dict Registrations() {
  nanobind::dict handlers;
  handlers["jaxconv_conv"] = Stages(kConv);
  handlers["jaxconv_wgrad"] = Stages(kWgrad);
  return handlers;
}

// The types of the state that handlers keep for a call.
nanobind::dict Types() {
  static constexpr ffi::TypeInfo kInfo = ffi::MakeTypeInfo<CallState>();
  nanobind::dict state, types;
  state["type_id"] = nanobind::capsule(&CallState::id);
  state["type_info"] = nanobind::capsule(&kInfo);
  types["jaxconv_call_state"] = state;
  return types;
}

// Why a device cannot run the kernels, or None. `device` counts visible devices. A thread of its own has it as its
// current device: to set the caller's back would make a context on a GPU that another process may use alone.
nanobind::object UnsupportedDevice(int device) {
  cudaError_t status = cudaSuccess;
  std::thread([&] {
    status = cudaSetDevice(device);
    if (status == cudaSuccess) status = LoadProbe();
  }).join();
  if (status == cudaSuccess) return nanobind::none();
  return nanobind::str(cudaGetErrorString(status));
}

}  // namespace
}  // namespace jaxconv

NB_MODULE(_cuda, module) {
  module.def("registrations", &jaxconv::Registrations, "FFI handlers by target name.");
  module.def("types", &jaxconv::Types, "What FFI handlers keep, by name.");
  module.def("unsupported_device_reason", &jaxconv::UnsupportedDevice, nanobind::arg("device"),
             "Why a device, by its number among the visible ones, cannot run the kernels; None if it can.");
  module.def("calls_loaded", &jaxconv::CallSlot::Used, "Numbers that calls of loaded programs have now.");
  module.attr("has_wgmma") = jaxconv::kHasWgmmaCode;
  module.attr("DIGEST") = JAXCONV_NATIVE_DIGEST;
  module.def(
      "ffi_api_version", [] { return nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); },
      "(major, minor) of the FFI that the handlers were compiled for.");
}
