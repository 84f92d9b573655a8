// The kernel families. All are compiled once for each instruction set, into a namespace of its name.
#pragma once

#include <string_view>
#include <vector>

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

// Those that this machine has, from the slowest to the fastest.
std::vector<std::string_view> HostInstructionSets();

// From now on families are for this instruction set. Tests run the kernels of each. False if the machine lacks it.
bool UseInstructionSet(std::string_view name);

}  // namespace jaxconv
