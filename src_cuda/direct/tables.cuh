// Tables of the direct family in shared memory: worked out once for all output tiles of a thread block.
#pragma once

#include <cstdint>

#include "common/prefetch_tables.cuh"
#include "common/ptx.cuh"
#include "direct/params.cuh"

namespace jaxconv {

// A position of an output tile. Those behind its end are nowhere.
struct alignas(8) Position {
  int32_t to;  // elements from the output tile's origin in the destination
  int16_t row;
  int16_t column;
};

inline constexpr int16_t kNoRow = INT16_MAX;

// The halo tile's first pixel as seen from the output tile's first: the least of all taps' shifts. With packed K the
// halo tile begins with the vector that holds it, as TMA wants. What is read begins with its word: two elements are
// read at a time.
struct HaloOrigin {
  int32_t low[kSpatial];

  // Of a wgrad, from the plan: copies need not wait for the taps.
  __device__ __forceinline__ explicit HaloOrigin(const OutputTile& tile)
      : low{tile.corner[0], tile.corner[1], tile.corner[2]} {}

  // To be called by whole warps.
  __device__ __forceinline__ HaloOrigin(const DirectParams& p, const ResidueClass& residue) {
    int32_t high[kSpatial];
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) low[d] = INT32_MAX, high[d] = INT32_MIN;
#pragma unroll 1
    for (int t = threadIdx.x % 32; t < residue.tap_count; t += 32) {
      const Tap tap = p.taps[residue.first_tap + t];
#pragma unroll
      for (int d = 0; d < kSpatial; ++d) low[d] = min(low[d], tap.shift[d]), high[d] = max(high[d], tap.shift[d]);
    }
    const int32_t reach[kSpatial] = {1, (p.tile.rows - 1) * static_cast<int32_t>(p.problem.step[1]) + 1,
                                     (p.tile.cols - 1) * static_cast<int32_t>(p.problem.step[2]) + 1};
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      low[d] = residue.tap_count == 0 ? 0 : __reduce_min_sync(0xffffffff, low[d]);
      high[d] = residue.tap_count == 0 ? 0 : __reduce_max_sync(0xffffffff, high[d]);
      const bool is_packed = d == 2 && p.tile.packed > 0;
      // The plan is of another problem.
      if (is_packed ? high[d] - low[d] + 1 != p.tile.packed : high[d] - low[d] + reach[d] > p.tile.halo[d]) __trap();
    }
  }

  // A class has so many rows of taps. The number of the one that is `at` dilations below the highest.
  __device__ __forceinline__ int32_t RowOfTaps(const DirectParams& p, const ResidueClass& residue, int32_t rows,
                                               int32_t at) const {
    return p.taps[residue.first_tap].shift[1] > low[1] ? rows - 1 - at : at;
  }

  // Where an output tile's halo tile begins: its first pixel. With packed K its first element, along the last
  // dimension.
  template <bool kPacked>
  __device__ __forceinline__ void HaloAt(const DirectParams& p, const TileCoord& coord, int32_t (&at)[kSpatial]) const {
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) at[d] = coord.at[d] * static_cast<int32_t>(p.problem.step[d]) + low[d];
    if (kPacked) at[2] = coord.at[2] * p.position_elements + (FirstPacked(p) & -kPackedVector);
  }

  // With packed K: elements from the halo tile's first to the first that is read, and from there to the first tap's
  // first.
  __device__ __forceinline__ int32_t PackedBegin(const DirectParams& p) const {
    return FirstPacked(p) & (kPackedVector - 2);
  }
  __device__ __forceinline__ int32_t PackedSkip(const DirectParams& p) const { return FirstPacked(p) & 1; }
  // The tap of a column of a row of taps. A data gradient's taps are in reversed order.
  __device__ __forceinline__ int32_t TapOfPacked(const DirectParams& p, const Tap* first_tap, int32_t col) const {
    return first_tap[0].shift[2] > low[2] ? p.tile.packed - 1 - col : col;
  }

 private:
  __device__ __forceinline__ int32_t FirstPacked(const DirectParams& p) const {
    return low[2] * static_cast<int32_t>(p.problem.in_channels);
  }
};

// The plan is of another problem, if halo tiles do not begin with the taps. To be called by whole warps.
__device__ __forceinline__ void CheckOrigin(const DirectParams& p, const ResidueClass& residue,
                                            const HaloOrigin& origin) {
  const HaloOrigin found(p, residue);
  for (int d = 0; d < kSpatial; ++d) {
    if (found.low[d] != origin.low[d]) __trap();
  }
}

