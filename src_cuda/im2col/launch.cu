// Explicit im2col, then a GEMM. This is the classical method and supports any problem. It is the baseline for the
// families that do not write the column matrix.
//
// The workspace holds `chunk` rows of the column matrix at a time. In a conv, each chunk gives a part of the result. In
// a wgrad, the products of the chunks are added.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "common/call_epilogue.h"
#include "common/enqueue.cuh"
#include "common/product.h"
#include "common/split_k.h"
#include "common/types.h"
#include "im2col/columns.cuh"
#include "im2col/config.h"
#include "im2col/family.h"
#include "im2col/gemm.cuh"
#include "im2col/settings.h"
#include "im2col/support.h"

namespace jaxconv {
namespace {

using namespace im2col;

void (*FindIm2col(DType type))(Im2colParams) {
  switch (ElementBytes(type)) {
    case 1: return Im2colKernel<uint8_t>;
    case 2: return Im2colKernel<uint16_t>;
    case 4: return Im2colKernel<uint32_t>;
    default: return Im2colKernel<uint64_t>;
  }
}

Columns ChunkColumns(const ConvCall& call, const Im2colSettings& s, int64_t first_row) {
  const ConvProblem& p = call.problem;
  return {static_cast<char*>(call.workspace) + SumsBytes(p, call.pass, s), first_row, s.chunk,
          p.groups * ChannelTaps(p), ChannelTaps(p)};
}

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
  params.tile_rows = kIm2colTiles[s.tile].block_m;
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
  params.col_tiles = static_cast<uint32_t>(CeilDiv(p.out_channels, kIm2colTiles[s.tile].block_n));
  params.rhs_col_stride = wgrad ? p.dst.channel : p.filter.out;
  params.rhs_group_stride = wgrad ? p.dst.group : p.filter.group;
  params.out_col_stride = wgrad ? p.filter.out : p.dst.channel;
  params.out_group_stride = wgrad ? p.filter.group : p.dst.group;
  params.out_elements = ResultElements(p, call.pass);
  params.split = static_cast<int32_t>(s.split);
  params.accumulate = wgrad && columns.first_row > 0;
  params.epilogue = call.epilogue;
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
  return AddSlices(call, s.split, stream);
}

cudaError_t Launch(const ConvCall& call, const Im2colSettings& s, cudaStream_t stream) {
  return WithSumType(call.problem, [&](auto acc) { return LaunchSums<decltype(acc)>(call, s, stream); });
}

}  // namespace

const KernelFamily<Im2colSettings> kIm2col = {im2col::kRules, Launch};

}  // namespace jaxconv
