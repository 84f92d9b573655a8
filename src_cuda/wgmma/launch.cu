// The wgmma family: implicit GEMM on Hopper for 16-bit types, int8, float8, and float32 as tf32 or as sums of bfloat16.
// TMA reads pixels in its im2col mode, or as halo tiles.
#include "wgmma/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/call_epilogue.h"
#include "common/call_slot.h"
#include "common/device_attribute.h"
#include "common/enqueue.cuh"
#include "common/fast_division.h"
#include "common/gradient_sums.h"
#include "common/layout.h"
#include "common/persistent.h"
#include "common/product.h"
#include "common/split_k.h"
#include "common/stand_in.h"
#include "common/types.h"
#include "wgmma/config.h"
#include "wgmma/family.h"
#include "wgmma/maps.h"
#include "wgmma/support.h"
#include "wgmma/work_tiles.h"

namespace jaxconv {
namespace {

// Slices of K whose sums are stored: one, where a cluster adds them.
int64_t StoredSplit(Pass pass, const WgmmaSettings& s) { return kWgmmaTiles[s.tile].workspace_split(pass, s.split); }

template <typename T, bool kBF16x6 = false>
WgmmaKernelPtr FindOfType(const ConvProblem& p, Pass pass, int64_t tile, WgmmaEpilogueKind epilogue_kind) {
  if (pass == Pass::kWgrad) return FindWgrad<T, kBF16x6>(tile);
  return FindWgmma<T, kBF16x6>(tile, IsKMajor(p), epilogue_kind);
}

WgmmaKernelPtr Find(const ConvProblem& p, Pass pass, int64_t tile, bool has_epilogue) {
  const WgmmaEpilogueKind epilogue_kind = EpilogueKindOf(p, kWgmmaTiles[tile], has_epilogue);
  switch (p.src_type) {
    case DType::kBF16: return FindOfType<__nv_bfloat16>(p, pass, tile, epilogue_kind);
    case DType::kF16: return FindOfType<__half>(p, pass, tile, epilogue_kind);
    case DType::kS8: return FindWgmma<int8_t, false>(tile, true, epilogue_kind);
    case DType::kE4M3: return FindWgmma<__nv_fp8_e4m3, false>(tile, true, epilogue_kind);
    case DType::kE5M2: return FindWgmma<__nv_fp8_e5m2, false>(tile, true, epilogue_kind);
    case DType::kF32:
      return kWgmmaTiles[tile].bf16x6 ? FindOfType<float, true>(p, pass, tile, epilogue_kind)
                                      : FindOfType<float>(p, pass, tile, epilogue_kind);
    default: return nullptr;  // UnsupportedTypes says so
  }
}

// What runs the call where there is no wgmma, or TMA has no maps of the operands. It is no less exact.
StandIn StandInOf(const ConvProblem& p, Pass pass, const WgmmaSettings& s) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  const bool on_tensor_cores = !tile.bf16x6 && !IsByte(p.src_type);
  return {StoredSplit(pass, s), on_tensor_cores ? tile.cols : 0};
}

Reason UnsupportedReason(const ConvProblem& p, Pass pass, const WgmmaSettings& s) {
  if (Reason why = wgmma::UnsupportedSettings(p, pass, s)) return why;
  return ResultElements(p, pass) == 0 ? std::nullopt : UnsupportedStandIn(p, pass, StandInOf(p, pass, s));
}

size_t SharedBytes(const ConvProblem& p, Pass pass, const WgmmaSettings& s) {
  const size_t without = SharedBytesOfStandIn(p, pass, StandInOf(p, pass, s));
  return DeviceHasWgmma() ? std::max(wgmma::SharedBytes(p, pass, s), without) : without;
}

// Whether windows begin above images, or end below them, by more rows than a cluster has.
bool LeavesOutTaps(const ConvProblem& p, const WgmmaSettings& s, const WgmmaTile& tile) {
  if (s.rank != 4 || tile.halo || tile.cluster_split > 0) return false;
  return PixelsBeyond(p, s, tile, 1) >= wgmma::RowsOfCluster(p, tile, 1) * p.step[1];
}

// Fills in what kernels read of neighbours' rows.
void SetRows(const ConvProblem& p, const WgmmaSettings& s, WgmmaParams* params) {
  const bool is_im2col = !kWgmmaTiles[s.tile].halo, taps_reversed = is_im2col && s.taps_reversed != 0;
  const int before = taps_reversed ? 1 : 0, after = 1 - before;
  params->has_rows = true;
  params->rows_dim = s.rows_dim();
  params->rows_shift[before] = static_cast<int32_t>(s.rows_before);
  params->rows_shift[after] = -static_cast<int32_t>(p.src_size[s.rows_dim()]);
  params->rows_count[before] = static_cast<int32_t>(s.rows_before);
  params->rows_count[after] = static_cast<int32_t>(s.rows_after);
  if (!is_im2col) return;
  params->rows_taps[before] = static_cast<int32_t>(s.taps_before);
  params->rows_taps[after] = static_cast<int32_t>(s.taps_after);
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  const int dim = params->rows_dim;
  const int64_t row = ClassRows(p, tile) / (p.batch * p.dst_size[dim]), seeing = CeilDiv(s.rows_after, p.step[dim]);
  const int64_t behind = CeilDiv(seeing * row, int64_t{tile.rows} * tile.row_blocks);
  params->rows_first_cluster = static_cast<int32_t>(std::max<int64_t>(0, RowClusters(p, tile) - behind));
  params->class_taps += static_cast<int32_t>(s.taps_before + s.taps_after);
  params->leaves_out = true;
}

// Of a number that kernels divide by, if they do.
uint32_t Reciprocal(int32_t divisor) { return FastDivmod<int32_t>::Reciprocal(std::max(divisor, 1)); }

// Fills in what producers of halo tiles read.
void SetHalo(const ConvProblem& p, const WgmmaSettings& s, WgmmaParams* params) {
  params->unit_rows = UnitOf(p, 1), params->unit_cols = UnitOf(p, 2);
  params->halo_rows = static_cast<int32_t>(HaloSize(p, s, 1));
  params->halo_cols = static_cast<int32_t>(HaloSize(p, s, 2));
  for (int d = 1; d < kSpatial; ++d) params->step_reciprocals[d - 1] = Reciprocal(static_cast<int32_t>(p.step[d]));
}

// Fills in what wgrad's kernels read to leave out steps.
void SetSeenSteps(const ConvProblem& p, const WgmmaSettings& s, WgmmaParams* params) {
  const int dim = s.rows_dim();
  params->row_positions = 1;
  for (int d = dim + 1; d < kSpatial; ++d) params->row_positions *= params->counts[d];
  params->image_positions = params->row_positions * params->counts[dim];
  params->image_reciprocal = Reciprocal(params->image_positions);
  params->outer_size = static_cast<int32_t>(p.src_size[dim]);
  params->outer_step = params->step[dim];
  params->outer_step_reciprocal = Reciprocal(params->outer_step);
}

// Of what kernels divide by, once it is filled in.
void SetReciprocals(WgmmaParams* params) {
  for (int d = 0; d < kSpatial; ++d) params->count_reciprocals[d] = Reciprocal(params->counts[d]);
  params->tap_reciprocal = Reciprocal(params->tap_stride);
  params->k_block_reciprocal = Reciprocal(params->k_blocks);
  params->split_reciprocal = Reciprocal(params->split);
  params->outer_cluster_reciprocal = Reciprocal(params->outer_clusters);
  params->inner_cluster_reciprocal = Reciprocal(params->inner_clusters);
  params->group_col_reciprocal = Reciprocal(params->group_cols);
}

// Fills in what kernels read of groups that are columns.
void SetGroups(const ConvProblem& p, WgmmaParams* params) {
  params->has_groups = true;
  params->group_cols = static_cast<int32_t>(p.out_channels / p.groups);
  params->group_channels = static_cast<int32_t>(p.in_channels);
  params->filter_group_channels = FilterGroupsAlongK(p) ? params->group_channels : 0;
}

// Fills in what wgrad's kernels read of the tiles that clusters share out.
void SetWgradTiles(const ConvProblem& p, const WgmmaSettings& s, WgmmaParams* params) {
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  const auto rows = static_cast<int32_t>(WgradRowClusters(p, s)), cols = static_cast<int32_t>(ColClusters(p, tile));
  params->cols_inside = tile.ctas_per_sm == 1 && cols > 2 * rows;  // two CTAs of an SM are slower so
  params->outer_clusters = params->cols_inside ? rows : cols;
  params->inner_clusters = params->cols_inside ? cols : rows;
  params->class_tiles = params->tiles = static_cast<uint32_t>(WgradWorkTiles(p, s));
  params->taps_h = static_cast<int32_t>(s.taps_h), params->taps_w = static_cast<int32_t>(s.taps_w);
  params->tap_pixels = static_cast<int32_t>(s.tap_pixels());
  params->wgrad_parts = static_cast<int32_t>(tile.wgrad_cluster_split(s.split));
  params->class_units = p.class_count == 1 ? static_cast<int32_t>(WgradUnits(p, s)) : 0;
  params->slice_steps = static_cast<int32_t>(WgradSteps(p, tile) / s.split);
  params->steps_left = static_cast<int32_t>(WgradSteps(p, tile) % s.split);
}

// Fills in where the gradient's sums go. `group`: the first one of the launch.
void SetGradientSums(const ConvCall& given, const WgmmaSettings& s, int64_t group, WgmmaParams* params) {
  if (s.gradient_sums == 0) return;
  const ConvProblem& p = given.problem;
  params->gradient_row_tiles = static_cast<int32_t>(WgradRowTiles(p, s));
  params->gradient_channels = static_cast<int32_t>(p.groups * p.out_channels);
  params->gradient_sums = static_cast<float*>(given.workspace) + group * p.out_channels;
}

// `slice_elements`: from a slice of split-K to the next one.
WgmmaParams MakeParams(const ConvCall& call, const WgmmaSettings& s, int64_t slice_elements) {
  const ConvProblem& p = call.problem;
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  const int64_t stored = StoredSplit(call.pass, s);
  WgmmaParams params{};
  params.problem = p;
  params.taps = call.taps;
  params.classes = call.classes;
  params.src = call.src, params.rhs = call.rhs;
  params.out = StoredData(call, stored);
  params.out_type = StoredType(p, call.pass, stored);
  params.has_out_maps = call.pass == Pass::kConv && StoresByTma(p, tile, s.split, HasEpilogue(call));
  if (call.pass == Pass::kConv && !call.epilogue.residual) {
    params.whole_rows = static_cast<int32_t>(WholeRows(p, tile, s.split, HasEpilogue(call)));
  }
  params.slice_elements = stored > 1 ? slice_elements : 0;
  const auto counts = ClassCounts(p, tile);
  for (int d = 0; d < kSpatial; ++d) {
    params.counts[d] = static_cast<int32_t>(counts[d]);
    params.corner[d] = static_cast<int32_t>(s.corner(d));
    params.step[d] = static_cast<int32_t>(p.step[d]);
  }
  if (s.rank == 2 && !tile.halo) params.counts[2] = INT32_MAX;  // rows behind the last pixel are no other image's
  if (tile.halo) SetHalo(p, s, &params);
  params.out_channels = static_cast<int32_t>(p.out_channels);
  params.filter_taps = p.tap_count;
  params.class_taps = p.class_count == 1 ? p.tap_count : 0;
  params.live_classes = static_cast<int32_t>(LiveClasses(p));
  // With an epilogue they are tiles as others, with one step of zeros.
  params.empty_classes = HasEpilogue(call) ? 0 : static_cast<int32_t>(ClassesOfZeros(p, s));
  const int scheduled_classes = params.live_classes - params.empty_classes;
  params.leaves_out = call.pass == Pass::kWgrad ? LeavesOutSteps(p, s) : LeavesOutTaps(p, s, tile);
  if (s.has_rows()) SetRows(p, s, &params);
  if (p.groups > 1) SetGroups(p, &params);
  params.is_plain = params.live_classes == 1 && !params.leaves_out;
  params.rank = static_cast<int16_t>(s.rank);
  params.tap_stride = static_cast<int32_t>(s.tap_stride);
  params.block_k = call.pass == Pass::kWgrad ? kBlockRows : BlockK(p, tile.bf16x6);
  params.k_blocks = static_cast<int32_t>(CeilDiv(p.in_channels, params.block_k));
  params.split = static_cast<int32_t>(s.split);
  params.outer_clusters = static_cast<int32_t>(RowClusters(p, tile));
  params.inner_clusters = static_cast<int32_t>(ColClusters(p, tile));
  params.class_tiles = static_cast<uint32_t>(ClassWorkTiles(p, tile, s.split));
  params.tiles = params.class_tiles * scheduled_classes;
  // Enough to fill all stages. A block that has more tiles than it gets done takes them from others.
  const int64_t steps = CeilDiv(p.tap_count * params.k_blocks, int64_t{scheduled_classes} * s.split);
  params.tiles_ahead = tile.halo ? 1 : static_cast<int32_t>(CeilDiv(tile.stages, std::max<int64_t>(1, steps)));
  params.epilogue = call.epilogue;
  if (call.pass == Pass::kWgrad) SetWgradTiles(p, s, &params);
  if (call.pass == Pass::kWgrad && params.leaves_out) SetSeenSteps(p, s, &params);
  SetReciprocals(&params);
  return params;
}

// Clusters that the current device holds at once. They may be fewer than its multiprocessors have room for: a kernel of
// more would take as long again. The device is asked once.
cudaError_t HeldClusters(const void* function, const cudaLaunchConfig_t& config, int* clusters) {
  static std::mutex mutex;
  static std::map<std::tuple<int, const void*, uint32_t>, int> known;
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device)) return status;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({device, function, config.gridDim.x}, 0);
  if (is_new) {
    const cudaError_t status = cudaOccupancyMaxActiveClusters(&found->second, function, &config);
    if (status != cudaSuccess) return known.erase(found), status;
  }
  *clusters = std::max(1, found->second);
  return cudaSuccess;
}

