// The kernel families.
#pragma once

#include <tuple>

#include "depthwise/family.h"
#include "direct/family.h"
#include "gather/family.h"
#include "im2col/family.h"
#include "mma/family.h"
#include "simt/family.h"
#include "wgmma/family.h"

namespace jaxconv {

inline constexpr std::tuple kFamilies{&kSimt, &kIm2col, &kMma, &kDirect, &kDepthwise, &kGather, &kWgmma};

}  // namespace jaxconv
