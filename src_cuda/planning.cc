// The Python module `_planning`: the planners of the kernel families. Host-only: it is always built.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/fit_digest.h"
#include "common/planning.h"
#include "common/tma_limits.h"
#include "depthwise/planning.h"
#include "direct/planning.h"
#include "gather/planning.h"
#include "host_planning.h"
#include "im2col/planning.h"
#include "make_problem.h"
#include "mma/planning.h"
#include "simt/planning.h"
#include "supported_types.h"
#include "wgmma/planning.h"

namespace nb = nanobind;

namespace jaxconv {
namespace {

using Table = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Sizes = std::vector<int64_t>;
using Three = std::array<int64_t, kSpatial>;
using Array = std::tuple<Sizes, Sizes, std::string>;  // sizes, axes, type

// A tile with its fastest settings, or why the tile does not support the product. Without a tile: why the family does
// not.
struct Candidate {
  std::optional<std::string> tile;
  Reason reason;
  double seconds;
  NamedSettings settings;
};

template <typename Family>
Reason UnknownSetting(const Requested& requested) {
  for (const auto& [name, value] : requested.settings) {
    if (!HasSetting<typename Family::Settings>(name)) return "it has no setting " + name;
  }
  return std::nullopt;
}

template <typename Family>
Candidate Consider(const Family& family, int64_t tile, const Requested& requested) {
  Candidate best{Family::Settings::kTiles[tile].name(), UnknownSetting<Family>(requested), 0, {}};
  if (best.reason) return best;
  const auto all = family.Candidates(tile, requested);
  const typename Family::Settings* least = nullptr;
  for (const auto& settings : all) {
    if (Reason why = family.UnsupportedReason(settings)) {
      if (!best.reason) best.reason = why;
    } else if (const double seconds = family.Seconds(settings); !least || seconds < best.seconds) {
      best.seconds = seconds, least = &settings;
    }
  }
  if (least) best.reason = std::nullopt, best.settings = Named(*least);
  return best;
}

// All tiles that are compiled for the product's types, or the requested one.
template <typename Family>
std::vector<Candidate> Candidates(const Product& product, const Device& device, const NamedSettings& requested,
                                  const std::optional<std::string>& tile, bool is_named) {
  const Family family(product, device);
  Reason reason = UnsupportedResultOnCuda(product.conv, product.pass, product.has_epilogue);
  if (!reason) reason = family.UnsupportedReason();
  if (HasFloat8(product.conv) && !Family::Settings::kTakesFloat8) reason = "it has no kernels of float8";
  if (!reason && !is_named) reason = family.UnsupportedUnlessNamed();
  if (reason) return {{std::nullopt, reason, 0, {}}};
  std::vector<Candidate> candidates;
  for (int64_t i = 0; i < std::ssize(Family::Settings::kTiles); ++i) {
    const bool is_requested = !tile || *tile == Family::Settings::kTiles[i].name();
    if (is_requested && family.IsFor(i)) candidates.push_back(Consider(family, i, Requested{requested}));
  }
  if (candidates.empty()) {
    candidates.push_back({std::nullopt, "no such tile is compiled for these types at this precision", 0, {}});
  }
  return candidates;
}

template <typename Settings>
Settings SettingsOf(const std::string& tile, const NamedSettings& named) {
  Settings settings;
  if (const Reason why = ReadSettings(tile, named, &settings)) throw nb::value_error(why->c_str());
  return settings;
}

template <typename Family>
int64_t WorkspaceBytes(const Product& product, const Device& device, const std::string& tile,
                       const NamedSettings& named) {
  return Family(product, device).WorkspaceBytes(SettingsOf<typename Family::Settings>(tile, named));
}

// Only a family whose weight gradients give such sums has them.
template <typename Family>
int64_t GradientSumRowsOf(const Product& product, const Device& device, const std::string& tile,
                          const NamedSettings& named) {
  return Family(product, device).GradientSumRows(SettingsOf<typename Family::Settings>(tile, named));
}

template <typename Family>
int64_t FitDigestOf(const Array& src, const Array& filter, const Array& dst, const Sizes& window_strides,
                    const Sizes& padding_low, const Sizes& lhs_dilation, const Sizes& rhs_dilation, int64_t groups,
                    bool src_batch_grouped, bool dst_batch_grouped, bool filter_in_grouped, bool dst_in_blocks,
                    const std::string& tile, const NamedSettings& named) {
  const auto of = [](const Array& array) { return ArrayArguments{std::get<0>(array), std::get<1>(array), {}}; };
  const ProblemArguments problem{
      of(src),           of(filter),        of(dst),           window_strides, lhs_dilation, groups,
      src_batch_grouped, dst_batch_grouped, filter_in_grouped, dst_in_blocks,  {},           {}};
  return FitDigest({problem, padding_low, rhs_dilation},
                   FitNumbers(SettingsOf<typename Family::Settings>(tile, named)));
}

template <typename Family>
void Bind(nb::module_& module) {
  nb::module_ m = module.def_submodule(Family::kName);
  m.def("candidates", &Candidates<Family>, nb::arg("product"), nb::arg("device"), nb::arg("asked"),
        nb::arg("tile").none(), nb::arg("is_named"));
  m.def("workspace_bytes", &WorkspaceBytes<Family>, nb::arg("product"), nb::arg("device"), nb::arg("tile"),
        nb::arg("settings"));
  if constexpr (requires { &Family::GradientSumRows; }) {
    m.def("gradient_sum_rows", &GradientSumRowsOf<Family>, nb::arg("product"), nb::arg("device"), nb::arg("tile"),
          nb::arg("settings"));
  }
  m.def("fit_digest", &FitDigestOf<Family>, nb::arg("src"), nb::arg("filter"), nb::arg("dst"),
        nb::arg("window_strides"), nb::arg("padding_low"), nb::arg("lhs_dilation"), nb::arg("rhs_dilation"),
        nb::arg("groups"), nb::arg("src_batch_grouped"), nb::arg("dst_batch_grouped"), nb::arg("filter_in_grouped"),
        nb::arg("dst_in_blocks"), nb::arg("tile"), nb::arg("settings"));
  nb::list tiles;
  for (int64_t i = 0; i < std::ssize(Family::Settings::kTiles); ++i) {
    tiles.append(nb::make_tuple(Family::Settings::kTiles[i].name(), Family::FieldsOfTile(i)));
  }
  m.attr("tiles") = tiles;
  m.attr("needs_aligned") = Family::Settings::kNeedsAligned;
}

// The families in the order in which they are asked.
template <typename... Families>
void BindCuda(nb::module_& module) {
  (Bind<Families>(module), ...);
  module.attr("CUDA_FAMILIES") = nb::make_tuple(Families::kName...);
}

template <typename Family>
void BindHostFamily(nb::module_& module) {
  nb::module_ m = module.def_submodule(Family::kName);
  m.def("unsupported_reason", &Family::UnsupportedReason, nb::arg("product"));
  m.def("cost", &Family::Cost, nb::arg("product"));
}

template <typename... Families>
void BindHost(nb::module_ module) {
  (BindHostFamily<Families>(module), ...);
  module.attr("FAMILIES") = nb::make_tuple(Families::kName...);
}

bool IsType(const std::string& name, DType* type) {
  for (const OperandTraits& traits : kOperandTraits) {
    if (traits.name == name) return *type = traits.type, true;
  }
  return false;
}

DType TypeOf(const std::string& name) {
  DType type;
  if (!IsType(name, &type)) throw nb::value_error(("no kernels of " + name).c_str());
  return type;
}

// A conv of these types. XLA computes the epilogues of those that kernels do not have, from sums of float32.
ConvProblem ConvOfTypes(const std::string& operand, const std::string& result) {
  ConvProblem p{};
  p.src_type = p.filter_type = DType::kF32;
  if (IsType(operand, &p.src_type)) p.filter_type = p.src_type;
  if (!IsType(result, &p.dst_type) || !TakesTypes(p, Pass::kConv, true)) p.dst_type = DType::kF32;
  return p;
}
const char* SumTypeOf(const std::string& operand, const std::string& result) {
  return TraitsOf(SumType(ConvOfTypes(operand, result))).name;
}
const char* EpilogueTypeOf(const std::string& operand, const std::string& result) {
  return TraitsOf(EpilogueType(ConvOfTypes(operand, result))).name;
}

bool TakesTypesOf(bool is_wgrad, const std::string& src, const std::string& filter, const std::string& dst,
                  bool has_epilogue) {
  ConvProblem p{};
  const bool are_known = IsType(src, &p.src_type) && IsType(filter, &p.filter_type) && IsType(dst, &p.dst_type);
  return are_known && TakesTypesOnHost(p, is_wgrad ? Pass::kWgrad : Pass::kConv, has_epilogue);
}

template <typename Row>
std::vector<Row> RowsOf(const Table& table) {
  const auto* rows = reinterpret_cast<const Row*>(table.data());
  return {rows, rows + table.shape(0)};
}

ArrayShape ShapeOf(const Array& array) { return {std::get<0>(array), std::get<1>(array)}; }

// Of 16 bytes.
bool HasChannelVectorsOf(bool is_wgrad, const Array& src, const Array& filter, const Array& dst, int64_t in_channels,
                         int64_t out_channels) {
  const Pass pass = is_wgrad ? Pass::kWgrad : Pass::kConv;
  const int vector = TraitsOf(TypeOf(std::get<2>(src))).vector();
  return HasChannelVectors(pass, ShapeOf(src), ShapeOf(filter), ShapeOf(dst), in_channels, out_channels, vector);
}

void MakeProduct(Product* self, bool is_wgrad, Float32 float32, const Array& src, const Array& filter, const Array& dst,
                 const Three& kernel, const Sizes& window_strides, const Sizes& lhs_dilation, const Sizes& rhs_dilation,
                 int64_t groups, int64_t member_groups, bool src_batch_grouped, bool dst_batch_grouped,
                 bool filter_in_grouped, bool dst_in_blocks, bool has_epilogue, bool has_residual, const Table& taps,
                 const Table& classes) {
  const auto of = [](const Array& array) {
    const auto& [sizes, axes, type] = array;
    return ArrayArguments{sizes, axes, TypeOf(type)};
  };
  const auto sizes = [](const Table& table) {
    return Sizes{static_cast<int64_t>(table.shape(0)), static_cast<int64_t>(table.shape(1))};
  };
  const Sizes tap_table = sizes(taps), class_table = sizes(classes);
  ConvProblem conv;
  const char* why = MakeProblem({of(src), of(filter), of(dst), window_strides, lhs_dilation, groups, src_batch_grouped,
                                 dst_batch_grouped, filter_in_grouped, dst_in_blocks, tap_table, class_table},
                                &conv);
  if (why) throw nb::value_error(why);
  std::vector<Tap> rows = RowsOf<Tap>(taps);
  rows.pop_back();  // it is no tap
  const auto in_three = [](const Sizes& values) {
    Three three{1, 1, 1};
    std::copy(values.begin(), values.end(), three.end() - values.size());
    return three;
  };
  new (self) Product{conv,
                     is_wgrad ? Pass::kWgrad : Pass::kConv,
                     float32,
                     ShapeOf(src),
                     ShapeOf(filter),
                     ShapeOf(dst),
                     src_batch_grouped,
                     dst_batch_grouped,
                     has_epilogue,
                     has_residual,
                     kernel,
                     in_three(window_strides),
                     in_three(lhs_dilation),
                     in_three(rhs_dilation),
                     static_cast<int>(window_strides.size()),
                     member_groups,
                     std::move(rows),
                     RowsOf<ResidueClass>(classes)};
}

void MakeDevice(Device* self, int64_t multiprocessors, double clock_hz, double bandwidth, int64_t l2_bytes,
                int64_t shared_bytes, bool wgmma, const std::map<std::string, std::map<std::string, double>>& costs) {
  const Numbers of(costs.at("device"));
  new (self) Device{multiprocessors,
                    clock_hz,
                    bandwidth,
                    of["l2_share"] * static_cast<double>(l2_bytes),
                    shared_bytes,
                    wgmma,
                    of["float32_fmas_per_clock"],
                    of["other_fmas_per_clock"],
                    of["tensor_core_bytes_per_clock"],
                    of["shared_bytes_per_clock"],
                    of["launch_seconds"],
                    of["next_kernel_seconds"],
                    of["next_group_seconds"],
                    {}};
  for (const auto& [family, numbers] : costs) self->costs.emplace(family, Numbers(numbers));
}

}  // namespace
}  // namespace jaxconv

