// Implicit GEMM on CUDA cores, for any problem: sums in float32, float64 or int32.
//
// The classical shape: a block's tile in shared memory, double buffered; warp tiles; 8 x 8 results a thread. A block
// reads the next tile into registers while it multiplies this one.
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>

#include "device/convert.cuh"
#include "device/epilogue.cuh"
#include "device/points.cuh"
#include "device/step_table.cuh"
#include "device/tile_loader.cuh"
#include "device/warp_tile.cuh"
#include "host/enqueue.cuh"
#include "host/product.h"
#include "host/types.h"
#include "launch.h"

namespace jaxconv {
namespace {

struct SimtParams {
  ConvProblem problem;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;
  void* out;  // the result, or the slices in the scratch
  DType rhs_type;
  DType out_type;
  uint32_t src_size[kSpatial];
  uint32_t row_tiles;  // at least those of all classes together
  uint32_t col_tiles;
  int64_t cols;
  int64_t rhs_col_stride;
  int64_t rhs_group_stride;
  int64_t out_col_stride;
  int64_t out_group_stride;
  int64_t out_elements;  // of one slice
  int32_t split;
  bool reduce;
  bool quad_results;
};

// What a block computes: a tile of one class's product, in one group, over one slice of the reduction.
struct Work {
  uint32_t row_tile;
  uint32_t col_tile;
  uint32_t slice;
  uint32_t group;
};

__device__ Work BlockWork(const SimtParams& p) {
  // Blocks that run at the same time read the same rows, then neighbouring rows.
  uint32_t block = blockIdx.x;
  Work work;
  work.col_tile = block % p.col_tiles, block /= p.col_tiles;
  work.row_tile = block % p.row_tiles, block /= p.row_tiles;
  work.slice = block % p.split;
  work.group = block / p.split;
  return work;
}

template <typename Acc, Tile kTile>
struct alignas(16) SharedTiles {
  Acc src[kTile.stages][kTile.depth][PaddedLines(kTile.rows)];
  Acc rhs[kTile.stages][kTile.depth][PaddedLines(kTile.cols)];
  Point rows[kTile.rows];
  Point steps[2 * kTile.threads()];
};

// Blocks that a multiprocessor is to hold, so that one block's barriers and loads are behind another's arithmetic: two
// of the large tile leave 128 registers a thread, as do four of the small ones; float64 takes twice the registers.
template <typename Acc>
constexpr int MinBlocks(const Tile& tile) {
  return 512 / tile.threads() / (sizeof(Acc) / 4);
}

// kMixed: operands may have other types than the sums.
template <typename Acc, bool kMixed, int kTileIndex, Access kSrcAccess, Access kRhsAccess>
__global__ void __launch_bounds__(kSimtTiles[kTileIndex].threads(), MinBlocks<Acc>(kSimtTiles[kTileIndex]))
    SimtKernel(const __grid_constant__ SimtParams p) {
  constexpr Tile kTile = kSimtTiles[kTileIndex];
  constexpr int kThreads = kTile.threads();
  using Shared = SharedTiles<Acc, kTile>;
  static_assert(sizeof(Shared) <= 48 * 1024, "a block gets no more static shared memory");
  static_assert(kTile.stages == 2, "one stage is multiplied while the next is loaded");
  __shared__ Shared shared;

  Work work = BlockWork(p);
  const ResidueClass* residue = FindClass(p.problem, p.taps, p.classes, p.reduce, kTile.rows, &work.row_tile);
  if (residue == nullptr) return;
  const ClassPoints points{p.problem, p.taps, *residue, p.reduce};

  const int64_t all_steps = points.steps();
  const int64_t all_tiles = (all_steps + kTile.depth - 1) / kTile.depth;
  const int64_t slice_steps = (all_tiles + p.split - 1) / p.split * kTile.depth;
  const int64_t begin = std::min(work.slice * slice_steps, all_steps);
  const int64_t end = std::min(begin + slice_steps, all_steps);
  const int tiles = static_cast<int>((end - begin + kTile.depth - 1) / kTile.depth);

  for (int i = threadIdx.x; i < kTile.rows; i += kThreads) {
    const int64_t row = static_cast<int64_t>(work.row_tile) * kTile.rows + i;
    Point point = Nowhere();
    if (row < points.rows()) {
      point = points.Row(row);
      point.src += work.group * p.problem.src.group;
      point.partner += work.group * p.out_group_stride + work.slice * p.out_elements;
    }
    shared.rows[i] = point;
  }
  const StepTable<kThreads, kTile.depth> steps(shared.steps, points, begin, end);
  steps.Fill(0);
  __syncthreads();

  const DType src_type = kMixed ? p.problem.src_type : NativeType<Acc>();
  const DType rhs_type = kMixed ? p.rhs_type : NativeType<Acc>();
  const DType out_type = kMixed ? p.out_type : NativeType<Acc>();
  const int64_t first_col = static_cast<int64_t>(work.col_tile) * kTile.cols;
  SourceLoader<Acc, TilePattern<kTile.rows, kTile.depth, kThreads, kSrcAccess>> src(p.src, src_type, p.src_size,
                                                                                   shared.rows);
  PartnerLoader<Acc, TilePattern<kTile.cols, kTile.depth, kThreads, kRhsAccess>> rhs(
      p.rhs, rhs_type, work.group * p.rhs_group_stride, first_col, p.cols, p.rhs_col_stride);

  const auto load = [&](int tile) {
    src.Load(steps.Tile(tile));
    rhs.Load(steps.Tile(tile));
  };
  const auto store = [&](int tile) {
    src.Store(shared.src[tile % 2][0]);
    rhs.Store(shared.rhs[tile % 2][0]);
  };
  load(0);
  store(0);
  __syncthreads();

  WarpTile<Acc, kTile> sums;
  sums.Read(0, shared.src[0][0], shared.rhs[0][0]);
#pragma unroll 1
  for (int first = 0; first < tiles; first += steps.kTilesPerHalf) {
    steps.FillAfter(first);
#pragma unroll 1
    for (int tile = first; tile < min(first + steps.kTilesPerHalf, tiles); ++tile) {
#pragma unroll
      for (int k = 0; k < kTile.depth; ++k) {
        const bool crosses = k + 1 == kTile.depth;
        if (crosses) {
          store(tile + 1);
          __syncthreads();
        }
        const int buffer = (tile + crosses) % 2, next = (k + 1) % kTile.depth;
        sums.Read((k + 1) % 2, shared.src[buffer][next], shared.rhs[buffer][next]);
        if (k == 0) load(tile + 1);
        sums.Multiply(k % 2);
      }
    }
  }

  StoreSums<Acc>(sums, shared.rows, {p.out, out_type, first_col, p.cols, p.out_col_stride, p.quad_results});
}

// The compiled kernels.

struct OperandAccess {
  Access src;
  Access rhs;
};

// The preferred first. Quads: a gather with dense channels, and with a filter dense in its channels out or in (the data
// gradient of the former); a reduce with dense channels. The rest take any layout.
constexpr OperandAccess kAccesses[] = {
    {Access::kStepQuads, Access::kLineQuads}, {Access::kStepQuads, Access::kStepQuads},
    {Access::kLineQuads, Access::kLineQuads}, {Access::kLines, Access::kLines},
    {Access::kLines, Access::kSteps},         {Access::kSteps, Access::kLines},
    {Access::kSteps, Access::kSteps},
};
constexpr int kAccessCount = std::size(kAccesses);

using SimtKernelPtr = void (*)(SimtParams);

template <typename Acc, bool kMixed, int kTileIndex, size_t... kAccess>
std::array<SimtKernelPtr, kAccessCount> KernelsOfTile(std::index_sequence<kAccess...>) {
  if constexpr (kSimtTiles[kTileIndex].only_f32 && !std::is_same_v<Acc, float>) {
    return {};
  } else {
    return {SimtKernel<Acc, kMixed, kTileIndex, kAccesses[kAccess].src, kAccesses[kAccess].rhs>...};
  }
}

template <typename Acc, bool kMixed, size_t... kTileIndex>
SimtKernelPtr FindKernel(int tile, int access, std::index_sequence<kTileIndex...>) {
  static const std::array<SimtKernelPtr, kAccessCount> kernels[] = {
      KernelsOfTile<Acc, kMixed, kTileIndex>(std::make_index_sequence<kAccessCount>())...};
  return kernels[tile][access];
}

bool IsPure(const ConvProblem& p) {
  return p.src_type == p.filter_type && p.src_type == p.dst_type && p.src_type == SumType(p);
}

// Layouts.

struct OperandLayout {
  const void* data;
  DType type;
  int64_t line_stride;
  int64_t step_stride;
  bool line_quads;  // four neighbouring lines are contiguous and aligned, as far as strides go
  bool step_quads;

