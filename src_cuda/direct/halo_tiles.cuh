// Producers of the direct family's conv: halo tiles of output tiles, or source rows of streams, on their way to the
// stages.
#pragma once

#include <cstdint>

#include "common/ptx.cuh"
#include "direct/params.cuh"
#include "direct/pipeline.cuh"
#include "direct/tables.cuh"

namespace jaxconv {

// What the first warp of a conv copies: a halo tile, one channel part of the source channels after the other.
template <typename T, bool kPacked>
class HaloTiles {
 public:
  __device__ __forceinline__ HaloTiles(const DirectBlock& block, const DirectPipeline& filled)
      : filled_(filled), next_(block.worker) {}

  __device__ __forceinline__ void CopyNext(const DirectParams& p, const DirectBlock& block, const HaloOrigin& origin,
                                           const Box& box, uint32_t stages) {
    if (next_ >= block.tiles) return;
    const TileCoord coord = block.CoordOf(p, next_);
    int32_t at[kSpatial];
    origin.HaloAt<kPacked>(p, coord, at);
    filled_.WaitUntilEmpty();
    box.template Copy<T>(stages + filled_.stage() * p.offsets.stage, filled_.full(),
                         block.channels.src + part_ * p.src_pixel.vectors * kVector<T>, at, coord.image);
    Box::Arrive(filled_.full(), box.Bytes());
    filled_.Advance();
    part_ = part_ + 1 < p.channel_parts ? part_ + 1 : 0;
    next_ += part_ == 0 ? p.workers : 0;
  }

 private:
  DirectPipeline filled_;
  int32_t next_;
  int part_ = 0;
};

// What a producer warp copies where stages are rows: for all output tiles the source rows of the streams, one of each
// stream at a time. To be called by all of the warp.
template <typename T>
__device__ __forceinline__ void CopyStreamedRows(const DirectParams& p, const DirectBlock& block,
                                                 const HaloOrigin& origin, const Box& row, RowPipeline filled,
                                                 uint32_t stages) {
  const int32_t streams = p.tile.rows / p.tile.stream, rows = p.tile.stream + p.tile.halo[1] - p.tile.rows;
#pragma unroll 1
  for (int32_t tile = block.worker; tile < block.tiles; tile += p.workers) {
    const TileCoord coord = block.CoordOf(p, tile);
    int32_t at[kSpatial];
    origin.HaloAt<false>(p, coord, at);
    const int32_t end = at[1] + rows;
#pragma unroll 1
    for (; at[1] < end; ++at[1]) {
      filled.WaitUntilEmpty();
#pragma unroll 1
      for (int32_t stream = 0; stream < streams; ++stream) {
        const int32_t from[kSpatial] = {at[0], at[1] + stream * p.tile.stream, at[2]};
        row.template Copy<T>(stages + filled.stage() * p.offsets.stage + stream * row.Bytes(), filled.full(),
                             block.channels.src, from, coord.image);
      }
      Box::Arrive(filled.full(), streams * row.Bytes());
      filled.Advance();
    }
  }
  ptx::CommitCopies();
  ptx::WaitForCopies<0>();  // without TMA they are this warp's, which ends
}

}  // namespace jaxconv
