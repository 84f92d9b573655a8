// The direct family's wgrad on tensor cores: M is entries, N output channels, K positions. A thread block keeps the
// sums of all its channels' taps in registers. It may add up the gradient as well, which is a bias's gradient.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "direct/params.cuh"
#include "direct/pipeline.cuh"
#include "direct/tables.cuh"

namespace jaxconv {

// A FilterOffset in 32 bits, which sums fit: of a row or of a column.
struct alignas(8) ResultOffset {
  int32_t at;
  int32_t group;
};

// A warp's sums: kRows blocks of two entries by a set of output channels, over a part of the positions.
template <typename T, DirectTile kTile, bool kOdd>
class DirectFilterSums {
  static constexpr int kRows = kTile.filter_rows, kBlocks = kTile.set;
  static constexpr int kSteps = 2;  // of 16 positions, whose gradients are in registers
  static constexpr bool kPacked = kTile.packed > 0;
  static_assert(kTraits<T>.bytes == 2, "ldmatrix transposes elements of 16 bits");

 public:
  // `item`: of the sets and their parts of kRows.
  __device__ __forceinline__ DirectFilterSums(const DirectParams& p, int item, int entries)
      : first_col_(item % (p.col_blocks / kBlocks) * kBlocks * 8),
        first_entry_(item / (p.col_blocks / kBlocks) * kRows * 2),
        entries_(entries),
        first_vector_(FirstVector<T>(p, first_col_)) {}

  // Adds the products of an output tile, of a part of its positions.
  __device__ __forceinline__ void MultiplyTile(const DirectParams& p, const char* shared, uint32_t stage,
                                               const TileEnd& end, int part) {
    const auto multiply = [&](auto is_whole) {
#pragma unroll 1
      for (int position = part * 32; position < p.positions; position += p.parts * 32) {
        Multiply<is_whole>(p, shared, stage, stage + p.offsets.gradient, end, position);
      }
    };
    if (end.rows * end.cols == p.positions) {
      multiply(std::true_type());
    } else {
      multiply(std::false_type());
    }
  }

  // To shared memory. `sums`: where those of the item and of its part of the positions begin. Each lane has its own
  // sums there, by fours.
  __device__ __forceinline__ void Write(float4* sums) const {
#pragma unroll
    for (int at = 0; at < kRows * kBlocks; ++at) {
      const float (&sum)[4] = sum_[at / kBlocks][at % kBlocks];
      sums[at * 32 + threadIdx.x % 32] = {sum[0], sum[1], sum[2], sum[3]};
    }
  }
  static constexpr int kFours = kRows * kBlocks * 32;

  // Where results are stored: by the item's rows, eight to an entry, and behind them by its columns. To be called by
  // the warps of all its parts, before a barrier. It takes long, but meanwhile the first halo tile is on its way.
  __device__ __forceinline__ void FillOffsets(const DirectParams& p, const DirectBlock& block, const HaloOrigin& origin,
                                              ResultOffset* results, int part) const {
    const FilterOffsets offsets(p, block.channels, !kPacked && p.block_groups > 0);
#pragma unroll 1
    for (int i = part * 32 + threadIdx.x % 32; i < kResultOffsets; i += p.parts * 32) {
      const FilterOffset offset =
          i < kRows * 16 ? OffsetOfRow(p, block, origin, offsets, i) : offsets.OfOut(first_col_ + i - kRows * 16);
      results[i] = {static_cast<int32_t>(offset.at), offset.group};
    }
  }
  static constexpr int kResultOffsets = kRows * 16 + kBlocks * 8;

  // Adds what all parts of the positions have written, and stores it. Each part takes some blocks. `sums`: where
  // those of the item's first part begin.
  __device__ __forceinline__ void Store(const DirectParams& p, const DirectBlock& block, const float4* sums,
                                        const ResultOffset* results, int part) const {
    const int lane = threadIdx.x % 32;
    const ResultOffset *rows = results + lane / 4, *cols = results + kRows * 16 + lane % 4 * 2;
    const int64_t slice = block.worker * p.out_elements;
#pragma unroll 1
    for (int at = part; at < kRows * kBlocks; at += p.parts) {
      const float4 sum = AddParts(p, sums + at * 32 + lane);
      const ResultOffset *row = rows + at / kBlocks * 16, *col = cols + at % kBlocks * 8;
      StorePair(p, slice, row[0], col, {sum.x, sum.y});
      StorePair(p, slice, row[8], col, {sum.z, sum.w});
    }
  }

