// The functions of the gather family, which launch.cu has.
#pragma once

#include "common/family.h"
#include "gather/settings.h"

namespace jaxconv {

extern const KernelFamily<GatherSettings> kGather;

}  // namespace jaxconv
