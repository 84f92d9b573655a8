// What TMA is told of the operands of a depthwise kernel.
#pragma once

#include <cuda.h>

namespace jaxconv {

struct DepthwiseMaps {
  CUtensorMap source;
  CUtensorMap strips;  // the destination, or its gradient
};

}  // namespace jaxconv
