// The direct family's gather on tensor cores: rows are positions, columns output channels, steps entries of eight.
#pragma once

#include <cstdint>

#include "device/convert.cuh"
#include "device/direct_params.cuh"
#include "device/direct_ring.cuh"
#include "device/direct_tables.cuh"
#include "device/ptx.cuh"
#include "device/store_pairs.cuh"

namespace jaxconv {

// The filter's matrices of eight output channels by the eight source channels of an entry, in the order in which they
// are multiplied: two entries, for each block of output channels, for each two entries, for each chunk. Zeros stand
// between groups, and where an entry is missing.
template <typename T, int kWarps>
class FilterMatrices {
  using Row = Pack<T, kPieceChannels>;

 public:
  // To be called by all threads, before a barrier.
  static __device__ __forceinline__ void Fill(const DirectParams& p, const DirectBlock& block, int set_cols,
                                              Row* rows) {
    const int32_t entries = block.residue().tap_count * p.entry_pieces, steps = (entries + 1) / 2;
    const FilterPlaces places(p, block.channels);
    const Divider<int32_t> by_blocks(p.col_blocks), by_steps(steps), by_pieces(p.entry_pieces);
    const T* from = static_cast<const T*>(p.rhs);
#pragma unroll 4  // loads in flight
    for (int row = threadIdx.x; row < p.chunks * steps * p.col_blocks * 16; row += 32 * kWarps) {
      int32_t col_block, step, piece;
      const int32_t chunk = by_steps.Divide(by_blocks.Divide(row / 16, &col_block), &step);
      const int32_t entry = step * 2 + row / 8 % 2;
      Row pack;
#pragma unroll
      for (T& element : pack.v) element = T(0.0f);
      const T* whole = nullptr;
      if (entry < entries) {
        const T* tap = from + p.taps[block.residue().first_tap + by_pieces.Divide(entry, &piece)].filter_delta;
        piece += FirstPiece(p, col_block * 8 / set_cols * set_cols) + chunk * p.src_pixel.pieces;
        whole = ReadRow(p, places, tap, piece * kPieceChannels, col_block * 8, row % 8, pack);
      }
      if (whole != nullptr) {
        ptx::CopyAsync(ptx::SharedAddress(rows + row), whole, true);
      } else {
        rows[row] = pack;
      }
    }
    ptx::CommitCopies();
    ptx::WaitForCopies<0>();
  }

  // Rows that were read as source channels become those of output channels. Likewise, after the barrier.
  static __device__ __forceinline__ void Transpose(const DirectParams& p, int entries, Row* rows) {
    const int matrices = p.chunks * ((entries + 1) / 2) * p.col_blocks * 2, lane = threadIdx.x % 32;
    for (int first = threadIdx.x / 32 * 4; first < matrices; first += kWarps * 4) {
      uint32_t four[4];
      ptx::LoadMatrices<true>(four, ptx::SharedAddress(rows + min(first + lane / 8, matrices - 1) * 8 + lane % 8));
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 4 && first + i < matrices; ++i) {
        reinterpret_cast<uint32_t*>(rows + (first + i) * 8 + lane / 4)[lane % 4] = four[i];
      }
    }
  }

 private:
  // An output channel's eight source channels; or, if output channels are what is contiguous, the other way round. If
  // they are neighbours in memory, where they are; else reads those that are there.
  static __device__ __forceinline__ const T* ReadRow(const DirectParams& p, const FilterPlaces& places, const T* tap,
                                                     int32_t in, int32_t out, int32_t row, Row& pack) {
    if (p.filter_order == FilterOrder::kIns) {
      const int64_t at = places.Of(in, out + row);
      return at < 0 ? nullptr : tap + at;
    }
    if (p.filter_order == FilterOrder::kOuts) {
      int32_t first, last;
      const int64_t at = places.OfRow(in + row, out, &first, &last);
      if (at < 0) return nullptr;
      if (first <= 0 && last >= kPieceChannels) return tap + at;
      const Row all = *reinterpret_cast<const Row*>(tap + at);
#pragma unroll
      for (int i = 0; i < kPieceChannels; ++i) {
        if (first <= i && i < last) pack.v[i] = all.v[i];
      }
      return nullptr;
    }
#pragma unroll
    for (int i = 0; i < kPieceChannels; ++i) {
      const int64_t at = places.Of(in + i, out + row);
      if (at >= 0) pack.v[i] = tap[at];
    }
    return nullptr;
  }
};

// A warp's sums: of kPositions blocks of 16 positions by kBlocks of eight output channels.
template <typename T, DirectTile kTile>
class DirectSums {
  static constexpr int kPositions = kTile.positions, kBlocks = kTile.col_blocks();

