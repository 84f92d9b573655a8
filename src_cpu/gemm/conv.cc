// A conv as a matrix product, without the im2col matrix in memory: blocks of it are packed through the tap table when
// their turn comes.
//
//   dst[position, k] = im2col[position, (tap, c)] * filter[(tap, c), k]
//
// M is positions, N is output channels, K is (tap, input channel). Operands are packed in the type of the sums. So only
// packing and the epilogue know number formats.
#include <cstdint>

#include "common/call.h"
#include "common/epilogue.h"
#include "common/pack.h"
#include "common/storage.h"
#include "common/work.h"
#include "gemm/im2col.h"
#include "gemm/tap_products.h"
#include "gemm/tile.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int64_t kBlockM = 96;   // a packed block should fill a part of the second-level cache
constexpr int64_t kBlockN = 512;  // output channels of a block
static_assert(kBlockM % kTileM == 0 && kBlockM <= kMostPositions, "a block is whole tiles");

template <typename T>
class Conv {
 public:
  Conv(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        tile_(ChooseTile<T, false>(p_.out_channels)),
        panels_(CeilDiv(p_.out_channels, tile_.n)),
        block_panels_(BlockPanels(workers.threads())),
        blocks_n_(CeilDiv(panels_, block_panels_)),
        blocks_(p_, [&](int32_t c) { return BlocksM(c) * blocks_n_ * p_.groups; }),
        taps_(call),
        filter_(call.rhs, p_.filter_type),
        packed_filter_(p_.tap_count * p_.groups * p_.in_channels * panels_ * tile_.n),
        workspace_(workers.threads() * WorkspaceSize()),
        positions_(workers.threads()),
        epilogue_(call.result, p_.dst_type, call.epilogue) {
    WithStorage<T>(p_.src_type, [&](auto s) { pack_im2col_ = PackIm2col<T, decltype(s)>; });
  }

  void Run(const Workers& workers) const {
    const double filter_size = static_cast<double>(p_.tap_count) * p_.groups * p_.in_channels * p_.out_channels;
    workers.For(p_.class_count * p_.groups * panels_, filter_size, [this](int64_t, int64_t item) { PackFilter(item); });
    workers.For(blocks_.total(), MultiplyAdds(call_), [this](int64_t slot, int64_t item) { Block(slot, item); });
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

  T* FilterPanel(const ResidueClass& cls, int64_t group, int64_t panel) const {
    const int64_t taps = static_cast<int64_t>(cls.first_tap) * p_.groups + group * cls.tap_count;
    return packed_filter_.data() + (taps * panels_ + panel * cls.tap_count) * p_.in_channels * tile_.n;
  }

  void PackFilter(int64_t item) const {
    const int64_t panel = Take(&item, panels_), group = Take(&item, p_.groups);
    const ResidueClass& cls = call_.classes[item];
    const int64_t k = panel * tile_.n;
    T* to = FilterPanel(cls, group, panel);
    for (int32_t t = 0; t < cls.tap_count; ++t, to += p_.in_channels * tile_.n) {
      const int64_t offset = taps_.taps(cls)[t].filter_delta + group * p_.filter.group + k * p_.filter.out;
      filter_.PackPanel(offset, Rows{p_.in_channels, p_.filter.in}, Min(tile_.n, p_.out_channels - k), p_.filter.out,
                        to, tile_.n);
    }
  }

  void Block(int64_t slot, int64_t item) const {
    const int32_t c = blocks_.Find(&item);
    const ResidueClass& cls = call_.classes[c];
    const int64_t first = Take(&item, BlocksM(c)) * kBlockM;
    const int64_t panel = Take(&item, blocks_n_) * block_panels_, group = item;
    const int64_t panels = Min(block_panels_, panels_ - panel);

    Positions& at = positions_[slot];
    at.Locate(p_, cls, first, Min(kBlockM, PositionCount(p_, cls) - first));
    T* im2col = workspace_.data() + slot * WorkspaceSize();
    T* sums = im2col + kBlockM * kRowStride<T>;
    const int64_t tiles = CeilDiv(at.count, kTileM);

    const Source source{p_, Offset(call_.src, p_.src_type, group * p_.src.group), taps_.taps(cls), taps_.runs(cls)};
    const T* filter = FilterPanel(cls, group, panel);
    const TapBlocks blocks_k(cls.tap_count, p_.in_channels, kBlockK<T>);
    int64_t i = 0;
    do {  // once even with nothing to sum: those sums are zero
      const TapBlock block = blocks_k[i];
      pack_im2col_(source, at, block, im2col);
      Sweep(tile_, block.size(), im2col, kTileM * kRowStride<T>, tiles,
            filter + (block.tap * p_.in_channels + block.channel) * tile_.n, cls.tap_count * p_.in_channels * tile_.n,
            panels, Sums<T>{sums, tile_.n, tiles * kTileM * tile_.n}, i > 0);
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
  const TapRuns taps_;
  const Operand<T> filter_;
  const Buffer<T> packed_filter_;  // [class][group][panel][tap, c][k]
  const Buffer<T> workspace_;
  const Buffer<Positions> positions_;
  PackIm2colFunction<T>* pack_im2col_;
  const EpilogueOf<T> epilogue_;
};

}  // namespace

void GemmConv(const ConvCall& call, const Workers& workers) {
  if (call.problem.out_channels == 0) return;
  if (PrefersTapProducts(call)) return TapProductsConv(call, workers);
  WithSums(call.problem, [&](auto t) { Conv<decltype(t)>(call, workers).Run(workers); });
}

}  // namespace jaxconv::JAXCONV_ISA