// The plan is of another problem, if the taps are not rows, each of neighbouring ones. To be called by whole warps.
__device__ __forceinline__ void CheckPacked(const DirectParams& p, const ResidueClass& residue,
                                            const HaloOrigin& origin) {
  const Tap* taps = p.taps + residue.first_tap;
  bool is_packed = residue.tap_count % p.tile.packed == 0;
#pragma unroll 1
  for (int32_t t = threadIdx.x % 32; t < residue.tap_count; t += 32) {
    const Tap* first_tap = taps + t / p.tile.packed * p.tile.packed;
    const Tap tap = taps[t];
    is_packed &= tap.shift[0] == first_tap[0].shift[0] && tap.shift[1] == first_tap[0].shift[1] &&
                 tap.shift[2] == origin.low[2] + origin.TapOfPacked(p, first_tap, t % p.tile.packed);
  }
  if (!is_packed) __trap();
}

// The plan is of another problem, if a class's taps are not as many equal rows as the tile streams, a dilation apart.
// To be called by whole warps.
__device__ __forceinline__ void CheckRowsOfTaps(const DirectParams& p, const ResidueClass& residue,
                                                const HaloOrigin& origin, const FilterSteps& steps,
                                                const RowStream& stream) {
  const Tap* taps = p.taps + residue.first_tap;
  bool is_grid =
      steps.rows >= stream.least_rows() && steps.rows <= stream.rows && steps.rows * steps.taps == residue.tap_count;
  for (int32_t t = threadIdx.x % 32; t < residue.tap_count; t += 32) {
    const int32_t row = origin.RowOfTaps(p, residue, steps.rows, t / steps.taps);
    const Tap tap = taps[t];
    is_grid &= tap.shift[0] == origin.low[0] && tap.shift[1] == origin.low[1] + row * p.row_dilation &&
               tap.shift[2] == taps[t % steps.taps].shift[2];
  }
  if (!is_grid) __trap();
}

// An entry as the lanes see it that read the eight positions of a matrix: bytes from the position's pixel to the
// vector. Matrices begin with pixels whose numbers are multiples of eight: the swizzle is the same for all. Exclusive
// or adds a set's first vector.
inline constexpr int kEntryBytes = kMatrixRows * sizeof(uint32_t);

__device__ __forceinline__ uint32_t ReadEntry(uint32_t entries, int i) {
  return ptx::LoadWord(entries + i * kEntryBytes + threadIdx.x % kMatrixRows * static_cast<int>(sizeof(uint32_t)));
}

// One more than there are, the last again: entries are read by twos.
template <int kThreads>
__device__ __forceinline__ void FillEntries(const DirectParams& p, const ResidueClass& residue,
                                            const HaloOrigin& origin, char* shared) {
  uint32_t* entries = reinterpret_cast<uint32_t*>(shared + p.offsets.entries);
  const int32_t count = residue.tap_count * p.entry_vectors;
#pragma unroll 1
  for (int i = threadIdx.x; count > 0 && i < (count + 1) * kMatrixRows; i += kThreads) {
    const int32_t position = i % kMatrixRows * static_cast<int32_t>(p.problem.step[2]);
    int32_t vector;
    const Tap tap = p.taps[residue.first_tap + p.by_vectors.Divide(min(i / kMatrixRows, count - 1), &vector)];
    const int32_t d = tap.shift[0] - origin.low[0], h = tap.shift[1] - origin.low[1], w = tap.shift[2] - origin.low[2];
    const int32_t pixel = (d * p.tile.halo[1] + h) * p.tile.halo[2] + w;
    entries[i] = ((pixel << p.src_pixel.pitch) + p.src_pixel.Exchange(vector, pixel + position)) * 16;
  }
}

// The same with packed K: bytes from the position's first element to the entry's.
template <int kThreads>
__device__ __forceinline__ void FillPackedEntries(const DirectParams& p, const ResidueClass& residue,
                                                  const HaloOrigin& origin, char* shared) {
  uint32_t* entries = reinterpret_cast<uint32_t*>(shared + p.offsets.entries);
  const int32_t count = residue.tap_count / p.tile.packed * p.entry_vectors;
#pragma unroll 1
  for (int i = threadIdx.x; i < (count + 1) * kMatrixRows; i += kThreads) {
    int32_t vector;
    const Tap tap =
        p.taps[residue.first_tap + p.by_vectors.Divide(min(i / kMatrixRows, count - 1), &vector) * p.tile.packed];
    const int32_t row = (tap.shift[0] - origin.low[0]) * p.tile.halo[1] + tap.shift[1] - origin.low[1];
    entries[i] = (row * p.tile.halo[2] + vector) * 16 + origin.PackedBegin(p) * kPackedBytes;
  }
}

