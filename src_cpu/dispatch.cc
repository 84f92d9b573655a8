#include <algorithm>
#include <atomic>
#include <iterator>
#include <span>

#include "families.h"
#include "operand_traits.h"

namespace jaxconv {

// A pass by the kernel for products of int8 by int8, or by that for all others.
template <Pass kPass, Kernel* kOfInt8, Kernel* kOfOthers>
void ByType(const ConvCall& call, const Workers& workers) {
  const ConvProblem& p = call.problem;
  const bool is_of_int8 = p.src_type == DType::kS8 && RhsType(p, kPass) == DType::kS8;
  (is_of_int8 ? kOfInt8 : kOfOthers)(call, workers);
}

// The families for an instruction set. gemm is right for any problem, and so is depthwise, which is fast for one
// channel.
#define JAXCONV_FAMILIES(isa)                                \
  namespace isa {                                            \
  Kernel GemmConv, GemmWgrad, DepthwiseConv, DepthwiseWgrad; \
  constexpr KernelFamily kFamilies[] = {                     \
      {"gemm", GemmConv, GemmWgrad},                         \
      {"depthwise", DepthwiseConv, DepthwiseWgrad},          \
  };                                                         \
  }

// Those for a set that has dot products of int8 besides.
#define JAXCONV_FAMILIES_WITH_DOT_PRODUCTS(isa, isa_without)                  \
  namespace isa {                                                             \
  Kernel GemmConv, GemmWgrad;                                                 \
  constexpr KernelFamily kFamilies[] = {                                      \
      {"gemm", ByType<Pass::kConv, GemmConv, isa_without::GemmConv>,          \
       ByType<Pass::kWgrad, GemmWgrad, isa_without::GemmWgrad>},              \
      {"depthwise", isa_without::DepthwiseConv, isa_without::DepthwiseWgrad}, \
  };                                                                          \
  }

JAXCONV_FAMILIES(baseline)
#ifdef __x86_64__
JAXCONV_FAMILIES(x86_64_v3)
JAXCONV_FAMILIES_WITH_DOT_PRODUCTS(x86_64_v3_vnni, x86_64_v3)
JAXCONV_FAMILIES(x86_64_v4)
JAXCONV_FAMILIES_WITH_DOT_PRODUCTS(x86_64_v4_vnni, x86_64_v4)
#endif

namespace {

struct InstructionSet {
  std::string_view name;
  const KernelFamily* families;
  bool is_here;
};

// From the slowest to the fastest.
std::span<const InstructionSet> InstructionSets() {
#ifdef __x86_64__
  __builtin_cpu_init();
  static const bool v3 = __builtin_cpu_supports("x86-64-v3"), v4 = __builtin_cpu_supports("x86-64-v4");
  static const InstructionSet sets[] = {
      {"baseline", baseline::kFamilies, true},
      {"x86_64_v3", x86_64_v3::kFamilies, v3},
      {"x86_64_v3_vnni", x86_64_v3_vnni::kFamilies, v3 && __builtin_cpu_supports("avxvnni")},
      {"x86_64_v4", x86_64_v4::kFamilies, v4},
      {"x86_64_v4_vnni", x86_64_v4_vnni::kFamilies, v4 && __builtin_cpu_supports("avx512vnni")},
  };
#else
  static const InstructionSet sets[] = {{"baseline", baseline::kFamilies, true}};
#endif
  return sets;
}

const KernelFamily* FastestFamilies() {
  const KernelFamily* fastest = nullptr;
  for (const InstructionSet& set : InstructionSets()) {
    if (set.is_here) fastest = set.families;
  }
  return fastest;
}

std::atomic<const KernelFamily*>& FamiliesInUse() {
  static std::atomic<const KernelFamily*> families = FastestFamilies();
  return families;
}

}  // namespace

const KernelFamily* HostFamily(std::string_view name) {
  const KernelFamily* const families = FamiliesInUse();
  const KernelFamily* const end = families + std::size(baseline::kFamilies);
  const auto* found = std::find_if(families, end, [&](const KernelFamily& family) { return family.name == name; });
  return found == end ? nullptr : found;
}

std::vector<std::string_view> HostInstructionSets() {
  std::vector<std::string_view> names;
  for (const InstructionSet& set : InstructionSets()) {
    if (set.is_here) names.push_back(set.name);
  }
  return names;
}

bool UseInstructionSet(std::string_view name) {
  for (const InstructionSet& set : InstructionSets()) {
    if (set.is_here && set.name == name) return FamiliesInUse() = set.families, true;
  }
  return false;
}

}  // namespace jaxconv
