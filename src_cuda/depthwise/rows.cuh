// Rows of pixels on their way from memory to shared memory, for the depthwise family.
#pragma once

#include <cstdint>

#include "common/convert.cuh"
#include "common/ptx.cuh"
#include "depthwise/params.cuh"

namespace jaxconv {

// The place of a pixel's piece in a row, in pieces, of which eight neighbours are in all banks. Pixels that a warp
// reads at once differ, in a conv, by 2, in a wgrad by 1, and from strip to strip by 4 to 16 or more.
//   Either a piece is left out behind some pixels, an even number of them: then distances of eight pixels, and those of
// an even pixel to the next, are the same everywhere. Or, for four channels, pieces are exchanged by the bits in which
// those pixels differ, which are 0 to 4, but for those that move a piece by themselves: nearly no two of them are in
// the same banks then, but each has its own distance.
template <DepthwiseTile kTile>
__device__ __forceinline__ int32_t PiecePlace(const DepthwiseParams& p, int32_t pixel, int32_t piece) {
  if constexpr (Exchanges(kTile)) {
    const int32_t high = (pixel >> 3 ^ pixel >> 4) & 1, middle = (pixel >> 2 & 1) ^ high;
    int32_t exchanged = p.log_pieces == 1 ? middle | high << 1 : high | high << 2;
    if (kTile.has_copiers && p.log_pieces == 2) exchanged = (pixel >> 1 & 1) | high << 1 | (pixel & 4);
    return ((pixel << p.log_pieces) + piece) ^ exchanged;
  } else {
    return (pixel << p.log_pieces) + piece + (pixel >> p.log_gap);
  }
}

// The same of a box that begins a turn of its swizzle, in bytes. TMA exchanges a pixel's pieces by bits 1 and 2 of its
// number, so that distances of eight pixels are the same everywhere.
__device__ __forceinline__ int32_t BoxPlace(int32_t pixel, int32_t piece) {
  return pixel * kBoxPixelBytes + (piece ^ (pixel >> 1 & 3)) * kPieceBytes;
}

// Whether the halves of a strip's results are exchanged in each piece, so that what a warp stores at once, of which a
// half is, is in all banks. Those that copy results exchange them again.
__device__ __forceinline__ bool SwapsHalves(const DepthwiseTile& tile, int32_t strip) {
  return tile.has_copiers && !tile.by_tma && strip % 2 != 0;
}

// Where a warp finds its channels of some pixels: the first one and its neighbours, and those at distances of eight.
template <DepthwiseTile kTile, int kEights, int kNeighbours>
class PixelPlaces {
 public:
  PixelPlaces() = default;
  __device__ __forceinline__ PixelPlaces(const DepthwiseParams& p, int32_t pixel, int32_t part) {
    constexpr int kPartBytes = kTile.channels * kTile.element_bytes(), kParts = kPieceBytes / kPartBytes;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      const int32_t other = pixel + i / kKeptNeighbours * 8 + i % kKeptNeighbours;
      if constexpr (kTile.by_tma) {
        at_[i] = BoxPlace(other, part / kParts);
      } else {
        at_[i] = PiecePlace<kTile>(p, other, part / kParts) * kPieceBytes;
      }
      at_[i] += part % kParts * kPartBytes;
    }
  }

  __device__ __forceinline__ uint32_t At(const DepthwiseParams& p, int eights, int neighbour) const {
    if constexpr (kTile.by_tma) {
      return at_[neighbour] + eights * 8 * kBoxPixelBytes;
    } else if constexpr (kKeptNeighbours < kNeighbours) {
      int32_t apart = kPieceBytes << p.log_pieces;
      ptx::Keep(apart);  // or the compiler works out where the neighbour is, and keeps that
      return neighbour == 0 ? at_[eights] : at_[eights] ^ apart;
    } else if constexpr (Exchanges(kTile)) {
      return at_[eights * kNeighbours + neighbour];
    } else {
      return at_[0] + (((8 * eights + neighbour) << p.log_pieces) + (8 * eights >> p.log_gap)) * kPieceBytes;
    }
  }

  __device__ __forceinline__ void SwapHalves() {
#pragma unroll
    for (int i = 0; i < kKept; ++i) at_[i] ^= kPieceBytes / 2;
  }

