// Pipelines of the direct family: one warp fills stages with halo tiles, or with rows, and all consumers read them.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/stage_pipeline.cuh"
#include "direct/params.cuh"

namespace jaxconv {

using DirectPipeline = StagePipeline<kDirectStages>;
using RowPipeline = StagePipeline<kRowStages>;
inline constexpr int kBoxArrivals = ptx::kHasTma ? 1 : 32;  // of the producer

// A box of a tensor on its way to shared memory: TMA's word for what it copies at once.
struct Box {
  const CUtensorMap& map;
  bool in_rows;
  bool is_packed;  // packed K: the last coordinate counts elements, the last extent vectors
  const void* tensor;
  const TensorStrides& strides;
  const int64_t (&size)[kSpatial];
  int32_t channels;  // of all groups
  PixelLayout pixel;
  int32_t extent[kSpatial];
  const DirectParams& params;
  bool has_rows;  // whether rows of it are a neighbour's

  __device__ __forceinline__ uint32_t Bytes() const { return (extent[0] * extent[1] * extent[2] << pixel.pitch) * 16; }

  __device__ __forceinline__ void Prefetch() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) ptx::PrefetchMap(map);
#endif
  }

  // Zeros outside of the tensor. To be called by all of a warp; the barrier is arrived at in Arrive.
  template <typename T>
  __device__ __forceinline__ void Copy(uint32_t to, uint32_t barrier, int32_t channel, const int32_t (&at)[kSpatial],
                                       int32_t image) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) CopyByTma<T>(to, barrier, channel, at, image);
#else
    if (is_packed) return CopyPacked<T>(to, at, image);
    const int32_t vector = threadIdx.x % 32 & ((1 << pixel.pitch) - 1);
    channel += vector * kVector<T>;
    const T* first = static_cast<const T*>(tensor) + image * strides.batch + channel;
    for (int32_t row = 0; row < extent[0] * extent[1]; ++row) {
      const int32_t d = at[0] + row / extent[1], h = at[1] + row % extent[1];
      const bool is_there =
          channel < channels && static_cast<uint32_t>(d) < size[0] && static_cast<uint32_t>(h) < size[1];
      const T* from = first + d * strides.spatial[0] + h * strides.spatial[1];
      for (int32_t w = threadIdx.x % 32 >> pixel.pitch; w < extent[2]; w += 32 >> pixel.pitch) {
        const int32_t number = row * extent[2] + w;
        ptx::CopyAsync(to + ((number << pixel.pitch) + pixel.Exchange(vector, number)) * 16,
                       from + (at[2] + w) * strides.spatial[2], is_there && static_cast<uint32_t>(at[2] + w) < size[2]);
      }
    }
#endif
  }

  // The box at once; or where rows of it are a neighbour's, row by row, each from the array that has it. There is one
  // copy for both: the loop around a second one takes registers that sums and filters need.
  template <typename T>
  __device__ __forceinline__ void CopyByTma(uint32_t to, uint32_t barrier, int32_t channel,
                                            const int32_t (&at)[kSpatial], int32_t image) const {
    const int32_t first = is_packed ? at[2] : in_rows ? at[2] * kVector<T> : channel;
    const int32_t second = in_rows || is_packed ? 0 : at[2];
    const bool by_rows = has_rows && ReachesNeighbour(at), are_planes = params.rows_dim == 0;
    int32_t row = AlongRows(at);
#pragma unroll 1
    for (int32_t left = by_rows ? AlongRows(extent) : 1; left > 0; --left, ++row, to += params.row_bytes) {
      const RowOfArray from = by_rows ? ArrayOf(row) : RowOfArray{&map, row};
      ptx::CopyBoxByTma(to, *from.map, barrier, first, second, are_planes ? at[1] : from.row,
                        are_planes ? from.row : at[0], image);
    }
  }

  // A dimension's number, of the one with neighbours. Both are read: an index would put the array into local memory.
  template <typename Numbers>
  __device__ __forceinline__ int32_t AlongRows(const Numbers& numbers) const {
    return static_cast<int32_t>(params.rows_dim == 0 ? numbers[0] : numbers[1]);
  }

  __device__ __forceinline__ bool ReachesNeighbour(const int32_t (&at)[kSpatial]) const {
    return AlongRows(at) < 0 || AlongRows(at) + AlongRows(extent) > AlongRows(size);
  }

  // The array that has a row of the image, or of a neighbour, and its number there. A row that none has is zeros of the
  // image's map.
  struct RowOfArray {
    const CUtensorMap* map;
    int32_t row;
  };
  __device__ __forceinline__ RowOfArray ArrayOf(int32_t row) const {
    const int32_t count = AlongRows(size);
    if (row < 0 && params.rows_before > 0) return {&params.row_maps[0], row + params.rows_before};
    if (row >= count && params.rows_after > 0) return {&params.row_maps[2], row - count};
    return {&params.row_maps[1], row};
  }

  // With packed K and without TMA: vectors of a row of the tensor. The row is whole ones.
  template <typename T>
  __device__ __forceinline__ void CopyPacked(uint32_t to, const int32_t (&at)[kSpatial], int32_t image) const {
    const int64_t row_elements = size[2] * channels;
    const T* first = static_cast<const T*>(tensor) + image * strides.batch;
    for (int32_t row = 0; row < extent[0] * extent[1]; ++row) {
      const int32_t d = at[0] + row / extent[1], h = at[1] + row % extent[1];
      const bool is_there = static_cast<uint32_t>(d) < size[0] && static_cast<uint32_t>(h) < size[1];
      const T* from = first + d * strides.spatial[0] + h * strides.spatial[1] + at[2];
      for (int32_t vector = threadIdx.x % 32; vector < extent[2]; vector += 32) {
        const int32_t element = at[2] + vector * kPackedVector;
        ptx::CopyAsync(to + (row * extent[2] + vector) * 16, from + vector * kPackedVector,
                       is_there && element >= 0 && element < row_elements);
      }
    }
  }

  // A stage will be full when the copies, of so many bytes, have been done.
  static __device__ __forceinline__ void Arrive(uint32_t barrier, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (threadIdx.x % 32 == 0) ptx::ArriveExpecting(barrier, bytes);
#else
    ptx::ArriveAfterCopies(barrier);
#endif
  }
};

// `has_rows`: of neighbours. Kernels that UnsupportedRows refuses them for need not look for them.
__device__ __forceinline__ Box SourceBox(const DirectParams& p, bool has_rows) {
  const ConvProblem& q = p.problem;
  return {p.src_map,
          p.src_in_rows,
          p.tile.packed > 0,
          p.src,
          q.src,
          q.src_size,
          static_cast<int32_t>(q.groups * q.in_channels),
          p.src_pixel,
          {p.copied[0], p.copied[1], p.copied[2]},
          p,
          has_rows};
}

__device__ __forceinline__ Box GradientBox(const DirectParams& p) {
  const ConvProblem& q = p.problem;
  return {p.dst_map,
          p.dst_in_rows,
          false,
          p.rhs,
          q.dst,
          q.dst_size,
          static_cast<int32_t>(q.groups * q.out_channels),
          p.dst_pixel,
          {1, p.tile.rows, p.tile.cols},
          p,
          false};
}

}  // namespace jaxconv
