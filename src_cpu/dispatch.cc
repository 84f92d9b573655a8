#include <algorithm>
#include <atomic>
#include <iterator>
#include <span>

#include "families.h"

namespace jaxconv {

// The families for an instruction set. gemm is right for any problem, and so is depthwise, which is fast for one
// channel. It has no dot products of int8, so its kernels are those of the set without.
#define JAXCONV_FAMILIES(isa, isa_of_depthwise)                                         \
  namespace isa_of_depthwise {                                                          \
  Kernel DepthwiseConv, DepthwiseWgrad;                                                 \
  }                                                                                     \
  namespace isa {                                                                       \
  Kernel GemmConv, GemmWgrad;                                                           \
  constexpr KernelFamily kFamilies[] = {                                                \
      {"gemm", GemmConv, GemmWgrad},                                                    \
      {"depthwise", isa_of_depthwise::DepthwiseConv, isa_of_depthwise::DepthwiseWgrad}, \
  };                                                                                    \
  }

JAXCONV_FAMILIES(baseline, baseline)
#ifdef __x86_64__
JAXCONV_FAMILIES(x86_64_v3, x86_64_v3)
JAXCONV_FAMILIES(x86_64_v3_vnni, x86_64_v3)
JAXCONV_FAMILIES(x86_64_v4, x86_64_v4)
JAXCONV_FAMILIES(x86_64_v4_vnni, x86_64_v4)
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
