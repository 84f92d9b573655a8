// The depthwise family's conv on tensor cores: what a warp multiplies. M are strips, N the outputs of a strip, K source
// pixels.
#pragma once

#include <cstdint>
#include <type_traits>

#include "depthwise/rows.cuh"

namespace jaxconv {

// A warp's Toeplitz (band) matrices: of its channels, for each slot.
template <typename T, DepthwiseTile kTile>
class ToeplitzTaps {
  static_assert(kTraits<T>.bytes == 2, "PairOf takes elements of 16 bits from words");

 public:
  // A table of the taps in shared memory: slots, in them phases of columns, pixels and channels, with a gap after a
  // pixel's channels in some tiles. All consumers clear it, wait, fill it and wait. Outputs whose taps begin further on
  // also read the pixels before a slot's. Those are zeros: a strip's first output has no taps in the last pixels of the
  // slot before, and the table begins with zeros.
  static __device__ __forceinline__ void ClearTable(const DepthwiseParams& p, char* table) {
    const int32_t pixels = p.window_parts * kTile.slots() * static_cast<int32_t>(p.problem.period[2]) * kPixels;
    const int32_t bytes = (pixels + p.zeros_before_taps) * RowBytes(p);
#pragma unroll 1
    for (int32_t i = ConsumerThread(kTile) * kVectorBytes; i < bytes; i += ConsumerThreads(kTile) * kVectorBytes) {
      *reinterpret_cast<uint4*>(table + i) = uint4{};
    }
  }

  // Some of a lane's taps, as many as it loads at once, and the first class.
  struct FewTaps {
    static constexpr int kCount = 8;

    Tap of[kCount];
    ResidueClass first_class;

    __device__ __forceinline__ FewTaps(const DepthwiseParams& p, const DepthwiseLane& lane, int32_t begin)
        : first_class(p.classes[0]) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) of[i] = p.taps[min(begin + i * lane.all, p.problem.tap_count - 1)];
    }
  };

  static __device__ __forceinline__ FewTaps FirstTaps(const DepthwiseParams& p) {
    const DepthwiseLane lane(p, kTile);
    return {p, lane, lane.number};
  }

  static __device__ __forceinline__ void FillTable(const DepthwiseParams& p, char* to) {
    FillTable(p, to, FirstTaps(p));
  }

  // The first taps may be loaded before the table is cleared, and the values before their class is known: the fewer
  // trips to memory, the sooner a thread block begins.
  static __device__ __forceinline__ void FillTable(const DepthwiseParams& p, char* to, FewTaps taps) {
    const ConvProblem& q = p.problem;
    const DepthwiseLane lane(p, kTile);
    const int32_t channel = min(FirstChannel(p) + lane.channel, p.all_channels - 1);
    const Number* filter = static_cast<const Number*>(p.rhs) + channel * kNumbers * q.filter.group;
    char* table = to + lane.channel * sizeof(T);
    for (int32_t begin = lane.number; begin < q.tap_count;) {
      T values[FewTaps::kCount];
#pragma unroll
      for (int i = 0; i < FewTaps::kCount; ++i) values[i] = ElementAt(filter + taps.of[i].filter_delta, q.filter.group);
#pragma unroll 1
      for (int32_t c = 0; c < q.class_count; ++c) {
        const ResidueClass residue = c == 0 ? taps.first_class : p.classes[c];
        const bool is_seen = residue.count[1] > 0 && residue.count[2] > 0;  // by some position
        const uint32_t count = is_seen ? residue.tap_count : 0;
        const int32_t first_row = p.zeros_before_taps + residue.phase[2] * kPixels;
#pragma unroll
        for (int i = 0; i < FewTaps::kCount; ++i) {
          const TapCoord coord(p, kTile, taps.of[i], residue);
          const int32_t slot = (coord.window_part * kTile.slots() + coord.slot) * static_cast<int32_t>(q.period[2]);
          const int32_t row = first_row + slot * kPixels + coord.pixel;
          const uint32_t number = begin + i * lane.all - residue.first_tap;
          if (number < count) *reinterpret_cast<T*>(table + row * RowBytes(p)) = values[i];
        }
      }
      begin += FewTaps::kCount * lane.all;
      if (begin < q.tap_count) taps = {p, lane, begin};
    }
  }

  // The matrices of a window part.
  __device__ __forceinline__ void Read(const DepthwiseParams& p, const char* shared, int32_t window_part) {
    const DepthwiseWarp warp(p, kTile);
    const int lane = threadIdx.x % 32, col = lane / 4;
    const int32_t phases = static_cast<int32_t>(p.problem.period[2]), phase = col % phases;
    const int32_t begin = col / phases * static_cast<int32_t>(p.problem.step[2]);
    const int32_t first =
        p.zeros_before_taps + (window_part * kTile.slots() * phases + phase) * kPixels + lane % 4 * kNeighbours - begin;
    const int32_t pixel_bytes = RowBytes(p), slot_bytes = phases * kPixels * pixel_bytes;
    const uint32_t from = ptx::SharedAddress(shared) + first * pixel_bytes + warp.part * kPartBytes;
#pragma unroll
    for (int slot = 0; slot < kTile.slots(); ++slot) {
#pragma unroll
      for (int i = 0; i < kTile.blocks * kWords; ++i) {
        PixelPart<kTile.channels> pixels[kNeighbours];
#pragma unroll
        for (int e = 0; e < kNeighbours; ++e) {
          pixels[e].Load(from + slot * slot_bytes + (i * kMultiplied / kWords + e) * pixel_bytes);
        }
        WordsOf<kTile>(pixels, words_[slot][i / kWords][i % kWords]);
      }
    }
  }

  // sums = before + rows * the slot's matrix of a block, of a channel.
  __device__ __forceinline__ void MultiplyAdd(DepthwiseSum<kTile> (&sums)[4], const DepthwiseSum<kTile> (&before)[4],
                                              const uint32_t (&rows)[4], int slot, int block, int channel) const {
    if constexpr (kTile.of_bytes) {
      ptx::MultiplyAddHalf<int8_t>(sums, before, rows, words_[slot][block][0][channel]);
    } else {
      ptx::MultiplyAdd<T>(sums, before, rows, words_[slot][block][0][channel], words_[slot][block][1][channel]);
    }
  }

 private:
  static constexpr int kPixels = kMultiplied * kTile.blocks;
  static constexpr int kNeighbours = NeighboursOf(kTile), kWords = kMultiplied / 4 / kNeighbours;
  static constexpr int kPartBytes = kTile.channels * sizeof(T);

  static __device__ __forceinline__ int32_t RowBytes(const DepthwiseParams& p) {
    return (p.channels + kTile.table_gap()) * sizeof(T);
  }

  // A number of the filter, and how many an element has.
  using Number = std::conditional_t<kTile.of_bytes, uint8_t, T>;
  static constexpr int kNumbers = sizeof(T) / sizeof(Number);

  // `group`: from a channel's number to the next one's.
  static __device__ __forceinline__ T ElementAt(const Number* first, int64_t group) {
    if constexpr (kTile.of_bytes) {
      return __ushort_as_half(first[0] | first[group] << 8);
    } else {
      return *first;
    }
  }

  uint32_t words_[kTile.slots()][kTile.blocks][kWords][kTile.summed_channels()];
};

