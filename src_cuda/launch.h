// What the kernel files offer to the FFI handlers: a KernelFamily each, and the tables of compiled tiles.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "conv_problem.h"

namespace jaxconv {

// The two products of conv_problem.h.
enum class Pass { kGather, kReduce };

class CallSlot;

// A call's operands, all in device memory. `rhs` is the filter of a gather and the destination's gradient of a reduce.
struct ConvCall {
  const ConvProblem& problem;
  Pass pass;
  const Tap* taps;
  const ResidueClass* classes;
  const void* src;
  const void* rhs;
  void* result;
  void* scratch;
  CallSlot* slot;  // of a gather, by which kernels find what they keep from launch to launch
};

// Of the direct family: the output positions that a thread block computes at a time, rows by columns; the source pixels
// that they read, in the class that reads most; the taps of the class that has most.
struct Area {
  int32_t rows;
  int32_t cols;
  int32_t box[kSpatial];
  int32_t taps;
  int32_t walk;  // rows, a dilation apart, that a warp takes one after the other; 1: it takes all at once
  int32_t run;   // taps of a row, if the source is read in runs, and box[2] is of pieces of eight elements; else 0
  int32_t corner[kSpatial];  // of a reduce, the first class's: its taps' least shifts, with which boxes begin
};

// Of the depthwise family: a thread block's tile, along which the rows of the source pass by.
struct Stream {
  int32_t rows;      // of the destination, in positions of a residue class
  int32_t cols;      // of each image's row: whole strips
  int32_t channels;  // of a thread block
  int32_t images;    // of a tile, or planes of volumes; 0: all images' rows follow each other as one's, where no tap
                     // leaves its row
  int32_t first[kSpatial];   // source depth, row and column of the first position's first tap
  int32_t pieces[kSpatial];  // of the window, along each dimension
  int32_t apart[2];          // rows, and columns, from one to the next of a tile, as between taps of a dilated window
};

// Of the wgmma family: where TMA's im2col mode finds the source's pixels and the filter's taps.
struct Im2col {
  int32_t corner[kSpatial];  // the first window's, of the residue classes' the lowest: a tap's shift is no less
  int32_t rank;              // of the maps: two more than the last spatial dimensions, of which they have so many
  int32_t tap_stride;        // elements of the filter from a tap to the next
  int32_t reach[2];          // rows and columns from the corner to the last tap's pixel
  int32_t empty_classes;     // that have positions, but no taps
};

// How a family is to run a call. With split > 1 the reduction is cut into that many slices, each summed into its own
// part of the scratch, and a second kernel adds the slices in order; or, of some tiles of wgmma, a cluster adds them.
struct Plan {
  int tile;  // index into the family's table
  int split;
  int64_t chunk;      // im2col: rows of the column matrix that are in the scratch at a time; 0 elsewhere
  int units;          // mma: tiles of columns that a block computes in turn; 0: as many as suit the device
  int32_t shape[12];  // direct: an Area; depthwise: a Stream; wgmma: an Im2col; mma: its merged classes; else zeros

  // Of a gather by mma: residue classes whose columns follow each other in one matrix, as they read the same source
  // pixels. All, or 1.
  int merged() const { return std::max(1, shape[0]); }
  Area area() const {
    return {shape[0], shape[1], {shape[2], shape[3], shape[4]}, shape[5],
            shape[6], shape[7], {shape[8], shape[9], shape[10]}};
  }
  Im2col im2col() const { return {{shape[0], shape[1], shape[2]}, shape[3], shape[4], {shape[5], shape[6]}, shape[7]}; }
  Stream stream() const {
    return {shape[0],
            shape[1],
            shape[2],
            shape[3],
            {shape[4], shape[5], shape[6]},
            {shape[7], shape[8], shape[9]},
            {shape[10], shape[11]}};
  }
};

// One .cu file. The checks are made on the host before each launch and enqueue nothing.
struct KernelFamily {
  // Why a call cannot run, or null.
  const char* (*why_not)(const ConvProblem&, Pass, const Plan&);
  // Scratch that a call that can run needs.
  size_t (*scratch_bytes)(const ConvProblem&, Pass, const Plan&);
  // Shared memory of its thread blocks.
  size_t (*shared_bytes)(const ConvProblem&, Pass, const Plan&);
  // Enqueues a call that can run, with enough scratch and shared memory. Allocates nothing, waits for nothing.
  cudaError_t (*launch)(const ConvCall&, const Plan&, cudaStream_t);
};

extern const KernelFamily kSimt;
extern const KernelFamily kIm2col;
extern const KernelFamily kMma;
extern const KernelFamily kDirect;
extern const KernelFamily kDepthwise;
extern const KernelFamily kWgmma;

// Loads a kernel on the current device, and says why it does not load.
cudaError_t LoadProbe();

// Whether this build has code for wgmma, which devices of compute capability 9.0 have.
#ifdef JAXCONV_SM_90A
inline constexpr bool kHasWgmmaCode = true;
#else
inline constexpr bool kHasWgmmaCode = false;
#endif

// In the order of FAMILIES["cuda"] in families/__init__.py.
inline constexpr const KernelFamily* kFamilies[] = {&kSimt, &kIm2col, &kMma, &kDirect, &kDepthwise, &kWgmma};

// A thread block's part of the product: `rows` x `cols` results, `depth` steps of the reduction at a time, `stages`
// copies of the operands' tiles in shared memory.
struct Tile {
  int rows;
  int cols;
  int depth;
  int stages;
  int thread_rows;  // results of one thread
  int thread_cols;
  bool only_f32;  // compiled for sums in float32 alone; the others also for float64 and int32

