// The functions of the simt family, which launch.cu has.
#pragma once

#include "common/family.h"
#include "simt/settings.h"

namespace jaxconv {

extern const KernelFamily<SimtSettings> kSimt;

}  // namespace jaxconv