NB_MODULE(_planning, module) {
  // Caches of Python and JAX hold products and devices until the process ends. nanobind would call them leaks.
  nanobind::set_leak_warnings(false);
  using namespace jaxconv;
  nb::enum_<Float32>(module, "Float32")
      .value("BF16", Float32::kBF16)
      .value("TF32", Float32::kTF32)
      .value("BF16X6", Float32::kBF16x6)
      .value("FLOAT32", Float32::kFloat32);
  nb::class_<Product>(module, "Product")
      .def("__init__", &MakeProduct, nb::arg("is_wgrad"), nb::arg("float32"), nb::arg("src"), nb::arg("filter"),
           nb::arg("dst"), nb::arg("kernel"), nb::arg("window_strides"), nb::arg("lhs_dilation"),
           nb::arg("rhs_dilation"), nb::arg("groups"), nb::arg("member_groups"), nb::arg("src_batch_grouped"),
           nb::arg("dst_batch_grouped"), nb::arg("filter_in_grouped"), nb::arg("dst_in_blocks"),
           nb::arg("has_epilogue"), nb::arg("has_residual"), nb::arg("taps"), nb::arg("classes"))
      .def_prop_ro("m", &Product::rows)
      .def_prop_ro("n", &Product::cols)
      .def_prop_ro("k", &Product::steps);
  nb::class_<Device>(module, "Device")
      .def("__init__", &MakeDevice, nb::arg("multiprocessors"), nb::arg("clock_hz"), nb::arg("bandwidth"),
           nb::arg("l2_bytes"), nb::arg("shared_bytes"), nb::arg("wgmma"), nb::arg("costs"));
  nb::class_<Candidate>(module, "Candidate")
      .def_ro("tile", &Candidate::tile)
      .def_ro("reason", &Candidate::reason)
      .def_ro("seconds", &Candidate::seconds)
      .def_ro("settings", &Candidate::settings);
  module.def("has_channel_vectors", &HasChannelVectorsOf, nb::arg("is_wgrad"), nb::arg("src"), nb::arg("filter"),
             nb::arg("dst"), nb::arg("in_channels"), nb::arg("out_channels"));
  module.def("takes_types", &TakesTypesOf, nb::arg("is_wgrad"), nb::arg("src"), nb::arg("filter"), nb::arg("dst"),
             nb::arg("has_epilogue"));
  module.def("sum_type", &SumTypeOf, nb::arg("operand"), nb::arg("result"));
  module.def("epilogue_type", &EpilogueTypeOf, nb::arg("operand"), nb::arg("result"));
  module.def("period", &PeriodOf, nb::arg("stride"), nb::arg("dilation"));
  module.def("is_quantised", [](const std::string& result) { return IsQuantised(TypeOf(result)); }, nb::arg("result"));
  module.def(
      "adds_residual_on_host",
      [](const std::string& residual, const std::string& numbers) {
        DType type;
        return IsType(residual, &type) && !UnsupportedResidualOnHost(TypeOf(numbers), type);
      },
      nb::arg("residual"), nb::arg("numbers"));
  module.def(
      "needs_epilogue_on_cuda", [](const std::string& result) { return NeedsEpilogueOnCuda(TypeOf(result)); },
      nb::arg("result"));
  module.def(
      "is_k_major_alone", [](const std::string& dtype) { return TraitsOf(TypeOf(dtype)).is_k_major_alone(); },
      nb::arg("dtype"));
  module.attr("SPATIAL") = kSpatial;
  module.attr("VECTOR_BYTES") = kVectorBytes;
  module.attr("TAP_COLUMNS") = kTapColumns;
  module.attr("CLASS_COLUMNS") = kClassColumns;
  module.attr("BLOCK_CHANNELS") = kBlockChannels;
  module.attr("MOST_TMA_STEP") = kMaxElementStride;
  module.attr("MOST_WINDOW_PARTS") = depthwise::kMostParts;
  module.attr("OLDEST_CAPABILITY") = nb::make_tuple(JAXCONV_OLDEST_ARCHITECTURE / 10, JAXCONV_OLDEST_ARCHITECTURE % 10);
  module.attr("DIGEST") = JAXCONV_NATIVE_DIGEST;
  module.attr("FORMAT") = kFormat;
  module.attr("COORDINATE_LIMIT") = kCoordinateLimit;
  module.attr("POSITIONS_LIMIT") = kPositionsLimit;
  module.attr("TOO_MANY_POSITIONS") = kTooManyPositions;
  BindCuda<SimtPlanner, Im2colPlanner, MmaPlanner, DirectPlanner, DepthwisePlanner, GatherPlanner, WgmmaPlanner>(
      module);
  BindHost<host::GemmPlanner, host::DepthwisePlanner>(module.def_submodule("host"));
}
