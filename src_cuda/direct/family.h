// The functions of the direct family, which launch.cu has.
#pragma once

#include "common/family.h"
#include "direct/settings.h"

namespace jaxconv {

extern const KernelFamily<DirectSettings> kDirect;

}  // namespace jaxconv
