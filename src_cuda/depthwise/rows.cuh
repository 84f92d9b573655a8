// Rows of pixels on their way from memory to shared memory, for the depthwise family.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "depthwise/params.cuh"

namespace jaxconv {

// The offset of a pixel's vector in a row, in vectors. Eight neighbouring vectors fill all banks. The pixels that a
// warp reads at once differ by 2 in a conv and by 1 in a wgrad, and from strip to strip by 4 to 16 or more.
//
// One way leaves a gap of a vector after some pixels, an even number of them. Distances of eight pixels, and those from
// an even pixel to the next, are then the same everywhere. The other way is for four channels. It exchanges vectors by
// the bits 0 to 4 where those pixels differ, except for the bits that move a vector by themselves. Nearly no two reads
// then meet in a bank, but each pixel has a distance of its own.
template <DepthwiseTile kTile>
__device__ __forceinline__ int32_t VectorOffset(const DepthwiseParams& p, int32_t pixel, int32_t vector) {
  if constexpr (Exchanges(kTile)) {
    const int32_t high = (pixel >> 3 ^ pixel >> 4) & 1, middle = (pixel >> 2 & 1) ^ high;
    int32_t exchanged = p.log_vectors == 1 ? middle | high << 1 : high | high << 2;
    if (kTile.has_producers && p.log_vectors == 2) exchanged = (pixel >> 1 & 1) | high << 1 | (pixel & 4);
    return ((pixel << p.log_vectors) + vector) ^ exchanged;
  } else {
    return (pixel << p.log_vectors) + vector + (pixel >> p.log_gap);
  }
}

// The same for a box that begins a turn of its swizzle, in bytes. TMA exchanges the vectors of a pixel by bits 1 and 2
// of its number, so distances of eight pixels are the same everywhere.
__device__ __forceinline__ int32_t BoxOffset(int32_t pixel, int32_t vector) {
  return pixel * kBoxPixelBytes + (vector ^ (pixel >> 1 & 3)) * kVectorBytes;
}

// Whether the halves of each vector of a strip's results are exchanged, so that the halves which a warp stores at once
// are in all banks. The threads that copy results exchange them again.
__device__ __forceinline__ bool SwapsHalves(const DepthwiseTile& tile, int32_t strip) {
  return tile.has_producers && !tile.by_tma && strip % 2 != 0;
}

// The offsets of a warp's channels of some pixels: a first one and its neighbours, and those at distances of eight.
template <DepthwiseTile kTile, int kEights, int kNeighbours>
class PixelOffsets {
 public:
  PixelOffsets() = default;
  __device__ __forceinline__ PixelOffsets(const DepthwiseParams& p, int32_t pixel, int32_t part) {
    constexpr int kPartBytes = kTile.channels * kTile.element_bytes(), kParts = kVectorBytes / kPartBytes;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int32_t other = pixel + i / kKeptNeighbours * 8 + i % kKeptNeighbours;
      if constexpr (kTile.by_tma) {
        at_[i] = BoxOffset(other, part / kParts);
      } else {
        at_[i] = VectorOffset<kTile>(p, other, part / kParts) * kVectorBytes;
      }
      at_[i] += part % kParts * kPartBytes;
    }
  }

  __device__ __forceinline__ uint32_t At(const DepthwiseParams& p, int eights, int neighbour) const {
    if constexpr (kTile.by_tma) {
      return at_[neighbour] + eights * 8 * kBoxPixelBytes;
    } else if constexpr (!Exchanges(kTile)) {
      return at_[0] + (((8 * eights + neighbour) << p.log_vectors) + (8 * eights >> p.log_gap)) * kVectorBytes;
    } else if constexpr (kKeptNeighbours < kNeighbours) {
      int32_t apart = kVectorBytes << p.log_vectors;
      ptx::Keep(apart);  // or the compiler works out where the neighbour is, and keeps that
      return neighbour == 0 ? at_[eights] : at_[eights] ^ apart;
    } else {
      return at_[eights * kNeighbours + neighbour];
    }
  }

  __device__ __forceinline__ void SwapHalves() {
#pragma unroll
    for (int i = 0; i < kKept; ++i) at_[i] ^= kVectorBytes / 2;
  }

