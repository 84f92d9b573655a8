"""The transforms of a problem that may be worth their cost."""

from __future__ import annotations

import math

from jaxconv.compiled import planning
from jaxconv.problem import ConvProblem
from jaxconv.problem.product import Product, vector_of
from jaxconv.transforms.dense import ChannelsLast, PackedColumns, PackedGroups, PatchRowsAsImages, are_side_by_side
from jaxconv.transforms.depthwise import MultipliersAsDepth, PaddedGroups, StridesAsDepth
from jaxconv.transforms.transform import Rewriting, SwappedOperands, forward, rewrite, why_members_meet, why_not

PACKED_CHANNELS = (16, 32, 64)  # of a group, after groups are packed: about as many
FEW = 4  # times as many channels in as out are worth swapping


def rewritings(product: Product, packs_groups: bool, stores_parts: bool) -> list[Rewriting]:
    """Those that apply to a product's problem and let its operands be copied in pieces; or, if nothing but the
    operands is changed, read in runs.

    packs_groups: also of groups. stores_parts: also those of which a data gradient's channels are no whole pieces.
    """
    problem = forward(product.problem)
    first: Rewriting = () if ChannelsLast().why_not(problem) else (ChannelsLast(),)
    steps = [(), *((step,) for step in (*_columns(problem, stores_parts), *(_groups(product) if packs_groups else ())))]
    tried = [first + step + last for last in ((), *_rows(problem)) for step in steps]
    found = [r for r in tried if r and why_not(r, problem) is None]
    if product.kind == "wgrad" and FEW * problem.out_channels <= problem.in_channels and math.prod(problem.kernel) > 1:
        found += [r + (SwappedOperands(),) for r in ((), *found)]
    piece = vector_of(problem.rhs_dtype)
    in_pieces = lambda r: Product(product.kind, rewrite(r, product.problem).problem).has_runs_of(piece)
    return [r for r in found if r == (SwappedOperands(),) or in_pieces(r)]


def rewritings_of_channels(product: Product) -> list[Rewriting]:
    """What makes a problem one of each channel on its own, in pieces of channels that are last: nothing, or one. And
    those that strides are taken out by besides. A wgrad's input is then not dilated.
    """
    problem, rewriting = forward(product.problem), ()
    for step in (ChannelsLast(), PaddedGroups(), MultipliersAsDepth()):
        if why_not((*rewriting, step), problem) is None:
            rewriting += (step,)
    unstrided = [(*rewriting, step) for step in (StridesAsDepth(columns=False), StridesAsDepth())]
    every = [rewriting, *(r for r in unstrided if why_not(r, problem) is None)]
    if product.kind == "wgrad":
        is_dilated = lambda r: max(rewrite(r, problem).problem.lhs_dilation, default=1) > 1
        every = [(*r, SwappedOperands()) if is_dilated(r) else r for r in every]
    return [r for r in every if r]


def _columns(problem: ConvProblem, stores_parts: bool) -> list[PackedColumns]:
    """Packs only for channels that are no whole pieces, or where they change nothing in memory."""
    stride = problem.window_strides[-1] if problem.kernel else 1
    if stride == 1:
        return [PackedColumns(1)]
    if problem.in_channels % vector_of(problem.rhs_dtype) == 0:
        return [PackedColumns(stride if are_side_by_side(problem, -1) else 1)]
    are_whole = PackedColumns(stride).channels(problem) == (problem.in_channels, problem.out_channels)
    alone = [PackedColumns(stride, whole=False)] if stores_parts and not are_whole else []
    return [PackedColumns(1), PackedColumns(stride), *alone]


def _rows(problem: ConvProblem) -> list[Rewriting]:
    """Only of windows that are further apart than TMA's."""
    return [(PatchRowsAsImages(),)] if problem.kernel and problem.window_strides[0] > planning.MOST_TMA_STEP else []


def _groups(product: Product) -> list[PackedGroups]:
    """Those that make whole pieces of channels, about as many as fill a tile."""
    problem = forward(product.problem)
    ins, outs, piece = problem.in_channels, problem.out_channels, vector_of(problem.rhs_dtype)
    channels = max(ins, outs, 1)
    most = min(problem.groups, 2 * PACKED_CHANNELS[-1] // channels)
    divisors = [many for many in range(2, most + 1) if problem.groups % many == 0]
    divisors = [many for many in divisors if why_members_meet((PackedGroups(many),), product) is None]
    whole = [many for many in divisors if many * ins % piece == 0 and many * outs % piece == 0]
    nearest = {min(whole, key=lambda many: abs(many * channels - n)) for n in PACKED_CHANNELS if whole}
    return [PackedGroups(many) for many in sorted(nearest)]
