// Tables of the direct family in shared memory: worked out once for all areas of a thread block.
#pragma once

#include <cstdint>

#include "common/prefetch_tables.cuh"
#include "common/ptx.cuh"
#include "direct/params.cuh"

namespace jaxconv {

// A position of an area. Those behind its end are nowhere.
struct alignas(8) Position {
  int32_t to;  // elements from the area's origin in the destination
  int16_t row;
  int16_t column;
};

inline constexpr int16_t kNoRow = INT16_MAX;

// The box's first pixel as seen from an area's first: the least of all taps' shifts. Of a source that is read in runs
// the box begins with the last piece up to there, as TMA wants it, and what is read with the last even element: two are
// read at a time.
struct BoxOrigin {
  int32_t low[kSpatial];

  // Of a wgrad, as the plan says: copies need not wait for the taps.
  __device__ __forceinline__ explicit BoxOrigin(const Area& area)
      : low{area.corner[0], area.corner[1], area.corner[2]} {}

  // To be called by whole warps.
  __device__ __forceinline__ BoxOrigin(const DirectParams& p, const ResidueClass& residue) {
    int32_t high[kSpatial];
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) low[d] = INT32_MAX, high[d] = INT32_MIN;
#pragma unroll 1
    for (int t = threadIdx.x % 32; t < residue.tap_count; t += 32) {
      const Tap tap = p.taps[residue.first_tap + t];
#pragma unroll
      for (int d = 0; d < kSpatial; ++d) low[d] = min(low[d], tap.shift[d]), high[d] = max(high[d], tap.shift[d]);
    }
    const int32_t reach[kSpatial] = {1, (p.area.rows - 1) * static_cast<int32_t>(p.problem.step[1]) + 1,
                                     (p.area.cols - 1) * static_cast<int32_t>(p.problem.step[2]) + 1};
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      low[d] = residue.tap_count == 0 ? 0 : __reduce_min_sync(0xffffffff, low[d]);
      high[d] = residue.tap_count == 0 ? 0 : __reduce_max_sync(0xffffffff, high[d]);
      const bool is_run = d == 2 && p.area.run > 0;
      // The plan is of another problem.
      if (is_run ? high[d] - low[d] + 1 != p.area.run : high[d] - low[d] + reach[d] > p.area.box[d]) __trap();
    }
  }

  // Of so many rows of taps, which a class consists of, the number of the one that is `at` dilations below the highest.
  __device__ __forceinline__ int32_t RowOfTaps(const DirectParams& p, const ResidueClass& residue, int32_t rows,
                                               int32_t at) const {
    return p.taps[residue.first_tap].shift[1] > low[1] ? rows - 1 - at : at;
  }

  // The box's place, of an area: its first pixel, or, along the last dimension of a source that is read in runs, its
  // first element.
  template <bool kRuns>
  __device__ __forceinline__ void BoxAt(const DirectParams& p, const AreaPlace& place, int32_t (&at)[kSpatial]) const {
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) at[d] = place.at[d] * static_cast<int32_t>(p.problem.step[d]) + low[d];
    if (kRuns) at[2] = place.at[2] * p.position_elements + (FirstOfRun(p) & -kRunVector);
  }

  // Where the source is read in runs: the elements from the box's first to the first that is read, and from there to
  // the first of the first tap.
  __device__ __forceinline__ int32_t RunBegin(const DirectParams& p) const { return FirstOfRun(p) & (kRunVector - 2); }
  __device__ __forceinline__ int32_t RunSkip(const DirectParams& p) const { return FirstOfRun(p) & 1; }
  // The tap of a run's columns, from the first one on: a data gradient's taps are in reversed order.
  __device__ __forceinline__ int32_t TapOfRun(const DirectParams& p, const Tap* run, int32_t col) const {
    return run[0].shift[2] > low[2] ? p.area.run - 1 - col : col;
  }

 private:
  __device__ __forceinline__ int32_t FirstOfRun(const DirectParams& p) const {
    return low[2] * static_cast<int32_t>(p.problem.in_channels);
  }
};

// The plan is of another problem, if boxes do not begin with the taps. To be called by whole warps.
__device__ __forceinline__ void CheckOrigin(const DirectParams& p, const ResidueClass& residue,
                                            const BoxOrigin& origin) {
  const BoxOrigin found(p, residue);
  for (int d = 0; d < kSpatial; ++d) {
    if (found.low[d] != origin.low[d]) __trap();
  }
}