 private:
  // An even pixel and the next exchange their vectors alike. Consumers of copies by other warps have few registers
  // left.
  static constexpr int kKeptNeighbours = kTile.has_producers && !kTile.by_tma ? 1 : kNeighbours;
  static constexpr int kKept = kTile.by_tma ? kNeighbours : Exchanges(kTile) ? kEights * kKeptNeighbours : 1;

  uint32_t at_[kKept];
};

// The first source row of a window part, for the first position.
__device__ __forceinline__ int32_t SourceRow(const DepthwiseParams& p, const DepthwiseTile& tile,
                                             const WindowPart& window_part) {
  return RowsApart(p, tile, tile.step * window_part.step) + p.first_row;
}

__device__ __forceinline__ bool HasRow(const DepthwiseParams& p, int32_t row) {
  return static_cast<uint32_t>(row) < static_cast<uint32_t>(p.problem.src_size[1]);
}

// Elements from a tile's first image or volume to a pixel, or -1 outside. A negative plane does not exist. Branches
// would wait for each pixel's parameters, so there are none.
__device__ __forceinline__ int32_t PixelOffset(int32_t plane, int32_t col, int64_t cols, const TensorStrides& strides) {
  const bool is_there = (plane >= 0) & (static_cast<uint32_t>(col) < static_cast<uint32_t>(cols));
  const int32_t offset = plane + col * static_cast<int32_t>(strides.spatial[2]);
  return is_there ? offset : -1;
}

// Waits for all consumers.
template <DepthwiseTile kTile>
__device__ __forceinline__ void SyncConsumers() {
  if constexpr (kTile.has_producers) {
    ptx::NamedBarrierSync<ConsumerThreads(kTile)>();
  } else {
    __syncthreads();
  }
}

// A warp's channels of a pixel, of 16 bits each.
template <int kChannels>
struct alignas(2 * kChannels) PixelPart {
  uint32_t words[kChannels / 2];

  __device__ __forceinline__ void Load(uint32_t address) {
    if constexpr (kChannels == 2) words[0] = ptx::LoadWord(address);
    if constexpr (kChannels == 4) ptx::LoadPair(words[0], words[1], address);
    if constexpr (kChannels == 8) ptx::LoadFour(words, address);
  }

  __device__ __forceinline__ void Store(char* to) const { *reinterpret_cast<PixelPart*>(to) = *this; }
};

// The pair of a channel's 16-bit elements, of two pixels.
template <int kChannels>
__device__ __forceinline__ uint32_t PairOf(const PixelPart<kChannels>& first, const PixelPart<kChannels>& second,
                                           int channel) {
  return __byte_perm(first.words[channel / 2], second.words[channel / 2], channel % 2 ? 0x7632 : 0x5410);
}

// Neighbouring pixels whose numbers of a channel are a word: of a pair, or of four bytes.
constexpr int NeighboursOf(const DepthwiseTile& tile) { return tile.of_bytes ? 4 : 2; }

// Their words of all of a warp's channels.
template <DepthwiseTile kTile>
__device__ __forceinline__ void WordsOf(const PixelPart<kTile.channels> (&pixels)[NeighboursOf(kTile)],
                                        uint32_t (&words)[kTile.summed_channels()]) {
  if constexpr (kTile.of_bytes) {
#pragma unroll
    for (int c = 0; c < kTile.summed_channels(); c += 4) {
      uint32_t four[] = {pixels[0].words[c / 4], pixels[1].words[c / 4], pixels[2].words[c / 4],
                         pixels[3].words[c / 4]};
      TransposeBytes(four);
#pragma unroll
      for (int i = 0; i < 4; ++i) words[c + i] = four[i];
    }
  } else {
#pragma unroll
    for (int c = 0; c < kTile.channels; ++c) words[c] = PairOf(pixels[0], pixels[1], c);
  }
}

// A thread's vectors of a row in shared memory: of some pixels.
template <typename T, DepthwiseTile kTile>
struct DepthwiseVector {
  int32_t pixel;    // the first
  int32_t apart;    // pixels to the next
  int32_t offset;   // bytes
  int32_t channel;  // the first

