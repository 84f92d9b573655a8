// A wgrad as a matrix product. It packs the same blocks of the im2col matrix as the conv.
//
//   filter[(tap, c), k] = im2col[position, (tap, c)]^T * grad[position, k]
//
// M is (tap, input channel), N is output channels, K is positions.
#include <cstdint>

#include "common/call.h"
#include "common/epilogue.h"
#include "common/items.h"
#include "common/storage.h"
#include "gemm/arithmetic.h"
#include "gemm/im2col.h"
#include "gemm/panels.h"
#include "gemm/tile.h"

namespace jaxconv::JAXCONV_ISA {
namespace {

constexpr int64_t kPositions = kMostPositions;  // packed at a time: the more, the fewer passes over the sums
constexpr int64_t kBlockN = 256;                // output channels of a block

// im2col is packed as the source lies: MN-major where channels are neighbours in memory, else K-major.
//
// K is all positions, which is long. Where there are few outputs, K is split. The splits depend on the problem only,
// and their sums are added in order. So the bits are the same for any number of threads.
template <typename A>
class Wgrad {
  using T = typename A::Sum;

 public:
  Wgrad(const ConvCall& call, const Workers& workers)
      : call_(call),
        p_(call.problem),
        k_major_(!HasContiguousRows(p_)),
        tile_(k_major_ ? ChooseTile<A, false>(p_.out_channels) : ChooseTile<A, true>(p_.out_channels)),
        panels_(CeilDiv(p_.out_channels, tile_.n)),
        block_panels_(Min(kBlockN / tile_.n, panels_)),
        blocks_n_(CeilDiv(panels_, block_panels_)),
        blocks_(p_, [&](int32_t c) { return BlocksM(c).count() * blocks_n_ * p_.groups; }),
        splits_(Splits()),
        block_m_(BlockM()),
        taps_(call),
        grad_(call.rhs, p_.dst_type),
        sums_((splits_ > 1 ? blocks_.total() * splits_ : workers.threads()) * SumsSize()),
        workspace_(workers.threads() * WorkspaceSize()),
        positions_(workers.threads()),
        epilogue_(call.result, p_.filter_type, call.epilogue) {
    WithStorage<typename A::Left>(p_.src_type, [&](auto s) {
      using S = decltype(s);
      if (k_major_) pack_im2col_ = PackIm2colTransposed<A, S>;
      else if constexpr (A::kDepth > 1) pack_im2col_ = PackIm2colJoined<A, S>;
      else pack_im2col_ = PackIm2col<A, S>;
    });
  }

  void Run(const Workers& workers) const {
    const double work = MultiplyAdds(call_);
    if (splits_ == 1) {
      workers.For(blocks_.total(), work, [this](int64_t worker, int64_t block) {
        Sum(worker, block, 0, SplitSums(worker));
        StoreBlock(block, SplitSums(worker));
      });
      return;
    }
    workers.For(blocks_.total() * splits_, work,
                [this](int64_t worker, int64_t item) { Sum(worker, item / splits_, item % splits_, SplitSums(item)); });
    workers.For(blocks_.total(), static_cast<double>(blocks_.total()) * splits_ * SumsSize(),
                [this](int64_t, int64_t block) {
                  T* sums = SplitSums(block * splits_);
                  AddSplits(SumsSize(), splits_, SumsSize(), sums);
                  StoreBlock(block, sums);
                });
  }

 private:
  // What a block computes: some (tap, channel)s of a class x some panels, of one group.
  struct BlockCoord {
    int32_t cls;
    TapBlock taps;
    int64_t panel;
    int64_t panels;
    int64_t group;
  };

  BlockCoord Locate(int64_t block) const {
    BlockCoord coord;
    coord.cls = blocks_.Find(&block);
    const TapBlocks blocks_m = BlocksM(coord.cls);
    coord.taps = blocks_m[Take(&block, blocks_m.count())];
    coord.panel = Take(&block, blocks_n_) * block_panels_;
    coord.panels = Min(block_panels_, panels_ - coord.panel);
    coord.group = block;
    return coord;
  }

  TapBlocks BlocksM(int32_t c) const { return TapBlocks(call_.classes[c].tap_count, p_.in_channels, kBlockK<T>); }

  int64_t Splits() const {
    constexpr int64_t kItems = 32, kPositionsPerSplit = 2 * kPositions;
    int64_t positions = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) positions = Max(positions, PositionCount(p_, call_.classes[c]));
    const int64_t wanted = CeilDiv(kItems, Max<int64_t>(blocks_.total(), 1));
    return Max<int64_t>(Min(wanted, positions / kPositionsPerSplit), 1);
  }

