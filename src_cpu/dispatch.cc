#include <iterator>

#include "families.h"

namespace jaxconv {

#define JAXCONV_FAMILIES(isa)                                                          \
  namespace isa {                                                                      \
  Kernel GemmConv, GemmWgrad;                                                          \
  Kernel DepthwiseConv, DepthwiseWgrad;                                                \
  constexpr KernelFamily kFamilies[] = {                                               \
      {GemmConv, GemmWgrad},                                                           \
      {DepthwiseConv, DepthwiseWgrad}, /* right for any problem, fast for 1 channel */ \
  };                                                                                   \
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

const KernelFamily* HostFamily(int32_t place) {
  static const KernelFamily* const families = FastestFamilies();
  return place >= 0 && place < std::ssize(baseline::kFamilies) ? families + place : nullptr;
}

}  // namespace jaxconv