  __device__ __forceinline__ explicit DepthwiseVector(const DepthwiseParams& p)
      : pixel(Thread() >> p.log_vectors), apart(kDepthwiseThreads >> p.log_vectors) {
    const int32_t vector = Thread() & ((1 << p.log_vectors) - 1);
    // CUDA cores read a pixel's channels one beside the other, as they lie.
    offset = (kTile.on_cuda_cores() ? Thread() : VectorOffset<kTile>(p, pixel, vector)) * kVectorBytes;
    ptx::Keep(offset);
    channel = FirstChannel(p) + vector * kTraits<T>.vector();
  }

  // This thread, among those that copy the same rows.
  static __device__ __forceinline__ uint32_t Thread() {
    return kTile.has_producers ? threadIdx.x % kDepthwiseThreads : threadIdx.x;
  }

  static_assert(kTile.on_cuda_cores() || kBatchBytes / MostChannelBytes(kTile) % (Exchanges(kTile) ? 32 : 8) == 0,
                "vectors of a thread's pixels are equally far apart");
};

// Whether a tile's pixels are where those of the tile before were, in other images or rows. Kernels without producers
// do not ask: it would cost them registers.
template <DepthwiseTile kTile>
__device__ __forceinline__ bool HasSamePixels(const DepthwiseTileCoord& coord, const DepthwiseTileCoord& before) {
  return kTile.has_producers && !kTile.has_planes() && coord.col == before.col && coord.images == before.images;
}

// The offsets of a thread's vectors in a tensor, of the rows of a tile's images.
template <typename T, DepthwiseTile kTile, int kCount>
class DepthwiseRows {
 public:
  using Vector = DepthwiseVector<T, kTile>;

  // Of the source, for a depth of the window. The pixels of a tile's images follow each other. `are_known`: they are
  // where the pixels of the tile before were.
  __device__ __forceinline__ void BeginSource(const DepthwiseParams& p, const Vector& vector,
                                              const DepthwiseTileCoord& coord, const WindowPart& window, int depth,
                                              bool are_known) {
    const ConvProblem& q = p.problem;
    const int32_t images = Begin(p, vector, coord, p.src, q.src);
    if (are_known) return;
    const int32_t col =
        (coord.col >> p.log_col_period) * static_cast<int32_t>(q.step[2]) + p.first_col + window.col * p.col_apart;
    const auto source_depth = [&](int32_t dst_depth) { return SourceDepth(p, dst_depth, window.depth + depth); };
    const int32_t first = PlaneOffset(p, coord, 0, images, q.src, source_depth);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (kTile.has_producers && i >= p.copies) break;  // they are few, and wait for each instruction
      const int32_t pixel = vector.pixel + i * vector.apart;
      const int32_t image = Quotient(pixel, p.width_inverse);
      const int32_t at = pixel - image * p.src_width;
      const bool has_first = kTile.has_planes() && p.images == 1;
      const int32_t plane = has_first ? first : PlaneOffset(p, coord, image, images, q.src, source_depth);
      const int32_t offset = PixelOffset(plane, col + at * p.col_apart, q.src_size[2], q.src);
      at_[i] = at < p.src_width ? offset : -1;
    }
  }

  // Of the destination or its gradient, whose pixels are those of the strips.
  __device__ __forceinline__ void BeginStrips(const DepthwiseParams& p, const Vector& vector,
                                              const DepthwiseTileCoord& coord, const void* tensor, bool are_known) {
    const ConvProblem& q = p.problem;
    const int32_t images = Begin(p, vector, coord, tensor, q.dst);
    if (are_known) return;
    const auto same_depth = [](int32_t dst_depth) { return dst_depth; };
    const int32_t first = PlaneOffset(p, coord, 0, images, q.dst, same_depth);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int32_t pixel = vector.pixel + i * vector.apart;
      const StripCoord strip(p, pixel / kStripCols);
      const int32_t at = strip.strip * kStripCols + pixel % kStripCols;
      const bool has_first = kTile.has_planes() && p.images == 1;
      const int32_t plane = has_first ? first : PlaneOffset(p, coord, strip.image, images, q.dst, same_depth);
      const int32_t offset = PixelOffset(plane, coord.col + at * p.col_apart, q.dst_size[2], q.dst);
      at_[i] = strip.strip < p.strips ? offset : -1;
    }
  }

  // Begins the copies of `count` vectors of a row, or of zeros for one that is not there.
  __device__ __forceinline__ void Copy(const DepthwiseParams& p, int32_t row, bool is_there, int count,
                                       uint32_t to) const {
    const T* from = Row(row);
    ptx::Keep(from);
    int32_t least = is_there ? 0 : INT32_MAX;  // of offsets: kept, or the compiler works it out for each vector
    ptx::Keep(least);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) ptx::CopyAsync<kTile.has_producers>(to + i * p.batch, from + at_[i], at_[i] >= least);
    }
  }

  __device__ __forceinline__ const T* Row(int32_t row) const { return first_ + static_cast<int64_t>(row) * apart_; }
  __device__ __forceinline__ bool Has(int i) const { return at_[i] >= 0; }
  __device__ __forceinline__ int32_t At(int i) const { return at_[i]; }

 private:
  // The images that exist, for a thread whose channels exist.
  __device__ __forceinline__ int32_t Begin(const DepthwiseParams& p, const Vector& vector,
                                           const DepthwiseTileCoord& coord, const void* tensor,
                                           const TensorStrides& strides) {
    const int32_t image = kTile.has_planes() ? coord.image / static_cast<int32_t>(p.problem.dst_size[0]) : coord.image;
    first_ = static_cast<const T*>(tensor) + image * strides.batch + vector.channel;
    apart_ = static_cast<int32_t>(strides.spatial[1]);
    return vector.channel < p.all_channels ? coord.images : 0;
  }

  // Elements from a tile's first image to another of `images`, or from its first volume to a plane. Or -1. `depth_of`
  // gives the tensor's plane, or -1, by that of the destination.
  template <typename DepthOf>
  static __device__ __forceinline__ int32_t PlaneOffset(const DepthwiseParams& p, const DepthwiseTileCoord& coord,
                                                        int32_t image, int32_t images, const TensorStrides& strides,
                                                        const DepthOf& depth_of) {
    if constexpr (!kTile.has_planes()) {
      const int32_t offset = image * static_cast<int32_t>(strides.batch);
      return image < images ? offset : -1;
    }
    if (image >= images) return -1;
    const int32_t planes = static_cast<int32_t>(p.problem.dst_size[0]);
    int32_t volume = image, plane = 0;
    if (planes > 1) {
      plane = coord.image % planes + image;
      volume = plane / planes, plane %= planes;
    }
    const int32_t depth = depth_of(plane);
    return depth < 0 ? -1 : static_cast<int32_t>(volume * strides.batch + depth * strides.spatial[0]);
  }

  const T* first_;
  int32_t apart_;
  int32_t at_[kCount];  // of a tile's images, whose elements have offsets of 32 bits
};

