// The operands of weight gradients in shared memory: how TMA fills a stage, and how wgmma reads it.
//
// A stage is as many positions as fill 128 bytes, or those of a halo tile. Of 16-bit types both operands are MN-major
// in shared memory, as they lie in device memory: rows of 64 channels, one for each position. wgmma transposes them. It
// does not transpose float32. So the source goes through registers. The gradient of tf32 is K-major in device memory:
// rows of positions, one for each channel. For products of bfloat16 it is MN-major, and in parts.
//
// In im2col mode, the source has a box for each block of 64 channels of one tap: of the pixels that the positions see.
// With halo tiles, positions are a unit of one image, 8 x 8 of them or 64 of a line, and the source has the halo tile
// of pixels that all taps of a plane see. Three taps of a window's row are 192 columns of one multiplication: the
// descriptor's distance between blocks of 64 columns is the distance of two taps' pixels. Of float32 they are three
// multiplications for each line of eight positions, K of one: a lane loads the pixels that a tap sees from there.
#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "common/ptx.cuh"
#include "common/ptx_barrier.cuh"
#include "common/ptx_cluster.cuh"
#include "common/shared_tile.cuh"
#include "common/tma_limits.h"
#include "common/warpgroup_mma.cuh"
#include "wgmma/bf16x6.cuh"
#include "wgmma/config.h"
#include "wgmma/filter.cuh"
#include "wgmma/params.cuh"
#include "wgmma/wgrad_tiles.cuh"

namespace jaxconv {

// What lies in front of a stage's source: the gradient. In parts, these follow each other.
template <typename T, WgmmaTile kTile>
struct WgradGradient {
  using Element = std::conditional_t<kTile.bf16x6, __nv_bfloat16, T>;
  static constexpr int kPositions = WgradPositions(kTile, sizeof(T)), kParts = kTile.bf16x6 ? kBF16Parts : 1;
  static constexpr int kLines = kTile.has_tf32_halos() ? kUnitSide : 1;  // of eight positions, with a tile each
  using Tile = SharedTile<Element, static_cast<int>(CeilDiv(kTile.cols, kBlockRows)) * kBlockRows, kPositions / kLines,
                          !kReadsMnMajor<Element>>;
  static constexpr int kBlocks = Tile::kMn / kBlockRows, kBlockBytes = Tile::kBytes / kBlocks;
  static constexpr int kBytes = kParts * kLines * Tile::kBytes;
  static_assert(!kReadsMnMajor<T> || kBlockK<T> == kBlockRows, "a block of M or N is a swizzled row of TMA");
  static_assert(kBlockBytes % 1024 == 0, "TMA copies a block at once");
  static_assert(kLines == 1 || (kBlocks == 1 && kPositions / kLines == kTraits<float>.mma_depth),
                "TMA copies all lines at once, and a line is K of one multiplication");
};

// 64 channels of float32 at eight positions, as a warpgroup's registers have them for wgmma. A lane's registers are,
// with g = lane / 4 and t = lane % 4, the rows g and g + 8 of its warp's 16 at position t, then at t + 4. Any order of
// channels is right. This one avoids bank conflicts.
struct WgradRegisters {
  uint32_t words[4];

  // The channel, of the 64, that is this lane's row of its warp's first or second eight.
  static __device__ __forceinline__ int ChannelOf(int half) {
    const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4;
    return warp / 2 * 32 + g / 4 * 16 + warp % 2 * 8 + half * 4 + g % 4;
  }

  // Of the two boxes of 32 channels, with a swizzled row for each pixel, the one that has this lane's.
  static __device__ __forceinline__ int Box() { return ChannelOf(0) / 32; }

