"""The transforms of a problem that may be worth their cost."""

from __future__ import annotations

import math

from jaxconv.compiled import planning
from jaxconv.problem import ConvProblem
from jaxconv.problem.algorithms import Float32
from jaxconv.problem.native import has_channel_vectors
from jaxconv.problem.product import EpilogueKind, Product, ceil_div, operand_dtype, vector_elements
from jaxconv.transforms.columns import PackedColumns, PackedOutputs, TapsAsChannels
from jaxconv.transforms.dense import (
    ChannelsLast,
    KMajorFilter,
    PackedGroups,
    PatchRowsAsImages,
    PositionsLast,
    SeenPixels,
    are_side_by_side,
)
from jaxconv.transforms.depthwise import (
    MultipliersAsDepth,
    PaddedGroups,
    StridesAsDepth,
    VolumesAsImages,
    unsupported_channels,
)
from jaxconv.transforms.transform import (
    SwappedOperands,
    Transform,
    added_results_reason,
    apply,
    forward_of,
    has_more_zeros,
    mixed_members_reason,
    unsupported_reason,
)

PACKED_CHANNELS = (16, 32, 64)  # a pack of groups gets about so many channels
COLUMNS = (2, 4, 8, 16, 32)  # neighbours that become channels of one column
MOST_PACKED, MOST_UNROLLED = 512, 128  # channels that a column then has
MOST_REPEATED = 16  # channels, if neighbouring taps get copies of them
WIDE_COLUMNS = 256  # of the widest tiles
MOST_FILLED = 0.9  # swapping pays if out's channels fill less than this fraction of what lhs's channels fill
SWAPPED_RATIO = 4  # swapping pays if lhs has at least 4 times out's channels


def dense_transforms(
    product: Product,
    *,
    packs_groups: bool = False,
    joins_groups: bool = False,
    stores_parts: bool = False,
    k_major: bool = False,
) -> list[Transform]:
    """Those that apply, and after which both operands can be copied in 16-byte vectors.

    SwappedOperands alone is in any case among them: a family may read few channels as packed K.

    packs_groups: also try packs of groups. joins_groups: for a family that reads several groups' channels as one
      vector: also those that only make these whole. stores_parts: also try packs of columns without padding, for a
      family that stores channels that are no whole vectors as fast as others: those of a data gradient then need not
      be. k_major: also make operands of 8 or 32 bits K-major, for a family that reads them in no other order.
    """
    problem = forward_of(product.problem)
    first: Transform = () if ChannelsLast().unsupported_reason(problem) else (ChannelsLast(),)
    packs: list[Transform] = [(), *((pack,) for pack in _packed_columns(problem, stores_parts))]
    packs += _packed_groups(product) if packs_groups else ()
    packs += [(PaddedGroups(),)] if joins_groups else ()
    tried = [(*first, *pack, *rows) for rows in ((), *_patch_rows(problem)) for pack in packs]
    tried += [(*first, *steps) for steps in _of_few_channels(product)]
    # Without its stride, a wgrad becomes K-major from either side.
    swaps = product.kind == "wgrad" and k_major and operand_dtype(problem).itemsize == 4
    for seen in _seen_pixels(product, first, only_zeros=not swaps):
        columns = _packed_columns(apply(seen, problem).problem, stores_parts)
        tried += [(*seen, *pack) for pack in ((), *((c,) for c in columns))]
    found = [t for t in tried if t and unsupported_reason(t, problem) is None]
    found = [t for t in found if added_results_reason(t, product) is None]
    has_few_outputs = SWAPPED_RATIO * problem.out_channels <= problem.in_channels
    if product.kind == "wgrad" and has_few_outputs and math.prod(problem.kernel) > 1:
        found += [(*t, SwappedOperands()) for t in ((), *found)]
    vector = vector_elements(operand_dtype(problem))
    if k_major and planning.is_k_major_alone(operand_dtype(problem).name):
        found += _k_majors(product, found)
    elif product.kind == "wgrad" and k_major and _is_better_swapped(problem):
        last = () if KMajorFilter().unsupported_reason(problem) else (KMajorFilter(),)
        found += [(*first, *last, SwappedOperands())]

    def has_vectors(transform: Transform) -> bool:
        if joins_groups and all(isinstance(step, ChannelsLast | PaddedGroups) for step in transform):
            return True  # or the family refuses them
        after = apply(transform, product.problem).problem
        if any(isinstance(step, PositionsLast) for step in transform):
            return after.in_channels % vector == after.out_channels % vector == 0
        return has_channel_vectors(Product(product.kind, after))

    return [t for t in found if t == (SwappedOperands(),) or has_vectors(t)]