// What a thread copies of a step: source rows, in a wgrad also a row of the gradient, or one of both.
enum class Copies { kConv, kWgrad, kWgradSource, kWgradGradient };

// What a thread block reads into the stages of a pipeline: the source rows of each step, and in a wgrad a row of the
// gradient. It goes through its tiles one after the other.
template <typename T, DepthwiseTile kTile, Copies kCopies>
class DepthwiseReader {
  static constexpr bool kIsWgrad = kCopies != Copies::kConv;
  static constexpr bool kWithSource = kCopies != Copies::kWgradGradient;
  static constexpr bool kWithGradient = kIsWgrad && kCopies != Copies::kWgradSource;
  // A wgrad's steps have one source row. Nothing reads it if it does not exist.
  static constexpr bool kLeavesOutRows = LeavesOutRows(kTile) || (kCopies == Copies::kWgradSource && kTile.step == 1);

 public:
  // A wgrad has one window part. A conv takes all of them for each tile.
  __device__ __forceinline__ DepthwiseReader(const DepthwiseParams& p, char* shared, const DepthwiseRange& range,
                                             const WindowPart& window = {})
      : p_(p), vector_(p), stages_(ptx::SharedAddress(shared)), begin_(range.begin), end_(range.end), window_(window) {
    if (begin_ < end_) Begin();
  }

  __device__ __forceinline__ bool HasNext() const { return begin_ < end_; }