 public:
  __device__ __forceinline__ DirectSums(const DirectParams& p, int first_position, int first_col)
      : first_position_(first_position), first_col_(first_col) {
#pragma unroll
    for (int i = 0; i < kPositions; ++i) from_[i] = PixelOf(p, first_position + i * 16 + threadIdx.x % 16);
#pragma unroll
    for (int s = 0; s < kTile.sets; ++s) first_piece_[s] = FirstPiece(p, first_col + s * kTile.set * 8) * 16;
  }

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (auto& blocks : sum_) {
#pragma unroll
      for (auto& four : blocks) four[0] = four[1] = four[2] = four[3] = 0;
    }
  }

  // Adds the products of a chunk's entries: while two are multiplied for a set, what comes next is read.
  __device__ __forceinline__ void Multiply(const DirectParams& p, uint32_t entries, uint32_t box, uint32_t filter,
                                           int steps) {
    if (steps == 0) return;
    constexpr int kSets = kTile.sets;
    static_assert(kSets <= 2, "operands are read alternately to two places");
    const int step_bytes = p.col_blocks * kColBlockBytes, count = steps * kSets;
    filter += first_col_ / 8 * kColBlockBytes + threadIdx.x % 32 * 16;
    entries += threadIdx.x % 32 / 16 * kEntryBytes;
    Operands first, second;
    uint32_t from = ReadEntry(entries, 0) + box, next = ReadEntry(entries, min(1, steps - 1) * 2) + box;
    int read = 1;  // steps whose entries have been read, less one
    const auto read_second = [&] {
      if constexpr (kSets == 2) return Read(1, from, filter, second);
      filter += step_bytes;
      Read(0, next, filter, second);
      from = ReadEntry(entries, min(++read, steps - 1) * 2) + box;
    };
    const auto read_first = [&] {
      filter += step_bytes;
      if constexpr (kSets == 2) from = next;
      Read(0, from, filter, first);
      next = ReadEntry(entries, min(++read, steps - 1) * 2) + box;
    };
    Read(0, from, filter, first);
    int at = 0;
#pragma unroll 1
    for (; at + 2 < count; at += 2) {
      read_second();
      MultiplyAdd(0, first);
      read_first();
      MultiplyAdd(kSets - 1, second);
    }
    if (at + 1 == count) return MultiplyAdd(0, first);
    read_second();
    MultiplyAdd(0, first);
    MultiplyAdd(kSets - 1, second);
  }

  // Rounds the sums and stores them: through shared memory, so that neighbours in memory are stored at once. `results`
  // is the warp's place there.
  template <typename Out>
  __device__ __forceinline__ void Store(const DirectParams& p, const char* shared, Out* results, const AreaEnd& end,
                                        int dst_count) const {
    constexpr int kCols = kBlocks * 8, kPitch = ResultPitch<Out>(), kVector = 16 / sizeof(Out);
    constexpr int kAcross = kCols / kVector, kVectors = (16 * kAcross + 31) / 32;  // of a lane
    const int lane = threadIdx.x % 32;
    const Position* positions = reinterpret_cast<const Position*>(shared + p.places.positions) + first_position_;
    Out* out = static_cast<Out*>(p.out) + end.to + first_col_;
    Position all[kPositions][kVectors];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) all[i][v] = positions[i * 16 + min((lane + v * 32) / kAcross, 15)];
    }
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      __syncwarp();
      StorePairs(sum_[i], results, kPitch, [](int half, int g) { return half * 8 + g; });
      __syncwarp();
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const int at = lane + v * 32, row = at / kAcross, col = at % kAcross * kVector;
        if (at >= 16 * kAcross || !end.Has(all[i][v]) || first_col_ + col >= dst_count) continue;
        *reinterpret_cast<Pack<Out, kVector>*>(out + all[i][v].to + col) =
            *reinterpret_cast<const Pack<Out, kVector>*>(results + row * kPitch + col);
      }
    }
  }

  // Elements from one row of results in shared memory to the next: rows begin in different banks.
  template <typename Out>
  static constexpr int ResultPitch() {
    return kBlocks * 8 + 16 / sizeof(Out);
  }

 private:
  static constexpr int kColBlockBytes = 2 * 8 * 16;

  // Of two entries, for a set.
  struct Operands {
    uint32_t a[kPositions][4];
    uint32_t b[kTile.set][2];
  };

  __device__ __forceinline__ void Read(int set, uint32_t from, uint32_t filter, Operands& to) const {
    filter += set * kTile.set * kColBlockBytes;
    if constexpr (kTile.set == 1) {
      ptx::LoadTwoMatrices(to.b[0][0], to.b[0][1], filter);
    } else {
      static_assert(kTile.set % 2 == 0);
#pragma unroll
      for (int j = 0; j < kTile.set; j += 2) {
        uint32_t four[4];
        ptx::LoadMatrices<false>(four, filter + j * kColBlockBytes);
        to.b[j][0] = four[0], to.b[j][1] = four[1], to.b[j + 1][0] = four[2], to.b[j + 1][1] = four[3];
      }
    }
    from ^= first_piece_[set];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) ptx::LoadMatrices<false>(to.a[i], from + from_[i]);
  }

  __device__ __forceinline__ void MultiplyAdd(int set, const Operands& of) {
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
#pragma unroll
      for (int j = 0; j < kTile.set; ++j) {
        ptx::MultiplyAdd<T>(sum_[i][set * kTile.set + j], of.a[i], of.b[j][0], of.b[j][1]);
      }
    }
  }

  int first_position_;
  int first_col_;
  int32_t from_[kPositions];           // of the lane's position in each block
  uint32_t first_piece_[kTile.sets];   // bytes
  float sum_[kPositions][kBlocks][4];
};

