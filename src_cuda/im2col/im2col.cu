// Explicit im2col, then a GEMM on CUDA cores whose threads each sum up a two-dimensional tile: the classical way, for
// any problem, as the baseline of the families that never write the column matrix.
//
// The column matrix has a row for each output position and a column for each (tap, channel) that the position's class
// sees. The positions of a class begin at a tile's boundary, so that no tile of rows has two classes. Scratch holds
// `chunk` rows at a time: a conv's chunks are parts of its result; a wgrad's are added up, one after the other.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "common/convert.cuh"
#include "common/enqueue.cuh"
#include "common/epilogue.cuh"
#include "common/points.cuh"
#include "common/product.h"
#include "common/step_table.cuh"
#include "common/store_sums.cuh"
#include "common/tile_loader.cuh"
#include "common/types.h"
#include "families.h"
#include "im2col/config.h"
#include "im2col/settings.h"

namespace jaxconv {
namespace {

// The rows of the column matrix that are in the workspace. A row is [group][tap of its class][channel].
struct Columns {
  void* data;
  int64_t first_row;  // a multiple of the tile's rows
  int64_t rows;
  int64_t pitch;  // elements from a row to the next
  int64_t width;  // and from a group's part to the next
};

struct Im2colParams {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  Columns columns;
  uint32_t src_size[kSpatial];
  uint32_t step_blocks;
  int tile_rows;
};

constexpr int kIm2colSteps = 32;  // a warp copies neighbouring channels of one position
constexpr int kIm2colWarps = 8;
constexpr int kIm2colRows = 32;  // of the column matrix, one thread block's
static_assert(kIm2colRows % kIm2colWarps == 0);

// Copies elements as words of their size: im2col does not look at them.
template <typename Word>
__global__ void Im2colKernel(const __grid_constant__ Im2colParams p) {
  __shared__ Point rows[kIm2colRows];
  uint32_t block = blockIdx.x;
  const uint32_t step_block = block % p.step_blocks;
  block /= p.step_blocks;
  const uint32_t group = block % static_cast<uint32_t>(p.problem.groups);
  const int64_t first = static_cast<int64_t>(block / p.problem.groups) * kIm2colRows;

  uint32_t tile = static_cast<uint32_t>((p.columns.first_row + first) / p.tile_rows);
  const int64_t row_in_tile = (p.columns.first_row + first) % p.tile_rows;
  const ResidueClass* residue = FindClass(p.problem, p.classes, false, p.tile_rows, &tile);
  if (residue == nullptr) return;
  const ClassPoints points{p.problem, p.taps, *residue, false};
  if (threadIdx.x < kIm2colRows) {
    const int64_t row = static_cast<int64_t>(tile) * p.tile_rows + row_in_tile + threadIdx.x;
    rows[threadIdx.x] = row < points.rows() ? points.Row(row) : Nowhere();
  }
  __syncthreads();

  const int64_t step = static_cast<int64_t>(step_block) * kIm2colSteps + threadIdx.x % kIm2colSteps;
  if (step >= points.steps()) return;
  const Point column = points.Step(step);
  const Word* src = static_cast<const Word*>(p.src) + group * p.problem.src.group + column.src;
  Word* to = static_cast<Word*>(p.columns.data) + first * p.columns.pitch + group * p.columns.width + step;
#pragma unroll
  for (int row = threadIdx.x / kIm2colSteps; row < kIm2colRows; row += kIm2colWarps) {
    bool inside = true;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      inside &= static_cast<uint32_t>(rows[row].at[d] + column.at[d]) < p.src_size[d];
    }
    to[row * p.columns.pitch] = inside ? src[rows[row].src] : Word{0};
  }
}

struct GemmParams {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  Columns columns;
  const void* rhs;
  void* out;  // the result, or the slices in the workspace
  DType rhs_type;
  DType out_type;
  uint32_t row_tiles;
  uint32_t col_tiles;
  int64_t rhs_col_stride;
  int64_t rhs_group_stride;
  int64_t out_col_stride;
  int64_t out_group_stride;
  int64_t out_elements;  // of one slice
  int32_t split;
  bool accumulate;  // onto `out`, which then has the type of the sums
  Epilogue epilogue;
};

template <typename Acc, Tile kTile>
struct alignas(16) GemmTiles {
  Acc columns[kTile.depth][PaddedLines(kTile.rows)];
  Acc rhs[kTile.depth][PaddedLines(kTile.cols)];
  Point rows[kTile.rows];
  Point steps[2 * kTile.threads()];
};

// A thread's results: neighbouring rows by neighbouring columns.
template <typename Acc, Tile kTile>
class ThreadTile {
 public:
  static constexpr int kRows = kTile.thread_rows;
  static constexpr int kCols = kTile.thread_cols;