  // Of an output tile's positions, for sums of the gradient: a warp's share, among those of all warps that have its
  // columns; or none. Of thread blocks that read the same gradient, the one that has the first channel adds it up.
  struct GradientShare {
    int number;
    int all;
  };
  __device__ __forceinline__ GradientShare ShareOfGradient(const DirectParams& p, const DirectBlock& block,
                                                           int part) const {
    const bool sums = p.gradient_sums != nullptr && part < p.parts && (p.channel_parts == 1 || block.channels.src == 0);
    const int of_part = p.items / (p.col_blocks / kBlocks);  // warps along the entries
    return {part * of_part + first_entry_ / (kRows * 2), sums ? p.parts * of_part : 0};
  }

  // Adds up an output tile's gradient, of the warp's share of its positions. `sums`: of its columns, in shared memory.
  // The sums of entries leave no registers for these, so tiles are read once more.
  __device__ __forceinline__ void AddGradient(const DirectParams& p, uint32_t stage, const GradientShare& share,
                                              float* sums) const {
    const uint32_t ones = RoundPair<T>(1, 1);
    float sum[CeilDiv(kBlocks, 2)][4] = {};
#pragma unroll 1
    for (int position = share.number * 32; position < p.positions; position += share.all * 32) {
      uint32_t b[kSteps][kBlocks][2];
      ReadGradient(p, stage + p.offsets.gradient, position, b);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int j = 0; j < kBlocks; j += 2) {
          uint32_t cols[4] = {b[k][j][0], 0, b[k][j][1], 0};  // of two blocks
          if constexpr (kBlocks > 1) cols[1] = b[k][j + 1][0], cols[3] = b[k][j + 1][1];
          ptx::MultiplyAdd<T>(sum[j / 2], cols, ones, ones);
        }
      }
    }
    if (threadIdx.x % 4 > 0) return;  // four lanes have the same sums
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) sums[i * 8 + threadIdx.x % 32 / 4] += sum[i / 2][i % 2 * 2];
  }

  // Stores them, of the worker's share.
  __device__ __forceinline__ void StoreGradientSums(const DirectParams& p, const DirectBlock& block,
                                                    const GradientShare& share, const float* sums) const {
    const int64_t row = static_cast<int64_t>(block.worker) * share.all + share.number;
    float* const to = p.gradient_sums + row * p.all_channels + block.channels.dst + first_col_;
    for (int col = threadIdx.x % 32; col < min(kCols, block.channels.dst_count - first_col_); col += 32) {
      to[col] = sums[col];
    }
  }
  static constexpr int kCols = kBlocks * 8;

 private:
  // Adds the products of 32 positions. kWhole: the output tile has all its positions, and none is looked at.
  template <bool kWhole>
  __device__ __forceinline__ void Multiply(const DirectParams& p, const char* shared, uint32_t box, uint32_t gradient,
                                           const TileEnd& end, int first_position) {
    const int lane = threadIdx.x % 32, matrix = lane / 8;
    const Position* positions = reinterpret_cast<const Position*>(shared + p.offsets.positions) + first_position;
    const uint32_t pixels = ptx::SharedAddress(shared) + p.offsets.position_pixels;
    constexpr int kHalves = kPacked ? 2 : 1;  // of a step, in each of which the lane has a position
    using Address = std::conditional_t<kPacked, PackedLane<kOdd>, uint32_t>;
    Address from[kSteps][kHalves];
    bool is_there[kSteps][kHalves];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        const int at =
            k * 16 + (kPacked ? half * kMatrixRows + lane / 4 : matrix / 2 * kMatrixRows + lane % kMatrixRows);
        // The gradient is zero elsewhere, and so must be what it is multiplied with.
        is_there[k][half] = kWhole || end.Has(positions[at]);
        const uint32_t pixel = pixels + (first_position + at) * static_cast<int>(sizeof(uint32_t));
        from[k][half] = Address(box + ptx::LoadWord(pixel));
      }
    }
    uint32_t b[kSteps][kBlocks][2];
    ReadGradient(p, gradient, first_position, b);
    const uint32_t entries = ptx::SharedAddress(shared) + p.offsets.entries;
    const uint32_t zeros = ptx::SharedAddress(shared) + p.offsets.zeros;
    uint32_t a[2][kSteps][4];  // while one block of rows is multiplied, the next is read
    const auto read = [&](int i) {
      if constexpr (kPacked) {  // positions lie anywhere
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const uint32_t offset = ReadEntry(entries, min(first_entry_ + 2 * i + row, entries_ - 1));
#pragma unroll
          for (int k = 0; k < kSteps; ++k) {
#pragma unroll
            for (int half = 0; half < kHalves; ++half) {
              const uint32_t elements = from[k][half].Load(offset);
              a[i % 2][k][half * 2 + row] = ptx::Transpose(is_there[k][half] ? elements : 0);
            }
          }
        }
      } else {
        const uint32_t entry = ReadEntry(entries, min(first_entry_ + 2 * i + matrix % 2, entries_ - 1));
        const uint32_t offset = entry ^ first_vector_ * 16;
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          ptx::LoadMatrices<true>(a[i % 2][k], is_there[k][0] ? from[k][0] + offset : zeros);
        }
      }
    };
    read(0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (i + 1 < kRows) read(i + 1);
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int j = 0; j < kBlocks; ++j) ptx::MultiplyAdd<T>(sum_[i][j], a[i % 2][k], b[k][j][0], b[k][j][1]);
      }
    }
  }

  // In the order of the parts: the sum is the same each time.
  static __device__ __forceinline__ float4 AddParts(const DirectParams& p, const float4* sums) {
    float4 sum = sums[0];
    const int apart = p.items * kFours;
#pragma unroll
    for (int part = 1; part < kWgradWarps; ++part) {
      const float4 other = part < p.parts ? sums[part * apart] : float4{};
      sum.x += other.x, sum.y += other.y, sum.z += other.z, sum.w += other.w;
    }
    return sum;
  }

  __device__ __forceinline__ FilterOffset OffsetOfRow(const DirectParams& p, const DirectBlock& block,
                                                      const HaloOrigin& origin, const FilterOffsets& offsets,
                                                      int row) const {
    const int entry = first_entry_ + row / 8;
    if (entry >= entries_) return {0, -1};
    const Tap* taps = p.taps + block.residue().first_tap;
    int32_t vector, tap = p.by_vectors.Divide(entry, &vector), in = (vector + first_vector_) * kVector<T> + row % 8;
    if constexpr (kPacked) {  // an entry has several taps of a row, or parts of them
      const int32_t element = in - origin.PackedSkip(p);
      if (element < 0 || element >= p.tile.packed * static_cast<int32_t>(p.problem.in_channels)) return {0, -1};
      taps += tap * p.tile.packed;
      tap = origin.TapOfPacked(p, taps, p.by_ins.Divide(element, &in));
    }
    FilterOffset offset = offsets.OfIn(in);
    offset.at += taps[tap].filter_delta;
    return offset;
  }

  // Two columns' sums of a row, those that exist. Neighbours in a slice are stored as a pair.
  static __device__ __forceinline__ void StorePair(const DirectParams& p, int64_t slice, ResultOffset row,
                                                   const ResultOffset* cols, float2 sum) {
    const int32_t first = row.at + cols[0].at, second = row.at + cols[1].at;
    const bool has_first = row.group == cols[0].group, has_second = row.group == cols[1].group;
    if (p.out_type == DType::kF32 && has_first && has_second && second == first + 1 && (slice + first) % 2 == 0) {
      StoreNarrowed(Pack<float, 2>{sum.x, sum.y}, p.out, slice + first, DType::kF32);
      return;
    }
    if (has_first) StoreNarrowed(Pack<float, 1>{sum.x}, p.out, slice + first, p.out_type);
    if (has_second) StoreNarrowed(Pack<float, 1>{sum.y}, p.out, slice + second, p.out_type);
  }

  __device__ __forceinline__ void ReadGradient(const DirectParams& p, uint32_t gradient, int first_position,
                                               uint32_t (&b)[kSteps][kBlocks][2]) const {
    const int lane = threadIdx.x % 32, matrix = lane / 8;
    const auto address = [&](int position, int block) {
      const int32_t pixel = first_position + position;
      return gradient + ((pixel << p.dst_pixel.pitch) + p.dst_pixel.Exchange(first_col_ / 8 + block, pixel)) * 16;
    };
    static_assert(kSteps == 2 && (kBlocks == 1 || kBlocks % 2 == 0));
    uint32_t four[4];
    if constexpr (kBlocks == 1) {
      ptx::LoadMatrices<true>(four, address(lane, 0));
      b[0][0][0] = four[0], b[0][0][1] = four[1], b[1][0][0] = four[2], b[1][0][1] = four[3];
    } else {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
#pragma unroll
        for (int j = 0; j < kBlocks; j += 2) {
          ptx::LoadMatrices<true>(four, address(k * 16 + lane % 16, j + matrix / 2));
          b[k][j][0] = four[0], b[k][j][1] = four[1], b[k][j + 1][0] = four[2], b[k][j + 1][1] = four[3];
        }
      }
    }
  }

  int first_col_;
  int first_entry_;
  int entries_;
  uint32_t first_vector_;
  float sum_[kRows][kBlocks][4] = {};
};