 private:
  // Pieces of an even pixel and the next are exchanged alike. Where others copy, registers are scarce.
  static constexpr int kKeptNeighbours = kTile.has_copiers && !kTile.by_tma ? 1 : kNeighbours;
  static constexpr int kKept = kTile.by_tma ? kNeighbours : Exchanges(kTile) ? kEights * kKeptNeighbours : 1;

  uint32_t at_[kKept];
};

// The first source row of a piece of the window, for the first position: for others further down.
__device__ __forceinline__ int32_t SourceRow(const DepthwiseParams& p, const DepthwiseTile& tile,
                                             const WindowPiece& piece) {
  return RowsApart(p, tile, tile.step * piece.step) + p.first_row;
}

__device__ __forceinline__ bool HasRow(const DepthwiseParams& p, int32_t row) {
  return static_cast<uint32_t>(row) < static_cast<uint32_t>(p.problem.src_size[1]);
}

// Elements from a tile's first image or volume to a pixel, or -1 outside, as for a plane that is not there. Without
// branches, behind which each pixel's parameters would be waited for.
__device__ __forceinline__ int32_t PixelOffset(int32_t plane, int32_t col, int64_t cols, const TensorStrides& strides) {
  const bool is_there = (plane >= 0) & (static_cast<uint32_t>(col) < static_cast<uint32_t>(cols));
  const int32_t offset = plane + col * static_cast<int32_t>(strides.spatial[2]);
  return is_there ? offset : -1;
}

// Waits for all threads that multiply.
template <DepthwiseTile kTile>
__device__ __forceinline__ void SyncMultipliers() {
  if constexpr (kTile.has_copiers) {
    ptx::SyncThreads<Multipliers(kTile)>();
  } else {
    __syncthreads();
  }
}

// A warp's channels of a pixel, of 16 bits each.
template <int kChannels>
struct PixelPart {
  uint32_t words[kChannels / 2];

  __device__ __forceinline__ void Load(uint32_t address) {
    if constexpr (kChannels == 2) words[0] = ptx::LoadWord(address);
    if constexpr (kChannels == 4) ptx::LoadPair(words[0], words[1], address);
    if constexpr (kChannels == 8) ptx::LoadFour(words, address);
  }
};

// The pair of a channel's 16-bit elements, of two pixels.
template <int kChannels>
__device__ __forceinline__ uint32_t PairOf(const PixelPart<kChannels>& first, const PixelPart<kChannels>& second,
                                           int channel) {
  return __byte_perm(first.words[channel / 2], second.words[channel / 2], channel % 2 ? 0x7632 : 0x5410);
}

// A thread's piece of a row in shared memory, of a few pixels.
template <typename T, DepthwiseTile kTile>
struct DepthwisePiece {
  int32_t pixel;    // the first
  int32_t apart;    // pixels to the next
  int32_t place;    // bytes
  int32_t channel;  // the first

  __device__ __forceinline__ explicit DepthwisePiece(const DepthwiseParams& p)
      : pixel(Thread() >> p.log_pieces), apart(kDepthwiseThreads >> p.log_pieces) {
    const int32_t piece = Thread() & ((1 << p.log_pieces) - 1);
    // CUDA cores read a pixel's channels one beside the other, as they lie.
    place = (kTile.on_cuda_cores() ? Thread() : PiecePlace<kTile>(p, pixel, piece)) * kPieceBytes;
    ptx::Keep(place);
    channel = FirstChannel(p) + piece * kTraits<T>.vector();
  }

  // This thread, among those that copy the same rows.
  static __device__ __forceinline__ uint32_t Thread() {
    return kTile.has_copiers ? threadIdx.x % kDepthwiseThreads : threadIdx.x;
  }

  static_assert(kTile.on_cuda_cores() || kBatchBytes / MostChannelBytes(kTile) % (Exchanges(kTile) ? 32 : 8) == 0,
                "pieces of a thread's pixels are equally far apart");
};

// Whether a tile's pixels are where those of the tile before were, in other images, or rows. Not asked where others
// multiply meanwhile: there it costs registers.
template <DepthwiseTile kTile>
__device__ __forceinline__ bool HasSamePixels(const DepthwiseTilePlace& place, const DepthwiseTilePlace& before) {
  return kTile.has_copiers && !kTile.has_planes() && place.col == before.col && place.images == before.images;
}