// How many tiles the clusters of each call have asked for: zeros between launches.
__device__ uint32_t asked_for[kCallSlots];

// A call's counter for a launch on a stream of the current device, or null. The device is asked once for all of them.
uint32_t* CounterOf(CallSlot& slot, cudaStream_t stream) {
  const int number = slot.NumberOn(stream);
  if (number < 0) return nullptr;
  static std::mutex mutex;
  static std::map<int, void*> known;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return nullptr;
  const std::lock_guard lock(mutex);
  void*& counters = known[device];
  if (counters == nullptr && cudaGetSymbolAddress(&counters, asked_for) != cudaSuccess) {
    cudaGetLastError();  // or the launch would be taken for what failed
    return nullptr;
  }
  return static_cast<uint32_t*>(counters) + number;
}

// Enqueues as many clusters as the device holds, or as there are tiles. With cluster split-K each tile has one.
cudaError_t EnqueueClusters(WgmmaKernelPtr kernel, size_t shared_bytes, const WgmmaTile& tile, WgmmaParams& params,
                            CallSlot& slot, cudaStream_t stream) {
  const uint32_t parts = std::max(1, params.wgrad_parts);
  const uint32_t cluster = tile.cluster_split > 0 ? params.split : tile.cluster() * parts;
  const auto function = reinterpret_cast<const void*>(kernel);
  if (const cudaError_t status = AllowShared(function, shared_bytes)) return status;
  cudaLaunchAttribute of_cluster{};
  of_cluster.id = cudaLaunchAttributeClusterDimension;
  of_cluster.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(cluster);
  config.blockDim = dim3(WgmmaThreads(tile));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &of_cluster;
  config.numAttrs = 1;
  if (tile.cluster_split > 0) {
    config.gridDim = dim3(params.outer_clusters * cluster, params.inner_clusters, params.live_classes);
  } else {
    int held = 0;
    if (const cudaError_t status = HeldClusters(function, config, &held)) return status;
    const uint32_t clusters = std::min(static_cast<uint32_t>(held), params.tiles);
    params.rounds = params.class_tiles / clusters;
    if (params.tiles >= 2 * clusters) params.asked_for = CounterOf(slot, stream);
    config.gridDim = dim3(clusters * cluster);
  }
  // A launch of clusters takes longer, also of one block each. Kernels that ask for tiles tell the cluster's blocks.
  if (cluster == 1 && params.asked_for == nullptr) config.numAttrs = 0;
  void* arguments[] = {&params};
  return cudaLaunchKernelExC(&config, function, arguments);
}