  __device__ int Row(int i) const { return threadIdx.x / (kTile.cols / kCols) * kRows + i; }
  __device__ int Col(int j) const { return threadIdx.x % (kTile.cols / kCols) * kCols + j; }

  __device__ __forceinline__ void Multiply(const Acc* a, const Acc* b) {
    Pack<Acc, 4> rows[kRows / 4], cols[kCols / 4];
#pragma unroll
    for (int i = 0; i < kRows; i += 4) rows[i / 4] = *reinterpret_cast<const Pack<Acc, 4>*>(a + Row(i));
#pragma unroll
    for (int j = 0; j < kCols; j += 4) cols[j / 4] = *reinterpret_cast<const Pack<Acc, 4>*>(b + Col(j));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kCols; ++j) sum_[i][j / 4].v[j % 4] += rows[i / 4].v[i % 4] * cols[j / 4].v[j % 4];
    }
  }

  // The sums of row i at columns j to j + 3.
  __device__ Pack<Acc, 4>& Sums(int i, int j) { return sum_[i][j / 4]; }
  __device__ const Pack<Acc, 4>& Sums(int i, int j) const { return sum_[i][j / 4]; }

  // Begins with the sums of the chunks before.
  __device__ void Load(const Acc* from, const Point* rows, int64_t first_col, int64_t cols, int64_t col_stride) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = rows[Row(i)].partner;
#pragma unroll
      for (int j = 0; j < kCols; ++j) {
        const int64_t col = first_col + Col(j);
        if (row >= 0 && col < cols) sum_[i][j / 4].v[j % 4] = from[row + col * col_stride];
      }
    }
  }

 private:
  Pack<Acc, 4> sum_[kRows][kCols / 4] = {};
};

// Fills a tile in shared memory by element(line, step); neighbouring threads go along steps or along lines.
template <bool kAlongSteps, int kThreads, typename Acc, int kDepth, int kPitch, typename F>
__device__ __forceinline__ void FillTile(Acc (&tile)[kDepth][kPitch], F&& element) {
  constexpr int kLines = kPitch - PaddedLines(0);
#pragma unroll
  for (int i = threadIdx.x; i < kLines * kDepth; i += kThreads) {
    const int line = kAlongSteps ? i / kDepth : i % kLines;
    const int step = kAlongSteps ? i % kDepth : i / kLines;
    tile[step][line] = element(line, step);
  }
}

template <typename Acc>
__device__ __forceinline__ Acc LoadWidened(const void* base, int64_t index, DType type) {
  RawPack<Acc, 1> raw;
  raw.Load(base, index, type);
  return raw.Widen(type).v[0];
}

