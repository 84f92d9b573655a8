// Convolution of each channel on its own, for small layers: a thread gathers the pixels of its taps.
//
// A thread has a vector of 16 bytes of channels, for one to four neighbouring results of a row. It loads the vectors of
// its pixels and taps from the caches into registers, all at once as far as registers allow. So a small layer takes
// little more than the latency of one load. There is no shared memory, no barrier and no table: the window is in the
// kernel's parameters. Neighbouring threads have neighbouring vectors, so a warp's loads are contiguous.
#pragma once

#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/fast_division.h"
#include "gather/config.h"
#include "gather/kernels.h"

namespace jaxconv {

// Elements as loaded: a conversion would wait for the load.
struct GatherVector {
  uint32_t words[kVectorBytes / 4];
};

// A vector that no thread writes; zeros where it is not wanted. A predicate, not a branch: so that loads are issued one
// after the other.
__device__ __forceinline__ GatherVector GatherOrZeros(const void* from, bool is_wanted) {
  GatherVector v;
  asm("{ .reg .pred is_wanted; setp.ne.u32 is_wanted, %5, 0;"
      " mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;"
      " @is_wanted ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(v.words[0]), "=&r"(v.words[1]), "=&r"(v.words[2]), "=&r"(v.words[3])
      : "l"(from), "r"(static_cast<uint32_t>(is_wanted)));
  return v;
}

// An element as loaded, as a number. bfloat16 that goes through a 16-bit register would take two instructions.
template <typename T>
__device__ __forceinline__ float GatherNumber(const GatherVector& v, int i) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    const uint32_t word = v.words[i / 2];
    return i % 2 == 0 ? FirstOfBF16(word) : SecondOfBF16(word);
  } else {
    return static_cast<float>(ElementOf<T>(v.words, i));
  }
}

// A thread's results: where they are, and where their first tap reads.
struct GatherPlace {
  int32_t vector;        // of channels
  int32_t col;           // of the first result
  int32_t at[kSpatial];  // source depth, row and column of its first tap, maybe outside of the image
  int32_t src;           // the same in bytes from the image's first pixel
  int32_t out;           // the first result, likewise
  int32_t image;

  __device__ __forceinline__ GatherPlace(const GatherParams& p, int32_t thread, int32_t cols) {
    int32_t col_group, row, depth;
    const int32_t all_col_groups = p.by_vectors.Divide(thread, &vector);
    const int32_t all_rows = p.by_col_groups.Divide(all_col_groups, &col_group);
    image = p.by_depths.Divide(p.by_rows.Divide(all_rows, &row), &depth);
    col = col_group * cols;
    const int32_t position[] = {depth, row, col};
    src = out = vector * kVectorBytes;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      at[d] = p.first[d] + position[d] * p.step[d];
      src += at[d] * p.src_stride[d];
      out += position[d] * p.out_stride[d];
    }
  }
};

// Some taps of a row of the window: the same for all threads.
struct GatherTaps {
  int32_t depth = 0, row = 0, col = 0;

  // To the next `taps` ones, if they are fewer than a row, or to the next row.
  template <GatherTile kTile>
  __device__ __forceinline__ void Advance(const GatherParams& p) {
    if constexpr (kTile.width == 0) {
      col += kTile.taps();
      if (col < p.taps[2]) return;
      col = 0;
    }
    if (++row < p.taps[1]) return;
    row = 0, ++depth;
  }
  __device__ __forceinline__ bool are_there(const GatherParams& p) const { return depth < p.taps[0]; }
};

// The operands of some taps: in registers once they are there.
template <typename T, GatherTile kTile>
class GatherSet {
 public:
  static constexpr int kElements = kTraits<T>.vector();

  // src, filter: where the first tap reads, and that of the channels.
  __device__ __forceinline__ void Load(const GatherParams& p, const GatherPlace& place, const char* src,
                                       const char* filter, const GatherTaps& taps, bool are_there) {
    const int32_t row_taps = kTile.width > 0 ? kTile.width : p.taps[2] - taps.col;
    const int32_t tap = taps.depth * p.filter_apart[0] + taps.row * p.filter_apart[1] + taps.col * p.filter_apart[2];
#pragma unroll
    for (int i = 0; i < kTile.taps(); ++i) {
      taps_[i] = GatherOrZeros(filter + (tap + i * p.filter_apart[2]), are_there && i < row_taps);
    }
    const auto is_inside = [&](int d, int32_t tap_of) {
      return static_cast<uint32_t>(place.at[d] + tap_of * p.apart[d]) < p.src_size[d];
    };
    const bool has_row = are_there && is_inside(0, taps.depth) && is_inside(1, taps.row);
    const int32_t row = taps.depth * p.src_apart[0] + taps.row * p.src_apart[1];
#pragma unroll
    for (int i = 0; i < kTile.pixels(); ++i) {
      const bool is_wanted = has_row && is_inside(2, taps.col + i) && i < row_taps + kTile.cols - 1;
      pixels_[i] = GatherOrZeros(src + (row + (taps.col + i) * p.src_apart[2]), is_wanted);
    }
  }

  // Adds the products to the sums, in the order of taps.
  __device__ __forceinline__ void MultiplyInto(float (&sums)[kTile.cols][kElements], int32_t row_taps) const {
#pragma unroll
    for (int i = 0; i < kTile.taps(); ++i) {
      // Behind a row's last tap there are pixels of other taps. Zero times infinity would be NaN.
      if (kTile.width == 0 && i >= row_taps) break;
#pragma unroll
      for (int col = 0; col < kTile.cols; ++col) {
#pragma unroll
        for (int v = 0; v < kElements; ++v) {
          const float tap = GatherNumber<T>(taps_[i], v);
          const float pixel = GatherNumber<T>(pixels_[i + col], v);
          sums[col][v] = __fmaf_rn(pixel, tap, sums[col][v]);
        }
      }
    }
  }

