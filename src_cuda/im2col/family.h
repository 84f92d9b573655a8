// The functions of the im2col family, which launch.cu has.
#pragma once

#include "common/family.h"
#include "im2col/settings.h"

namespace jaxconv {

extern const KernelFamily<Im2colSettings> kIm2col;

}  // namespace jaxconv