  // Where this lane's i-th word lies, if position t has the swizzled row at `row`, and the next ones those behind it.
  // The swizzle: channel + 4 is the next vector, position + 4 the fourth one.
  static __device__ __forceinline__ uint32_t WordAt(uint32_t row, int i) {
    const int channel = ChannelOf(0) % 32;
    const uint32_t first = row + (row / kSwizzleBytes % 8 * 16 ^ channel / 4 * 16) + channel % 4 * 4;
    return (first ^ i % 2 * 16 ^ i / 2 * 64) + i / 2 * 4 * kSwizzleBytes;
  }
};

// In im2col mode.
template <typename T, WgmmaTile kTile>
class WgradIm2col {
 public:
  using Gradient = WgradGradient<T, kTile>;
  static constexpr int kBlocks = kTile.rows / kBlockRows;
  static constexpr int kPositions = WgradPositions(kTile, sizeof(T));
  static constexpr int kBoxes = kBlockRows / kBlockK<T>, kBoxBytes = kPositions * kSwizzleBytes;  // of a block
  static constexpr int kOfWarpgroup = kBlocks / kTile.warpgroups();
  struct alignas(1024) Stage {
    char gradient[Gradient::kBytes];
    char source[kBlocks * kWgradBlockBytes];
  };

  __device__ explicit WgradIm2col(const WgmmaParams& p) : positions_(p) {}