cudaError_t LaunchWithoutWgmma(const ConvCall& given, const WgmmaSettings& s, cudaStream_t stream) {
  if (s.has_rows()) return cudaErrorNotSupported;  // no other family takes rows of neighbours
  return LaunchSummingStandIn(given, GradientSumRows(given.problem, s), StandInOf(given.problem, given.pass, s),
                              stream);
}

// The call with parts in place of the operand that is split. Slices are behind them.
ConvCall WithParts(const ConvCall& given, const WgmmaTile& tile) {
  ConvCall call = given.With(given.problem);
  if (!tile.bf16x6) return call;
  call.rhs = given.workspace;
  call.workspace = static_cast<char*>(given.workspace) + PartsBytes(given.problem, given.pass, tile);
  return call;
}

cudaError_t SplitOperand(const ConvCall& given, cudaStream_t stream) {
  const int64_t elements = SplitElements(given.problem, given.pass);
  return EnqueueBF16Parts(static_cast<const float*>(given.rhs), elements, given.workspace, stream);
}

// The call of the launch whose first group is `group`. `of_launch`: its problem. Slices of split-K have the layout of
// the whole result.
ConvCall FromGroup(const ConvCall& call, const ConvProblem& of_launch, const WgmmaTile& tile, int64_t group) {
  const ConvProblem& p = call.problem;
  const auto moved = [group](auto* data, int64_t elements, int64_t bytes) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>, const char, char>;
    return static_cast<decltype(data)>(data ? static_cast<Byte*>(data) + group * elements * bytes : nullptr);
  };
  const bool is_conv = call.pass == Pass::kConv;
  const int64_t of_rhs = is_conv ? p.filter.group : p.dst.group, of_result = is_conv ? p.dst.group : p.filter.group;
  const DType rhs_type = tile.bf16x6 ? DType::kBF16 : is_conv ? p.filter_type : p.dst_type;
  ConvCall of = call.With(of_launch);
  of.src = moved(call.src, p.src.group, ElementBytes(p.src_type));
  of.rhs = moved(call.rhs, of_rhs, ElementBytes(rhs_type));
  of.result = moved(call.result, of_result, ElementBytes(ResultType(p, call.pass)));
  of.workspace = moved(call.workspace, of_result, ElementBytes(SumType(p)));
  Epilogue& epilogue = of.epilogue;
  for (PerChannel* each : {&epilogue.scale, &epilogue.bias, &epilogue.out_scale}) {
    each->data = moved(each->data, p.out_channels * each->stride, sizeof(float));
  }
  epilogue.residual = moved(epilogue.residual, p.dst.group, ElementBytes(epilogue.residual_type));
  return of;
}

