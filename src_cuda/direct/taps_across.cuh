// The direct family's conv to few channels: rows are source pixels, columns (tap, output channel)s, steps channels.
// A pixel is read and multiplied once, with all taps. An output is then the sum of what the pixels that it sees have
// for it: these products pass through shared memory, in the place of the pixels.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/epilogue.cuh"
#include "common/ptx.cuh"
#include "direct/boxes.cuh"
#include "direct/filter.cuh"
#include "direct/params.cuh"
#include "direct/ring.cuh"
#include "direct/tables.cuh"

namespace jaxconv {

// The products of a box's pixels lie in shared memory by columns. The pitch is for the banks: lanes that write have
// eight pixels, one beside the other, of every other column.
__device__ __forceinline__ int32_t ProductPitch(const DirectParams& p) {
  return ProductPitch(p.area.box[0] * p.area.box[1] * p.area.box[2]);
}

// A warp's sums over the channels: of kPixels blocks of 16 pixels by kBlocks of eight columns.
template <typename T, DirectTile kTile>
class PixelProducts {
  static constexpr int kPixels = kTile.positions, kBlocks = kTile.col_blocks();
  static_assert(kTraits<T>.mma_depth == 2 * kVector<T>, "a multiplication takes the channels of two vectors");
  static constexpr int kSteps = kTile.pieces / 2;  // of 16 channels, of a chunk

 public:
  __device__ __forceinline__ PixelProducts(const DirectParams& p, int warp)
      : first_pixel_(warp * kPixels * 16), pixels_(p.area.box[0] * p.area.box[1] * p.area.box[2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kPixels; ++i) {
      from_[i] = (min(first_pixel_ + i * 16 + lane % 16, pixels_ - 1) << p.src_pixel.pitch) * 16;
    }
    // As blocks of 16 pixels do not matter to the exchange of pieces, a step's is in the same place in all of them.
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      piece_[s] = p.src_pixel.Exchange(min(2 * s + lane / 16, p.src_pixel.pieces - 1), lane % 16) * 16;
    }
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& blocks : sum_) {
#pragma unroll
      for (auto& four : blocks) four[0] = four[1] = four[2] = four[3] = 0;
    }
  }

  // Adds the products of a chunk's channels.
  __device__ __forceinline__ void Multiply(uint32_t box, uint32_t filter, int steps) {
    filter += threadIdx.x % 32 * 16;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      if (s >= steps) return;
      uint32_t a[kPixels][4], b[kBlocks][2];
#pragma unroll
      for (int i = 0; i < kPixels; ++i) ptx::LoadMatrices<false>(a[i], box + from_[i] + piece_[s]);
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
  int pixels_;              // of the box
  uint32_t from_[kPixels];  // bytes
  uint32_t piece_[kSteps];
  float sum_[kPixels][kBlocks][4];
};

// Works out of each column its place among the products: bytes from the first column's of the first pixel that a
// position sees to its own of the pixel that its tap sees. And the filter's matrices of eight columns by eight source
// channels: two of these, for each block of columns, for each 16 channels of a chunk, for each chunk; zeros where there
// is no such tap or channel. A thread has a column, whose tap it reads once. To be called by all; they wait for the
// copies, and for each other, later.
template <typename T, DirectTile kTile>
__device__ __forceinline__ void FillColumns(const DirectParams& p, const DirectBlock& block, const BoxOrigin& origin,
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
    const int32_t pixel = (d * p.area.box[1] + h) * p.area.box[2] + w;
    reinterpret_cast<int32_t*>(shared + p.places.entries)[col] = (col * ProductPitch(p) + pixel) * 4;
  }
  const FilterStrides& strides = p.problem.filter;
  const T* filter = static_cast<const T*>(p.rhs) + tap.filter_delta + out * strides.out;
  const Divider<int32_t> by_pieces(2 * steps);
  auto* rows = reinterpret_cast<FilterRow<T>*>(shared + p.places.filter) + col / 8 * 16 + col % 8;
