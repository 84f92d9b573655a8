// What a call does with complete sums before it stores them. Only a conv has an epilogue, a wgrad has none.
//
// To add an operation, add its operands here and in ConvCall, and a line in EpilogueOf of epilogue.cuh.
#pragma once

#include <cstdint>

#include "common/family.h"

namespace jaxconv {

struct Epilogue {
  const void* bias;  // is added: one number for each output channel of all groups, in the type of the sums
};

inline Epilogue EpilogueOfCall(const ConvCall& call) { return {call.bias}; }

inline bool HasEpilogue(const ConvCall& call) { return call.bias != nullptr; }

// Whether the first kernel of a call applies the epilogue. With split-K, the kernel that adds the slices applies it.
inline bool EndsWithEpilogue(const ConvCall& call, int64_t split) { return HasEpilogue(call) && split == 1; }

}  // namespace jaxconv