// Where a thread finds its pieces of the rows of a tile's images in a tensor.
template <typename T, DepthwiseTile kTile, int kCount>
class DepthwiseRows {
 public:
  using Piece = DepthwisePiece<T, kTile>;

  // Of the source, whose pixels are an image's after the other's: those of a depth of the window. Pixels that are where
  // the tile's before were are known.
  __device__ __forceinline__ void BeginSource(const DepthwiseParams& p, const Piece& piece,
                                              const DepthwiseTilePlace& place, const WindowPiece& window, int depth,
                                              bool are_known) {
    const ConvProblem& q = p.problem;
    const int32_t images = Begin(p, piece, place, p.src, q.src);
    if (are_known) return;
    const int32_t col =
        (place.col >> p.log_col_period) * static_cast<int32_t>(q.step[2]) + p.first_col + window.col * p.col_apart;
    const auto source_depth = [&](int32_t dst_depth) { return SourceDepth(p, dst_depth, window.depth + depth); };
    const int32_t first = PlaneOffset(p, place, 0, images, q.src, source_depth);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (kTile.has_copiers && i >= p.copies) break;  // they are few, and wait for each instruction
      const int32_t pixel = piece.pixel + i * piece.apart;
      const int32_t image = static_cast<int32_t>(__umulhi(pixel, p.width_inverse));
      const int32_t at = pixel - image * p.src_width;
      const bool has_first = kTile.has_planes() && p.images == 1;
      const int32_t plane = has_first ? first : PlaneOffset(p, place, image, images, q.src, source_depth);
      const int32_t offset = PixelOffset(plane, col + at * p.col_apart, q.src_size[2], q.src);
      at_[i] = at < p.src_width ? offset : -1;
    }
  }

  // Of the destination or its gradient, whose pixels are those of the strips.
  __device__ __forceinline__ void BeginStrips(const DepthwiseParams& p, const Piece& piece,
                                              const DepthwiseTilePlace& place, const void* tensor, bool are_known) {
    const ConvProblem& q = p.problem;
    const int32_t images = Begin(p, piece, place, tensor, q.dst);
    if (are_known) return;
    const auto same_depth = [](int32_t dst_depth) { return dst_depth; };
    const int32_t first = PlaneOffset(p, place, 0, images, q.dst, same_depth);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int32_t pixel = piece.pixel + i * piece.apart;
      const StripPlace strip(p, pixel / kStripCols);
      const int32_t at = strip.strip * kStripCols + pixel % kStripCols;
      const bool has_first = kTile.has_planes() && p.images == 1;
      const int32_t plane = has_first ? first : PlaneOffset(p, place, strip.image, images, q.dst, same_depth);
      const int32_t offset = PixelOffset(plane, place.col + at * p.col_apart, q.dst_size[2], q.dst);
      at_[i] = strip.strip < p.strips ? offset : -1;
    }
  }

  // Begins the copies of `count` pieces of a row, or of zeros for one that is not there.
  __device__ __forceinline__ void Copy(const DepthwiseParams& p, int32_t row, bool is_there, int count,
                                       uint32_t to) const {
    const T* from = Row(row);
    ptx::Keep(from);
    int32_t least = is_there ? 0 : INT32_MAX;  // of offsets: kept, or the compiler works it out for each piece
    ptx::Keep(least);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i < count) ptx::CopyAsync<kTile.has_copiers>(to + i * p.batch, from + at_[i], at_[i] >= least);
    }
  }

  __device__ __forceinline__ const T* Row(int32_t row) const { return first_ + static_cast<int64_t>(row) * apart_; }
  __device__ __forceinline__ bool Has(int i) const { return at_[i] >= 0; }
  __device__ __forceinline__ int32_t At(int i) const { return at_[i]; }

 private:
  // The images that there are, for a thread whose channels are there.
  __device__ __forceinline__ int32_t Begin(const DepthwiseParams& p, const Piece& piece,
                                           const DepthwiseTilePlace& place, const void* tensor,
                                           const TensorStrides& strides) {
    const int32_t image = kTile.has_planes() ? place.image / static_cast<int32_t>(p.problem.dst_size[0]) : place.image;
    first_ = static_cast<const T*>(tensor) + image * strides.batch + piece.channel;
    apart_ = static_cast<int32_t>(strides.spatial[1]);
    return piece.channel < p.all_channels ? place.images : 0;
  }

  // Elements from a tile's first image to another of `images`, or from its first volume to a plane, or -1. `depth_of`
  // says which of the tensor's planes, or -1, by that of the destination.
  template <typename DepthOf>
  static __device__ __forceinline__ int32_t PlaneOffset(const DepthwiseParams& p, const DepthwiseTilePlace& place,
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
      plane = place.image % planes + image;
      volume = plane / planes, plane %= planes;
    }
    const int32_t depth = depth_of(plane);
    return depth < 0 ? -1 : static_cast<int32_t>(volume * strides.batch + depth * strides.spatial[0]);
  }

  const T* first_;
  int32_t apart_;
  int32_t at_[kCount];  // of a tile's images, whose elements have offsets of 32 bits
};

