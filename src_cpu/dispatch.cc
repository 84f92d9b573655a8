#include "kernels.h"

namespace jaxconv {

#define JAXCONV_KERNEL_SET(isa) \
  KernelSet { isa::GemmConv, isa::GemmWgrad, isa::DepthwiseConv, isa::DepthwiseWgrad }

namespace {

KernelSet Choose() {
#ifdef __x86_64__
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return JAXCONV_KERNEL_SET(x86_64_v4);
  if (__builtin_cpu_supports("x86-64-v3")) return JAXCONV_KERNEL_SET(x86_64_v3);
#endif
  return JAXCONV_KERNEL_SET(baseline);
}

}  // namespace

const KernelSet& HostKernels() {
  static const KernelSet kernels = Choose();
  return kernels;
}

}  // namespace jaxconv
