// The functions of the mma family, which launch.cu has.
#pragma once

#include "common/family.h"
#include "mma/settings.h"

namespace jaxconv {

extern const KernelFamily<MmaSettings> kMma;

}  // namespace jaxconv
