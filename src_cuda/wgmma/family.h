// The functions of the wgmma family, which launch.cu has.
#pragma once

#include "common/family.h"
#include "wgmma/settings.h"

namespace jaxconv {

extern const KernelFamily<WgmmaSettings> kWgmma;

}  // namespace jaxconv
