// The mma family: which kernel of kernel.cuh answers a call, and its launch.
#include "mma/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "common/call_epilogue.h"
#include "common/device_attribute.h"
#include "common/enqueue.cuh"
#include "common/gradient_sums.h"
#include "common/layout.h"
#include "common/params.h"
#include "common/product.h"
#include "common/split_k.h"
#include "common/types.h"
#include "mma/config.h"
#include "mma/family.h"
#include "mma/settings.h"
#include "mma/support.h"
#include "operand_traits.h"

namespace jaxconv {
namespace {

// The channels that lie densest decide how the other operand of a conv is read. Bytes are K-major in shared memory, as
// tensor cores read no others.
MmaAccess ChooseAccess(const ConvProblem& p, Pass pass) {
  if (pass == Pass::kWgrad) return MmaAccess::kLinesLines;
  if (p.src_type == DType::kS8) return MmaAccess::kStepsSteps;
  return p.filter.in < p.filter.out ? MmaAccess::kStepsSteps : MmaAccess::kStepsLines;
}

MmaKernelOfType Find(DType operands, const MmaVariant& variant) {
  switch (operands) {
    case DType::kBF16: return FindMma<__nv_bfloat16>(variant);
    case DType::kF16: return FindMma<__half>(variant);
    case DType::kF32: return FindMma<float>(variant);
    case DType::kS8: return FindMma<int8_t>(variant);
    default: return {};  // UnsupportedReason has refused it
  }
}

// A bound on the bytes from the first element of an activation to its last.
int64_t SpanBytes(const TensorStrides& s, const int64_t (&size)[kSpatial], int64_t batch, int64_t groups, DType type) {
  int64_t elements = std::max(batch * s.batch, groups * s.group);
  for (int d = 0; d < kSpatial; ++d) elements = std::max(elements, size[d] * s.spatial[d]);
  return elements * TraitsOf(type).bytes;
}

// Kernels that copy in 16-byte vectors count these in 32 bits, and rows and steps, and the bytes between the filter's.
// A position may lie beyond the source's end by 2^31 elements, which are 2^29 vectors at most. A thread's vectors of
// the filter are less than 64 lines or steps apart.
bool VectorsFit(const ConvProblem& p) {
  constexpr int64_t kMostBytes = (int64_t{INT32_MAX} - (int64_t{1} << 29)) * kVectorBytes;
  const auto filter = [&](int64_t elements) { return elements * TraitsOf(p.filter_type).bytes; };
  return Positions(p) < INT32_MAX && ChannelTaps(p) < INT32_MAX &&
         SpanBytes(p.src, p.src_size, p.batch, p.groups, p.src_type) < kMostBytes &&
         SpanBytes(p.dst, p.dst_size, p.batch, p.groups, p.dst_type) < kMostBytes &&
         filter(std::max(p.in_channels * p.filter.in, p.out_channels * p.filter.out)) < INT32_MAX &&
         filter(std::max(p.filter.in, p.filter.out)) < INT32_MAX / 64;
}

bool HasVectors(const ConvCall& call) {
  const int vector = TraitsOf(call.problem.src_type).vector();
  const OperandLayout src = SourceLayout(call), rhs = RhsLayout(call);
  const MmaAccess access = ChooseAccess(call.problem, call.pass);
  return (access == MmaAccess::kLinesLines ? src.MnVectors(vector) : src.KVectors(vector)) &&
         (access == MmaAccess::kStepsSteps ? rhs.KVectors(vector) : rhs.MnVectors(vector)) && VectorsFit(call.problem);
}

// The tile that runs on this device.
int TileHere(DType operands, const MmaSettings& s) {
  const MmaTile& tile = kMmaTiles[s.tile];
  return tile.wgmma && !DeviceHasWgmma() ? TileWithoutWgmma(operands, tile.cols) : static_cast<int>(s.tile);
}

size_t SharedBytes(const ConvProblem& p, Pass pass, const MmaSettings& s) {
  MmaSettings here = s;
  here.tile = TileHere(p.src_type, s);
  return mma::kRules.shared_bytes(p, pass, here);
}

// N tiles that a thread block computes in turn. It prepares its rows once for all of them, which takes as long as some
// tiles of steps. But the GPU must be full to the end. The worths are measured on 1x1 convolutions.
uint32_t ChooseNTilesPerCta(const MmaTile& tile, uint32_t n_tiles, int64_t row_blocks, int64_t steps) {
  constexpr int64_t kRowsWorth = 6, kResultsWorth = 4, kMost = 16;  // worths in tiles of steps
  const int64_t at_once = std::max(1, DeviceAttribute(cudaDevAttrMultiProcessorCount) * tile.ctas_per_sm);
  const int64_t n_tile = CeilDiv(steps, tile.depth) + kResultsWorth;
  uint32_t best = 1;
  int64_t least = INT64_MAX;
  for (uint32_t some = 1; some <= std::min<int64_t>(kMost, n_tiles); ++some) {
    const int64_t cost = CeilDiv(CeilDiv(n_tiles, some) * row_blocks, at_once) * (kRowsWorth + some * n_tile);
    if (cost < least) least = cost, best = some;
  }
  return best;
}

// One class's rows, with the columns of all.
void MergeClasses(const ConvProblem& p, const MmaTile& tile, int64_t merged, MmaParams* params) {
  params->merged = static_cast<int32_t>(merged);
  params->class_cols = static_cast<uint32_t>(p.out_channels);
  params->problem.class_count = 1;
  params->cols = p.out_channels * merged;
  params->row_tiles = static_cast<uint32_t>(CeilDiv(Positions(p) / merged, tile.rows));
  params->col_tiles = static_cast<uint32_t>(CeilDiv(params->cols, tile.cols));
}

cudaError_t Launch(const ConvCall& given, const MmaSettings& s, cudaStream_t stream) {
  const ConvProblem& p = given.problem;
  const int64_t sum_rows = GradientSumRows(s);
  const ConvCall call = BehindGradientSums(given, sum_rows);
  const int index = TileHere(p.src_type, s);
  const MmaTile& tile = kMmaTiles[index];
  const bool vectors = HasVectors(call), merges = vectors && s.merged > 1 && tile.merges();
  const MmaKernelOfType kernel =
      Find(p.src_type, {index, ChooseAccess(p, call.pass), vectors, merges, EndsWithEpilogue(call, s.split)});
  MmaParams params{MakeParams(call, s.split, tile.rows, tile.cols)};
  params.epilogue = call.epilogue;
  params.gradient_sums = GradientSumsOf(given, sum_rows);
  if (merges) MergeClasses(p, tile, s.merged, &params);
  params.out_vectors = ResultLayout(call, s.split).MnVectors(TraitsOf(params.out_type).vector()) &&
                       reinterpret_cast<uintptr_t>(call.epilogue.residual) % 16 == 0;
  params.n_tiles = static_cast<uint32_t>(params.col_tiles * p.groups);
  const int64_t row_blocks = static_cast<int64_t>(params.row_tiles) * s.split;
  const int64_t steps = (call.pass == Pass::kConv ? ChannelTaps(p) : Positions(p)) / p.class_count / s.split;
  params.n_tiles_per_cta = static_cast<uint32_t>(s.n_tiles_per_cta);
  if (s.n_tiles_per_cta == 0) params.n_tiles_per_cta = ChooseNTilesPerCta(tile, params.n_tiles, row_blocks, steps);
  const int64_t blocks = CeilDiv(params.n_tiles, params.n_tiles_per_cta) * row_blocks;
  const cudaError_t status =
      EnqueueShared(kernel.function, blocks, tile.threads(), kernel.shared_bytes, stream, params);
  if (status != cudaSuccess || s.split == 1) return status;
  return AddSlices(call, s.split, stream);
}

}  // namespace

const KernelFamily<MmaSettings> kMma = {{mma::kRules.unsupported_reason, mma::kRules.workspace_bytes, SharedBytes},
                                        Launch};

}  // namespace jaxconv