// The plan is of another problem, if the taps are not rows, each of neighbouring ones. To be called by whole warps.
__device__ __forceinline__ void CheckRuns(const DirectParams& p, const ResidueClass& residue, const BoxOrigin& origin) {
  const Tap* taps = p.taps + residue.first_tap;
  bool is_run = residue.tap_count % p.area.run == 0;
#pragma unroll 1
  for (int32_t t = threadIdx.x % 32; t < residue.tap_count; t += 32) {
    const Tap* run = taps + t / p.area.run * p.area.run;
    const Tap tap = taps[t];
    is_run &= tap.shift[0] == run[0].shift[0] && tap.shift[1] == run[0].shift[1] &&
              tap.shift[2] == origin.low[2] + origin.TapOfRun(p, run, t % p.area.run);
  }
  if (!is_run) __trap();
}

// The plan is of another problem, if a class's taps are not as many rows as a walk has, equal ones, a dilation apart.
// To be called by whole warps.
__device__ __forceinline__ void CheckRowsOfTaps(const DirectParams& p, const ResidueClass& residue,
                                                const BoxOrigin& origin, const FilterSteps& steps, const Walk& walk) {
  const Tap* taps = p.taps + residue.first_tap;
  bool is_grid =
      steps.rows >= walk.least_rows() && steps.rows <= walk.rows && steps.rows * steps.taps == residue.tap_count;
  for (int32_t t = threadIdx.x % 32; t < residue.tap_count; t += 32) {
    const int32_t row = origin.RowOfTaps(p, residue, steps.rows, t / steps.taps);
    const Tap tap = taps[t];
    is_grid &= tap.shift[0] == origin.low[0] && tap.shift[1] == origin.low[1] + row * p.row_dilation &&
               tap.shift[2] == taps[t % steps.taps].shift[2];
  }
  if (!is_grid) __trap();
}

// An entry as the lanes see it that read the first to eighth position of a run: bytes from the position's pixel to the
// piece. Runs begin with pixels of numbers that are multiples of eight, which do not matter to the exchange of pieces.
// The piece that a set begins with is added by exclusive or.
inline constexpr int kEntryBytes = kRun * sizeof(uint32_t);

__device__ __forceinline__ uint32_t ReadEntry(uint32_t entries, int i) {
  return ptx::LoadWord(entries + i * kEntryBytes + threadIdx.x % kRun * static_cast<int>(sizeof(uint32_t)));
}

// With one more than there are, the last again, so that entries may be read by twos.
template <int kThreads>
__device__ __forceinline__ void FillEntries(const DirectParams& p, const ResidueClass& residue, const BoxOrigin& origin,
                                            char* shared) {
  uint32_t* entries = reinterpret_cast<uint32_t*>(shared + p.places.entries);
  const int32_t count = residue.tap_count * p.entry_pieces;
#pragma unroll 1
  for (int i = threadIdx.x; count > 0 && i < (count + 1) * kRun; i += kThreads) {
    const int32_t position = i % kRun * static_cast<int32_t>(p.problem.step[2]);
    int32_t piece;
    const Tap tap = p.taps[residue.first_tap + p.by_pieces.Divide(min(i / kRun, count - 1), &piece)];
    const int32_t d = tap.shift[0] - origin.low[0], h = tap.shift[1] - origin.low[1], w = tap.shift[2] - origin.low[2];
    const int32_t pixel = (d * p.area.box[1] + h) * p.area.box[2] + w;
    entries[i] = ((pixel << p.src_pixel.pitch) + p.src_pixel.Exchange(piece, pixel + position)) * 16;
  }
}

// The same where the source is read in runs: bytes from the position's first element to the entry's.
template <int kThreads>
__device__ __forceinline__ void FillRunEntries(const DirectParams& p, const ResidueClass& residue,
                                               const BoxOrigin& origin, char* shared) {
  uint32_t* entries = reinterpret_cast<uint32_t*>(shared + p.places.entries);
  const int32_t count = residue.tap_count / p.area.run * p.entry_pieces;
#pragma unroll 1
  for (int i = threadIdx.x; i < (count + 1) * kRun; i += kThreads) {
    int32_t piece;
    const Tap tap = p.taps[residue.first_tap + p.by_pieces.Divide(min(i / kRun, count - 1), &piece) * p.area.run];
    const int32_t row = (tap.shift[0] - origin.low[0]) * p.area.box[1] + tap.shift[1] - origin.low[1];
    entries[i] = (row * p.area.box[2] + piece) * 16 + origin.RunBegin(p) * kRunElementBytes;
  }
}

