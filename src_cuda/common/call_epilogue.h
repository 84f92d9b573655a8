// Which kernel of a call applies its epilogue.
#pragma once

#include <cstdint>

#include "common/family.h"

namespace jaxconv {

inline bool HasEpilogue(const ConvCall& call) { return call.epilogue.is_there; }

// Whether the first kernel of a call applies the epilogue. With split-K, the kernel that adds the slices applies it.
inline bool EndsWithEpilogue(const ConvCall& call, int64_t split) { return HasEpilogue(call) && split == 1; }

}  // namespace jaxconv