#pragma unroll 2  // scalar loads of both are under way
  for (int i = first; i < p.chunks * 2 * steps; i += kAbreast) {
    int32_t piece;
    const int32_t chunk = by_pieces.Divide(i, &piece);
    const int32_t in = (chunk * p.src_pixel.pieces + piece) * kVector<T>;
    const bool is_there = is_tap && piece < p.src_pixel.pieces && in < block.channels.src_count;
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

// Results of an area: sums of each in the order of taps, then the epilogue, rounded and stored as they lie.
// Neighbouring lanes have neighbouring positions of a channel, whose products are in different banks.
template <typename Out, bool kHasEpilogue, int kThreads>
__device__ __forceinline__ void StoreTapSums(const DirectParams& p, const DirectBlock& block, const AreaEnd& end,
                                             const char* shared, const char* products) {
  const Position* positions = reinterpret_cast<const Position*>(shared + p.places.positions);
  const int32_t* columns = reinterpret_cast<const int32_t*>(shared + p.places.entries);
  const int32_t outs = block.channels.dst_count, taps = block.residue().tap_count;
  const int32_t down = static_cast<int32_t>(p.problem.step[1]) * p.area.box[2] * 4;
  const int32_t right = static_cast<int32_t>(p.problem.step[2]) * 4;
  const Divider<int32_t> by_positions(p.positions);
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
    static_cast<Out*>(p.out)[end.to + at.to + out] = static_cast<Out>(epilogue(sum, out));
  }
}

template <typename T, bool kHasEpilogue, int kTileIndex>
__global__ void __launch_bounds__(32 * kDirectTiles[kTileIndex].warps, kDirectTiles[kTileIndex].conv_blocks())
    DirectTapsAcross(const __grid_constant__ DirectParams p) {
  constexpr DirectTile kTile = kDirectTiles[kTileIndex];
  constexpr int kThreads = 32 * kTile.warps;
  static_assert(kTile.pieces % 2 == 0, "a chunk is read in steps of two pieces");
  static_assert(kTile.run == 0 && !kTile.walks(), "pixels are whole pieces, and are read once");
  extern __shared__ __align__(1024) char shared[];
  const ConvProblem& q = p.problem;
  PrefetchTables(p, q.tap_count * q.in_channels * q.out_channels * kTraits<T>.bytes);
  const Box box = SourceBox(p);
  box.Prefetch();
  const DirectBlock block(p, 1, kVector<T>);
  if (block.worker >= block.areas) return;
  if (block.residue().tap_count > p.area.taps) __trap();  // the plan is of another problem
  const uint32_t base = ptx::SharedAddress(shared);
  const BoxOrigin origin(p, block.residue());
  DirectRing read(base + p.places.barriers);
  if (threadIdx.x == 0) read.Init(kBoxArrivals, kTile.warps);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  AreaBoxes<T, false> boxes(block, read);
  const auto copy = [&] { boxes.CopyNext(p, block, origin, box, base); };
  const int steps = FilterSteps(1, p.src_pixel.pieces, 0, 0).all;
  FillColumns<T, kTile>(p, block, origin, steps, shared);
  ptx::CommitCopies();
  __syncthreads();
  for (int stage = 0; stage < kDirectStages && warp == 0; ++stage) copy();  // behind the filter, which they would delay
  FillPositions<kThreads, false>(p, shared);
  ptx::WaitForCopies<0>();
  __syncthreads();
  PixelProducts<T, kTile> products(p, warp);
#pragma unroll 1
  for (int32_t area = block.worker; area < block.areas; area += p.workers) {
    products.Clear();
#pragma unroll 1
    for (int chunk = 0;; ++chunk) {
      read.WaitUntilFull();
      products.Multiply(base + read.stage() * p.places.stage,
                        base + p.places.filter + chunk * steps * kTile.col_blocks() * kColBlockBytes, steps);
      if (chunk + 1 == p.chunks) break;
      read.Release();
      if (warp == 0) copy();
    }
    char* stage = shared + read.stage() * p.places.stage;
    __syncthreads();  // the last chunk's pixels have been read
    products.Write(p, reinterpret_cast<float*>(stage));
    __syncthreads();
    const AreaEnd end(p, block, block.Place(p, area));
    WithType<float>(p.out_type, [&](auto type) {
      StoreTapSums<decltype(type), kHasEpilogue, kThreads>(p, block, end, shared, stage);
    });
    ptx::FenceForTma();
    read.Release();
    if (warp == 0) copy();
  }
}

}  // namespace jaxconv