def _is_better_swapped(problem: ConvProblem) -> bool:
    """Whether a swapped wgrad is rid of residue classes, or its columns, the lhs's channels, fill wide tiles better.
    Windows must move by one pixel: a stride would become residue classes."""
    if max(problem.window_strides, default=1) > 1 or min(problem.in_channels, problem.out_channels) == 0:
        return False
    filled = lambda channels: channels / (ceil_div(channels, WIDE_COLUMNS) * WIDE_COLUMNS)
    fills_columns = filled(problem.out_channels) < MOST_FILLED * filled(problem.in_channels)
    return max(problem.lhs_dilation, default=1) > 1 or fills_columns


def _k_majors(product: Product, found: list[Transform]) -> list[Transform]:
    """Those after which wgmma multiplies int8, or float32 as it is asked to, behind others."""
    problem = forward_of(product.problem)
    steps_of = {Float32.TF32: _k_major, Float32.BF16X6: _split}.get(product.float32, lambda product, swaps: [])
    if operand_dtype(problem).itemsize == 1:
        steps_of = lambda product, swaps: _k_major(product, swaps) if product.kind == "conv" else []
    as_they_lie = [t for t in ((), *found) if SwappedOperands() not in t]
    tried = [(*t, *last) for t in as_they_lie for last in steps_of(product, _is_unstrided(t, problem))]
    return [t for t in tried if unsupported_reason(t, problem) is None]


def _is_unstrided(transform: Transform, problem: ConvProblem) -> bool:
    """Whether windows move by one pixel. Then a wgrad with swapped operands has one residue class."""
    return all(stride == 1 for stride in apply(transform, problem).problem.window_strides)


def _k_major(product: Product, swaps: bool) -> list[Transform]:
    """Those that make operands K-major. A wgrad's is the smaller activation; swaps: either may be it."""
    if product.kind != "wgrad":
        return [(KMajorFilter(of_dgrad=product.problem.reverse),)]
    swapped = (PositionsLast("lhs"), SwappedOperands())
    if KMajorFilter().unsupported_reason(forward_of(product.problem)) is None:
        swapped = (KMajorFilter(), *swapped)
    return [(PositionsLast("out"),), *([swapped] if swaps else [])]


def _split(product: Product, swaps: bool) -> list[Transform]:
    """Those after which the operand that is split into bfloat16 may have whole vectors of them: a filter along its
    other channels, or a wgrad's other operand."""
    if product.kind != "wgrad":
        return [(KMajorFilter(),), (KMajorFilter(of_dgrad=True),)]
    return [(KMajorFilter(), SwappedOperands())] if swaps else []


def depthwise_transforms(product: Product) -> list[Transform]:
    """Those that make each channel a group of one, in whole 16-byte vectors, with channels last.

    At most one makes that alone. Others take out strides as well: those of windows of one pixel, then the rest. The lhs
    of a wgrad is not dilated afterwards.
    """
    problem = forward_of(product.problem)
    seen = [] if unsupported_channels(problem) else _seen_pixels(product)
    bases = [_with_whole_channels(first, problem) for first in ((), *seen)]
    unstrided = [(*bases[-1], step) for step in (StridesAsDepth(columns=False), StridesAsDepth())]
    found = [*bases, *(t for t in unstrided if unsupported_reason(t, problem) is None)]
    if product.kind == "wgrad":
        is_dilated = lambda t: max(apply(t, problem).problem.lhs_dilation, default=1) > 1
        found = [(*t, SwappedOperands()) if is_dilated(t) else t for t in found]
    return [t for t in found if t]