  int64_t BlockM() const {
    int64_t m = 0;
    for (int32_t c = 0; c < p_.class_count; ++c) m = Max(m, call_.classes[c].tap_count * p_.in_channels);
    return RoundUp(Min(m, kBlockK<T>), kTileM);
  }

  int64_t SumsSize() const { return block_m_ * block_panels_ * tile_.n; }
  int64_t Im2colSize() const { return (k_major_ ? block_m_ : CeilDiv(kPositions, A::kDepth)) * kRowStride<T>; }
  int64_t PanelSize() const { return PanelRows<A>(kPositions) * tile_.n; }
  int64_t WorkspaceSize() const { return Im2colSize() + block_panels_ * PanelSize(); }
  T* SplitSums(int64_t i) const { return sums_.data() + i * SumsSize(); }

  void Sum(int64_t worker, int64_t block, int64_t split, T* sums) const {
    const BlockCoord coord = Locate(block);
    const ResidueClass& cls = call_.classes[coord.cls];
    const int64_t count = PositionCount(p_, cls), end = (split + 1) * count / splits_;
    const int64_t tiles = CeilDiv(coord.taps.size(), kTileM);

    Positions& at = positions_[worker];
    T* im2col = workspace_.data() + worker * WorkspaceSize();
    T* grad = im2col + Im2colSize();
    const Source source{p_, Offset(call_.src, p_.src_type, coord.group * p_.src.group), taps_.taps(cls),
                        taps_.counts(cls)};
    const int64_t begin = split * count / splits_;
    int64_t first = begin;
    do {  // once even with nothing to sum: the gradient is zero then
      at.Locate(p_, cls, first, Min(kPositions, end - first));
      pack_im2col_(source, at, coord.taps, im2col);
      PackGrad(at, coord, grad);
      Sweep(tile_, CeilDiv(at.count, A::kDepth), im2col, kTileM * (k_major_ ? kRowStride<T> : 1), tiles, grad,
            PanelSize(), coord.panels, Sums<T>{sums, tile_.n, tiles * kTileM * tile_.n}, first > begin);
    } while ((first += kPositions) < end);
  }

  void PackGrad(const Positions& at, const BlockCoord& coord, T* grad) const {
    for (int64_t j = 0; j < coord.panels; ++j) {
      const int64_t k = (coord.panel + j) * tile_.n;
      const int64_t offset = coord.group * p_.dst.group + k * p_.dst.channel;
      grad_.PackPanel(offset, Rows{at.count, 0, at.dst}, Min(tile_.n, p_.out_channels - k), p_.dst.channel,
                      grad + j * PanelSize(), tile_.n);
    }
  }

  void StoreBlock(int64_t block, T* sums) const {
    const BlockCoord coord = Locate(block);
    const ResidueClass& cls = call_.classes[coord.cls];
    const int64_t m = coord.taps.size(), panel_size = RoundUp(m, kTileM) * tile_.n;
    int64_t offsets[kBlockK<T>];
    LocateInFilter(p_, taps_.taps(cls), coord.taps, offsets);
    const int64_t k = coord.panel * tile_.n;
    StorePanels(epilogue_, sums, panel_size, tile_.n,
                OutputTile{.origin = coord.group * p_.filter.group + k * p_.filter.out,
                           .offsets = offsets,
                           .rows = m,
                           .columns = Min(coord.panels * tile_.n, p_.out_channels - k),
                           .stride = p_.filter.out});
  }

  const ConvCall& call_;
  const ConvProblem& p_;
  const bool k_major_;
  const TileShape<T> tile_;
  const int64_t panels_;
  const int64_t block_panels_;
  const int64_t blocks_n_;
  const ClassItems blocks_;
  const int64_t splits_;
  const int64_t block_m_;
  const ContiguousTaps taps_;
  const RightOperand<A> grad_;
  const Buffer<T> sums_;  // of every split of every block, or of every thread where K is not split
  const Buffer<T> workspace_;
  const Buffer<Positions> positions_;
  PackIm2colFunction<T>* pack_im2col_;
  const EpilogueOf<T> epilogue_;
};

}  // namespace

void GemmWgrad(const ConvCall& call, const Workers& workers) {
  if (call.problem.out_channels == 0) return;
  const ConvProblem& p = call.problem;
  WithArithmetic(p, p.src_type, p.dst_type, [&](auto a) { Wgrad<decltype(a)>(call, workers).Run(workers); });
}

}  // namespace jaxconv::JAXCONV_ISA