  // Begins the copies of the next step, if there is one.
  __device__ __forceinline__ void Copy() {
    if (begin_ < end_) {
      const uint32_t to = stages_ + vector_.offset + stage_ * p_.offsets.stage;
#pragma unroll
      for (int a = 0; kWithSource && a < kTile.sources(); ++a) {
        const int32_t row = kTile.step * row_ + SourceRow(p_, kTile, window_) + a % kTile.step;
        const bool is_there = HasRow(p_, row);
        if (kLeavesOutRows && !is_there) continue;
        src_[a / kTile.step].Copy(p_, row, is_there, p_.copies, to + a * p_.offsets.row);
      }
      if constexpr (kWithGradient) {
        gradient_.Copy(p_, row_, row_ < last_row_, StripVectors(kTile), to + kTile.sources() * p_.offsets.row);
      }
      Advance();
    }
    ptx::CommitCopies();
  }

 private:
  __device__ __forceinline__ void Advance() {
    if (++stage_ == kTile.stages()) stage_ = 0;
    row_ += RowsApart(p_, kTile, 1);
    if (row_ < end_row_) return;
    if constexpr (kTile.in_parts && !kIsWgrad) {
      const WindowPart next = coord_.NextWindowPart(p_, kTile, window_);
      if (next.number < p_.window_parts) return BeginWindowPart(next);
    }
    begin_ = next_;
    if (begin_ < end_) Begin();
  }

  __device__ __forceinline__ void Begin() {
    const DepthwiseTileCoord before = coord_;
    coord_ = DepthwiseTileCoord(p_, kTile, begin_, end_);
    next_ = begin_ + coord_.rows();
    if constexpr (kTile.in_parts && !kIsWgrad) window_ = coord_.FirstWindowPart(p_, kTile);
    const bool are_known = HasSamePixels<kTile>(coord_, before);
    if constexpr (kWithGradient) gradient_.BeginStrips(p_, vector_, coord_, p_.rhs, are_known);
    BeginSource(are_known);
    BeginSteps();
  }

  // After another window part, whose pixels may be the same.
  __device__ __forceinline__ void BeginWindowPart(const WindowPart& window) {
    const bool same = window.depth == window_.depth && window.col == window_.col;
    window_ = window;
    if (!same) BeginSource(false);
    BeginSteps();
  }

  __device__ __forceinline__ void BeginSource(bool are_known) {
#pragma unroll
    for (int depth = 0; kWithSource && depth < kTile.depths; ++depth) {
      src_[depth].BeginSource(p_, vector_, coord_, window_, depth, are_known);
    }
  }

  __device__ __forceinline__ void BeginSteps() {
    const int32_t first = coord_.Row(p_, kTile);
    const int32_t steps = kIsWgrad              ? coord_.WgradSteps(p_, kTile, window_)
                          : kTile.has_producers ? coord_.SeenConvSteps(p_, kTile)
                                                : coord_.ConvSteps(kTile);
    row_ = first + RowsApart(p_, kTile, kIsWgrad ? 0 : coord_.FirstStep(p_, kTile, window_));
    end_row_ = first + RowsApart(p_, kTile, steps);
    last_row_ = min(first + RowsApart(p_, kTile, coord_.rows()), static_cast<int32_t>(p_.problem.dst_size[1]));
  }

  const DepthwiseParams& p_;
  DepthwiseVector<T, kTile> vector_;
  uint32_t stages_;
  int32_t begin_, end_, next_;  // of the tile, of all tiles, and of the next tile
  DepthwiseTileCoord coord_{};
  WindowPart window_;
  int32_t stage_ = 0;
  int32_t row_, end_row_;  // of the next step, and behind the last: that of its position, of a class
  int32_t last_row_;       // behind the gradient's
  DepthwiseRows<T, kTile, MostCopies(kTile)> src_[kTile.depths];
  DepthwiseRows<T, kTile, kWithGradient ? StripVectors(kTile) : 1> gradient_;
};

// What a conv's thread block writes: rows of the destination. They lie in shared memory as if they had been copied
// there.
template <typename T, DepthwiseTile kTile>
class DepthwiseWriter {
 public:
  struct Vectors {
    uint4 of[kTile.period][StripVectors(kTile)];
  };

  __device__ __forceinline__ explicit DepthwiseWriter(const DepthwiseParams& p) : p_(p), vector_(p) {}

