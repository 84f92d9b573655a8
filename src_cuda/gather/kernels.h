// The compiled kernels of the gather family: one .cu file for each type.
#pragma once

#include <cstdint>

#include "common/fast_division.h"
#include "conv_epilogue.h"
#include "conv_problem.h"

namespace jaxconv {

// All that a kernel knows of a call. Strides are in bytes. Those of an image, and around it as far as windows reach,
// are added in 32 bits.
struct GatherParams {
  const void* src;
  const void* filter;  // its first tap
  void* out;
  int32_t src_batch;  // from an image to the next
  int32_t out_batch;
  int32_t threads;  // that have results
  // A thread's number, from the index that changes fastest: vector of channels, columns, row, plane of all images.
  FastDivmod<int32_t> by_vectors;
  FastDivmod<int32_t> by_col_groups;
  FastDivmod<int32_t> by_rows;
  FastDivmod<int32_t> by_depths;
  int32_t cols;  // of a row of results
  uint32_t src_size[kSpatial];
  int32_t first[kSpatial];       // source depth, row and column of the first position's first tap
  int32_t step[kSpatial];        // source pixels from a position to the next
  int32_t taps[kSpatial];        // of the window
  int32_t apart[kSpatial];       // source pixels from a tap to the next
  int32_t src_stride[kSpatial];  // from a source pixel to the next
  int32_t src_apart[kSpatial];   // from a tap's to the next tap's
  int32_t filter_apart[kSpatial];
  int32_t out_stride[kSpatial];
  Epilogue epilogue;
};

using GatherKernelPtr = void (*)(GatherParams);

template <typename T>
GatherKernelPtr FindGather(int64_t tile, bool has_epilogue);

}  // namespace jaxconv
