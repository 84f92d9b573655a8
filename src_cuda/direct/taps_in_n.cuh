// The direct family's conv to few channels, with taps in N: M is source pixels, N (tap, output channel)s, K channels. A
// pixel is read and multiplied once, with all taps. An output sums the products of the pixels that it sees. These pass
// through shared memory, in the place of the pixels.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "direct/filter.cuh"
#include "direct/halo_tiles.cuh"
#include "direct/params.cuh"
#include "direct/pipeline.cuh"
#include "direct/results.cuh"
#include "direct/tables.cuh"

namespace jaxconv {

// The products of a halo tile lie in shared memory by columns. The pitch is for the banks: lanes write eight
// neighbouring pixels of every other column.
__device__ __forceinline__ int32_t ProductPitch(const DirectParams& p) {
  return ProductPitch(p.tile.halo[0] * p.tile.halo[1] * p.tile.halo[2]);
}

// A warp's sums over the channels: of kPixels blocks of 16 pixels by kBlocks of eight columns.
template <typename T, DirectTile kTile>
class PixelProducts {
  static constexpr int kPixels = kTile.positions, kBlocks = kTile.col_blocks();
  static_assert(kTraits<T>.mma_depth == 2 * kVector<T>, "a multiplication takes the channels of two vectors");
  static constexpr int kSteps = kTile.vectors / 2;  // of 16 channels, of a channel part

 public:
  __device__ __forceinline__ PixelProducts(const DirectParams& p, int warp)
      : first_pixel_(warp * kPixels * 16), pixels_(p.tile.halo[0] * p.tile.halo[1] * p.tile.halo[2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      from_[i] = (min(first_pixel_ + i * 16 + lane % 16, pixels_ - 1) << p.src_pixel.pitch) * 16;
    }
    // The swizzle is the same for each block of 16 pixels: a step's vector is at the same offset in all of them.
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      vector_[s] = p.src_pixel.Exchange(min(2 * s + lane / 16, p.src_pixel.vectors - 1), lane % 16) * 16;
    }
  }

  __device__ __forceinline__ void Clear() { ClearSums(sum_); }

  // Adds the products of a channel part's channels.
  __device__ __forceinline__ void Multiply(uint32_t box, uint32_t filter, int steps) {
    filter += threadIdx.x % 32 * 16;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s >= steps) return;
      uint32_t a[kPixels][4], b[kBlocks][2];
#pragma unroll
      for (int i = 0; i < kPixels; ++i) ptx::LoadMatrices<false>(a[i], box + from_[i] + vector_[s]);
#pragma unroll
      for (int j = 0; j < kBlocks; ++j) {
        ptx::LoadTwoMatrices<false>(b[j][0], b[j][1], filter + (s * kBlocks + j) * kColBlockBytes);
      }
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) ptx::MultiplyAdd<T>(sum_[i][j], a[i], b[j][0], b[j][1]);
      }
    }
  }

  __device__ __forceinline__ void Write(const DirectParams& p, float* products) const {
    const int lane = threadIdx.x % 32, pitch = ProductPitch(p);
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = first_pixel_ + i * 16 + half * 8 + lane / 4;
        if (pixel >= pixels_) return;
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) {
          float* to = products + (j * 8 + lane % 4 * 2) * pitch + pixel;
          to[0] = sum_[i][j][2 * half], to[pitch] = sum_[i][j][2 * half + 1];
        }
      }
    }
  }

 private:
  int first_pixel_;
  int pixels_;              // of the halo tile
  uint32_t from_[kPixels];  // bytes
  uint32_t vector_[kSteps];
  float sum_[kPixels][kBlocks][4];
};

// Fills two tables. The columns' offsets among the products: bytes from the first column's product of the first pixel
// that a position sees to its own product of the pixel that its tap sees. And the filter's matrices of eight columns by
// a vector of source channels: two of these, for each block of columns, for each 16 channels of a channel part, for
// each channel part; zeros where there is no such tap or channel. A thread has one column and reads its tap once. To be
// called by all. Copies are under way when it returns.
template <typename T, DirectTile kTile>
__device__ __forceinline__ void FillColumns(const DirectParams& p, const DirectBlock& block, const HaloOrigin& origin,
                                            int steps, char* shared) {
  constexpr int kBlocks = kTile.col_blocks(), kCols = kBlocks * 8, kAbreast = 32 * kTile.warps / kCols;
  const int col = threadIdx.x % kCols, first = threadIdx.x / kCols, outs = block.channels.dst_count;
  if (first >= kAbreast) return;
  const int tap_index = col / outs, out = col % outs;
  const bool is_tap = tap_index < block.residue().tap_count;
  Tap tap = {};
  if (is_tap) tap = p.taps[block.residue().first_tap + tap_index];
  if (first == 0) {
    const int32_t d = tap.shift[0] - origin.low[0], h = tap.shift[1] - origin.low[1], w = tap.shift[2] - origin.low[2];
    const int32_t pixel = (d * p.tile.halo[1] + h) * p.tile.halo[2] + w;
    reinterpret_cast<int32_t*>(shared + p.offsets.entries)[col] = (col * ProductPitch(p) + pixel) * 4;
  }
  const FilterStrides& strides = p.problem.filter;
  const T* filter = static_cast<const T*>(p.rhs) + tap.filter_delta + out * strides.out;
  const FastDivmod<int32_t> by_vectors(2 * steps);
  auto* rows = reinterpret_cast<FilterRow<T>*>(shared + p.offsets.filter) + col / 8 * 16 + col % 8;
#pragma unroll 2  // scalar loads of both are under way
  for (int i = first; i < p.channel_parts * 2 * steps; i += kAbreast) {
    int32_t vector;
    const int32_t channel_part = by_vectors.Divide(i, &vector);
    const int32_t in = (channel_part * p.src_pixel.vectors + vector) * kVector<T>;
    const bool is_there = is_tap && vector < p.src_pixel.vectors && in < block.channels.src_count;
    const T* from = is_there ? filter + in * strides.in : filter;
    FilterRow<T>* to = rows + i / 2 * kBlocks * 16 + i % 2 * 8;
    if (p.filter_order == FilterOrder::kIns) {
      ptx::CopyAsync(ptx::SharedAddress(to), from, is_there);
      continue;
    }
    FilterRow<T> pack;
#pragma unroll
    for (int k = 0; k < kVector<T>; ++k) pack.v[k] = is_there ? from[k * strides.in] : T(0.0f);
    *to = pack;
  }
}