  constexpr int threads() const { return rows * cols / (thread_rows * thread_cols); }
};

// The tables of families/.
inline constexpr Tile kSimtTiles[] = {
    {128, 128, 8, 2, 8, 8, true},
    {128, 64, 8, 2, 8, 8, true},
    {64, 64, 8, 2, 4, 8, false},
    {128, 32, 8, 2, 4, 8, false},
};
inline constexpr Tile kIm2colTiles[] = {
    {128, 128, 8, 1, 8, 8, true},
    {64, 64, 8, 1, 8, 8, false},
};

// A tile on tensor cores, which warps share out, or, if they multiply by wgmma, warpgroups of four warps. A row of
// shared memory along the steps is 128 bytes.
struct MmaTile {
  int rows;
  int cols;
  int depth;  // 64 for 16-bit operands, 32 for float32's
  int stages;
  int warp_rows;
  int warp_cols;
  int blocks;  // that a multiprocessor is to hold
  bool wgmma;  // is of compute capability 9.0 alone
  int passes;  // 1, or 3: float32 as the sum of two tf32 numbers

  // Whether there are kernels that merge residue classes: for narrower tiles it gains little.
  constexpr bool merges() const { return cols == 128; }
  constexpr int threads() const { return (wgmma ? 128 : 32) * (rows / warp_rows) * (cols / warp_cols); }
  constexpr int operand_bytes() const { return 128 / depth; }
  // Tiles that are copied ahead of the one that is multiplied. A stage is written again when it has been multiplied: at
  // once, or, if multiplications go on meanwhile and no other block is there to fill the gap, one tile later.
  constexpr int pending() const { return wgmma && blocks == 1 ? 1 : 0; }
  constexpr int ahead() const { return stages - 1 - pending(); }
  // Tiles of which the steps are known: those, and the next; a power of two.
  constexpr int ring() const { return ahead() == 1 ? 2 : 4; }
};

inline constexpr MmaTile kMmaTiles[] = {
    {128, 128, 64, 3, 64, 64, 2, false, 1},  {128, 64, 64, 4, 64, 32, 2, false, 1},
    {64, 64, 64, 4, 32, 32, 3, false, 1},    {128, 16, 64, 4, 32, 16, 2, false, 1},
    {256, 128, 64, 4, 128, 128, 1, true, 1}, {128, 128, 64, 3, 128, 128, 2, true, 1},
    {128, 64, 64, 2, 128, 64, 4, true, 1},   {128, 16, 64, 2, 128, 16, 5, true, 1},
    {128, 128, 32, 3, 64, 64, 2, false, 1},  {128, 64, 32, 4, 64, 32, 2, false, 1},
    {64, 64, 32, 4, 32, 32, 3, false, 1},    {128, 16, 32, 4, 32, 16, 2, false, 1},
    {128, 128, 32, 3, 64, 32, 1, false, 3},  {64, 64, 32, 4, 32, 32, 2, false, 3},
};

// The tile that takes the place of one of wgmma where that is not to be had: programs may be compiled elsewhere.
constexpr int WithoutWgmma(int tile) {
  for (int i = 0; kMmaTiles[tile].wgmma; ++i) {
    if (!kMmaTiles[i].wgmma && kMmaTiles[i].cols == kMmaTiles[tile].cols) return i;
  }
  return tile;
}

// A tile of the wgmma family, of which one or two warpgroups have equally many rows, or columns. Blocks of a cluster
// have neighbouring rows and share what they read of the filter, or neighbouring columns and share what they read of
// the source; or they have the slices of one tile's reduction, and add them.
struct WgmmaTile {
  int rows;
  int cols;
  int stages;
  int row_blocks;  // of a cluster
  int col_blocks;
  int resident;        // thread blocks of a multiprocessor
  bool boxed = false;  // pixels are copied once for all taps of a plane, for 8 x 8 positions, or 64 of a line
  int slices = 0;  // of a reduction, that the blocks of a cluster add: so many, or a part; 0: a second kernel adds them
  bool transposed = false;  // a multiplication's 64 rows are channels, and all of the tile's positions its columns