 private:
  GatherVector taps_[kTile.taps()];
  GatherVector pixels_[kTile.pixels()];
};

// Ends the sums of a thread and stores them. Made while loads are under way: the epilogue has loads of its own.
template <typename T, GatherTile kTile, bool kHasEpilogue>
class GatherResults {
 public:
  static constexpr int kElements = kTraits<T>.vector();
  using Results = Pack<T, kElements>;

  __device__ __forceinline__ GatherResults(const GatherParams& p, const GatherPlace& place)
      : ends_(p.epilogue, place.vector * kElements),
        first_((static_cast<int64_t>(place.image) * p.out_batch + place.out) / sizeof(T)) {
#pragma unroll
    for (int i = 0; i < kTile.cols; ++i) {
      is_there_[i] = i == 0 || place.col + i < p.cols;
      if constexpr (kHasEpilogue) {
        if (is_there_[i]) residuals_[i] = ends_.Residual(Element(p, i));
      }
    }
  }

  __device__ __forceinline__ void Store(const GatherParams& p, const float (&sums)[kTile.cols][kElements]) const {
#pragma unroll
    for (int i = 0; i < kTile.cols; ++i) {
      Pack<float, kElements> of_col;
#pragma unroll
      for (int v = 0; v < kElements; ++v) of_col.v[v] = sums[i][v];
      if (is_there_[i]) *reinterpret_cast<Results*>(static_cast<T*>(p.out) + Element(p, i)) = End(of_col, i);
    }
  }

 private:
  struct NoEpilogue {
    __device__ __forceinline__ NoEpilogue(const Epilogue&, int64_t) {}
  };
  using Ends = std::conditional_t<kHasEpilogue, EpilogueOfChannels<float, T, kElements>, NoEpilogue>;

  __device__ __forceinline__ int64_t Element(const GatherParams& p, int i) const {
    return first_ + i * static_cast<int64_t>(p.out_stride[2] / sizeof(T));
  }
  __device__ __forceinline__ Results End(const Pack<float, kElements>& sums, int i) const {
    if constexpr (kHasEpilogue) {
      return ends_(sums, residuals_[i]);
    } else {
      Results results;
#pragma unroll
      for (int v = 0; v < kElements; ++v) results.v[v] = RoundTo<T>(sums.v[v]);
      return results;
    }
  }

  Ends ends_;
  int64_t first_;
  bool is_there_[kTile.cols];
  Results residuals_[kHasEpilogue ? kTile.cols : 1];
};

template <typename T, int kTileIndex, bool kHasEpilogue>
__global__ void __launch_bounds__(kGatherThreads, kGatherTiles[kTileIndex].ctas_per_sm(kHasEpilogue))
    GatherKernel(const __grid_constant__ GatherParams p) {
  constexpr GatherTile kTile = kGatherTiles[kTileIndex];
  static_assert(GatherIsFor(TypeOf<T>()), "sums are of float32");
  using Set = GatherSet<T, kTile>;
  constexpr int kElements = Set::kElements;
  static_assert(sizeof(Pack<T, kElements>) == sizeof(GatherVector), "a thread stores what it loads: whole vectors");
  const int32_t thread = blockIdx.x * kGatherThreads + threadIdx.x;
  if (thread >= p.threads) return;
  const GatherPlace place(p, thread, kTile.cols);
  const char* src = static_cast<const char*>(p.src) + int64_t{place.image} * p.src_batch + place.src;
  const char* filter = static_cast<const char*>(p.filter) + place.vector * kVectorBytes;
  float sums[kTile.cols][kElements] = {};

  if constexpr (kTile.height > 0) {
    Set rows[kTile.height];
#pragma unroll
    for (int row = 0; row < kTile.height; ++row) rows[row].Load(p, place, src, filter, {0, row, 0}, true);
    const GatherResults<T, kTile, kHasEpilogue> results(p, place);
#pragma unroll
    for (int row = 0; row < kTile.height; ++row) rows[row].MultiplyInto(sums, kTile.width);
    results.Store(p, sums);
  } else {
    // Two sets take turns: one is multiplied while the other is loaded.
    Set sets[2];
    GatherTaps next;
    int32_t row_taps[2];
    const auto load = [&](int i) {
      row_taps[i] = next.are_there(p) ? p.taps[2] - next.col : 0;
      sets[i].Load(p, place, src, filter, next, next.are_there(p));
      next.Advance<kTile>(p);
    };
    load(0);
    const GatherResults<T, kTile, kHasEpilogue> results(p, place);
#pragma unroll 1
    while (row_taps[0] > 0) {
      load(1);
      sets[0].MultiplyInto(sums, row_taps[0]);
      load(0);
      sets[1].MultiplyInto(sums, row_taps[1]);
    }
    results.Store(p, sums);
  }
}

template <typename T, bool kHasEpilogue, size_t... kTileIndex>
GatherKernelPtr FindGather(int64_t tile, std::index_sequence<kTileIndex...>) {
  static constexpr GatherKernelPtr kKernels[] = {GatherKernel<T, kTileIndex, kHasEpilogue>...};
  return kKernels[tile];
}

template <typename T>
GatherKernelPtr FindGather(int64_t tile, bool has_epilogue) {
  constexpr auto kTiles = std::make_index_sequence<std::size(kGatherTiles)>();
  return has_epilogue ? FindGather<T, true>(tile, kTiles) : FindGather<T, false>(tile, kTiles);
}

}  // namespace jaxconv
