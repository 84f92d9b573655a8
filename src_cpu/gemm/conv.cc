// A conv as a matrix product, without the im2col matrix in memory: blocks of it are packed through the tap table when
// their turn comes.
//
//   dst[position, k] = im2col[position, (tap, c)] * filter[(tap, c), k]
//
// M is positions, N is output channels, K is (tap, input channel). Only packing and the epilogue know number formats.
#include <cstdint>

#include "common/call.h"
#include "common/epilogue.h"
#include "common/items.h"
#include "common/storage.h"
#include "gemm/arithmetic.h"
#include "gemm/im2col.h"
#include "gemm/panels.h"
#include "gemm/tap_products.h"
#include "gemm/tile.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int64_t kBlockM = 96;   // a packed block should fill a part of the second-level cache
constexpr int64_t kBlockN = 512;  // output channels of a block
static_assert(kBlockM % kTileM == 0 && kBlockM <= kMostPositions, "a block is whole tiles");

template <typename A>
class Conv {
  using T = typename A::Sum;

 public:
  Conv(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        tile_(ChooseTile<A, false>(p_.out_channels)),
        panels_(CeilDiv(p_.out_channels, tile_.n)),
        block_panels_(BlockPanels(workers.threads())),
        blocks_n_(CeilDiv(panels_, block_panels_)),
        blocks_(p_, [&](int32_t c) { return BlocksM(c) * blocks_n_ * p_.groups; }),
        taps_(call),
        filter_(call.rhs, p_.filter_type),
        filter_rows_(p_, [&](int32_t c) { return p_.groups * panels_ * ClassRows(c); }),
        packed_filter_(filter_rows_.total() * tile_.n),
        workspace_(workers.threads() * WorkspaceSize()),
        positions_(workers.threads()),
        epilogue_(call.result, p_.dst_type, call.epilogue) {
    WithStorage<typename A::Left>(p_.src_type, [&](auto s) { pack_im2col_ = PackIm2col<A, decltype(s)>; });
  }

  void Run(const Workers& workers) const {
    const double filter_size = static_cast<double>(p_.tap_count) * p_.groups * p_.in_channels * p_.out_channels;
    workers.For(p_.class_count * p_.groups * panels_, filter_size, [this](int64_t, int64_t item) { PackFilter(item); });
    workers.For(blocks_.total(), MultiplyAdds(call_), [this](int64_t worker, int64_t item) { Block(worker, item); });
  }

 private:
  int64_t BlocksM(int32_t c) const { return CeilDiv(PositionCount(p_, call_.classes[c]), kBlockM); }

  // Panels of one block: all that fit, unless that leaves threads without work.
  int64_t BlockPanels(int64_t threads) const {
    constexpr int64_t kBlocksPerThread = 4;
    int64_t blocks_m = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) blocks_m += BlocksM(c) * p_.groups;
    const int64_t wanted = CeilDiv(kBlocksPerThread * threads, Max<int64_t>(blocks_m, 1));
    return Min(kBlockN / tile_.n, CeilDiv(panels_, wanted));
  }

  int64_t WorkspaceSize() const { return kBlockM * kRowStride<T> + block_panels_ * kBlockM * tile_.n; }

  // K is cut into blocks. Each has its own panels.
  TapBlocks BlocksK(int32_t c) const {
    return TapBlocks(call_.classes[c].tap_count, p_.in_channels, kBlockK<typename A::Left>);
  }
  int64_t BlockRows(int32_t c) const { return PanelRows<A>(BlocksK(c).most()); }
  int64_t ClassRows(int32_t c) const { return Max<int64_t>(BlocksK(c).count(), 1) * BlockRows(c); }

  T* FilterPanel(int32_t c, int64_t group, int64_t panel) const {
    return packed_filter_.data() + (filter_rows_.first(c) + (group * panels_ + panel) * ClassRows(c)) * tile_.n;
  }