  bool Allows(Access access) const {
    if (access != Access::kLineQuads && access != Access::kStepQuads) {
      return (access == Access::kLines) == (line_stride <= step_stride);
    }
    const size_t alignment = std::min<size_t>(16, 4 * ElementBytes(type));
    return (access == Access::kLineQuads ? line_quads : step_quads) &&
           reinterpret_cast<uintptr_t>(data) % alignment == 0;
  }
};

bool AreQuads(int64_t stride, int64_t count, std::initializer_list<int64_t> other_strides) {
  return stride == 1 && count % 4 == 0 &&
         std::all_of(other_strides.begin(), other_strides.end(), [](int64_t s) { return s % 4 == 0; });
}

bool ChannelQuads(const TensorStrides& s, int64_t channels) {
  return AreQuads(s.channel, channels, {s.batch, s.spatial[0], s.spatial[1], s.spatial[2], s.group});
}

// The offsets of taps are multiples of four where these strides are: a filter is dense.
bool OutQuads(const ConvProblem& p) {
  return AreQuads(p.filter.out, p.out_channels, {p.in_channels == 1 ? 0 : p.filter.in, p.filter.group});
}

bool InQuads(const ConvProblem& p) {
  return AreQuads(p.filter.in, p.in_channels, {p.out_channels == 1 ? 0 : p.filter.out, p.filter.group});
}

OperandLayout SourceLayout(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  const int64_t position = p.src.spatial[kSpatial - 1] * p.step[kSpatial - 1];
  const bool quads = ChannelQuads(p.src, p.in_channels);
  if (call.pass == Pass::kReduce) return {call.src, p.src_type, p.src.channel, position, quads, false};
  return {call.src, p.src_type, position, p.src.channel, false, quads};
}

OperandLayout RhsLayout(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  if (call.pass == Pass::kGather) {
    return {call.rhs, p.filter_type, p.filter.out, p.filter.in, OutQuads(p), InQuads(p)};
  }
  const int64_t position = p.dst.spatial[kSpatial - 1] * p.period[kSpatial - 1];
  return {call.rhs, p.dst_type, p.dst.channel, position, ChannelQuads(p.dst, p.out_channels), false};
}

OperandLayout ResultLayout(const ConvCall& call) {
  const ConvProblem& p = call.problem;
  if (call.pass == Pass::kReduce) return {call.result, p.filter_type, p.filter.out, 0, OutQuads(p), false};
  return {call.result, p.dst_type, p.dst.channel, 0, ChannelQuads(p.dst, p.out_channels), false};
}

int ChooseAccess(const ConvCall& call) {
  const OperandLayout src = SourceLayout(call), rhs = RhsLayout(call);
  const auto fits = [&](const OperandAccess& access) { return src.Allows(access.src) && rhs.Allows(access.rhs); };
  return static_cast<int>(std::find_if(std::begin(kAccesses), std::end(kAccesses), fits) - std::begin(kAccesses));
}

int64_t Blocks(const ConvProblem& p, Pass pass, const Plan& plan) {
  const Tile& tile = kSimtTiles[plan.tile];
  return RowTiles(p, Rows(p, pass), tile.rows) * CeilDiv(p.out_channels, tile.cols) * plan.split * p.groups;
}

SimtParams MakeParams(const ConvCall& call, const Plan& plan) {
  const ConvProblem& p = call.problem;
  const Tile& tile = kSimtTiles[plan.tile];
  const bool reduce = call.pass == Pass::kReduce;
  const OperandLayout rhs = RhsLayout(call);
  OperandLayout out = ResultLayout(call);
  SimtParams params{};
  params.out_elements = ResultElements(p, call.pass);
  if (plan.split > 1) {
    out.data = call.scratch;
    out.type = SumType(p);
  }
  params.problem = p;
  params.taps = call.taps;
  params.classes = call.classes;
  params.src = call.src;
  params.rhs = call.rhs;
  params.out = const_cast<void*>(out.data);
  params.rhs_type = rhs.type;
  params.out_type = out.type;
  for (int d = 0; d < kSpatial; ++d) params.src_size[d] = static_cast<uint32_t>(p.src_size[d]);
  params.row_tiles = static_cast<uint32_t>(RowTiles(p, Rows(p, call.pass), tile.rows));
  params.col_tiles = static_cast<uint32_t>(CeilDiv(p.out_channels, tile.cols));
  params.cols = p.out_channels;
  params.rhs_col_stride = rhs.line_stride;
  params.rhs_group_stride = reduce ? p.dst.group : p.filter.group;
  params.out_col_stride = out.line_stride;
  params.out_group_stride = reduce ? p.filter.group : p.dst.group;
  params.split = plan.split;
  params.reduce = reduce;
  params.quad_results = out.Allows(Access::kLineQuads);
  return params;
}

template <typename Acc>
cudaError_t LaunchSums(const ConvCall& call, const Plan& plan, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  const auto all_tiles = std::make_index_sequence<std::size(kSimtTiles)>();
  const int access = ChooseAccess(call);
  const SimtKernelPtr kernel = IsPure(p) ? FindKernel<Acc, false>(plan.tile, access, all_tiles)
                                         : FindKernel<Acc, true>(plan.tile, access, all_tiles);
  const SimtParams params = MakeParams(call, plan);
  const cudaError_t status =
      Enqueue(kernel, Blocks(p, call.pass, plan), kSimtTiles[plan.tile].threads(), stream, params);
  if (status != cudaSuccess || plan.split == 1) return status;
  return AddSlices<Acc>(call.scratch, call.result, ResultLayout(call).type, params.out_elements, plan.split, stream);
}

// The family.

const char* WhyNot(const ConvProblem& p, Pass pass, const Plan& plan) {
  if (const char* why = WhyNotTile(kSimtTiles, p, plan)) return why;
  if (const char* why = WhyNotTypes(p, pass)) return why;
  if (plan.chunk != 0) return "simt has no chunks";
  if (ResultElements(p, pass) > 0 && Blocks(p, pass, plan) > INT32_MAX) return "the product has too many tiles";
  return nullptr;
}

size_t ScratchBytes(const ConvProblem& p, Pass pass, const Plan& plan) {
  return plan.split > 1 ? SliceBytes(p, pass, plan.split) : 0;
}

template <typename Acc, size_t... kTileIndex>
size_t SharedBytesOf(int tile, std::index_sequence<kTileIndex...>) {
  constexpr size_t kBytes[] = {sizeof(SharedTiles<Acc, kSimtTiles[kTileIndex]>)...};
  return kBytes[tile];
}

size_t SharedBytes(const ConvProblem& p, Pass, const Plan& plan) {
  return WithSumType(p, [&](auto acc) {
    return SharedBytesOf<decltype(acc)>(plan.tile, std::make_index_sequence<std::size(kSimtTiles)>());
  });
}

cudaError_t Launch(const ConvCall& call, const Plan& plan, cudaStream_t stream) {
  if (ResultElements(call.problem, call.pass) == 0) return cudaSuccess;
  return WithSumType(call.problem, [&](auto acc) { return LaunchSums<decltype(acc)>(call, plan, stream); });
}

}  // namespace

const KernelFamily kSimt = {WhyNot, ScratchBytes, SharedBytes, Launch};

}  // namespace jaxconv