def _with_whole_channels(transform: Transform, problem: ConvProblem) -> Transform:
    for step in (ChannelsLast(), VolumesAsImages(), PaddedGroups(), MultipliersAsDepth()):
        if unsupported_reason((*transform, step), problem) is None:
            transform += (step,)
    return transform


def _seen_pixels(product: Product, first: Transform = (), only_zeros: bool = False) -> list[Transform]:
    """SeenPixels behind other steps, if it applies. Outputs that it leaves out are zeros, but not behind an epilogue.

    only_zeros: only if it leaves out outputs. Kernels that leave out pixels as they copy gain nothing else.
    """
    seen = (*first, SeenPixels())
    if unsupported_reason(seen, product.problem) is not None:
        return []
    if has_more_zeros(seen, product.problem):
        return [seen] if product.epilogue_kind is EpilogueKind.NONE else []
    return [] if only_zeros else [seen]


def _packed_columns(problem: ConvProblem, stores_parts: bool) -> list[PackedColumns]:
    """Packing pays only if channels do not fill whole vectors, or if nothing moves in memory."""
    stride = problem.window_strides[-1] if problem.kernel else 1
    if stride == 1:
        return [PackedColumns(1)]
    if problem.in_channels % vector_elements(operand_dtype(problem)) == 0:
        return [PackedColumns(stride if are_side_by_side(problem, -1) else 1)]
    are_whole = PackedColumns(stride).channels(problem) == (problem.in_channels, problem.out_channels)
    unpadded = [PackedColumns(stride, whole=False)] if stores_parts and not are_whole else []
    return [PackedColumns(1), PackedColumns(stride), *unpadded]


def _of_few_channels(product: Product) -> list[Transform]:
    """Those that make more of them of neighbouring columns, which tiles would else fill with zeros."""
    problem = forward_of(product.problem)
    if not problem.kernel:
        return []
    ins, outs, stride, taps = problem.in_channels, problem.out_channels, problem.window_strides[-1], problem.kernel[-1]
    found: list[Transform] = []
    if min(ins, outs) < PACKED_CHANNELS[-1]:
        packs = [by for by in COLUMNS if max(by * outs, by * stride * ins) <= MOST_PACKED]
        # A window of packs is some two packs wider, which is zeros.
        found += [(PackedOutputs(by), PackedColumns(by * stride)) for by in packs if by * stride <= 2 * taps]
    for role, channels in (("lhs", ins), ("out", outs)):
        repeats = [by for by in COLUMNS if by < 2 * taps and by * channels <= MOST_UNROLLED]
        steps = [TapsAsChannels(by, role) for by in repeats if channels <= MOST_REPEATED]
        found += [(step, *whole) for step in steps for whole in ((), (PackedColumns(1),))]
    return found


def _patch_rows(problem: ConvProblem) -> list[Transform]:
    """Only for strides that TMA does not have."""
    return [(PatchRowsAsImages(),)] if problem.kernel and problem.window_strides[0] > planning.MOST_TMA_STEP else []


def _packed_groups(product: Product) -> list[Transform]:
    """Packs that have whole vectors of channels, and about a tile's width of them. Groups of one channel are filled up
    if they have no such packs."""
    problem = forward_of(product.problem)
    padded: Transform = () if PaddedGroups().unsupported_reason(problem) else (PaddedGroups(),)
    p = apply(padded, problem).problem
    ins, outs, vector = p.in_channels, p.out_channels, vector_elements(operand_dtype(p))
    channels = max(ins, outs, 1)
    most = min(p.groups, 2 * PACKED_CHANNELS[-1] // channels)
    packs = [pack for pack in range(2, most + 1) if p.groups % pack == 0]
    packs = [pack for pack in packs if mixed_members_reason((*padded, PackedGroups(pack)), product) is None]
    whole = [pack for pack in packs if pack * ins % vector == 0 and pack * outs % vector == 0]
    nearest = {min(whole, key=lambda pack: abs(pack * channels - n)) for n in PACKED_CHANNELS if whole}
    return [(*padded, PackedGroups(pack)) for pack in sorted(nearest)]