template <typename Acc, int kTileIndex, bool kWgrad, bool kHasEpilogue>
__global__ void __launch_bounds__(kIm2colTiles[kTileIndex].threads(),
                                  512 / kIm2colTiles[kTileIndex].threads() / (sizeof(Acc) / 4))
    GemmKernel(const __grid_constant__ GemmParams p) {
  constexpr Tile kTile = kIm2colTiles[kTileIndex];
  constexpr int kThreads = kTile.threads();
  using Shared = GemmTiles<Acc, kTile>;
  static_assert(sizeof(Shared) <= 48 * 1024, "a block gets no more static shared memory");
  static_assert(kTile.stages == 1, "a tile is loaded, then multiplied");
  __shared__ Shared shared;

  uint32_t block = blockIdx.x;
  const uint32_t col_tile = block % p.col_tiles;
  block /= p.col_tiles;
  const uint32_t row_tile = block % p.row_tiles;
  block /= p.row_tiles;
  const uint32_t slice = block % p.split, group = block / p.split;

  // The rows of a conv's product are the column matrix's; those of a wgrad's its columns.
  uint32_t class_tile = row_tile + (kWgrad ? 0 : static_cast<uint32_t>(p.columns.first_row / kTile.rows));
  const ResidueClass* residue = FindClass(p.problem, p.classes, kWgrad, kTile.rows, &class_tile);
  if (residue == nullptr) return;
  const ClassPoints points{p.problem, p.taps, *residue, kWgrad};
  const int64_t first_row = static_cast<int64_t>(class_tile) * kTile.rows;

  int64_t class_begin = -p.columns.first_row;  // the class's first position, as a row in the workspace
  for (const ResidueClass* c = p.classes; kWgrad && c != residue; ++c) {
    const int64_t positions = Positions(p.problem, *c);
    class_begin += (positions + kTile.rows - 1) / kTile.rows * kTile.rows;
  }
  StepRange all{0, points.steps()};
  if (kWgrad) {
    all = {min(max(-class_begin, int64_t{0}), all.end), min(max(p.columns.rows - class_begin, int64_t{0}), all.end)};
  }
  if (p.accumulate && all.begin == all.end) return;
  const StepRange mine = all.Slice(slice, p.split, kTile.depth);

  for (int i = threadIdx.x; i < kTile.rows; i += kThreads) {
    Point point = Nowhere();
    if (first_row + i < points.rows()) {
      point = points.Row(first_row + i);
      point.partner += group * p.out_group_stride + slice * p.out_elements;
    }
    shared.rows[i] = point;
  }
  const StepTable<kThreads, kTile.depth> steps(shared.steps, points, mine);
  steps.Fill(0);
  __syncthreads();

  const int64_t first_col = static_cast<int64_t>(col_tile) * kTile.cols;
  ThreadTile<Acc, kTile> sums;
  if (p.accumulate) {
    sums.Load(static_cast<const Acc*>(p.out), shared.rows, first_col, p.problem.out_channels, p.out_col_stride);
  }

  const DType src_type = p.problem.src_type;
  const int64_t line_stride = kWgrad ? 1 : p.columns.pitch;
  const int64_t step_stride = kWgrad ? p.columns.pitch : 1;
  const int64_t origin = group * p.columns.width + (kWgrad ? class_begin * p.columns.pitch + first_row
                                                           : static_cast<int64_t>(row_tile) * kTile.rows * line_stride);
  const int64_t rhs_origin = group * p.rhs_group_stride + first_col * p.rhs_col_stride;
  const int tiles = mine.Tiles(kTile.depth);
#pragma unroll 1
  for (int first = 0; first < tiles; first += steps.kTilesPerHalf) {
    steps.FillAfter(first);
#pragma unroll 1
    for (int tile = first; tile < min(first + steps.kTilesPerHalf, tiles); ++tile) {
      const int64_t begin = mine.begin + static_cast<int64_t>(tile) * kTile.depth;
      const Point* partners = steps.Tile(tile);
      FillTile<!kWgrad, kThreads>(shared.columns, [&](int line, int step) {
        const bool inside = first_row + line < points.rows() && begin + step < mine.end;
        const int64_t at = origin + line * line_stride + (begin + step) * step_stride;
        return inside ? LoadWidened<Acc>(p.columns.data, at, src_type) : Acc{0};
      });
      FillTile<false, kThreads>(shared.rhs, [&](int line, int step) {
        const bool inside = first_col + line < p.problem.out_channels && partners[step].partner >= 0;
        const int64_t at = rhs_origin + line * p.rhs_col_stride + partners[step].partner;
        return inside ? LoadWidened<Acc>(p.rhs, at, p.rhs_type) : Acc{0};
      });
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kTile.depth; ++k) sums.Multiply(shared.columns[k], shared.rhs[k]);
      __syncthreads();
    }
  }
  const EpilogueOf<Acc, kHasEpilogue> epilogue(p.epilogue, group * p.problem.out_channels);
  StoreSums<Acc>(sums, shared.rows, {p.out, p.out_type, first_col, p.problem.out_channels, p.out_col_stride, false},
                 epilogue);
}