template <int kThreads, bool kStreamsRows>
__device__ __forceinline__ void FillPositions(const DirectParams& p, char* shared) {
  Position* positions = reinterpret_cast<Position*>(shared + p.offsets.positions);
#pragma unroll 1
  for (int i = threadIdx.x; i < p.positions; i += kThreads) {
    const TilePosition<kStreamsRows> at(p, i);
    positions[i] = at.row < p.tile.rows ? Position{at.row * p.dst_apart[1] + at.column * p.dst_apart[2],
                                                   static_cast<int16_t>(at.row), static_cast<int16_t>(at.column)}
                                        : Position{0, kNoRow, kNoRow};
  }
}

template <int kThreads, bool kStreamsRows, bool kPacked>
__device__ __forceinline__ void FillTables(const DirectParams& p, const ResidueClass& residue, const HaloOrigin& origin,
                                           char* shared) {
  FillPositions<kThreads, kStreamsRows>(p, shared);
  if constexpr (kPacked) {
    FillPackedEntries<kThreads>(p, residue, origin, shared);
  } else {
    FillEntries<kThreads>(p, residue, origin, shared);
  }
  if (threadIdx.x < 4) reinterpret_cast<int32_t*>(shared + p.offsets.zeros)[threadIdx.x] = 0;
}

// Bytes from the halo tile's first pixel to that of a position.
template <bool kStreamsRows>
__device__ __forceinline__ int32_t PixelOf(const DirectParams& p, int32_t position) {
  const TilePosition<kStreamsRows> at(p, position);
  if (at.row >= p.tile.rows) return 0;
  const int32_t step[2] = {static_cast<int32_t>(p.problem.step[1]), static_cast<int32_t>(p.problem.step[2])};
  return ((at.row * step[0] * p.tile.halo[2] + at.column * step[1]) << p.src_pixel.pitch) * 16;
}

// The same with packed K.
template <bool kStreamsRows>
__device__ __forceinline__ int32_t PackedOf(const DirectParams& p, int32_t position) {
  const TilePosition<kStreamsRows> at(p, position);
  if (at.row >= p.tile.rows) return 0;
  const int32_t row = at.row * static_cast<int32_t>(p.problem.step[1]) * p.tile.halo[2];
  return row * 16 + at.column * p.position_elements * kPackedBytes;
}

// The same where stages are rows, from a stage's beginning: it has a row of each stream, one behind the other.
__device__ __forceinline__ int32_t RowPixelOf(const DirectParams& p, int32_t position) {
  const int32_t stream = position / p.tile.cols, column = position % p.tile.cols;
  if (stream * p.tile.stream >= p.tile.rows) return 0;
  const int32_t pixel = stream * p.tile.halo[2] + column * static_cast<int32_t>(p.problem.step[2]);
  return (pixel << p.src_pixel.pitch) * 16;
}

// What a lane reads with packed K: of a position two elements of each vector. kOdd: every other position begins in the
// middle of a word.
template <bool kOdd>
class PackedLane {
 public:
  PackedLane() = default;
  // From the position's first byte.
  __device__ __forceinline__ explicit PackedLane(uint32_t from)
      : from_((kOdd ? from & ~3u : from) + threadIdx.x % 4 * 4), bytes_(from & 2 ? 0x5432 : 0x3210) {}

  // Two elements, `offset` bytes behind.
  __device__ __forceinline__ uint32_t Load(uint32_t offset) const {
    const uint32_t word = ptx::LoadWord(from_ + offset);
    return kOdd ? __byte_perm(word, ptx::LoadWord(from_ + offset + 4), bytes_) : word;
  }

  // What LoadMatrices reads, of two neighbouring vectors. The second eight positions begin `half_bytes` behind the
  // first. `is_half`: of the first vector alone.
  __device__ __forceinline__ void LoadTwo(uint32_t (&to)[4], uint32_t offset, uint32_t half_bytes, bool is_half) const {
    to[0] = Load(offset);
    to[1] = Load(offset + half_bytes);
    if (is_half) return;
    to[2] = Load(offset + 16);
    to[3] = Load(offset + half_bytes + 16);
  }

 private:
  uint32_t from_;
  uint32_t bytes_;  // of two words, those that are the elements
};

// Elements from the destination's origin to an output tile's, and positions that it has before the class ends.
struct TileEnd {
  int64_t to;
  int32_t rows;
  int32_t cols;

  __device__ __forceinline__ TileEnd(const DirectParams& p, const DirectBlock& block, const TileCoord& coord)
      : to(coord.image * p.problem.dst.batch + block.first_to +
           (coord.at[0] * p.dst_apart[0] + coord.at[1] * p.dst_apart[1] + coord.at[2] * p.dst_apart[2])),
        rows(min(block.residue().count[1] - coord.at[1], p.tile.rows)),
        cols(min(block.residue().count[2] - coord.at[2], p.tile.cols)) {}

  __device__ __forceinline__ bool Has(const Position& position) const {
    return position.row < rows && position.column < cols;
  }
};

}  // namespace jaxconv