template <typename T, int kTileIndex>
__global__ void __launch_bounds__(32 * kDirectTiles[kTileIndex].warps, kDirectTiles[kTileIndex].gather_blocks())
    DirectGather(const __grid_constant__ DirectParams p) {
  constexpr DirectTile kTile = kDirectTiles[kTileIndex];
  extern __shared__ __align__(1024) char shared[];
  const DirectBlock block(p, 1);
  if (block.worker >= block.areas) return;
  const uint32_t base = ptx::SharedAddress(shared);
  const BoxOrigin origin(p, block.residue());
  StageRing filled(base + p.places.barriers), read = filled;
  if (threadIdx.x == 0) filled.Init(kTile.warps);
  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const Box box = SourceBox(p);
  int32_t next = block.worker;  // what is copied next
  int next_chunk = 0;
  const auto copy = [&] {
    if (next >= block.areas) return;
    const AreaPlace place = block.Place(p, next);
    const int32_t at[kSpatial] = {origin.At(p, place, 0), origin.At(p, place, 1), origin.At(p, place, 2)};
    filled.WaitUntilEmpty();
    box.template Copy<T>(base + filled.stage() * p.places.stage, filled.full(),
                         block.channels.src + next_chunk * p.src_pixel.pieces * kPieceChannels, at, place.image);
    Box::Arrive(filled.full(), box.Bytes());
    filled.Advance();
    next_chunk = next_chunk + 1 < p.chunks ? next_chunk + 1 : 0;
    next += next_chunk == 0 ? p.workers : 0;
  };
  __syncthreads();
  if (warp == 0) copy();
  FillTables<32 * kTile.warps>(p, block.residue(), origin, shared);
  auto* filter = reinterpret_cast<Pack<T, kPieceChannels>*>(shared + p.places.filter);
  FilterMatrices<T, kTile.warps>::Fill(p, block, kTile.set * 8, filter);
  __syncthreads();
  const int entries = block.residue().tap_count * p.entry_pieces, steps = (entries + 1) / 2;
  if (p.filter_order == FilterOrder::kOuts) {
    FilterMatrices<T, kTile.warps>::Transpose(p, entries, filter);
    __syncthreads();
  }

  const int warps_across = p.col_blocks / kTile.col_blocks();
  const int warp_position = warp / warps_across * kTile.positions * 16;
  DirectSums<T, kTile> sums(p, warp_position, warp % warps_across * kTile.col_blocks() * 8);
  const int chunk_bytes = steps * p.col_blocks * 2 * 8 * 16;
#pragma unroll 1
  for (int32_t area = block.worker; area < block.areas; area += p.workers) {
    sums.Clear();
#pragma unroll 1
    for (int chunk = 0; chunk < p.chunks; ++chunk) {
      if (warp == 0) copy();
      read.WaitUntilFull();
      sums.Multiply(p, base + p.places.entries, base + read.stage() * p.places.stage,
                    base + p.places.filter + chunk * chunk_bytes, steps);
      read.Release();
    }
    const AreaEnd end(p, block, block.Place(p, area));
    WithType<float>(p.out_type, [&](auto type) {
      using Out = decltype(type);
      constexpr int kPitch = DirectSums<T, kTile>::template ResultPitch<Out>();
      Out* results = reinterpret_cast<Out*>(shared + p.places.results) + warp * 16 * kPitch;
      sums.Store(p, shared, results, end, block.channels.dst_count);
    });
  }
}

}  // namespace jaxconv