  // Of a producer: finds what it copies of the source in all steps of a tile.
  __device__ __forceinline__ void Find(const WgmmaParams& p, const WgradWorkTile& tile) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) boxes_[i] = BoxOf(p, tile, i);
    bytes_ = sizeof(Stage::source);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) bytes_ -= (kBoxes - boxes_[i].count) * kBoxBytes;
  }

  __device__ __forceinline__ uint32_t SourceBytes(const WgmmaParams&) const {
    return kBoxes == 1 ? sizeof(Stage::source) : bytes_;
  }

  __device__ __forceinline__ void CopySource(const WgmmaParams& p, const WgradWorkTile&, int32_t step, uint32_t stage,
                                             uint32_t full, uint16_t ctas) const {
    const auto rank = static_cast<int>(blockIdx.x % kTile.cluster());
    const ptx::PixelCoord of_source = CoordOf(p, step, p.step, p.corner);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (kTile.col_blocks > 1 && i % kTile.col_blocks != rank) continue;
#pragma unroll
      for (int j = 0; j < kBoxes; ++j) {
        if (kBoxes > 1 && j >= boxes_[i].count) break;
        const uint32_t to = stage + offsetof(Stage, source) + i * kWgradBlockBytes + j * kBoxBytes;
        ptx::CopyPixels<(kTile.col_blocks > 1)>(p.rank, to, p.src_map, full, boxes_[i].channel + j * kBlockK<T>,
                                                of_source, boxes_[i].w, boxes_[i].h, boxes_[i].d, ctas);
      }
    }
  }

  __device__ __forceinline__ void CopyGradient(const WgmmaParams& p, const WgradWorkTile& tile, int32_t step,
                                               uint32_t stage, uint32_t full, uint16_t ctas) const {
    constexpr int32_t kOrigin[kSpatial] = {};
    const auto rank = static_cast<int>(blockIdx.x % kTile.cluster());
    const ptx::PixelCoord of_gradient = CoordOf(p, step, p.problem.period, kOrigin);
#pragma unroll
    for (int i = 0; i < Gradient::kParts * Gradient::kBlocks; ++i) {
      if (kTile.row_blocks > 1 && i % kTile.row_blocks != rank) continue;
      const uint32_t to = stage + i * Gradient::kBlockBytes;
      int32_t channel = tile.first_col + i % Gradient::kBlocks * kBlockRows;
      // Beside a box without channels, the source's words could not be loaded yet. What takes its place is not stored.
      if (Gradient::kParts > 1 && channel >= p.out_channels) channel = 0;
      if constexpr (kReadsMnMajor<typename Gradient::Element>) {
        ptx::CopyPixels<(kTile.row_blocks > 1)>(p.rank, to, p.rhs_map, full, channel,
                                                OfPart(p, of_gradient, i / Gradient::kBlocks), tile.phase[2],
                                                tile.phase[1], tile.phase[0], ctas);
      } else {
        ptx::CopyMatrix<(kTile.row_blocks > 1)>(to, p.rhs_map, full, step * kPositions, channel, 0, ctas);
      }
    }
  }

  // Of consumers: the descriptor of the source from the `block`-th 64 rows of a warpgroup's on, which has the tile's
  // from the `first`-th 64 on. `in_cta`: the stage's address.
  using Descriptor = MatrixDescriptor<SharedTile<T, kTile.rows, kPositions, false>>;
  static __device__ __forceinline__ uint64_t At(uint32_t in_cta, int first, int block) {
    return Descriptor::At(in_cta + offsetof(Stage, source), (first + block) * kBlockRows);
  }
  static __device__ __forceinline__ uint64_t Advance(int k) { return Descriptor::Advance(0, k); }

  // Of consumers of float32: the source in registers, as operand A of wgmma. `first`: as of At.
  static constexpr int kDepths = kPositions / kTraits<typename Gradient::Element>.mma_depth;
  static __device__ __forceinline__ void Load(uint32_t stage, int first,
                                              WgradRegisters (&blocks)[kOfWarpgroup][kDepths]) {
    const uint32_t of_lane = WgradRegisters::Box() * kBoxBytes + threadIdx.x % 4 * kSwizzleBytes;
#pragma unroll
    for (int i = 0; i < kOfWarpgroup; ++i) {
      const uint32_t row = stage + offsetof(Stage, source) + (first + i) * kWgradBlockBytes + of_lane;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const uint32_t from = WgradRegisters::WordAt(row, word);
#pragma unroll
        for (int k = 0; k < kDepths; ++k) blocks[i][k].words[word] = ptx::LoadWord(from + k * 8 * kSwizzleBytes);
      }
    }
  }
  // The same in parts.
  static __device__ __forceinline__ void Load(uint32_t stage, int first, BF16Source (&blocks)[kOfWarpgroup][kDepths]) {
#pragma unroll
    for (int i = 0; i < kOfWarpgroup; ++i) {
#pragma unroll
      for (int k = 0; k < kDepths; ++k) {
        blocks[i][k].LoadMnMajor(stage + offsetof(Stage, source) + (first + i) * kWgradBlockBytes, k);
      }
    }
  }

 private:
  // A step's first position, in pixels of an operand.
  template <typename Apart>
  __device__ __forceinline__ ptx::PixelCoord CoordOf(const WgmmaParams& p, int32_t step, const Apart (&apart)[kSpatial],
                                                     const int32_t (&first)[kSpatial]) const {
    if (p.rank == 2) return {step * kPositions, 0, 0, 0};
    return InPixels(positions_.At(step * kPositions), apart, first);
  }

  // A part's pixels: its images, or rows of a matrix, lie behind those of the part before it. Positions behind the last
  // image's are in the next part. There the source has zeros, and the next part no infinity or NaN.
  static_assert(kFirst == 0, "infinities and NaNs lie behind no other part");
  static __device__ __forceinline__ ptx::PixelCoord OfPart(const WgmmaParams& p, ptx::PixelCoord at, int part) {
    if constexpr (Gradient::kParts == 1) return at;
    if (p.rank == 2) {
      at.w += part * static_cast<int32_t>(p.problem.dst_size[2]);
    } else {
      at.image += part * static_cast<int32_t>(p.problem.batch);
    }
    return at;
  }

  // What a block of M reads of a step: channels of the pixels that a tap sees. Boxes without channels are not copied:
  // beside one, the barrier was seen to complete before the other boxes' pixels could be loaded. What wgmma makes of
  // its rows is not stored.
  struct Box {
    int32_t channel;
    uint16_t w, h, d;  // the tap's offset in windows
    uint16_t count;    // of boxes
  };

  // If the maps do not reach a tap, the plan is of another problem. Blocks behind the last one read what it does.
  static __device__ __forceinline__ Box BoxOf(const WgmmaParams& p, const WgradWorkTile& tile, int32_t block) {
    block = min(tile.first_unit + block, tile.end_unit - 1);
    int32_t k_block;
    const int32_t tap_of_class = FastDivmod<int32_t>(p.k_blocks, p.k_block_reciprocal).Divide(block, &k_block);
    Box box{k_block * kBlockRows, 0, 0, 0, kBoxes};
    if (kBoxes > 1 && box.channel + kBlockK<T> >= p.problem.in_channels) box.count = 1;
    box.channel += OperandOrigin(p, tile.first_col).src_channel;
    if (p.rank == 2) return box;
    const Tap& tap = p.taps[tile.first_tap + tap_of_class];
    uint32_t from_corner[kSpatial];
    bool reaches = true;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      from_corner[d] = static_cast<uint32_t>(tap.shift[d] - p.corner[d]);
      reaches &= from_corner[d] < (kSpatial - d > p.rank - 2 ? 1 : Im2colOffsetEnd(p.rank));
    }
    if (!reaches) __trap();
    box.w = from_corner[2], box.h = from_corner[1], box.d = from_corner[0];
    return box;
  }

  RowPositions<kTile> positions_;
  Box boxes_[kBlocks];
  uint32_t bytes_;
};