// What a thread copies of a step: its source rows, in a wgrad also the gradient's, or one of both.
enum class Copies { kConv, kWgrad, kWgradSource, kWgradGradient };

// What a thread block reads: the source rows of a step, and in a wgrad a row of the gradient, of its tiles, one after
// the other, into a ring of stages.
template <typename T, DepthwiseTile kTile, Copies kCopies>
class DepthwiseReader {
  static constexpr bool kIsWgrad = kCopies != Copies::kConv;
  static constexpr bool kWithSource = kCopies != Copies::kWgradGradient;
  static constexpr bool kWithGradient = kIsWgrad && kCopies != Copies::kWgradSource;
  // Also where nothing reads them: a wgrad, whose steps have one.
  static constexpr bool kLeavesOutRows = LeavesOutRows(kTile) || (kCopies == Copies::kWgradSource && kTile.step == 1);

 public:
  // A wgrad is of one piece of the window; a conv's tiles take all, one after the other.
  __device__ __forceinline__ DepthwiseReader(const DepthwiseParams& p, char* shared, const DepthwiseRange& range,
                                             const WindowPiece& window = {})
      : p_(p), piece_(p), stages_(ptx::SharedAddress(shared)), begin_(range.begin), end_(range.end), window_(window) {
    if (begin_ < end_) Begin();
  }

  __device__ __forceinline__ bool HasNext() const { return begin_ < end_; }

