// Tiles of the two operands, from device memory by points into swizzled shared memory: asynchronously in pieces of 16
// bytes where neighbours are contiguous, else element by element.
#pragma once

#include <cstdint>

#include "device/points.cuh"
#include "device/ptx.cuh"

namespace jaxconv {

// Points in shared memory. Every ninth place is unused: threads that copy pieces of eight elements read every eighth
// point, which would all be in the same banks.
template <int kCount>
class PointTable {
 public:
  __device__ Point& operator[](int i) { return points_[i + i / 8]; }
  __device__ const Point& operator[](int i) const { return points_[i + i / 8]; }

 private:
  Point points_[kCount + kCount / 8];
};

// How a thread goes over a tile: its place along the axis that is contiguous, the fast one, stays; kUnit elements at a
// time.
template <typename Tile, int kThreads, int kUnit>
struct CopyPattern {
  static constexpr int kFast = (Tile::kAlongSteps ? Tile::kDepth : Tile::kLines) / kUnit;
  static constexpr int kSlow = Tile::kAlongSteps ? Tile::kLines : Tile::kDepth;
  static constexpr int kCount = (kFast * kSlow + kThreads - 1) / kThreads;
  static constexpr bool kExact = kFast * kSlow % kThreads == 0;
  static_assert(kThreads % kFast == 0, "a thread keeps its place along the fast axis");

  static __device__ int Fast() { return threadIdx.x % kFast * kUnit; }
  static __device__ int Slow(int i) { return threadIdx.x / kFast + i * (kThreads / kFast); }
  static __device__ bool IsActive(int i) { return kExact || Slow(i) < kSlow; }
  static __device__ int Offset(int i) {
    return Tile::kAlongSteps ? Tile::Offset(Slow(i), Fast()) : Tile::Offset(Fast(), Slow(i));
  }
};

// An element of an operand: zero if not `valid`.
struct Element {
  int64_t offset;  // bytes
  bool valid;
};

// Finds elements of the source: the fast axis' point is in registers. Points are in bytes.
template <typename SlowPoints>
struct SourceFinder {
  Point fast;
  const SlowPoints& slow;
  const uint32_t (&size)[kSpatial];

  __device__ __forceinline__ Element operator()(int i) const {
    const Point& other = slow[i];
    bool inside = true;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) inside &= static_cast<uint32_t>(fast.at[d] + other.at[d]) < size[d];
    return {fast.src + other.src, inside};
  }
};

// Finds elements of the other operand: in a column by steps,
template <typename SlowPoints>
struct ColumnFinder {
  int64_t column;  // offset in bytes, or negative: none
  const SlowPoints& steps;

  __device__ __forceinline__ Element operator()(int i) const {
    const int64_t partner = steps[i].partner;
    return {column + partner, (column | partner) >= 0};
  }
};

// or of a step by columns.
struct StepFinder {
  int64_t partner;
  int64_t column_bytes;
  int columns;

  __device__ __forceinline__ Element operator()(int i) const {
    return {partner + i * column_bytes, partner >= 0 && i < columns};
  }
};

// Copies one of `parts` parts of a tile.
template <typename Tile, int kThreads, typename Finder>
__device__ __forceinline__ void CopyPieces(const char* from, uint32_t to, int part, int parts, const Finder& find) {
  using Pattern = CopyPattern<Tile, kThreads, Tile::kPiece>;
#pragma unroll
  for (int i = 0; i < Pattern::kCount; ++i) {
    if (i * parts / Pattern::kCount != part || !Pattern::IsActive(i)) continue;
    const Element element = find(Pattern::Slow(i));
    // Nothing is read where the element is a zero, but its address must be one that may be read.
    ptx::CopyAsync(to + Pattern::Offset(i), from + (element.valid ? element.offset : 0), element.valid);
  }
}

template <typename T, typename Tile, int kThreads, typename Finder>
__device__ __forceinline__ void CopyElements(const char* from, char* to, const Finder& find) {
  using Pattern = CopyPattern<Tile, kThreads, 1>;
  constexpr int kInFlight = 8;  // loads before the first store
#pragma unroll 1
  for (int first = 0; first < Pattern::kCount; first += kInFlight) {
    T elements[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      elements[i] = T(0.0f);
      if (first + i >= Pattern::kCount || !Pattern::IsActive(first + i)) continue;
      const Element element = find(Pattern::Slow(first + i));
      if (element.valid) elements[i] = *reinterpret_cast<const T*>(from + element.offset);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (first + i >= Pattern::kCount || !Pattern::IsActive(first + i)) continue;
      *reinterpret_cast<T*>(to + Pattern::Offset(first + i)) = elements[i];
    }
  }
}

}  // namespace jaxconv