  constexpr int cluster() const { return row_blocks * col_blocks; }
  constexpr int warpgroups() const { return rows == 64 ? 1 : 2; }  // that multiply
};

// The table of families/wgmma.py.
inline constexpr WgmmaTile kWgmmaTiles[] = {
    {256, 128, 4, 2, 1, 1, false, 0, true},
    {128, 256, 4, 2, 1, 1},
    {256, 160, 3, 2, 1, 1},
    {192, 256, 3, 1, 1, 1, false, 0, true},
    {192, 128, 4, 1, 2, 1, false, 0, true},
    {128, 192, 4, 2, 1, 1},
    {128, 128, 6, 1, 2, 1},
    {128, 128, 3, 1, 1, 2},
    {256, 96, 4, 1, 1, 1},
    {256, 64, 4, 1, 1, 1},
    {256, 64, 2, 1, 1, 2},
    {128, 64, 4, 1, 1, 2},
    {256, 64, 5, 1, 1, 2, true},
    {256, 96, 4, 1, 1, 1, true},
    {256, 128, 4, 1, 1, 1, true},
    {128, 256, 4, 1, 1, 1, true},
    {64, 64, 5, 1, 1, 2, false, 8},
    {128, 256, 4, 1, 1, 1},
};

// Filters along whose rows a warp walks that keeps the filter in registers: how many rows of taps they have at most,
// source rows from one row of the destination to the next, and multiplications of 16 (tap, source channel)s that a row
// of taps has at most. No rows: it does not walk.
struct Walk {
  int rows;
  int step;
  int steps;

  constexpr bool operator==(const Walk&) const = default;
  // Rows of the destination that are under way: those that a step's source rows meet.
  constexpr int lags() const { return rows == 0 ? 1 : (rows + step - 1) / step; }
  // Whether the source passes by in shared memory, a row of each walk at a time, instead of being there in boxes: of
  // large pixels boxes have few rows, and walks are short, at whose ends few rows of taps meet a row of the source.
  constexpr bool streams() const { return step == 1 && rows > 3; }
  // Such tiles are for the residue classes of a dilated input, of which some have one row of taps less.
  constexpr int least_rows() const { return streams() ? rows - 1 : rows; }
};

// What a warp of the direct family has, in multiplications of 16 x 8 results. A set is of blocks of eight output
// channels that read the same source channels.
struct DirectTile {
  int set;          // blocks of eight output channels
  int sets;         // in a gather
  int positions;    // blocks of 16, in a gather
  int warps;        // of a gather's thread block, that multiply
  int pieces;       // of eight source channels in shared memory, at most; and blocks of eight output channels
  int filter_rows;  // blocks of 16 (tap, source channel)s, in a reduce
  Walk walk;        // of a gather
  // For few channels: a row's (tap, channel)s are read as they lie in the source, one behind the other. If a gather
  // walks, so many pieces of eight at most. 0: pixels are whole pieces.
  int run = 0;
  // Of a gather to few channels: columns are (tap, output channel)s, positions are source pixels.
  bool taps_across = false;

  constexpr int col_blocks() const { return set * sets; }
  constexpr bool walks() const { return walk.rows > 0; }
  // Of a gather's thread block: where the source passes by, one more, which copies it.
  constexpr int gather_warps() const { return warps + walk.streams(); }

