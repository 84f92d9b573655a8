#include <algorithm>
#include <iterator>

#include "families.h"

namespace jaxconv {

#define JAXCONV_FAMILIES(isa)                                                                       \
  namespace isa {                                                                                   \
  Kernel GemmConv, GemmWgrad;                                                                       \
  Kernel DepthwiseConv, DepthwiseWgrad;                                                             \
  constexpr KernelFamily kFamilies[] = {                                                            \
      {"gemm", GemmConv, GemmWgrad},                                                                \
      {"depthwise", DepthwiseConv, DepthwiseWgrad}, /* right for any problem, fast for 1 channel */ \
  };                                                                                                \
  }

JAXCONV_FAMILIES(baseline)
#ifdef __x86_64__
JAXCONV_FAMILIES(x86_64_v3)
JAXCONV_FAMILIES(x86_64_v4)
#endif

namespace {

const KernelFamily* FastestFamilies() {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return x86_64_v4::kFamilies;
  if (__builtin_cpu_supports("x86-64-v3")) return x86_64_v3::kFamilies;
#endif
  return baseline::kFamilies;
}

}  // namespace

const KernelFamily* HostFamily(std::string_view name) {
  static const KernelFamily* const families = FastestFamilies();
  const KernelFamily* const end = families + std::size(baseline::kFamilies);
  const auto* found = std::find_if(families, end, [&](const KernelFamily& family) { return family.name == name; });
  return found == end ? nullptr : found;
}

}  // namespace jaxconv