// Results of an output tile: each sums its taps in order, and ends with the epilogue. Neighbouring lanes have
// neighbouring positions of a channel: their products are in different banks.
template <typename Out, bool kHasEpilogue, int kThreads>
__device__ __forceinline__ void StoreTapSums(const DirectParams& p, const DirectBlock& block, const TileEnd& end,
                                             const char* shared, const char* products) {
  const Position* positions = reinterpret_cast<const Position*>(shared + p.offsets.positions);
  const int32_t* columns = reinterpret_cast<const int32_t*>(shared + p.offsets.entries);
  const int32_t outs = block.channels.dst_count, taps = block.residue().tap_count;
  const int32_t down = static_cast<int32_t>(p.problem.step[1]) * p.tile.halo[2] * 4;
  const int32_t right = static_cast<int32_t>(p.problem.step[2]) * 4;
  const FastDivmod<int32_t> by_positions(p.positions);
  const EpilogueOf<float, kHasEpilogue> epilogue(p.epilogue, block.channels.dst);
#pragma unroll 1
  for (int i = threadIdx.x; i < p.positions * outs; i += kThreads) {
    int32_t position;
    const int32_t out = by_positions.Divide(i, &position);
    const Position at = positions[position];
    if (!end.Has(at)) continue;
    const char* first = products + at.row * down + at.column * right;
    float sum = 0;
#pragma unroll 9  // of a window of 3 x 3 all are under way
    for (int tap = 0; tap < taps; ++tap) sum += *reinterpret_cast<const float*>(first + columns[tap * outs + out]);
    const int64_t element = end.to + at.to + out;
    static_cast<Out*>(p.out)[element] = static_cast<Out>(epilogue(sum, out, element));
  }
}

template <typename T, bool kHasEpilogue, int kTileIndex>
__global__ void __launch_bounds__(32 * kDirectTiles[kTileIndex].warps, kDirectTiles[kTileIndex].conv_blocks())
    DirectTapsInN(const __grid_constant__ DirectParams p) {
  constexpr DirectTile kTile = kDirectTiles[kTileIndex];
  constexpr int kThreads = 32 * kTile.warps;
  static_assert(kTile.vectors % 2 == 0, "a channel part is read in steps of two vectors");
  static_assert(kTile.packed == 0 && !kTile.streams_rows(), "pixels are whole vectors, and are read once");
  extern __shared__ __align__(1024) char shared[];
  const ConvProblem& q = p.problem;
  PrefetchTables(p, q.tap_count * q.in_channels * q.out_channels * kTraits<T>.bytes);
  const Box box = SourceBox(p, p.has_rows);
  box.Prefetch();
  const DirectBlock block(p, 1, kVector<T>);
  if (block.worker >= block.tiles) return;
  if (block.residue().tap_count > p.tile.taps) __trap();  // the plan is of another problem
  const uint32_t base = ptx::SharedAddress(shared);
  const HaloOrigin origin(p, block.residue());
  DirectPipeline read(base + p.offsets.barriers);
  if (threadIdx.x == 0) read.Init(kBoxArrivals, kTile.warps);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  HaloTiles<T, false> halo_tiles(block, read);
  const auto copy = [&] { halo_tiles.CopyNext(p, block, origin, box, base); };
  const int steps = FilterSteps(1, p.src_pixel.vectors, 0, 0).all;
  FillColumns<T, kTile>(p, block, origin, steps, shared);
  ptx::CommitCopies();
  __syncthreads();
  for (int stage = 0; stage < kDirectStages && warp == 0; ++stage) copy();  // behind the filter, which they would delay
  FillPositions<kThreads, false>(p, shared);
  ptx::WaitForCopies<0>();
  __syncthreads();
  PixelProducts<T, kTile> products(p, warp);
#pragma unroll 1
  for (int32_t tile = block.worker; tile < block.tiles; tile += p.workers) {
    products.Clear();
#pragma unroll 1
    for (int channel_part = 0;; ++channel_part) {
      read.WaitUntilFull();
      products.Multiply(base + read.stage() * p.offsets.stage,
                        base + p.offsets.filter + channel_part * steps * kTile.col_blocks() * kColBlockBytes, steps);
      if (channel_part + 1 == p.channel_parts) break;
      read.Release();
      if (warp == 0) copy();
    }
    char* stage = shared + read.stage() * p.offsets.stage;
    __syncthreads();  // the last channel part's pixels have been read
    products.Write(p, reinterpret_cast<float*>(stage));
    __syncthreads();
    const TileEnd end(p, block, block.CoordOf(p, tile));
    WithResultType<T, kHasEpilogue>(p.out_type, [&](auto type) {
      StoreTapSums<decltype(type), kHasEpilogue, kThreads>(p, block, end, shared, stage);
    });
    ptx::FenceForTma();
    read.Release();
    if (warp == 0) copy();
  }
}

}  // namespace jaxconv