  void PackFilter(int64_t item) const {
    const int64_t panel = Take(&item, panels_), group = Take(&item, p_.groups);
    const auto c = static_cast<int32_t>(item);
    const int64_t k = panel * tile_.n, origin = group * p_.filter.group + k * p_.filter.out;
    const TapBlocks blocks_k = BlocksK(c);
    int64_t offsets[kBlockK<typename A::Left>];
    T* to = FilterPanel(c, group, panel);
    int64_t i = 0;
    do {  // once even with nothing to sum, as the tile reads it
      const TapBlock block = blocks_k[i];
      LocateInFilter(p_, taps_.taps(call_.classes[c]), block, offsets);
      filter_.PackPanel(origin, Rows{block.size(), 0, offsets}, Min(tile_.n, p_.out_channels - k), p_.filter.out, to,
                        tile_.n);
      to += BlockRows(c) * tile_.n;
    } while (++i < blocks_k.count());
  }

  void Block(int64_t worker, int64_t item) const {
    const int32_t c = blocks_.Find(&item);
    const ResidueClass& cls = call_.classes[c];
    const int64_t first = Take(&item, BlocksM(c)) * kBlockM;
    const int64_t panel = Take(&item, blocks_n_) * block_panels_, group = item;
    const int64_t panels = Min(block_panels_, panels_ - panel);

    Positions& at = positions_[worker];
    at.Locate(p_, cls, first, Min(kBlockM, PositionCount(p_, cls) - first));
    T* im2col = workspace_.data() + worker * WorkspaceSize();
    T* sums = im2col + kBlockM * kRowStride<T>;
    const int64_t tiles = CeilDiv(at.count, kTileM);

    const Source source{p_, Offset(call_.src, p_.src_type, group * p_.src.group), taps_.taps(cls), taps_.counts(cls)};
    const T* filter = FilterPanel(c, group, panel);
    const TapBlocks blocks_k = BlocksK(c);
    int64_t i = 0;
    do {  // once even with nothing to sum: those sums are zero
      const TapBlock block = blocks_k[i];
      pack_im2col_(source, at, block, im2col);
      Sweep(tile_, CeilDiv(block.size(), A::kDepth), im2col, kTileM * kRowStride<T>, tiles,
            filter + i * BlockRows(c) * tile_.n, ClassRows(c) * tile_.n, panels,
            Sums<T>{sums, tile_.n, tiles * kTileM * tile_.n}, i > 0);
    } while (++i < blocks_k.count());
    StoreBlock(at, group, panel, panels, sums, tiles * kTileM * tile_.n);
  }

  void StoreBlock(const Positions& at, int64_t group, int64_t panel, int64_t panels, T* sums,
                  int64_t panel_size) const {
    const int64_t k = panel * tile_.n;
    StorePanels(epilogue_, sums, panel_size, tile_.n,
                OutputTile{.origin = group * p_.dst.group + k * p_.dst.channel,
                           .offsets = at.dst,
                           .rows = at.count,
                           .columns = Min(panels * tile_.n, p_.out_channels - k),
                           .stride = p_.dst.channel,
                           .channel = group * p_.out_channels + k,
                           .channel_stride = 1});
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const TileShape<T> tile_;
  const int64_t panels_;
  const int64_t block_panels_;
  const int64_t blocks_n_;
  const ClassItems blocks_;
  const ContiguousTaps taps_;
  const RightOperand<A> filter_;
  const ClassItems filter_rows_;
  const Buffer<T> packed_filter_;  // [class][group][panel][block of K][tap, c][k]
  const Buffer<T> workspace_;
  const Buffer<Positions> positions_;
  PackIm2colFunction<T>* pack_im2col_;
  const EpilogueOf<T> epilogue_;
};

}  // namespace

void GemmConv(const ConvCall& call, const Workers& workers) {
  if (call.problem.out_channels == 0) return;
  if (PrefersTapProducts(call)) return TapProductsConv(call, workers);
  const ConvProblem& p = call.problem;
  WithArithmetic(p, p.src_type, p.filter_type, [&](auto a) { Conv<decltype(a)>(call, workers).Run(workers); });
}

}  // namespace jaxconv::JAXCONV_ISA