// With halo tiles.
template <typename T, WgmmaTile kTile>
class WgradHalo {
 public:
  using Gradient = WgradGradient<T, kTile>;
  static constexpr int kGroups = kTile.rows / WgradUnit(kTile);
  static constexpr int kHaloBytes = kMostHaloPixels * kSwizzleBytes;
  static constexpr int kBoxes = kBlockRows / kBlockK<T>;  // of a halo tile's 64 channels
  struct alignas(1024) Stage {
    char gradient[Gradient::kBytes];
    char halos[kGroups][kBoxes][kHaloBytes];
  };
  static_assert(kHaloBytes % 1024 == 0, "each halo tile begins a turn of its swizzle");
  static_assert(kTile.cluster() == 1, "halo tiles are not shared");

  __device__ explicit WgradHalo(const WgmmaParams& p)
      : positions_(p),
        line_(p.unit_rows == 1 ? 8 : p.halo_cols),
        tap_pixels_(p.tap_pixels),
        layout_(uint64_t{1} << 62 | static_cast<uint64_t>(line_ * 8) << 32 |
                static_cast<uint64_t>(p.tap_pixels * 8) << 16) {}

  // Of a producer: finds what it copies of the source in all steps of a tile. Groups of taps of one plane share its
  // halo tile. Boxes without channels are not copied, as those of WgradIm2col.
  __device__ __forceinline__ void Find(const WgmmaParams& p, const WgradWorkTile& tile) {
    const int32_t first = HaloTapsOf(p, tile, tile.first_unit).plane;
    planes_ = HaloTapsOf(p, tile, tile.first_unit + kGroups - 1).plane - first + 1;
    const OperandOrigin origin(p, tile.first_col);
    int32_t boxes = 0;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const int32_t plane = min(first + i, first + planes_ - 1), channel = plane % p.k_blocks * kBlockRows;
      depths_[i] = p.taps[tile.first_tap + plane / p.k_blocks * p.taps_h * p.taps_w].shift[0];
      channels_[i] = origin.src_channel + channel;
      boxes_[i] = kBoxes > 1 && channel + kBlockK<T> >= p.problem.in_channels ? 1 : kBoxes;
      if (i < planes_) boxes += boxes_[i];
    }
    bytes_ = boxes * p.halo_rows * p.halo_cols * kSwizzleBytes;
  }

  __device__ __forceinline__ uint32_t SourceBytes(const WgmmaParams&) const { return bytes_; }

  __device__ __forceinline__ void CopySource(const WgmmaParams& p, const WgradWorkTile&, int32_t step, uint32_t stage,
                                             uint32_t full, uint16_t) const {
    const int32_t corner[kSpatial] = {0, p.corner[1], p.corner[2]};  // each group has its own depth
    const ptx::PixelCoord at = InPixels(positions_.OfUnit(step), p.step, corner);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      if (i >= planes_) break;
#pragma unroll
      for (int j = 0; j < kBoxes; ++j) {
        if (kBoxes > 1 && j >= boxes_[i]) break;
        const uint32_t to = stage + offsetof(Stage, halos) + (i * kBoxes + j) * kHaloBytes;
        ptx::CopyBoxByTma(to, p.src_map, full, channels_[i] + j * kBlockK<T>, at.w, at.h, at.d + depths_[i], at.image);
      }
    }
  }

  __device__ __forceinline__ void CopyGradient(const WgmmaParams& p, const WgradWorkTile& tile, int32_t step,
                                               uint32_t stage, uint32_t full, uint16_t) const {
    const ptx::PixelCoord at = positions_.OfUnit(step);
    if constexpr (!kReadsMnMajor<T>) {
      const bool is_line = p.unit_rows == 1;  // of eights, see EncodeGradientLines
      const int32_t first = is_line ? 0 : at.w, line = is_line ? at.w / kUnitSide : at.h;
      ptx::CopyBoxByTma(stage, p.rhs_map, full, first, tile.first_col, line, at.d, at.image);
    } else {
#pragma unroll
      for (int i = 0; i < Gradient::kBlocks; ++i) {
        ptx::CopyBoxByTma(stage + i * Gradient::kBlockBytes, p.rhs_map, full, tile.first_col + i * kBlockRows, at.w,
                          at.h, at.d, at.image);
      }
    }
  }

  // Of consumers: finds where a warpgroup's groups of taps lie in a stage. If a halo tile does not have their pixels,
  // the plan is of another problem.
  __device__ __forceinline__ void FindGroups(const WgmmaParams& p, const WgradWorkTile& tile, int first_group) {
    const int32_t first = HaloTapsOf(p, tile, tile.first_unit).plane;
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const HaloTaps taps = HaloTapsOf(p, tile, tile.first_unit + first_group + i);
      groups_[i] =
          offsetof(Stage, halos) + (taps.plane - first) * kBoxes * kHaloBytes + PixelOf(p, taps) * kSwizzleBytes;
      if constexpr (!kReadsMnMajor<T>) {
        groups_[i] += WgradRegisters::Box() * kHaloBytes + threadIdx.x % 4 * kSwizzleBytes;
      }
    }
  }

  // Of consumers of float32: the source of a line of eight positions in registers, by the taps of the warpgroup's
  // group. Rows of pixels are swizzled by their number in the halo tile, which begins a turn.
  __device__ __forceinline__ void LoadLine(uint32_t stage, int line, WgradRegisters (&taps)[kHaloWgradTaps]) const {
#pragma unroll
    for (int i = 0; i < kHaloWgradTaps; ++i) {
      const uint32_t row = stage + groups_[0] + (line * line_ + i * tap_pixels_) * kSwizzleBytes;
#pragma unroll
      for (int word = 0; word < 4; ++word) taps[i].words[word] = ptx::LoadWord(WgradRegisters::WordAt(row, word));
    }
  }

  __device__ __forceinline__ uint64_t At(uint32_t in_cta, int, int block) const {
    return layout_ | (in_cta + groups_[block / kHaloWgradTaps]) >> 4;
  }
  // The k-th 16 positions are two groups of eight, each a line of the halo tile.
  __device__ __forceinline__ uint64_t Advance(int k) const { return static_cast<uint64_t>(k * 2 * line_ * 8); }

 private:
  static __device__ __forceinline__ int32_t PixelOf(const WgmmaParams& p, const HaloTaps& taps) {
    const Tap& tap = p.taps[taps.first];
    const auto row = static_cast<uint32_t>(tap.shift[1] - p.corner[1]);
    const auto col = static_cast<uint32_t>(tap.shift[2] - p.corner[2]);
    const uint32_t last = col + (taps.count - 1) * p.tap_pixels;
    bool is_there = row + p.unit_rows <= p.halo_rows && last + p.unit_cols <= p.halo_cols;
#pragma unroll
    for (int i = 1; i < kHaloWgradTaps; ++i) {
      const Tap& next = p.taps[taps.first + min(i, taps.count - 1)];
      is_there &= i >= taps.count || (next.shift[0] == tap.shift[0] && next.shift[1] == tap.shift[1] &&
                                      next.shift[2] == tap.shift[2] + i * p.tap_pixels);
    }
    if (!is_there) __trap();
    return row * p.halo_cols + col;
  }

  RowPositions<kTile> positions_;
  int32_t line_;  // pixels from eight positions to the next eight
  int32_t tap_pixels_;
  uint64_t layout_;
  int32_t planes_ = 0;
  uint32_t bytes_ = 0;
  int32_t depths_[kGroups];
  int32_t channels_[kGroups];
  int32_t boxes_[kGroups];
  uint32_t groups_[kGroups];
};

}  // namespace jaxconv
