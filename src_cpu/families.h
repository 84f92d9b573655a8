// The kernel families. All are compiled once for each instruction set, into a namespace of its name.
#pragma once

#include <cstdint>

#include "common/call.h"

namespace jaxconv {

struct KernelFamily {
  Kernel* conv;
  Kernel* wgrad;
};

// A family by its place in FAMILIES["cpu"] of jaxconv/planner/families.py, for the fastest instruction set that this
// machine has. Null if there is none.
const KernelFamily* HostFamily(int32_t place);

}  // namespace jaxconv