  // Thread blocks that a multiprocessor is to hold: as registers allow.
  constexpr int gather_blocks() const { return warps <= 4 ? 3 : warps <= 8 && walk.rows <= 3 ? 2 : 1; }
  constexpr int reduce_blocks() const { return filter_rows * set <= 20 ? 2 : 1; }
};

// The table of families/direct.py.
inline constexpr DirectTile kDirectTiles[] = {
    {1, 2, 4, 8, 4, 5, {}},          {1, 2, 4, 8, 4, 13, {}},        {2, 1, 4, 8, 4, 9, {}},
    {4, 1, 4, 4, 4, 5, {}},          {6, 1, 2, 4, 8, 4, {}},         {8, 1, 2, 8, 8, 4, {}},
    {1, 1, 4, 8, 4, 9, {}},          {1, 2, 1, 16, 8, 5, {3, 1, 2}}, {2, 1, 1, 8, 8, 9, {3, 1, 3}},
    {2, 1, 1, 4, 4, 5, {3, 1, 6}},   {2, 1, 1, 12, 8, 4, {3, 1, 9}}, {2, 1, 1, 12, 8, 9, {7, 2, 2}},
    {1, 1, 1, 7, 8, 9, {4, 1, 16}},  {8, 1, 2, 8, 8, 2, {}},         {2, 1, 1, 12, 8, 9, {7, 2, 2}, 3},
    {8, 1, 2, 8, 8, 3, {}, 1},       {4, 1, 4, 4, 4, 5, {}, 1},      {1, 4, 3, 8, 8, 9, {}, 0, true},
    {1, 5, 3, 8, 8, 9, {}, 0, true},
};

// What a thread block of the depthwise family does with a step: it takes the source rows of one row of the destination,
// or gives the rows of the destination that one source row begins.
struct DepthwiseTile {
  int step;        // source rows of a step
  int period;      // rows of the destination
  int lags;        // steps after which a source row is used for the last time, and one
  int blocks;      // of 16 source pixels, which eight neighbouring outputs read; none of a tile on CUDA cores
  int channels;    // of a warp on tensor cores
  int width;       // of a window on CUDA cores, whose columns have the strides of the rows
  int depths = 1;  // planes of a volume that a position's taps are in, whose rows a step takes together
  // Whether larger windows are taken in pieces, one after the other. A tile's sums wait in shared memory meanwhile.
  bool has_pieces = false;
  // Whether four warps copy source rows, four what belongs to strips, and eight multiply: in code for sm_90a.
  bool has_copiers = false;
  // Whether TMA does so instead: boxes of whole rows of two images or more, of which a tile has 16 strips.
  bool by_tma = false;
  // Whether pairs of source rows are multiplied at once, of images of at most eight columns: a reduce by TMA alone.
  bool in_pairs = false;

  bool operator==(const DepthwiseTile&) const = default;