  __device__ __forceinline__ void Begin(const DepthwiseTileCoord& coord) {
    dst_.BeginStrips(p_, vector_, coord, p_.out, HasSamePixels<kTile>(coord, coord_));
    coord_ = coord;
    first_row_ = coord.Row(p_, kTile);
  }

  __device__ __forceinline__ Vectors Load(const char* from) const {
    Vectors vectors;
#pragma unroll
    for (int phase = 0; phase < kTile.period; ++phase) {
#pragma unroll
      for (int i = 0; i < StripVectors(kTile); ++i) {
        uint4& vector = vectors.of[phase][i];
        vector = *reinterpret_cast<const uint4*>(from + phase * p_.offsets.result_row + vector_.offset + i * p_.batch);
        if (SwapsHalves(kTile, vector_.pixel / kStripCols)) vector = {vector.z, vector.w, vector.x, vector.y};
      }
    }
    return vectors;
  }

  // Stores the rows of one of the tile's positions of a class. A negative position has none.
  __device__ __forceinline__ void Store(int32_t position, const Vectors& vectors) const {
#pragma unroll
    for (int phase = 0; phase < kTile.period; ++phase) {
      const int32_t row = Row(position, phase);
      T* to = const_cast<T*>(dst_.Row(row));
#pragma unroll
      for (int i = 0; i < StripVectors(kTile); ++i) {
        if (position >= 0 && row < p_.problem.dst_size[1] && dst_.Has(i)) {
          *reinterpret_cast<uint4*>(to + dst_.At(i)) = vectors.of[phase][i];
        }
      }
    }
  }

  // Begins the copies of a residual's rows to where the results of a position will be.
  __device__ __forceinline__ void CopyResidual(int32_t position, char* to) const {
    const uint32_t first = ptx::SharedAddress(to) + vector_.offset;
    const T* const residual = static_cast<const T*>(p_.epilogue.residual);
#pragma unroll
    for (int phase = 0; phase < kTile.period; ++phase) {
      const int32_t row = Row(position, phase);
      const T* const from = residual + (dst_.Row(row) - static_cast<const T*>(p_.out));
#pragma unroll
      for (int i = 0; i < StripVectors(kTile); ++i) {
        CopyVector(from + dst_.At(i), row < p_.problem.dst_size[1] && dst_.Has(i),
                   first + phase * p_.offsets.result_row + i * p_.batch);
      }
    }
  }

 private:
  __device__ __forceinline__ int32_t Row(int32_t position, int phase) const {
    return (first_row_ + RowsApart(p_, kTile, position)) * kTile.period + phase;
  }

  // Begins the copy of a vector, or of zeros.
  __device__ __forceinline__ void CopyVector(const T* from, bool is_there, uint32_t to) const {
    if constexpr (!kTile.has_producers) {
      ptx::CopyAsync(to, from, is_there);
    } else {
      constexpr int kHalf = kVectorBytes / 2;
      const int swap = SwapsHalves(kTile, vector_.pixel / kStripCols) ? kHalf : 0;
      ptx::CopyHalfAsync(to + swap, from, is_there);
      ptx::CopyHalfAsync(to + (kHalf - swap), from + kHalf / sizeof(T), is_there);
    }
  }

  const DepthwiseParams& p_;
  DepthwiseVector<T, kTile> vector_;
  DepthwiseTileCoord coord_{};
  DepthwiseRows<T, kTile, StripVectors(kTile)> dst_;
  int32_t first_row_ = 0;
};

// The source pixel where a strip begins, in a row in shared memory. Strips after the last one read what it reads: their
// results go nowhere.
__device__ __forceinline__ int32_t StripPixel(const DepthwiseParams& p, int32_t strip) {
  const StripCoord coord(p, min(strip, p.images * p.strips - 1));
  return coord.image * p.src_width + coord.strip * p.strip_step;
}

// The same pixel of its destination, or gradient. In a box the strips of an image lie together, and images are apart.
template <DepthwiseTile kTile>
__device__ __forceinline__ int32_t StripResult(const DepthwiseParams& p, int32_t strip) {
  if constexpr (kTile.by_tma) {
    const StripCoord coord(p, strip);
    return coord.image * p.strips_pitch + coord.strip * kStripCols;
  } else {
    return strip * kStripCols;
  }
}

