// Implicit GEMM on CUDA cores, for any problem: sums in float32, float64 or int32.
//
// The classical shape: a block's tile in shared memory, double buffered; warp tiles; 8 x 8 results a thread. A block
// reads the next tile into registers while it multiplies this one.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <type_traits>
#include <utility>

#include "common/convert.cuh"
#include "common/enqueue.cuh"
#include "common/epilogue.cuh"
#include "common/layout.h"
#include "common/params.h"
#include "common/product.cuh"
#include "common/product.h"
#include "common/step_table.cuh"
#include "common/tile_loader.cuh"
#include "common/types.h"
#include "common/unaligned.h"
#include "families.h"
#include "simt/config.h"
#include "simt/warp_tile.cuh"

namespace jaxconv {
namespace {

template <typename Acc, Tile kTile>
struct alignas(16) SharedTiles {
  Acc src[kTile.stages][kTile.depth][PaddedLines(kTile.rows)];
  Acc rhs[kTile.stages][kTile.depth][PaddedLines(kTile.cols)];
  Point rows[kTile.rows];
  Point steps[2 * kTile.threads()];
};
static_assert(sizeof(SharedTiles<float, kSimtTiles[0]>) == kSimtTiles[0].shared_bytes(sizeof(float)) &&
                  sizeof(SharedTiles<double, kSimtTiles[2]>) == kSimtTiles[2].shared_bytes(sizeof(double)),
              "planning knows how much shared memory a thread block has");

// Blocks that a multiprocessor is to hold, so that one block's barriers and loads are behind another's arithmetic: two
// of the large tile leave 128 registers a thread, as do four of the small ones; float64 takes twice the registers.
template <typename Acc>
constexpr int MinBlocks(const Tile& tile) {
  return 512 / tile.threads() / (sizeof(Acc) / 4);
}

// kMixed: operands may have other types than the sums.
template <typename Acc, bool kMixed, int kTileIndex, Access kSrcAccess, Access kRhsAccess>
__global__ void __launch_bounds__(kSimtTiles[kTileIndex].threads(), MinBlocks<Acc>(kSimtTiles[kTileIndex]))
    SimtKernel(const __grid_constant__ ProductParams p) {
  constexpr Tile kTile = kSimtTiles[kTileIndex];
  constexpr int kThreads = kTile.threads();
  using Shared = SharedTiles<Acc, kTile>;
  static_assert(sizeof(Shared) <= 48 * 1024, "a block gets no more static shared memory");
  static_assert(kTile.stages == 2, "one stage is multiplied while the next is loaded");
  __shared__ Shared shared;

  const Work work = Work::OfBlock(p, kTile.rows);
  if (work.residue == nullptr) return;
  const ClassPoints points = work.Points(p, p.wgrad);
  work.FillRows<kTile.rows, kThreads>(p, points, shared.rows);
  const StepRange range = StepRange{0, points.steps()}.Slice(work.slice, p.split, kTile.depth);
  const int tiles = range.Tiles(kTile.depth);
  const StepTable<kThreads, kTile.depth> steps(shared.steps, points, range);
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

  StoreSums<Acc>(sums, shared.rows, {p.out, out_type, first_col, p.cols, p.out_col_stride, p.out_vectors});
}

// The compiled kernels.

struct OperandAccess {
  Access src;
  Access rhs;
};

// The preferred first. Quads: a conv with dense channels, and with a filter dense in its channels out or in (the data
// gradient of the former); a wgrad with dense channels. The rest take any layout.
constexpr OperandAccess kAccesses[] = {
    {Access::kStepQuads, Access::kLineQuads}, {Access::kStepQuads, Access::kStepQuads},
    {Access::kLineQuads, Access::kLineQuads}, {Access::kLines, Access::kLines},
    {Access::kLines, Access::kSteps},         {Access::kSteps, Access::kLines},
    {Access::kSteps, Access::kSteps},
};
constexpr int kAccessCount = std::size(kAccesses);

using SimtKernelPtr = void (*)(ProductParams);

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

bool Allows(const OperandLayout& layout, Access access) {
  switch (access) {
    case Access::kLineQuads: return layout.LineVectors(4);
    case Access::kStepQuads: return layout.StepVectors(4);
    default: return (access == Access::kLines) == (layout.line_stride <= layout.step_stride);
  }
}

int ChooseAccess(const ConvCall& call) {
  const OperandLayout src = SourceLayout(call), rhs = RhsLayout(call);
  const auto fits = [&](const OperandAccess& access) { return Allows(src, access.src) && Allows(rhs, access.rhs); };
  return static_cast<int>(std::find_if(std::begin(kAccesses), std::end(kAccesses), fits) - std::begin(kAccesses));
}

template <typename Acc>
cudaError_t LaunchSums(const ConvCall& call, const Plan& plan, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  const auto all_tiles = std::make_index_sequence<std::size(kSimtTiles)>();
  const int access = ChooseAccess(call);
  const SimtKernelPtr kernel = IsPure(p) ? FindKernel<Acc, false>(plan.tile, access, all_tiles)
                                         : FindKernel<Acc, true>(plan.tile, access, all_tiles);
  const Tile& tile = kSimtTiles[plan.tile];
  ProductParams params = MakeParams(call, plan, tile.rows, tile.cols);
  params.out_vectors = ResultLayout(call, plan).LineVectors(4);
  const int64_t blocks = Blocks(p, call.pass, plan, tile.rows, tile.cols);
  const cudaError_t status = Enqueue(kernel, blocks, tile.threads(), stream, params);
  if (status != cudaSuccess || plan.split == 1) return status;
  return AddSlices<Acc>(call, plan, stream);
}

// The family.

const char* WhyNot(const ConvProblem& p, Pass pass, const Plan& plan) {
  if (const char* why = WhyNotTile(kSimtTiles, p, plan)) return why;
  if (const char* why = WhyNotTypes(p, pass)) return why;
  if (plan.chunk != 0) return "simt has no chunks";
  const Tile& tile = kSimtTiles[plan.tile];
  if (Blocks(p, pass, plan, tile.rows, tile.cols) > INT32_MAX) return "the product has too many tiles";
  return nullptr;
}

size_t SharedBytes(const ConvProblem& p, Pass, const Plan& plan) {
  return SharedBytesOf<SharedTiles, kSimtTiles>(p, plan.tile);
}

cudaError_t Launch(const ConvCall& call, const Plan& plan, cudaStream_t stream) {
  if (ResultElements(call.problem, call.pass) == 0) return cudaSuccess;
  return WithSumType(call.problem, [&](auto acc) { return LaunchSums<decltype(acc)>(call, plan, stream); });
}

}  // namespace

const KernelFamily kSimt = {WhyNot, SplitBytes, SharedBytes, Launch};

cudaError_t LaunchUnaligned(const ConvCall& call, const Plan& plan, cudaStream_t stream) {
  constexpr int kTile = 2;
  static_assert(!kSimtTiles[kTile].only_f32, "the tile is for sums of every type");
  const Plan of_simt{kTile, plan.split, 0, 0, {}};
  if (WhyNot(call.problem, call.pass, of_simt) != nullptr) return cudaErrorMisalignedAddress;
  return Launch(call, of_simt, stream);
}

}  // namespace jaxconv
