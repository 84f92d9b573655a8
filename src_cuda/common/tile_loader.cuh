// Tiles of the two operands, from device memory by points through registers into shared memory.
//
// A tile is `depth` steps by as many lines: rows of the source operand, columns of the other one. Shared memory holds
// it step by step, so that threads read several lines at once, whichever way it lies in device memory.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/points.cuh"

namespace jaxconv {

// Which way neighbouring threads go through an operand, and whether a thread takes four neighbours with one load.
enum class Access { kLines, kSteps, kLineQuads, kStepQuads };

// A padding of 4 puts the 16 lines by 2 quads of steps (or 4 lines by 8 steps) that a warp stores transposed into
// different banks, and keeps 16-byte alignment.
constexpr int PaddedLines(int lines) { return lines + 4; }

template <int kTileLines, int kDepth, int kThreads, Access kAccess>
struct TilePattern {
  static constexpr int kLines = kTileLines;
  static constexpr int kPitch = PaddedLines(kLines);
  static constexpr bool kAlongSteps = kAccess == Access::kSteps || kAccess == Access::kStepQuads;
  static constexpr int kVector = kAccess == Access::kLineQuads || kAccess == Access::kStepQuads ? 4 : 1;
  static constexpr int kFast = (kAlongSteps ? kDepth : kLines) / kVector;
  static constexpr int kPacks = kLines * kDepth / kVector;
  static constexpr int kCount = (kPacks + kThreads - 1) / kThreads;  // packs of one thread
  static constexpr int kLinesApart = kAlongSteps ? kThreads / kFast : 0;
  static constexpr int kStepsApart = kAlongSteps ? 0 : kThreads / kFast;
  static_assert(kThreads % kFast == 0, "a thread's packs share their place along the fast axis");

  static constexpr bool IsExact() { return kPacks % kThreads == 0; }
  static __device__ bool IsActive(int i) { return IsExact() || static_cast<int>(threadIdx.x) + i * kThreads < kPacks; }

  // Where a thread's first pack is.
  static __device__ int Line() { return kAlongSteps ? threadIdx.x / kFast : threadIdx.x % kFast * kVector; }
  static __device__ int Step() { return kAlongSteps ? threadIdx.x % kFast * kVector : threadIdx.x / kFast; }

  // Stores the i-th pack, given the first one's place in shared memory.
  template <typename Acc>
  static __device__ __forceinline__ void Store(const Pack<Acc, kVector>& pack, int i, Acc* first) {
    Acc* to = first + i * (kStepsApart * kPitch + kLinesApart);
    if constexpr (kAlongSteps) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) to[j * kPitch] = pack.v[j];
    } else {
      *reinterpret_cast<Pack<Acc, kVector>*>(to) = pack;
    }
  }
};

// The source operand: elements outside the source are zero.
template <typename Acc, typename Pattern>
class SourceLoader {
 public:
  __device__ SourceLoader(const void* base, DType type, const uint32_t (&size)[kSpatial], const Point* rows)
      : base_(base),
        type_(type),
        size_(size),
        row_(rows + Pattern::Line()),
        step_(Pattern::Step()),
        place_(Pattern::Step() * Pattern::kPitch + Pattern::Line()) {}

  __device__ __forceinline__ void Load(const Point* steps) {
#pragma unroll
    for (int i = 0; i < Pattern::kCount; ++i) {
      const Point& row = row_[i * Pattern::kLinesApart];
      const Point& step = steps[step_ + i * Pattern::kStepsApart];
      bool inside = true;
#pragma unroll
      for (int d = 0; d < kSpatial; ++d) inside &= static_cast<uint32_t>(row.at[d] + step.at[d]) < size_[d];
      raw_[i].Clear();
      if (inside) raw_[i].Load(base_, row.src + step.src, type_);
    }
  }

  __device__ __forceinline__ void Store(Acc* tile) const {
#pragma unroll
    for (int i = 0; i < Pattern::kCount; ++i) Pattern::Store(raw_[i].Widen(type_), i, tile + place_);
  }

 private:
  static_assert(Pattern::IsExact(), "every thread has its packs");

  const void* base_;
  DType type_;
  const uint32_t (&size_)[kSpatial];
  const Point* row_;  // read again for each tile: registers are scarcer than shared memory's bandwidth
  int step_;
  int place_;  // of the first pack in a tile in shared memory
  RawPack<Acc, Pattern::kVector> raw_[Pattern::kCount];
};

// The other operand, dense in its lines: columns past the last are zero, and so are steps past the last, whose source
// elements are zeros that must not meet a NaN.
template <typename Acc, typename Pattern>
class PartnerLoader {
 public:
  __device__ PartnerLoader(const void* base, DType type, int64_t origin, int64_t first_col, int64_t cols,
                           int64_t col_stride)
      : base_(base),
        type_(type),
        col_stride_(col_stride),
        step_(Pattern::Step()),
        place_(Pattern::Step() * Pattern::kPitch + Pattern::Line()) {
    const int64_t col = first_col + Pattern::Line();
    offset_ = origin + col * col_stride;
    cols_left_ = static_cast<int>(min(cols - col, int64_t{Pattern::kLines}));
  }

  __device__ __forceinline__ void Load(const Point* steps) {
#pragma unroll
    for (int i = 0; i < Pattern::kCount; ++i) {
      const int64_t step = Pattern::IsActive(i) ? steps[step_ + i * Pattern::kStepsApart].partner : -1;
      const int ahead = i * Pattern::kLinesApart;
      const bool inside = (step >= 0) & (ahead < cols_left_);
      raw_[i].Clear();
      if (inside) raw_[i].Load(base_, offset_ + ahead * col_stride_ + step, type_);
    }
  }

  __device__ __forceinline__ void Store(Acc* tile) const {
#pragma unroll
    for (int i = 0; i < Pattern::kCount; ++i) {
      if (Pattern::IsActive(i)) Pattern::Store(raw_[i].Widen(type_), i, tile + place_);
    }
  }

 private:
  const void* base_;
  DType type_;
  int64_t col_stride_;
  int64_t offset_;  // of this thread's first column
  int cols_left_;   // from that column on, as far as a tile reaches
  int step_;
  int place_;
  RawPack<Acc, Pattern::kVector> raw_[Pattern::kCount];
};

}  // namespace jaxconv