// Where a tap is in the Toeplitz matrices: the window part, the slot and the first pixel. A slot is a
// source row of a step (or a row of the destination) and a lag.
struct TapCoord {
  int32_t window_part = 0;
  int32_t slot;
  int32_t pixel;

  __device__ __forceinline__ TapCoord(const DepthwiseParams& p, const DepthwiseTile& tile, const Tap& tap,
                                      const ResidueClass& residue)
      : pixel(Quotient(tap.shift[2] - p.first_col, p.col_apart, p.col_inverse)) {
    const int32_t row = Quotient(tap.shift[1] - p.first_row, p.row_apart, p.row_inverse);
    int32_t source = row % tile.step + residue.phase[1], lag = row / tile.step;
    if (tile.has_planes()) {
      const int32_t period = static_cast<int32_t>(p.problem.period[0]);
      const int32_t depth = (tap.shift[0] - p.first_depth) * period + residue.phase[0];
      if (tile.in_parts) {
        const int32_t col_part = min(pixel / p.part_cols, p.col_parts - 1);
        window_part = (depth * p.row_parts + lag / tile.lags) * p.col_parts + col_part;
        lag %= tile.lags;
        pixel -= col_part * p.part_cols;
      } else {
        source += depth * tile.step;
      }
    }
    slot = source * tile.lags + lag;
  }
};

// Where a tap's sum is, and where it goes to, in a wgrad of a window part.
struct StoredTap {
  static constexpr int32_t kNone = -1, kOfOthers = -2;

  int32_t from;  // pixels of slots; kNone if no position sees the tap, kOfOthers if it is another window part's
  int32_t to;    // elements of the filter

  StoredTap() = default;
  __device__ __forceinline__ StoredTap(const DepthwiseParams& p, const DepthwiseTile& tile, int32_t window_part,
                                       int32_t t) {
    const Tap tap = p.taps[t];
    const ResidueClass residue = p.classes[0];
    const bool is_seen = t < residue.tap_count;
    const TapCoord coord(p, tile, tap, residue);
    const int32_t pixels = tile.on_cuda_cores() ? tile.width : tile.pixels();
    const bool is_others = window_part != (is_seen ? coord.window_part : 0);
    from = is_others ? kOfOthers : is_seen ? coord.slot * pixels + coord.pixel : kNone;
    to = tap.filter_delta;
  }
};

static_assert(sizeof(StoredTap) == kStoredTapBytes, "shared memory has room for it");

// Stores the taps of a wgrad into a slice of the workspace. find(t) tells where a tap is, and part_of(part, from,
// channel of the thread block) gives the parts that make its sum. All consumers call it. Each reads the parts of
// several taps at once.
template <DepthwiseTile kTile, typename Find, typename PartOf>
__device__ __forceinline__ void StoreTaps(const DepthwiseParams& p, int32_t slice, int32_t parts, Find&& find,
                                          PartOf&& part_of) {
  const DepthwiseLane lane(p, kTile);
  const int32_t channel = FirstChannel(p) + lane.channel, count = static_cast<int32_t>(p.problem.tap_count);
  if (channel >= p.all_channels) return;
  const int64_t first_to = slice * p.out_elements + channel * p.problem.filter.group;
  constexpr int kLoads = kTile.has_producers ? 4 : 8;  // in flight: fewer where they are near
#pragma unroll 1
  for (int32_t begin = lane.number; begin < count; begin += kLoads * lane.all) {
    StoredTap taps[kLoads];
    float sums[kLoads] = {};
    bool are_others = true;  // a large window's parts have few of its taps each
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      taps[i] = find(min(begin + i * lane.all, count - 1));
      are_others &= taps[i].from == StoredTap::kOfOthers;
    }
    if (are_others) continue;
#pragma unroll 1
    for (int32_t part = 0; part < parts; ++part) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i) sums[i] += part_of(part, max(taps[i].from, 0), lane.channel);
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (begin + i * lane.all >= count || taps[i].from == StoredTap::kOfOthers) continue;
      const float sum = taps[i].from == StoredTap::kNone ? 0 : sums[i];
      StoreNarrowed(Pack<float, 1>{sum}, p.out, first_to + taps[i].to, p.out_type);
    }
  }
}

}  // namespace jaxconv