cudaError_t Launch(const ConvCall& given, const WgmmaSettings& s, cudaStream_t stream) {
  const ConvProblem& p = given.problem;
  const WgmmaTile& tile = kWgmmaTiles[s.tile];
  const Epilogue& epilogue = given.epilogue;
  static_assert(WgmmaSettings::kNeedsAligned, "arrays that are not aligned go to a slower kernel");
  if (!DeviceHasWgmma() || !AreAligned({given.src, given.rhs, given.result}) ||
      !AreAligned({given.rows.before, given.rows.after}) ||
      !AreAligned({epilogue.scale.data, epilogue.bias.data, epilogue.out_scale.data, epilogue.residual}) ||
      (HasEpilogue(given) && wgmma::UnsupportedEpilogue(p, tile, s.split, epilogue.residual != nullptr))) {
    return LaunchWithoutWgmma(given, s, stream);
  }
  const ConvCall behind_sums = BehindGradientSums(given, GradientSumRows(p, s)), call = WithParts(behind_sums, tile);
  const bool is_matrix = s.rank == 2 && !tile.halo;
  const ConvProblem of_launch = OfLaunch(p, call.pass, tile), seen = is_matrix ? AsMatrix(of_launch) : of_launch;
  const int64_t stored = StoredSplit(call.pass, s);
  const WgmmaKernelPtr kernel = Find(p, call.pass, s.tile, EndsWithEpilogue(call, stored));
  const size_t shared_bytes = wgmma::SharedBytes(p, call.pass, s);
  for (int64_t group = 0; group < p.groups; group += of_launch.groups) {
    const ConvCall from_group = FromGroup(call, seen, tile, group);
    WgmmaParams params = MakeParams(from_group, s, ResultElements(p, call.pass));
    SetGradientSums(given, s, group, &params);
    if (!EncodeMaps(from_group, s, &params)) return LaunchWithoutWgmma(given, s, stream);  // of all groups
    if (group == 0 && tile.bf16x6) {
      if (const cudaError_t status = SplitOperand(behind_sums, stream)) return status;
    }
    if (const cudaError_t status = EnqueueClusters(kernel, shared_bytes, tile, params, *call.slot, stream))
      return status;
  }
  if (stored == 1) return cudaSuccess;
  return AddSlices(call, stored, stream);
}

}  // namespace

const KernelFamily<WgmmaSettings> kWgmma = {{UnsupportedReason, WgmmaWorkspace, SharedBytes}, Launch};

}  // namespace jaxconv
