// What a call does with complete sums before they are results. Of a conv; a wgrad has none.
//
// To add an operation: its operands here and in ConvCall, and its line in EpilogueOf of epilogue.cuh.
#pragma once

#include <cstdint>

#include "common/family.h"

namespace jaxconv {

struct Epilogue {
  const void* bias;  // added: a number for each output channel of all groups, in the type of the sums
};

inline Epilogue EpilogueOfCall(const ConvCall& call) { return {call.bias}; }

inline bool HasEpilogue(const ConvCall& call) { return call.bias != nullptr; }

// Whether the first kernel of a call ends with its epilogue. With split-K that is for the kernel that adds the slices.
inline bool EndsWithEpilogue(const ConvCall& call, int64_t split) { return HasEpilogue(call) && split == 1; }

}  // namespace jaxconv