// The compiled kernels.

using GemmKernelPtr = void (*)(GemmParams);

template <typename Acc, bool kWgrad, bool kHasEpilogue, size_t... kTileIndex>
GemmKernelPtr FindGemm(int64_t tile, std::index_sequence<kTileIndex...>) {
  constexpr auto kernel = []<int kIndex>(std::integral_constant<int, kIndex>) -> GemmKernelPtr {
    if constexpr (kIm2colTiles[kIndex].only_f32 && !std::is_same_v<Acc, float>) {
      return nullptr;
    } else {
      return GemmKernel<Acc, kIndex, kWgrad, kHasEpilogue>;
    }
  };
  const GemmKernelPtr kernels[] = {kernel(std::integral_constant<int, kTileIndex>())...};
  return kernels[tile];
}

void (*FindIm2col(DType type))(Im2colParams) {
  switch (ElementBytes(type)) {
    case 1: return Im2colKernel<uint8_t>;
    case 2: return Im2colKernel<uint16_t>;
    case 4: return Im2colKernel<uint32_t>;
    default: return Im2colKernel<uint64_t>;
  }
}

// Sizes.

int64_t Chunks(const ConvProblem& p, const Im2colSettings& s) {
  const int64_t tile_rows = kIm2colTiles[s.tile].rows;
  return std::max<int64_t>(1, CeilDiv(RowTiles(p, Positions(p), tile_rows) * tile_rows, s.chunk));
}

// Whether sums are kept in the workspace, from chunk to chunk or for the slices of a split.
bool KeepsSums(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  return s.split > 1 || (pass == Pass::kWgrad && Chunks(p, s) > 1);
}

// The sums come first in the workspace, then the columns.
size_t SumsBytes(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  constexpr size_t kAlignment = 16;
  return KeepsSums(p, pass, s) ? CeilDiv(SliceBytes(p, pass, s.split), kAlignment) * kAlignment : 0;
}

Columns ChunkColumns(const ConvCall& call, const Im2colSettings& s, int64_t first_row) {
  const ConvProblem& p = call.problem;
  return {static_cast<char*>(call.workspace) + SumsBytes(p, call.pass, s), first_row, s.chunk,
          p.groups * ChannelTaps(p), ChannelTaps(p)};
}

int64_t Im2colBlocks(const ConvProblem& p, const Im2colSettings& s) {
  return CeilDiv(s.chunk, kIm2colRows) * p.groups * CeilDiv(ChannelTaps(p), kIm2colSteps);
}

int64_t GemmRowTiles(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  const int tile_rows = kIm2colTiles[s.tile].rows;
  return pass == Pass::kConv ? s.chunk / tile_rows : RowTiles(p, ChannelTaps(p), tile_rows);
}

int64_t GemmBlocks(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  const int64_t col_tiles = CeilDiv(p.out_channels, kIm2colTiles[s.tile].cols);
  return GemmRowTiles(p, pass, s) * col_tiles * s.split * p.groups;
}

// Launches.

cudaError_t EnqueueIm2col(const ConvCall& call, const Im2colSettings& s, const Columns& columns, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  if (ChannelTaps(p) == 0 || Positions(p) == 0) return cudaSuccess;
  Im2colParams params{};
  params.problem = p;
  params.taps = call.taps;
  params.classes = call.classes;
  params.src = call.src;
  params.columns = columns;
  for (int d = 0; d < kSpatial; ++d) params.src_size[d] = static_cast<uint32_t>(p.src_size[d]);
  params.step_blocks = static_cast<uint32_t>(CeilDiv(ChannelTaps(p), kIm2colSteps));
  params.tile_rows = kIm2colTiles[s.tile].rows;
  return Enqueue(FindIm2col(p.src_type), Im2colBlocks(p, s), kIm2colSteps * kIm2colWarps, stream, params);
}