  constexpr bool on_cuda_cores() const { return blocks == 0; }
  // Of a volume, planes take the place of images.
  constexpr bool has_planes() const { return depths > 1 || has_pieces; }
  // Source rows of a step, of all planes.
  constexpr int sources() const { return step * depths; }
  constexpr int slots() const { return sources() * period * lags; }
  // Source pixels that a strip of eight outputs reads.
  constexpr int pixels() const { return on_cuda_cores() ? (8 / period - 1) * step + width : blocks * 16; }
  constexpr int stages() const { return by_tma ? 6 : sources() * blocks == 1 ? 8 : 4; }
  // Registers of the sums, of a gather and of a reduce.
  constexpr int gather_sums() const { return period * lags * row_sums(); }
  constexpr int reduce_sums() const {
    if (in_pairs) return 4 * pairs() * 2 * channels;
    return slots() * (on_cuda_cores() ? width : 4 * blocks * channels);
  }
  // Sums of a lane that are a row's.
  constexpr int row_sums() const { return on_cuda_cores() ? 8 : 4 * channels; }
  // Thread blocks that a multiprocessor is to hold: as registers allow.
  constexpr int gather_blocks() const {
    if (has_copiers) return 1;
    if (on_cuda_cores()) return has_pieces && gather_sums() + slots() * width > 80 ? 2 : 3;
    return gather_sums() <= 32 && blocks == 1 ? 3 : 2;
  }
  constexpr int reduce_blocks() const { return has_copiers ? 1 : on_cuda_cores() || reduce_sums() <= 32 ? 3 : 2; }
  // Of a gather, rows of results that wait in shared memory to be written.
  constexpr int results() const { return by_tma ? 6 : has_copiers && period == 1 ? 4 : 2; }
  // Warps that multiply.
  constexpr int warps() const { return has_copiers ? 8 : 4; }
  // Channels that are left out behind each pixel's in a gather's table of taps on tensor cores, so that other pixels'
  // are in other banks. A large window's table would leave no room for a second thread block: only where warps copy.
  constexpr int table_gap() const { return has_copiers ? channels : 0; }
  // By TMA, rows of a step; and pairs of source rows that a row of the gradient is multiplied with.
  constexpr int box_rows() const { return in_pairs ? 2 : 1; }
  constexpr int pairs() const { return (lags + 1) / 2; }
  // Steps by which the gradient's rows come behind the first source row that they are multiplied with.
  constexpr int late_steps() const { return in_pairs ? pairs() - 1 : 0; }
  constexpr bool gathers() const { return !in_pairs; }
  // Whether a warp's registers hold a reduce's sums.
  constexpr bool reduces() const { return period == 1 && reduce_sums() <= 160; }
};

// The table of families/depthwise.py.
inline constexpr DepthwiseTile kDepthwiseTiles[] = {
    {1, 1, 1, 1, 8, 0},
    {1, 1, 1, 3, 8, 0},
    {1, 1, 1, 3, 4, 0},
    {1, 1, 3, 1, 8, 0},
    {1, 1, 3, 1, 4, 0},
    {1, 1, 5, 1, 4, 0},
    {1, 1, 7, 1, 4, 0},
    {1, 1, 8, 3, 2, 0, 1, true},
    {1, 1, 5, 3, 2, 0, 1, true},
    {2, 1, 2, 2, 4, 0},
    {2, 1, 4, 2, 4, 0},
    {1, 2, 2, 1, 4, 0},
    {1, 2, 4, 1, 4, 0},
    {1, 1, 1, 0, 0, 4},
    {1, 1, 1, 0, 0, 32},
    {1, 1, 3, 0, 0, 3},
    {1, 1, 5, 0, 0, 5},
    {1, 1, 7, 0, 0, 7},
    {2, 1, 2, 0, 0, 3},
    {2, 1, 3, 0, 0, 5},
    {1, 2, 2, 0, 0, 2},
    {1, 2, 3, 0, 0, 3},
    {1, 1, 3, 1, 4, 0, 3},
    {1, 1, 7, 1, 4, 0, 1, true},
    {1, 1, 1, 3, 8, 0, 1, true},
    {1, 1, 3, 0, 0, 3, 3},
    {1, 1, 5, 0, 0, 5, 1, true},
    {1, 1, 7, 0, 0, 7, 1, true},
    {1, 1, 4, 0, 0, 16, 1, true},
    {1, 1, 1, 0, 0, 32, 1, true},
    {1, 1, 3, 1, 4, 0, 1, false, true},
    {1, 1, 5, 1, 4, 0, 1, false, true},
    {1, 1, 7, 1, 4, 0, 1, false, true},
    {2, 1, 2, 2, 4, 0, 1, false, true},
    {1, 2, 2, 1, 4, 0, 1, false, true},
    {1, 1, 7, 1, 4, 0, 1, false, true, true},
    {1, 1, 7, 1, 4, 0, 1, false, true, true, true},
};

// The place of a tile in the table, or -1.
constexpr int DepthwiseTileIndex(const DepthwiseTile& tile) {
  int i = 0;
  for (const DepthwiseTile& other : kDepthwiseTiles) {
    if (other == tile) return i;
    ++i;
  }
  return -1;
}

// The same tile where TMA does not copy, but warps do; and where all warps do.
constexpr DepthwiseTile WithoutTma(DepthwiseTile tile) {
  tile.by_tma = tile.in_pairs = false;
  return tile;
}
constexpr DepthwiseTile WithoutCopiers(DepthwiseTile tile) {
  tile.has_copiers = tile.by_tma = tile.in_pairs = false;
  return tile;
}

constexpr bool HasTilesWithoutCopiers() {
  for (const DepthwiseTile& tile : kDepthwiseTiles) {
    if ((tile.by_tma && !tile.has_copiers) || (tile.in_pairs && !tile.by_tma)) return false;
    if (DepthwiseTileIndex(WithoutTma(tile)) < 0 || DepthwiseTileIndex(WithoutCopiers(tile)) < 0) return false;
  }
  return true;
}
static_assert(HasTilesWithoutCopiers(), "plans are for any device: another tile takes the place of one that it lacks");

}  // namespace jaxconv