// What a wgrad looks up for all output tiles. No copy reaches positions behind an output tile's end: they are zeros.
template <bool kPacked>
__device__ __forceinline__ void FillWgradTables(const DirectParams& p, const DirectBlock& block,
                                                const HaloOrigin& origin, char* shared) {
  constexpr int kThreads = 32 * kWgradWarps;
  FillTables<kThreads, false, kPacked>(p, block.residue(), origin, shared);
  uint32_t* pixels = reinterpret_cast<uint32_t*>(shared + p.offsets.position_pixels);
#pragma unroll 1
  for (int i = threadIdx.x; i < p.positions; i += kThreads) {
    pixels[i] = kPacked ? PackedOf<false>(p, i) : PixelOf<false>(p, i);
  }
  const int32_t first = p.tile.rows * p.tile.cols << p.dst_pixel.pitch, last = p.positions << p.dst_pixel.pitch;
#pragma unroll 1
  for (int i = first + threadIdx.x; i < last; i += kThreads) {
    for (int stage = 0; stage < kDirectStages; ++stage) {
      reinterpret_cast<uint4*>(shared + stage * p.offsets.stage + p.offsets.gradient)[i] = {};
    }
  }
}

template <typename T, int kTileIndex, bool kOdd>
__global__ void __launch_bounds__(32 * kWgradWarps, kDirectTiles[kTileIndex].wgrad_blocks())
    DirectWgrad(const __grid_constant__ DirectParams p) {
  constexpr DirectTile kTile = kDirectTiles[kTileIndex];
  constexpr bool kPacked = kTile.packed > 0;
  extern __shared__ __align__(1024) char shared[];
  const Box box = SourceBox(p, false), gradient = GradientBox(p);
  box.Prefetch();
  gradient.Prefetch();
  PrefetchTables(p, 0);
  const DirectBlock block(p, p.channel_parts, kVector<T>);
  const uint32_t base = ptx::SharedAddress(shared);
  const HaloOrigin origin(p.tile);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  DirectPipeline filled(base + p.offsets.barriers), read = filled;
  int32_t next = block.worker;  // the output tile that is copied next
  const auto copy = [&] {
    if (next >= block.tiles) return;
    const TileCoord coord = block.CoordOf(p, next);
    int32_t at[kSpatial];
    origin.HaloAt<kPacked>(p, coord, at);
    const uint32_t stage = base + filled.stage() * p.offsets.stage;
    filled.WaitUntilEmpty();
    box.template Copy<T>(stage, filled.full(), block.channels.src, at, coord.image);
    gradient.template Copy<T>(stage + p.offsets.gradient, filled.full(), block.channels.dst, coord.at, coord.image);
    Box::Arrive(filled.full(), box.Bytes() + gradient.Bytes());
    filled.Advance();
    next += p.workers;
  };
  if (warp == 0) {  // copies begin before anything is read: a small layer waits for them
    if (threadIdx.x == 0) filled.Init(kBoxArrivals, kWgradWarps);
    ptx::FenceForTma();
    __syncwarp();
#pragma unroll 1
    for (int stage = 0; stage < kDirectStages; ++stage) copy();
  } else if (warp == kWgradWarps - 1 && block.tiles > 0) {
    CheckOrigin(p, block.residue(), origin);
    if (kPacked) CheckPacked(p, block.residue(), origin);
  }
  FillWgradTables<kPacked>(p, block, origin, shared);
  const int entries = FilterSteps(block.residue().tap_count, p.entry_vectors, 0, p.tile.packed).entries;
  const int part = warp / p.items, item = warp % p.items;
  DirectFilterSums<T, kTile, kOdd> sums(p, item, entries);
  ResultOffset* results = reinterpret_cast<ResultOffset*>(shared + p.offsets.sums) + item * sums.kResultOffsets;
  if (part < p.parts) sums.FillOffsets(p, block, origin, results, part);
  const auto share = sums.ShareOfGradient(p, block, part);
  float* gradient_sums = reinterpret_cast<float*>(shared + p.offsets.gradient_sums) + warp * sums.kCols;
  for (int col = threadIdx.x % 32; col < sums.kCols; col += 32) gradient_sums[col] = 0;
  __syncthreads();
#pragma unroll 1
  for (int32_t tile = block.worker; tile < block.tiles; tile += p.workers) {
    const TileEnd end(p, block, block.CoordOf(p, tile));
    read.WaitUntilFull();
    if (part < p.parts && entries > 0) {
      const uint32_t stage = base + read.stage() * p.offsets.stage;
      sums.MultiplyTile(p, shared, stage, end, part);
      if (share.all > 0) sums.AddGradient(p, stage, share, gradient_sums);
    }
    read.Release();
    if (warp == 0) copy();
  }
  __syncthreads();  // the exchange takes the stages' place
  float4* exchange = reinterpret_cast<float4*>(shared);
  if (part < p.parts) sums.Write(exchange + warp * sums.kFours);
  __syncthreads();
  if (part < p.parts) {
    sums.Store(p, block, exchange + item * sums.kFours, results, part);
    if (share.all > 0) sums.StoreGradientSums(p, block, share, gradient_sums);
  }
}

}  // namespace jaxconv
