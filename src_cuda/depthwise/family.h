// The functions of the depthwise family, which launch.cu has.
#pragma once

#include "common/family.h"
#include "depthwise/settings.h"

namespace jaxconv {

extern const KernelFamily<DepthwiseSettings> kDepthwise;

}  // namespace jaxconv