// A warp's sums of the rows that are still to receive a source row, for each of its channels. A row moves on by a lag
// with each step.
template <typename T, DepthwiseTile kTile>
class ToeplitzSums {
  static constexpr int kChannels = kTile.summed_channels();
  static constexpr int kNeighbours = NeighboursOf(kTile);
  using Sum = DepthwiseSum<kTile>;

 public:
  // What a row's sums begin with.
  struct Begins {
    Sum of[kChannels][4];
  };
  // Of a lane's two strips and four pixels.
  struct Pixels {
    PixelPart<kTile.channels> of[2][4];
  };

  __device__ __forceinline__ explicit ToeplitzSums(const DepthwiseParams& p) {
    const DepthwiseWarp warp(p, kTile);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t strip = warp.set * kMultiplied + half * 8 + lane / 4;
      for (int i = 0; i < kNeighbours / 2; ++i) {
        from_[half][i] = {p, StripPixel(p, strip) + lane % 4 * kNeighbours + i * 2, warp.part};
      }
      to_[half] = {p, StripResult<kTile>(p, strip) + lane % 4 * 2, warp.part};
      if (SwapsHalves(kTile, strip)) to_[half].SwapHalves();
    }
  }

  // Before a tile whose first steps are skipped: the sums of the tile before belong to no row.
  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int i = 0; i < kChannels * kTile.period * kTile.lags * 4; ++i) (&sums_[0][0][0][0])[i] = 0;
  }

  // Of a step, what is multiplied first.
  __device__ __forceinline__ Pixels First(const DepthwiseParams& p, uint32_t stage) const {
    return ReadPixels(p, stage, 0);
  }

  // Adds what a step's source rows give. The next pixels are read while some are multiplied. While the last are, `read`
  // may read another step's. A row begins with zeros, or with `begins`.
  template <typename Read>
  __device__ __forceinline__ void Multiply(const DepthwiseParams& p, const ToeplitzTaps<T, kTile>& matrices,
                                           uint32_t stage, Pixels pixels, const Begins& begins, Read&& read) {
#pragma unroll
    for (int i = 0; i < kTile.sources() * kTile.blocks; ++i) {
      const int a = i / kTile.blocks, block = i % kTile.blocks, next = i + 1;
      uint32_t rows[kChannels][4];
      Pair(pixels, rows);
      if (next < kTile.sources() * kTile.blocks) {
        pixels = ReadPixels(p, stage + next / kTile.blocks * p.offsets.row, next % kTile.blocks);
      } else {
        read();
      }
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
#pragma unroll
        for (int b = 0; b < kTile.period; ++b) {
#pragma unroll
          for (int lag = kTile.lags - 1; lag >= 0; --lag) {
            const int slot = (a + b) * kTile.lags + lag;
            Sum before[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              before[j] = i > 0 ? sums_[c][b][lag][j] : lag > 0 ? sums_[c][b][lag - 1][j] : begins.of[c][j];
            }
            matrices.MultiplyAdd(sums_[c][b][lag], before, rows[c], slot, block, c);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void Multiply(const DepthwiseParams& p, const ToeplitzTaps<T, kTile>& matrices,
                                           uint32_t stage, const Pixels& pixels, const Begins& begins = {}) {
    Multiply(p, matrices, stage, pixels, begins, [] {});
  }

  // The same for a step without a source row.
  __device__ __forceinline__ void MoveOn(const Begins& begins) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
#pragma unroll
        for (int lag = kTile.lags - 1; lag > 0; --lag) sums_[c][0][lag][j] = sums_[c][0][lag - 1][j];
        sums_[c][0][0][j] = begins.of[c][j];
      }
    }
  }

  // Stores the results of complete rows into shared memory: of the last lag. Where no source row follows, lags before
  // it are complete, too. A residual waits there, in the place of the results.
  template <typename Epilogue>
  __device__ __forceinline__ void Store(const DepthwiseParams& p, const Epilogue& epilogue, char* to,
                                        int lag = kTile.lags - 1) const {
    constexpr int kCount = kTile.period * 4;
    const auto address = [&](int i) {
      const int phase = i / 4, half = i / 2 % 2, e = i % 2;
      return to + phase * p.offsets.result_row + to_[half].At(p, 0, e);
    };
    Sum sums[kChannels][kCount];
    float results[kChannels][kCount];
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[c][i] = sums_[c][i / 4][lag][i % 4];
    }
    epilogue(sums, results, [&](int i) { return Residual(address(i)); });
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      PixelPart<kTile.channels> part;
#pragma unroll
      for (int word = 0; word < kTile.channels / 2; ++word) part.words[word] = Rounded(results, word, i);
      part.Store(address(i));
    }
  }

  // Moves a row's sums from one window part to the next: this lane's, of all warps' in `sums`.
  static __device__ __forceinline__ void LoadSums(const char* sums, int32_t row, Begins& to) {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const auto four = *reinterpret_cast<const Pack<Sum, 4>*>(sums + SumsOffset(row, c));
#pragma unroll
      for (int j = 0; j < 4; ++j) to.of[c][j] = four.v[j];
    }
  }

  __device__ __forceinline__ void StoreSums(char* sums, int32_t row) const {
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const Sum(&last)[4] = sums_[c][0][kTile.lags - 1];
      *reinterpret_cast<Pack<Sum, 4>*>(sums + SumsOffset(row, c)) = {last[0], last[1], last[2], last[3]};
    }
  }

 private:
  // A word of a pixel's results: two channels, or four of bytes.
  template <int kCount>
  static __device__ __forceinline__ uint32_t Rounded(const float (&results)[kChannels][kCount], int word, int i) {
    if constexpr (kTile.of_bytes) {
      return ptx::PackInt8(
          {results[word * 4][i], results[word * 4 + 1][i], results[word * 4 + 2][i], results[word * 4 + 3][i]});
    } else {
      return RoundPair<T>(results[word * 2][i], results[word * 2 + 1][i]);
    }
  }

  // A pixel's residual.
  static __device__ __forceinline__ Pack<float, kChannels> Residual(const char* from) {
    using Number = std::conditional_t<kTile.of_bytes, int8_t, T>;
    const auto part = *reinterpret_cast<const PixelPart<kTile.channels>*>(from);
    Pack<float, kChannels> numbers;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) numbers.v[c] = static_cast<float>(ElementOf<Number>(part.words, c));
    return numbers;
  }

  static __device__ __forceinline__ int32_t SumsOffset(int32_t row, int channel) {
    return ((row * kChannels + channel) * kDepthwiseThreads + threadIdx.x) * 16;
  }

  __device__ __forceinline__ Pixels ReadPixels(const DepthwiseParams& p, uint32_t row, int block) const {
    Pixels pixels;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = kTile.of_bytes ? i / 2 : 0, eights = block * 2 + (kTile.of_bytes ? 0 : i / 2);
        pixels.of[half][i].Load(row + from_[half][pair].At(p, eights, i % 2));
      }
    }
    return pixels;
  }

  static __device__ __forceinline__ void Pair(const Pixels& pixels, uint32_t (&rows)[kChannels][4]) {
#pragma unroll
    for (int i = 0; i < 8 / kNeighbours; ++i) {
      PixelPart<kTile.channels> neighbours[kNeighbours];
      uint32_t words[kChannels];
#pragma unroll
      for (int e = 0; e < kNeighbours; ++e) neighbours[e] = pixels.of[i % 2][i / 2 * kNeighbours + e];
      WordsOf<kTile>(neighbours, words);
#pragma unroll
      for (int c = 0; c < kChannels; ++c) rows[c][i] = words[c];
    }
  }

  // Pairs of pixels: two at a distance of eight, or of bytes neighbours.
  PixelOffsets<kTile, kTile.blocks * 2, 2> from_[2][kNeighbours / 2];
  PixelOffsets<kTile, 1, 2> to_[2];
  Sum sums_[kChannels][kTile.period][kTile.lags][4];
};

}  // namespace jaxconv