template <typename Acc>
cudaError_t EnqueueGemm(const ConvCall& call, const Im2colSettings& s, const Columns& columns, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  const bool wgrad = call.pass == Pass::kWgrad, keeps = KeepsSums(p, call.pass, s);
  GemmParams params{};
  params.problem = p;
  params.taps = call.taps;
  params.classes = call.classes;
  params.columns = columns;
  params.rhs = call.rhs;
  params.out = keeps ? call.workspace : call.result;
  params.rhs_type = RhsType(p, call.pass);
  params.out_type = keeps ? SumType(p) : ResultType(p, call.pass);
  params.row_tiles = static_cast<uint32_t>(GemmRowTiles(p, call.pass, s));
  params.col_tiles = static_cast<uint32_t>(CeilDiv(p.out_channels, kIm2colTiles[s.tile].cols));
  params.rhs_col_stride = wgrad ? p.dst.channel : p.filter.out;
  params.rhs_group_stride = wgrad ? p.dst.group : p.filter.group;
  params.out_col_stride = wgrad ? p.filter.out : p.dst.channel;
  params.out_group_stride = wgrad ? p.filter.group : p.dst.group;
  params.out_elements = ResultElements(p, call.pass);
  params.split = static_cast<int32_t>(s.split);
  params.accumulate = wgrad && columns.first_row > 0;
  params.epilogue = EpilogueOfCall(call);
  constexpr auto tiles = std::make_index_sequence<std::size(kIm2colTiles)>();
  return Enqueue(wgrad                             ? FindGemm<Acc, true, false>(s.tile, tiles)
                 : EndsWithEpilogue(call, s.split) ? FindGemm<Acc, false, true>(s.tile, tiles)
                                                   : FindGemm<Acc, false, false>(s.tile, tiles),
                 GemmBlocks(p, call.pass, s), kIm2colTiles[s.tile].threads(), stream, params);
}

template <typename Acc>
cudaError_t LaunchSums(const ConvCall& call, const Im2colSettings& s, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  for (int64_t chunk = 0; chunk < Chunks(p, s); ++chunk) {
    const Columns columns = ChunkColumns(call, s, chunk * s.chunk);
    if (const cudaError_t status = EnqueueIm2col(call, s, columns, stream)) return status;
    if (const cudaError_t status = EnqueueGemm<Acc>(call, s, columns, stream)) return status;
  }
  if (!KeepsSums(p, call.pass, s)) return cudaSuccess;
  return AddSlices<Acc>(call, s.split, stream);
}

// The family.

Reason UnsupportedReason(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  if (Reason why = UnsupportedTile(kIm2colTiles, p, pass, s)) return why;
  if (Reason why = UnsupportedChunk(s)) return why;
  return UnsupportedBlocks(std::max(Im2colBlocks(p, s), GemmBlocks(p, pass, s)));
}

size_t WorkspaceBytes(const ConvProblem& p, Pass pass, const Im2colSettings& s) {
  return SumsBytes(p, pass, s) + s.chunk * p.groups * ChannelTaps(p) * ElementBytes(p.src_type);
}

size_t SharedBytes(const ConvProblem& p, Pass, const Im2colSettings& s) {
  return SharedBytesOf<GemmTiles, kIm2colTiles>(p, s.tile);
}

cudaError_t Launch(const ConvCall& call, const Im2colSettings& s, cudaStream_t stream) {
  if (ResultElements(call.problem, call.pass) == 0) return cudaSuccess;
  return WithSumType(call.problem, [&](auto acc) { return LaunchSums<decltype(acc)>(call, s, stream); });
}

}  // namespace

const KernelFamily<Im2colSettings> kIm2col = {UnsupportedReason, WorkspaceBytes, SharedBytes, Launch};

}  // namespace jaxconv