template <int kThreads, bool kWalks>
__device__ __forceinline__ void FillPositions(const DirectParams& p, char* shared) {
  Position* positions = reinterpret_cast<Position*>(shared + p.places.positions);
#pragma unroll 1
  for (int i = threadIdx.x; i < p.positions; i += kThreads) {
    const AreaPosition<kWalks> at(p, i);
    positions[i] = at.row < p.area.rows ? Position{at.row * p.dst_apart[1] + at.column * p.dst_apart[2],
                                                   static_cast<int16_t>(at.row), static_cast<int16_t>(at.column)}
                                        : Position{0, kNoRow, kNoRow};
  }
}

template <int kThreads, bool kWalks, bool kRuns>
__device__ __forceinline__ void FillTables(const DirectParams& p, const ResidueClass& residue, const BoxOrigin& origin,
                                           char* shared) {
  FillPositions<kThreads, kWalks>(p, shared);
  if constexpr (kRuns) {
    FillRunEntries<kThreads>(p, residue, origin, shared);
  } else {
    FillEntries<kThreads>(p, residue, origin, shared);
  }
  if (threadIdx.x < 4) reinterpret_cast<int32_t*>(shared + p.places.zeros)[threadIdx.x] = 0;
}

// Bytes from the box's first pixel to that of an area's position.
template <bool kWalks>
__device__ __forceinline__ int32_t PixelOf(const DirectParams& p, int32_t position) {
  const AreaPosition<kWalks> at(p, position);
  if (at.row >= p.area.rows) return 0;
  const int32_t step[2] = {static_cast<int32_t>(p.problem.step[1]), static_cast<int32_t>(p.problem.step[2])};
  return ((at.row * step[0] * p.area.box[2] + at.column * step[1]) << p.src_pixel.pitch) * 16;
}

// The same where the source is read in runs.
template <bool kWalks>
__device__ __forceinline__ int32_t RunOf(const DirectParams& p, int32_t position) {
  const AreaPosition<kWalks> at(p, position);
  if (at.row >= p.area.rows) return 0;
  const int32_t row = at.row * static_cast<int32_t>(p.problem.step[1]) * p.area.box[2];
  return row * 16 + at.column * p.position_elements * kRunElementBytes;
}

// The same where the source passes by, from a stage's beginning: it has a row of each walk, one behind the other.
__device__ __forceinline__ int32_t RowPixelOf(const DirectParams& p, int32_t position) {
  const int32_t walk = position / p.area.cols, column = position % p.area.cols;
  return walk * p.area.walk >= p.area.rows ? 0 : ((walk * p.area.box[2] + column) << p.src_pixel.pitch) * 16;
}

// A lane's place in a source that is read in runs, of a position and the lane's two elements in each piece. kOdd: every
// other position begins in the middle of a word.
template <bool kOdd>
class RunPlace {
 public:
  RunPlace() = default;
  // From the position's first byte.
  __device__ __forceinline__ explicit RunPlace(uint32_t from)
      : from_((kOdd ? from & ~3u : from) + threadIdx.x % 4 * 4), bytes_(from & 2 ? 0x5432 : 0x3210) {}

  // Two elements, so many bytes behind.
  __device__ __forceinline__ uint32_t Load(uint32_t offset) const {
    const uint32_t word = ptx::LoadWord(from_ + offset);
    return kOdd ? __byte_perm(word, ptx::LoadWord(from_ + offset + 4), bytes_) : word;
  }

  // What LoadMatrices reads, of two pieces one behind the other. The second eight positions begin `half_bytes` behind
  // the first. `is_half`: of the first piece alone.
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

// Elements from the destination's origin to an area's, and the positions that it has before the class's end.
struct AreaEnd {
  int64_t to;
  int32_t rows;
  int32_t cols;

  __device__ __forceinline__ AreaEnd(const DirectParams& p, const DirectBlock& block, const AreaPlace& place)
      : to(place.image * p.problem.dst.batch + block.first_to +
           (place.at[0] * p.dst_apart[0] + place.at[1] * p.dst_apart[1] + place.at[2] * p.dst_apart[2])),
        rows(min(block.residue().count[1] - place.at[1], p.area.rows)),
        cols(min(block.residue().count[2] - place.at[2], p.area.cols)) {}

  __device__ __forceinline__ bool Has(const Position& position) const {
    return position.row < rows && position.column < cols;
  }
};

}  // namespace jaxconv
