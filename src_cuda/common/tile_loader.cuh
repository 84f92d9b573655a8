// Loads tiles of the two operands from device memory to shared memory, through registers. Points give the addresses.
//
// A tile has kBlockK steps of K, and kMn rows of A (M) or columns of B (N). In shared memory it is always MN-major, so
// that a thread reads several indices of MN with one instruction.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/points.cuh"

namespace jaxconv {

// Along which dimension neighbouring threads load neighbouring elements. Vectors: a thread loads four elements at once.
enum class Access { kMnMajor, kKMajor, kMnMajorVectors, kKMajorVectors };

// A warp that loads K-major stores 16 indices of MN by 2 vectors of K (or 4 by 8) transposed. A padding of 4 puts them
// into different banks, and keeps rows aligned to 16 bytes.
constexpr int PaddedPitch(int mn) { return mn + 4; }

template <int kTileMn, int kBlockK, int kThreads, Access kAccess>
struct TilePattern {
  static constexpr int kMn = kTileMn;
  static constexpr int kPitch = PaddedPitch(kMn);
  static constexpr bool kKMajor = kAccess == Access::kKMajor || kAccess == Access::kKMajorVectors;
  static constexpr int kVector = kAccess == Access::kMnMajorVectors || kAccess == Access::kKMajorVectors ? 4 : 1;
  static constexpr int kFast = (kKMajor ? kBlockK : kMn) / kVector;
  static constexpr int kPacks = kMn * kBlockK / kVector;
  static constexpr int kCount = (kPacks + kThreads - 1) / kThreads;  // of one thread
  static constexpr int kMnApart = kKMajor ? kThreads / kFast : 0;
  static constexpr int kKApart = kKMajor ? 0 : kThreads / kFast;
  static_assert(kThreads % kFast == 0, "all packs of a thread are at the same position of the fast axis");

  static constexpr bool IsExact() { return kPacks % kThreads == 0; }
  static __device__ bool IsActive(int i) { return IsExact() || static_cast<int>(threadIdx.x) + i * kThreads < kPacks; }

  // The position of a thread's first pack in the tile.
  static __device__ int Mn() { return kKMajor ? threadIdx.x / kFast : threadIdx.x % kFast * kVector; }
  static __device__ int K() { return kKMajor ? threadIdx.x % kFast * kVector : threadIdx.x / kFast; }

  // Stores the i-th pack. `first` is the address of the first one.
  template <typename Acc>
  static __device__ __forceinline__ void Store(const Pack<Acc, kVector>& pack, int i, Acc* first) {
    Acc* to = first + i * (kKApart * kPitch + kMnApart);
    if constexpr (kKMajor) {
#pragma unroll
      for (int j = 0; j < kVector; ++j) to[j * kPitch] = pack.v[j];
    } else {
      *reinterpret_cast<Pack<Acc, kVector>*>(to) = pack;
    }
  }
};

// Loads A. Elements outside of the source are zeros.
template <typename Acc, typename Pattern, bool kFloat8 = false>
class SrcLoader {
 public:
  __device__ SrcLoader(const void* base, DType type, const uint32_t (&size)[kSpatial], const Point* rows)
      : base_(base),
        type_(type),
        size_(size),
        row_(rows + Pattern::Mn()),
        step_(Pattern::K()),
        offset_in_tile_(Pattern::K() * Pattern::kPitch + Pattern::Mn()) {}

  __device__ __forceinline__ void Load(const Point* steps) {
#pragma unroll
    for (int i = 0; i < Pattern::kCount; ++i) {
      const Point& row = row_[i * Pattern::kMnApart];
      const Point& step = steps[step_ + i * Pattern::kKApart];
      bool inside = true;
#pragma unroll
      for (int d = 0; d < kSpatial; ++d) inside &= static_cast<uint32_t>(row.at[d] + step.at[d]) < size_[d];
      raw_[i].Clear();
      if (inside) raw_[i].Load(base_, row.src + step.src, type_);
    }
  }

  __device__ __forceinline__ void Store(Acc* tile) const {
#pragma unroll
    for (int i = 0; i < Pattern::kCount; ++i) Pattern::Store(raw_[i].Widen(type_), i, tile + offset_in_tile_);
  }

 private:
  static_assert(Pattern::IsExact(), "all threads have equally many packs");

  const void* base_;
  DType type_;
  const uint32_t (&size_)[kSpatial];
  const Point* row_;  // in shared memory, and read again for each tile: registers are scarce
  int step_;
  int offset_in_tile_;  // of the first pack
  RawPack<Acc, Pattern::kVector, kFloat8> raw_[Pattern::kCount];
};

// Loads B. Columns after the last are zeros. Steps of K after the last are zeros, too: A has zeros there, and zero
// times a NaN would be a NaN.
template <typename Acc, typename Pattern, bool kFloat8 = false>
class RhsLoader {
 public:
  __device__ RhsLoader(const void* base, DType type, int64_t origin, int64_t first_col, int64_t cols,
                       int64_t col_stride)
      : base_(base),
        type_(type),
        col_stride_(col_stride),
        step_(Pattern::K()),
        offset_in_tile_(Pattern::K() * Pattern::kPitch + Pattern::Mn()) {
    const int64_t col = first_col + Pattern::Mn();
    offset_ = origin + col * col_stride;
    cols_left_ = static_cast<int>(min(cols - col, int64_t{Pattern::kMn}));
  }

  __device__ __forceinline__ void Load(const Point* steps) {
#pragma unroll
    for (int i = 0; i < Pattern::kCount; ++i) {
      const int64_t step = Pattern::IsActive(i) ? steps[step_ + i * Pattern::kKApart].partner : -1;
      const int ahead = i * Pattern::kMnApart;
      const bool inside = (step >= 0) & (ahead < cols_left_);
      raw_[i].Clear();
      if (inside) raw_[i].Load(base_, offset_ + ahead * col_stride_ + step, type_);
    }
  }

  __device__ __forceinline__ void Store(Acc* tile) const {
#pragma unroll
    for (int i = 0; i < Pattern::kCount; ++i) {
      if (Pattern::IsActive(i)) Pattern::Store(raw_[i].Widen(type_), i, tile + offset_in_tile_);
    }
  }

 private:
  const void* base_;
  DType type_;
  int64_t col_stride_;
  int64_t offset_;  // of this thread's first column
  int cols_left_;   // columns of the tile from that one on
  int step_;
  int offset_in_tile_;
  RawPack<Acc, Pattern::kVector, kFloat8> raw_[Pattern::kCount];
};

}  // namespace jaxconv
