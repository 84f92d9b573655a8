// The module `_cpu`: XLA's calls of the host kernels.
#include <nanobind/nanobind.h>

#include <algorithm>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "common/call.h"
#include "common/check_tables.h"
#include "common/parallel.h"
#include "conv_problem.h"
#include "families.h"
#include "ffi_decode.h"
#include "supported_types.h"

namespace jaxconv {
namespace {

namespace nb = ::nanobind;

void RunOnPool(void* pool, int64_t threads, int64_t items, Workers::Body body, const void* context) {
  auto* xla = static_cast<ffi::ThreadPool*>(pool);
  ParallelFor(
      threads, [xla](auto&& task) { xla->Schedule(std::forward<decltype(task)>(task)); }, items,
      [=](int64_t worker, int64_t item) { body(context, worker, item); });
}

// A call's buffers in their roles, whichever of the filter and the destination is the result.
struct Operands {
  ffi::AnyBuffer src, filter, dst, taps, classes;
};

// `more`: the operands of a conv's epilogue.
ffi::Error Run(Pass pass, ffi::ThreadPool pool, const Operands& o, ffi::RemainingArgs more,
               const ConvAttributes& attributes) {
  const auto refuse = [&](ffi::ErrorCode code, const std::string& why) {
    return ffi::Error(code,
                      Describe(o.src.dimensions(), o.filter.dimensions(), o.dst.dimensions(), attributes) + ": " + why);
  };
  const auto invalid = [&](const std::string& why) { return refuse(ffi::ErrorCode::kInvalidArgument, why); };
  try {
    ffi::ErrorOr<ConvProblem> problem = DecodeProblem(o.src, o.filter, o.dst, o.taps, o.classes, attributes);
    if (!problem) return std::move(problem.error());
    const bool conv = pass == Pass::kConv;
    const ffi::AnyBuffer &rhs = conv ? o.filter : o.dst, &result = conv ? o.dst : o.filter;
    const KernelFamily* family = HostFamily(attributes.family);
    if (!family) return invalid("the host has no such kernel family");
    const auto* taps = static_cast<const Tap*>(o.taps.untyped_data());
    const auto* classes = static_cast<const ResidueClass*>(o.classes.untyped_data());
    const ArrayArguments filter{internal::Of(o.filter.dimensions()), internal::Of(attributes.filter_spec),
                                problem->filter_type};
    if (const char* why = CheckTables(*problem, taps, classes, filter)) return invalid(why);
    Epilogue epilogue;
    if (const auto why = ReadOperands(attributes, more, *problem, pass, &epilogue)) return invalid(*why);
    if (epilogue.residual) {
      if (const Reason why = UnsupportedResidualOnHost(EpilogueType(*problem), epilogue.residual_type))
        return invalid(*why);
    }
    if (!TakesTypesOnHost(*problem, pass, epilogue.is_there)) return invalid("there are no kernels for these dtypes");
    if (result.element_count() == 0) return ffi::Error::Success();

    const ConvProblem seen = BlocksAsGroups(*problem);
    const ConvCall call{seen, taps, classes, o.src.untyped_data(), rhs.untyped_data(), result.untyped_data(), epilogue};
    (conv ? family->conv : family->wgrad)(call, Workers(&pool, std::max<int64_t>(pool.num_threads(), 1), RunOnPool));
    return ffi::Error::Success();
  } catch (const std::bad_alloc&) {
    return refuse(ffi::ErrorCode::kResourceExhausted, "out of memory");
  } catch (const std::exception& e) {
    return refuse(ffi::ErrorCode::kInternal, e.what());
  }
}

ffi::Error Conv(ffi::ThreadPool pool, ffi::AnyBuffer src, ffi::AnyBuffer filter, ffi::AnyBuffer taps,
                ffi::AnyBuffer classes, ffi::RemainingArgs epilogue, ffi::Result<ffi::AnyBuffer> dst,
                ConvAttributes attributes) {
  return Run(Pass::kConv, pool, {src, filter, *dst, taps, classes}, epilogue, attributes);
}

ffi::Error Wgrad(ffi::ThreadPool pool, ffi::AnyBuffer src, ffi::AnyBuffer grad, ffi::AnyBuffer taps,
                 ffi::AnyBuffer classes, ffi::RemainingArgs none, ffi::Result<ffi::AnyBuffer> filter_grad,
                 ConvAttributes attributes) {
  return Run(Pass::kWgrad, pool, {src, *filter_grad, grad, taps, classes}, none, attributes);
}

template <auto* call>
nb::capsule Handler() {
  XLA_FFI_DEFINE_HANDLER(handler, call,
                         ffi::Ffi::Bind()
                             .Ctx<ffi::ThreadPool>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .Arg<ffi::AnyBuffer>()
                             .RemainingArgs()
                             .Ret<ffi::AnyBuffer>()
                             .Attrs<ConvAttributes>());
  return nb::capsule(reinterpret_cast<void*>(handler));
}

}  // namespace
}  // namespace jaxconv

NB_MODULE(_cpu, m) {
  m.def("registrations", [] {
    nanobind::dict targets;
    targets["jaxconv_conv"] = jaxconv::Handler<jaxconv::Conv>();
    targets["jaxconv_wgrad"] = jaxconv::Handler<jaxconv::Wgrad>();
    return targets;
  });
  m.def("instruction_sets", [] {
    nanobind::list names;
    for (const std::string_view name : jaxconv::HostInstructionSets())
      names.append(nanobind::str(name.data(), name.size()));
    return names;
  });
  m.def("use_instruction_set", [](const char* name) {
    if (!jaxconv::UseInstructionSet(name)) throw nanobind::value_error("this machine lacks the instruction set");
  });
  m.def("types", [] { return nanobind::dict(); });  // nothing is kept from call to call
  m.def("ffi_api_version", [] { return nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR); });
}