  // Begins the copies of the next step, if there is one.
  __device__ __forceinline__ void Copy() {
    if (begin_ < end_) {
      const uint32_t to = stages_ + piece_.place + stage_ * p_.places.stage;
#pragma unroll
      for (int a = 0; kWithSource && a < kTile.sources(); ++a) {
        const int32_t row = kTile.step * row_ + SourceRow(p_, kTile, window_) + a % kTile.step;
        const bool is_there = HasRow(p_, row);
        if (kLeavesOutRows && !is_there) continue;
        src_[a / kTile.step].Copy(p_, row, is_there, p_.copies, to + a * p_.places.row);
      }
      if constexpr (kWithGradient) {
        gradient_.Copy(p_, row_, row_ < last_row_, StripPieces(kTile), to + kTile.sources() * p_.places.row);
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
    if constexpr (kTile.has_pieces && !kIsWgrad) {
      const WindowPiece next = place_.NextPiece(p_, kTile, window_);
      if (next.number < p_.pieces) return BeginPiece(next);
    }
    begin_ = next_;
    if (begin_ < end_) Begin();
  }

  __device__ __forceinline__ void Begin() {
    const DepthwiseTilePlace before = place_;
    place_ = DepthwiseTilePlace(p_, kTile, begin_, end_);
    next_ = begin_ + place_.rows();
    if constexpr (kTile.has_pieces && !kIsWgrad) window_ = place_.FirstPiece(p_, kTile);
    const bool are_known = HasSamePixels<kTile>(place_, before);
    if constexpr (kWithGradient) gradient_.BeginStrips(p_, piece_, place_, p_.rhs, are_known);
    BeginSource(are_known);
    BeginSteps();
  }

  // Behind another piece, whose pixels may be the same.
  __device__ __forceinline__ void BeginPiece(const WindowPiece& window) {
    const bool same = window.depth == window_.depth && window.col == window_.col;
    window_ = window;
    if (!same) BeginSource(false);
    BeginSteps();
  }

  __device__ __forceinline__ void BeginSource(bool are_known) {
#pragma unroll
    for (int depth = 0; kWithSource && depth < kTile.depths; ++depth) {
      src_[depth].BeginSource(p_, piece_, place_, window_, depth, are_known);
    }
  }

  __device__ __forceinline__ void BeginSteps() {
    const int32_t first = place_.Row(p_, kTile);
    const int32_t steps = kIsWgrad            ? place_.WgradSteps(p_, kTile, window_)
                          : kTile.has_copiers ? place_.SeenConvSteps(p_, kTile)
                                              : place_.ConvSteps(kTile);
    row_ = first + RowsApart(p_, kTile, kIsWgrad ? 0 : place_.FirstStep(p_, kTile, window_));
    end_row_ = first + RowsApart(p_, kTile, steps);
    last_row_ = min(first + RowsApart(p_, kTile, place_.rows()), static_cast<int32_t>(p_.problem.dst_size[1]));
  }

  const DepthwiseParams& p_;
  DepthwisePiece<T, kTile> piece_;
  uint32_t stages_;
  int32_t begin_, end_, next_;  // of the tile, of all tiles, and of the next tile
  DepthwiseTilePlace place_{};
  WindowPiece window_;
  int32_t stage_ = 0;
  int32_t row_, end_row_;  // of the next step, and behind the last: that of its position, of a class
  int32_t last_row_;       // behind the gradient's
  DepthwiseRows<T, kTile, MostCopies(kTile)> src_[kTile.depths];
  DepthwiseRows<T, kTile, kWithGradient ? StripPieces(kTile) : 1> gradient_;
};

// What a conv's thread block writes: rows of the destination, which lie in shared memory as if they had been copied
// there.
template <typename T, DepthwiseTile kTile>
class DepthwiseWriter {
 public:
  struct Pieces {
    uint4 of[kTile.period][StripPieces(kTile)];
  };

  __device__ __forceinline__ explicit DepthwiseWriter(const DepthwiseParams& p) : p_(p), piece_(p) {}

  __device__ __forceinline__ void Begin(const DepthwiseTilePlace& place) {
    dst_.BeginStrips(p_, piece_, place, p_.out, HasSamePixels<kTile>(place, place_));
    place_ = place;
    first_row_ = place.Row(p_, kTile);
  }

  __device__ __forceinline__ Pieces Load(const char* from) const {
    Pieces pieces;
#pragma unroll
    for (int phase = 0; phase < kTile.period; ++phase) {
#pragma unroll
      for (int i = 0; i < StripPieces(kTile); ++i) {
        uint4& piece = pieces.of[phase][i];
        piece = *reinterpret_cast<const uint4*>(from + phase * p_.places.result_row + piece_.place + i * p_.batch);
        if (SwapsHalves(kTile, piece_.pixel / kStripCols)) piece = {piece.z, piece.w, piece.x, piece.y};
      }
    }
    return pieces;
  }

  // The rows of one of the tile's positions, of a class; of a negative one none.
  __device__ __forceinline__ void Store(int32_t position, const Pieces& pieces) const {
#pragma unroll
    for (int phase = 0; phase < kTile.period; ++phase) {
      const int32_t row = (first_row_ + RowsApart(p_, kTile, position)) * kTile.period + phase;
      T* to = const_cast<T*>(dst_.Row(row));
#pragma unroll
      for (int i = 0; i < StripPieces(kTile); ++i) {
        if (position >= 0 && row < p_.problem.dst_size[1] && dst_.Has(i)) {
          *reinterpret_cast<uint4*>(to + dst_.At(i)) = pieces.of[phase][i];
        }
      }
    }
  }

 private:
  const DepthwiseParams& p_;
  DepthwisePiece<T, kTile> piece_;
  DepthwiseTilePlace place_{};
  DepthwiseRows<T, kTile, StripPieces(kTile)> dst_;
  int32_t first_row_ = 0;
};

// The source pixel, of a row in shared memory, at which one of a tile's strips begins. Strips behind the last are the
// last: what comes of them goes nowhere.
__device__ __forceinline__ int32_t StripPixel(const DepthwiseParams& p, int32_t strip) {
  const StripPlace place(p, min(strip, p.images * p.strips - 1));
  return place.image * p.src_width + place.strip * p.strip_step;
}

// And the pixel of its destination, or gradient. In a box the strips of an image lie together, and images are apart.
template <DepthwiseTile kTile>
__device__ __forceinline__ int32_t StripResult(const DepthwiseParams& p, int32_t strip) {
  if constexpr (kTile.by_tma) {
    const StripPlace place(p, strip);
    return place.image * p.strips_pitch + place.strip * kStripCols;
  } else {
    return strip * kStripCols;
  }
}

// Where in the bands a tap is: the piece of the window; the slot, a step's source row (or destination row) and a lag;
// and the first pixel.
struct BandPlace {
  int32_t piece = 0;
  int32_t slot;
  int32_t pixel;

  __device__ __forceinline__ BandPlace(const DepthwiseParams& p, const DepthwiseTile& tile, const Tap& tap,
                                       const ResidueClass& residue)
      : pixel(Quotient(tap.shift[2] - p.first_col, p.col_apart, p.col_inverse)) {
    const int32_t row = Quotient(tap.shift[1] - p.first_row, p.row_apart, p.row_inverse);
    int32_t source = row % tile.step + residue.phase[1], lag = row / tile.step;
    if (tile.has_planes()) {
      const int32_t period = static_cast<int32_t>(p.problem.period[0]);
      const int32_t depth = (tap.shift[0] - p.first_depth) * period + residue.phase[0];
      if (tile.has_pieces) {
        const int32_t col_piece = min(pixel / p.piece_cols, p.col_pieces - 1);
        piece = (depth * p.row_pieces + lag / tile.lags) * p.col_pieces + col_piece;
        lag %= tile.lags;
        pixel -= col_piece * p.piece_cols;
      } else {
        source += depth * tile.step;
      }
    }
    slot = source * tile.lags + lag;
  }
};

// Where a tap's sum of a wgrad is, and where it goes to: of a piece of the window.
struct StoredTap {
  static constexpr int32_t kNone = -1, kOfOthers = -2;

  int32_t from;  // pixels of slots; kNone if no position sees the tap, kOfOthers if it is another piece's
  int32_t to;    // elements of the filter

  StoredTap() = default;
  __device__ __forceinline__ StoredTap(const DepthwiseParams& p, const DepthwiseTile& tile, int32_t piece, int32_t t) {
    const Tap tap = p.taps[t];
    const ResidueClass residue = p.classes[0];
    const bool is_seen = t < residue.tap_count;
    const BandPlace place(p, tile, tap, residue);
    const int32_t pixels = tile.on_cuda_cores() ? tile.width : tile.pixels();
    const bool is_others = piece != (is_seen ? place.piece : 0);
    from = is_others ? kOfOthers : is_seen ? place.slot * pixels + place.pixel : kNone;
    to = tap.filter_delta;
  }
};

static_assert(sizeof(StoredTap) == kStoredTapBytes, "shared memory has room for it");

// Stores taps of a wgrad into a slice: find(t) says which, and part_of(part, from, channel of the thread block's) what
// they are the sums of. By all threads that multiply, each of which reads several taps' parts at once.
template <DepthwiseTile kTile, typename Find, typename PartOf>
__device__ __forceinline__ void StoreTaps(const DepthwiseParams& p, int32_t slice, int32_t parts, Find&& find,
                                          PartOf&& part_of) {
  const DepthwiseLane lane(p, kTile);
  const int32_t channel = FirstChannel(p) + lane.channel, count = static_cast<int32_t>(p.problem.tap_count);
  if (channel >= p.all_channels) return;
  const int64_t first_to = slice * p.out_elements + channel * p.problem.filter.group;
  constexpr int kLoads = kTile.has_copiers ? 4 : 8;  // in flight: fewer where they are near
#pragma unroll 1
  for (int32_t begin = lane.number; begin < count; begin += kLoads * lane.all) {
    StoredTap taps[kLoads];
    float sums[kLoads] = {};
#pragma unroll
    for (int i = 0; i < kLoads; ++i) taps[i] = find(min(begin + i * lane.all, count - 1));
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
