// The mma family: which kernel of kernel.cuh answers a call, and its launch.
#include "mma/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "common/device_attribute.h"
#include "common/enqueue.cuh"
#include "common/epilogue.h"
#include "common/layout.h"
#include "common/operand_traits.h"
#include "common/params.h"
#include "common/product.h"
#include "common/types.h"
#include "families.h"
#include "mma/config.h"
#include "mma/settings.h"

namespace jaxconv {
namespace {

// The channels that lie densest decide how the other operand of a conv is read.
MmaAccess ChooseAccess(const ConvProblem& p, Pass pass) {
  if (pass == Pass::kWgrad) return MmaAccess::kLinesLines;
  return p.filter.in < p.filter.out ? MmaAccess::kStepsSteps : MmaAccess::kStepsLines;
}

CompiledMma Find(const ConvProblem& p, Pass pass, int64_t tile, bool has_epilogue) {
  const MmaAccess access = ChooseAccess(p, pass);
  switch (p.src_type) {
    case DType::kBF16: return FindMma<__nv_bfloat16>(tile, access, has_epilogue);
    case DType::kF16: return FindMma<__half>(tile, access, has_epilogue);
    case DType::kF32: return FindMma<float>(tile, access, has_epilogue);
    default: return {};  // UnsupportedReason has refused it
  }
}

// A bound on the bytes from the first element of an activation to its last.
int64_t SpanBytes(const TensorStrides& s, const int64_t (&size)[kSpatial], int64_t batch, int64_t groups, DType type) {
  int64_t elements = std::max(batch * s.batch, groups * s.group);
  for (int d = 0; d < kSpatial; ++d) elements = std::max(elements, size[d] * s.spatial[d]);
  return elements * TraitsOf(type).bytes;
}

// Kernels that copy in pieces count these in 32 bits, and rows and steps, and the bytes between the filter's. A
// position may lie beyond the source's end by 2^31 elements, which are 2^29 pieces at most.
bool PiecesFit(const ConvProblem& p) {
  constexpr int64_t kMostBytes = (int64_t{INT32_MAX} - (int64_t{1} << 29)) * 16;
  const auto filter = [&](int64_t elements) { return elements * TraitsOf(p.filter_type).bytes; };
  return Positions(p) < INT32_MAX && ChannelTaps(p) < INT32_MAX &&
         SpanBytes(p.src, p.src_size, p.batch, p.groups, p.src_type) < kMostBytes &&
         SpanBytes(p.dst, p.dst_size, p.batch, p.groups, p.dst_type) < kMostBytes &&
         filter(std::max(p.in_channels * p.filter.in, p.out_channels * p.filter.out)) < INT32_MAX &&
         filter(std::max(p.filter.in, p.filter.out)) < INT32_MAX / 64;
}

bool HasPieces(const ConvCall& call) {
  const int piece = TraitsOf(call.problem.src_type).vector();
  const OperandLayout src = SourceLayout(call), rhs = RhsLayout(call);
  const MmaAccess access = ChooseAccess(call.problem, call.pass);
  return (access == MmaAccess::kLinesLines ? src.LineVectors(piece) : src.StepVectors(piece)) &&
         (access == MmaAccess::kStepsSteps ? rhs.StepVectors(piece) : rhs.LineVectors(piece)) &&
         PiecesFit(call.problem);
}

// Of the classes' tables, whether their positions and taps can be equally many. The kernel looks at them.
Reason UnsupportedMerged(const ConvProblem& p, Pass pass, int64_t merged) {
  if (merged == 1) return std::nullopt;
  if (!HasEqualClasses(p)) return "classes of different sizes cannot be merged";
  if (pass == Pass::kWgrad || merged != p.class_count || merged != LiveClasses(p) || p.tap_count < merged ||
      p.tap_count % merged) {
    return "no such classes to merge";
  }
  const int64_t filter = p.groups * ChannelTaps(p) * p.out_channels * TraitsOf(p.filter_type).bytes;
  return filter < INT32_MAX ? Reason() : "the filter is too large for merged classes";
}

Reason UnsupportedReason(const ConvProblem& p, Pass pass, const MmaSettings& s) {
  if (Reason why = UnsupportedTileOrSplit(s, std::size(kMmaTiles))) return why;
  if (s.units < 0) return "a negative number of units";
  if (ResultElements(p, pass) == 0) return std::nullopt;
  if (Reason why = UnsupportedMerged(p, pass, s.merged)) return why;
  if (p.src_type != RhsType(p, pass)) return "operands of two types";
  if (SumType(p) != DType::kF32) return "tensor cores sum in float32 here";
  const MmaTile& tile = kMmaTiles[s.tile];
  if (!tile.IsOf(p.src_type)) return "the tile is for another type";
  return UnsupportedBlocks(Blocks(p, pass, s.split, tile.rows, tile.cols));
}

// The tile that runs on this device.
int TileHere(const MmaSettings& s) {
  const int tile = static_cast<int>(s.tile);
  return DeviceHasWgmma() ? tile : WithoutWgmma(tile);
}

size_t SharedBytes(const ConvProblem& p, Pass pass, const MmaSettings& s) {
  const CompiledMma compiled = Find(p, pass, TileHere(s), false);
  return std::max({compiled.of_pieces.shared_bytes, compiled.of_elements.shared_bytes, compiled.merged.shared_bytes});
}

// Units that a block computes in turn: what is worked out for its rows, which takes as long as some tiles of steps, is
// worked out once for all, but a GPU must be full to the end. The worths are measured on 1x1 convolutions.
uint32_t ChooseBlockUnits(const MmaTile& tile, uint32_t units, int64_t row_blocks, int64_t steps) {
  constexpr int64_t kRowsWorth = 6, kUnitWorth = 4, kMost = 16;  // in tiles of steps: of the rows, of a unit's results
  const int64_t places = std::max(1, DeviceAttribute(cudaDevAttrMultiProcessorCount) * tile.blocks);
  const int64_t unit = CeilDiv(steps, tile.depth) + kUnitWorth;
  uint32_t best = 1;
  int64_t least = INT64_MAX;
  for (uint32_t some = 1; some <= std::min<int64_t>(kMost, units); ++some) {
    const int64_t cost = CeilDiv(CeilDiv(units, some) * row_blocks, places) * (kRowsWorth + some * unit);
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

cudaError_t Launch(const ConvCall& call, const MmaSettings& s, cudaStream_t stream) {
  const ConvProblem& p = call.problem;
  if (ResultElements(p, call.pass) == 0) return cudaSuccess;
  const int index = TileHere(s);
  const MmaTile& tile = kMmaTiles[index];
  const CompiledMma compiled = Find(p, call.pass, index, EndsWithEpilogue(call, s.split));
  const bool pieces = HasPieces(call), merges = pieces && s.merged > 1 && tile.merges();
  const MmaKernelOfTile kernel = merges ? compiled.merged : pieces ? compiled.of_pieces : compiled.of_elements;
  MmaParams params{MakeParams(call, s.split, tile.rows, tile.cols)};
  if (merges) MergeClasses(p, tile, s.merged, &params);
  params.out_vectors = ResultLayout(call, s.split).LineVectors(TraitsOf(params.out_type).vector());
  params.units = static_cast<uint32_t>(params.col_tiles * p.groups);
  const int64_t row_blocks = static_cast<int64_t>(params.row_tiles) * s.split;
  const int64_t steps = (call.pass == Pass::kConv ? ChannelTaps(p) : Positions(p)) / p.class_count / s.split;
  params.block_units =
      s.units > 0 ? static_cast<uint32_t>(s.units) : ChooseBlockUnits(tile, params.units, row_blocks, steps);
  const int64_t blocks = CeilDiv(params.units, params.block_units) * row_blocks;
  const cudaError_t status =
      EnqueueShared(kernel.function, blocks, tile.threads(), kernel.shared_bytes, stream, params);
  if (status != cudaSuccess || s.split == 1) return status;
  return AddSlices<float>(call, s.split, stream);
}

}  // namespace

const KernelFamily<MmaSettings> kMma = {UnsupportedReason, SplitWorkspace, SharedBytes, Launch};

MmaSettings MmaWithoutWgmma(int most_cols, int64_t split) {
  int tile = 0;
  while (kMmaTiles[tile].wgmma || kMmaTiles[tile].cols > std::min(128, most_cols)) ++tile;
  return {tile, split};
}

}  // namespace jaxconv
