// Copies tiles to shared memory element by element: for operands whose neighbours are not contiguous, or not aligned.
#pragma once

#include <cstdint>

#include "mma/block.cuh"
#include "mma/tile_copy.cuh"

namespace jaxconv {

template <typename T, MmaTile kTile, typename SrcTile, typename RhsTile>
class ElementProducer {
 public:
  struct Shared {
    PointTable<kTile.depth> steps[kTile.step_stages()];
  };

  using Index = int64_t;  // of rows and steps

  __device__ ElementProducer(const Block<kTile.rows, Index>& block, Shared& shared) : block_(block), shared_(shared) {}

  __device__ void AddRow(int row, const Point& point) const {}

  __device__ void Begin(const NTile& n_tile) {
    const ProductParams& p = block_.params;
    src_ = static_cast<const char*>(p.src) + n_tile.group * p.problem.src.group * sizeof(T);
    rhs_ = static_cast<const char*>(p.rhs) + n_tile.group * p.rhs_group_stride * sizeof(T);
    first_col_ = n_tile.first_col;
  }

  // Prepares the steps of the first tiles, before the barrier after which these are copied.
  template <int kTiles>
  __device__ void PrepareFirst() const {
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) Prepare(tile);
  }

  __device__ void Start(int tile) const {}

  // Prepares the steps of a tile, before the barrier after which it is copied.
  __device__ void Prepare(int tile) const {
    if (threadIdx.x >= kTile.depth) return;
    const int64_t step = block_.range.begin + static_cast<int64_t>(tile) * kTile.depth + threadIdx.x;
    Point point = OutOfBounds();
    if (step < block_.range.end) {
      point = block_.points.Step(step);
      point.src *= sizeof(T);
      point.partner *= sizeof(T);
    }
    shared_.steps[tile % kTile.step_stages()][threadIdx.x] = point;
  }

  // Copies one of `parts` parts of a tile: all in the first.
  template <typename Stage>
  __device__ __forceinline__ void Copy(int tile, Stage& stage, int part, int parts) const {
    if (part > 0) return;
    const PointTable<kTile.depth>& steps = shared_.steps[tile % kTile.step_stages()];
    CopyElements<SrcTile>(src_, stage.src, [&](int fast, int slow) { return OfSource(steps, fast, slow); });
    CopyElements<RhsTile>(rhs_, stage.rhs, [&](int fast, int slow) { return OfColumns(steps, fast, slow); });
  }

 private:
  // An element of an operand: zero if not `valid`.
  struct Element {
    int64_t offset;  // bytes
    bool valid;
  };

  __device__ Element OfSource(const PointTable<kTile.depth>& steps, int fast, int slow) const {
    const Point& row = block_.rows[SrcTile::kKMajor ? slow : fast];
    const Point& step = steps[SrcTile::kKMajor ? fast : slow];
    bool inside = true;
#pragma unroll
    for (int d = 0; d < kSpatial; ++d) {
      inside &= static_cast<uint32_t>(row.at[d] + step.at[d]) < block_.params.src_size[d];
    }
    return {row.src + step.src, inside};
  }

  __device__ Element OfColumns(const PointTable<kTile.depth>& steps, int fast, int slow) const {
    const int64_t col = first_col_ + (RhsTile::kKMajor ? slow : fast);
    const int64_t partner = steps[RhsTile::kKMajor ? fast : slow].partner;
    return {partner + col * block_.params.rhs_col_stride * static_cast<int64_t>(sizeof(T)),
            partner >= 0 && col < block_.params.cols};
  }

  template <typename Tile, typename Find>
  static __device__ __forceinline__ void CopyElements(const char* from, char* to, const Find& find) {
    using Pattern = CopyPattern<Tile, kTile.threads(), 1>;
    constexpr int kInFlight = 8;  // loads before the first store
#pragma unroll 1
    for (int first = 0; first < Pattern::kCount; first += kInFlight) {
      T elements[kInFlight];
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        elements[i] = T(0.0f);
        if (first + i >= Pattern::kCount) continue;
        const Element element = find(Pattern::Fast(), Pattern::Slow(first + i));
        if (element.valid) elements[i] = *reinterpret_cast<const T*>(from + element.offset);
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        if (first + i >= Pattern::kCount) continue;
        *reinterpret_cast<T*>(to + Tile::Advance(Pattern::Origin(), (first + i) * Pattern::kStride)) = elements[i];
      }
    }
  }

  const Block<kTile.rows, Index>& block_;
  Shared& shared_;
  const char* src_;
  const char* rhs_;
  int64_t first_col_;
};

}  // namespace jaxconv
