// The depthwise family: convolution of each channel on its own. Tensor cores multiply with the Toeplitz (band) matrices
// of the filter's rows. CUDA cores compute float32.
#include "depthwise/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "common/enqueue.cuh"
#include "common/gradient_sums.h"
#include "common/layout.h"
#include "common/persistent.h"
#include "common/product.h"
#include "common/split_k.h"
#include "common/stand_in.h"
#include "common/types.h"
#include "depthwise/config.h"
#include "depthwise/family.h"
#include "depthwise/layout.h"
#include "depthwise/maps.h"
#include "depthwise/support.h"

namespace jaxconv {
namespace {

using namespace depthwise;

const void* Find(DType type, int64_t tile, Pass pass, DepthwiseEpilogueKind epilogue_kind) {
  switch (type) {
    case DType::kBF16: return FindDepthwise<__nv_bfloat16>(tile, pass, epilogue_kind);
    case DType::kF16: return FindDepthwise<__half>(tile, pass, epilogue_kind);
    case DType::kS8: return FindDepthwise<int8_t>(tile, pass, epilogue_kind);
    default: return FindDepthwise<float>(tile, pass, epilogue_kind);
  }
}

DepthwiseEpilogueKind EpilogueKindOf(const Epilogue& epilogue) {
  if (!epilogue.is_there) return DepthwiseEpilogueKind::kNone;
  return epilogue.residual ? DepthwiseEpilogueKind::kResidual : DepthwiseEpilogueKind::kPlain;
}

DepthwiseSettings WithTile(DepthwiseSettings s, const DepthwiseTile& tile) {
  s.tile = DepthwiseTileIndex(tile);
  return s;
}

// The settings that run on this device. Where it has no warp-specialized kernels, the same tile runs without producers.
// Its thread blocks have half the channels, or half the strips, and as many as their fewer threads can copy.
DepthwiseSettings SettingsHere(const ConvProblem& problem, const DepthwiseSettings& s) {
  const DepthwiseTile tile = WithoutProducers(kDepthwiseTiles[s.tile]);
  if (tile == kDepthwiseTiles[s.tile] || DeviceHasWgmma()) return s;
  const ConvProblem p = InElements(problem);
  const OperandTraits& traits = TraitsOf(p.src_type);
  Stream stream = s.stream();
  stream.channels = std::max(stream.channels / 2, traits.vector());
  const int most_strips = MostStrips(tile, stream.channels * traits.bytes);
  stream.cols = std::min(stream.cols, most_strips * kStripCols);
  stream.images = std::min(stream.images, most_strips / std::max(1, stream.cols / kStripCols));
  FitImages(p, tile, &stream);
  while (CopiesOf(p, tile, stream) > MostCopies(tile) && stream.cols > kStripCols) stream.cols -= kStripCols;
  DepthwiseSettings here = WithTile(s, tile);
  here.channels = stream.channels, here.cols = stream.cols, here.images = stream.images;
  return here;
}

Reason UnsupportedReason(const ConvProblem& p, Pass pass, const DepthwiseSettings& planned) {
  if (Reason why = UnsupportedSettings(p, pass, planned)) return why;
  if (ResultElements(p, pass) == 0) return std::nullopt;
  const DepthwiseSettings s = SettingsHere(p, planned);
  if (Reason why = s.tile == planned.tile ? std::nullopt : UnsupportedSettings(p, pass, s)) return why;
  return UnsupportedStandIn(p, pass, {s.split});
}

size_t SharedBytesHere(const ConvProblem& p, Pass pass, const DepthwiseSettings& s) {
  return SharedBytes(p, pass, SettingsHere(p, s));
}

cudaError_t Launch(const ConvCall& given, const DepthwiseSettings& planned, cudaStream_t stream) {
  const ConvProblem& p = given.problem;
  const DepthwiseSettings s = SettingsHere(p, planned);
  const DepthwiseTile& tile = kDepthwiseTiles[s.tile];
  const bool wgrad = given.pass == Pass::kWgrad;
  const int64_t sum_rows = GradientSumRows(s);
  const ConvCall call = BehindGradientSums(given, sum_rows);
  DepthwiseParams d{ShapeOf(p, call.pass, s), call.epilogue};
  SetOperands(call, s.split, &d);
  static_assert(DepthwiseSettings::kNeedsAligned, "arrays that are not aligned go to a slower kernel");
  // The filter, or its gradient, is read or written an element at a time.
  if (!AreAligned({d.src, wgrad ? d.rhs : d.out, call.epilogue.residual}))
    return LaunchSummingStandIn(given, sum_rows, {s.split}, stream);
  d.gradient_sums = GradientSumsOf(given, sum_rows);
  // A conv's blocks stay as long as there are rows.
  d.workers = wgrad ? static_cast<int32_t>(s.split)
                    : PersistentCtasOfDevice(d.offsets.end, MaxCtasPerSm(tile, call.pass), d.channel_tiles, Tiles(d));
  d.worker_rows = d.stream_rows / d.workers;
  d.longer_workers = d.stream_rows % d.workers;
  const int64_t blocks = ThreadBlocks(d, call.pass, d.workers);
  const void* kernel = Find(p.src_type, s.tile, call.pass, EpilogueKindOf(call.epilogue));
  const auto enqueue = [&](const auto&... maps) {
    return EnqueueShared(kernel, blocks, BlockThreads(tile), d.offsets.end, stream, d, maps...);
  };
  DepthwiseMaps maps;
  if (tile.by_tma && !EncodeMaps(call, d, &maps)) return Launch(given, WithTile(s, WithoutTma(tile)), stream);
  const cudaError_t status = tile.by_tma ? enqueue(maps) : enqueue();
  if (status != cudaSuccess || s.split == 1) return status;
  return AddSlices(call, s.split, stream);
}

}  // namespace

const KernelFamily<DepthwiseSettings> kDepthwise = {{UnsupportedReason, SummingWorkspace, SharedBytesHere}, Launch};

}  // namespace jaxconv
