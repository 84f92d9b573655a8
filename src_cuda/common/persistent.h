// Launches of persistent kernels, whose CTAs compute several tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/ctas_per_sm.h"
#include "common/device_attribute.h"
#include "common/family.h"
#include "common/product.h"

namespace jaxconv {

// Fills in the operands of a call, and where and in which type the results are stored.
template <typename Params>
void SetOperands(const ConvCall& call, int64_t split, Params* params) {
  params->taps = call.taps;
  params->classes = call.classes;
  params->src = call.src;
  params->rhs = call.rhs;
  params->out = StoredData(call, split);
  params->out_elements = ResultElements(call.problem, call.pass);
  params->out_type = StoredType(call.problem, call.pass, split);
}

// PersistentCtas of the current device. `shared_bytes` is the shared memory of a CTA. By its registers an SM holds
// `most` CTAs.
inline int32_t PersistentCtasOfDevice(int64_t shared_bytes, int most, int64_t others, int64_t tiles) {
  const int multiprocessors = std::max(1, DeviceAttribute(cudaDevAttrMultiProcessorCount));
  const int multiprocessor_bytes = DeviceAttribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  const int64_t held = multiprocessors * CtasPerSm(multiprocessor_bytes, shared_bytes, most);
  return static_cast<int32_t>(PersistentCtas(held, others, tiles));
}

}  // namespace jaxconv
