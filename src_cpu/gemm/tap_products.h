// A conv to few output channels by another order of the same products. It takes only what it is faster at.
#pragma once

#include "common/call.h"

namespace jaxconv::JAXCONV_ISA {

bool PrefersTapProducts(const ConvCall& call);
Kernel TapProductsConv;

}  // namespace jaxconv::JAXCONV_ISA
