// The kernel families. All are compiled once for each instruction set, into a namespace of its name.
#pragma once

#include <string_view>

#include "common/call.h"

namespace jaxconv {

struct KernelFamily {
  std::string_view name;
  Kernel* conv;
  Kernel* wgrad;
};

// A family by its name in jaxconv/planner/families.py, for the fastest instruction set that this machine has. Null if
// there is none.
const KernelFamily* HostFamily(std::string_view name);

}  // namespace jaxconv
