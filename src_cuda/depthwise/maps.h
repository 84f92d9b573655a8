// The depthwise family's maps of a call's operands: how Hopper's copy engine, TMA, sees them.
#pragma once

#include "common/family.h"
#include "common/tma.h"
#include "conv_problem.h"
#include "depthwise/config.h"
#include "depthwise/params.cuh"

namespace jaxconv {

// False where the driver refuses, as it does tensors of no images, or is too old.
inline bool EncodeMaps(const ConvCall& call, const DepthwiseShape& d, DepthwiseMaps* maps) {
  const ConvProblem& p = d.problem;
  const auto encode = [&](CUtensorMap* map, const void* tensor, const TensorStrides& strides,
                          const int64_t (&size)[kSpatial], int32_t pitch) {
    const cuuint32_t box[] = {static_cast<cuuint32_t>(d.channels), static_cast<cuuint32_t>(pitch), 1, 1,
                              static_cast<cuuint32_t>(d.images)};
    return EncodeActivation(map, tensor, {p.src_type, CU_TENSOR_MAP_SWIZZLE_64B}, strides, size, p.batch, p.groups, 1,
                            box);
  };
  const auto encode_strips = [&](CUtensorMap* map, const void* tensor) {
    return encode(map, tensor, p.dst, p.dst_size, d.strips_pitch);
  };
  const void* const residual = call.epilogue.residual;
  return encode(&maps->source, call.src, p.src, p.src_size, d.src_width) &&
         encode_strips(&maps->strips, call.pass == Pass::kWgrad ? call.rhs : call.result) &&
         (residual == nullptr || encode_strips(&maps->residual, residual));
}

}  // namespace jaxconv
