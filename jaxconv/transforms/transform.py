"""A transform of a problem: steps that make another convolution of it, with the same results.

A transform is exact on finite numbers. Some steps put in zeros, and an infinity or a NaN times zero is NaN: then
neighbours in the same pack become NaN too, although they do not depend on that number.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache, partial
from typing import get_args

import jax.numpy as jnp
from jax import Array

from jaxconv.problem import ConvProblem
from jaxconv.problem.product import RESULT, EpilogueKind, Product
from jaxconv.transforms.array_views import ALL_AS_THEY_ARE, Transformed, chained
from jaxconv.transforms.columns import PackedColumns, PackedOutputs, TapsAsChannels
from jaxconv.transforms.dense import (
    ChannelsLast,
    KMajorFilter,
    PackedGroups,
    PatchRowsAsImages,
    PositionsLast,
    SeenPixels,
)
from jaxconv.transforms.depthwise import MultipliersAsDepth, PaddedGroups, StridesAsDepth, VolumesAsImages


@dataclasses.dataclass(frozen=True)
class SwappedOperands:
    """A wgrad as that of the data gradient: lhs and out change places. It may only be the last step.

    The filter's gradient is the same from either side: sum of g * conv(x, w) is sum of x * dgrad(g, w). A wgrad reads
    its lhs once for each tap. Swapped, it so reads the output's cotangent, which may have far fewer channels.
    """

    def unsupported_reason(self, problem: ConvProblem) -> str | None:
        return None

    def __str__(self) -> str:
        return "swapped operands"


DenseStep = (
    ChannelsLast
    | KMajorFilter
    | PositionsLast
    | PackedColumns
    | PackedOutputs
    | PatchRowsAsImages
    | SeenPixels
    | TapsAsChannels
    | PackedGroups
)
DepthwiseStep = VolumesAsImages | PaddedGroups | MultipliersAsDepth | StridesAsDepth
Step = DenseStep | DepthwiseStep | SwappedOperands
Transform = tuple[Step, ...]  # in their order; () leaves the problem as it is
STEPS: dict[str, type[Step]] = {step.__name__: step for step in get_args(Step)}


@lru_cache(maxsize=4096)
def apply(transform: Transform, problem: ConvProblem) -> Transformed:
    """The problem after all steps, which must apply, and the views of all roles.

    A step is for a forward problem. A data gradient becomes the data gradient of the transformed forward problem.
    """
    if not transform:
        return Transformed(problem, ALL_AS_THEY_ARE)
    *first, last = transform
    if isinstance(last, SwappedOperands):
        return apply(tuple(first), problem).of_dgrad()._replace(swapped=True)
    if problem.reverse:
        return apply(transform, problem.dgrad()).of_dgrad()
    before = apply(tuple(first), problem)
    after = last.apply(before.problem)
    return Transformed(after.problem, chained(before.views, after.views))


def channel_numbers(transform: Transform, problem: ConvProblem, numbers: Array) -> Array:
    """Numbers of the output's channels, as the transformed problem has them: each step puts zeros behind them for the
    channels that it adds, then repeats them for each column of a pack."""
    if not transform:
        return numbers
    first = tuple(transform[:-1])
    before, after = apply(first, problem), apply(transform, problem)
    packs = after.views["out"].packs // before.views["out"].packs
    channels, packed = (t.problem.groups * t.problem.out_channels for t in (before, after))
    numbers, more = channel_numbers(first, problem, numbers), packed // packs - channels
    return numbers if (packs, more) == (1, 0) else jnp.tile(jnp.pad(numbers, (0, more)), packs)


def keeps_output_sums(transform: Transform, problem: ConvProblem) -> bool:
    """Whether the sums over positions of the transformed output begin with those of the output's channels: what it has
    more is zeros."""
    steps = [apply(transform[:count], problem) for count in range(len(transform) + 1)]
    channels = [step.problem.groups * step.problem.out_channels for step in steps]
    after, out = steps[-1], steps[-1].views["out"]
    # A step to fewer channels makes them something else.
    return channels == sorted(channels) and not (after.swapped or out.is_spread or out.is_summed or out.packs > 1)


def unsupported_reason(transform: Transform, problem: ConvProblem) -> str | None:
    """Why a step does not apply to the problem after the steps before it; None if all apply."""
    if not transform:
        return None
    problem = forward_of(problem)
    *first, last = transform
    return unsupported_reason(tuple(first), problem) or last.unsupported_reason(apply(tuple(first), problem).problem)


def mixed_members_reason(transform: Transform, product: Product) -> str | None:
    """Why a number of one member of a vmap would be multiplied, if only by zero, for another member's result."""
    for i, step in enumerate(transform):
        before = partial(apply, transform[:i], forward_of(product.problem))
        match step:
            # In a wgrad nothing mixes: results between two groups are thrown away.
            case PackedGroups(groups) if product.kind == "conv" and (has := before().problem.member.groups) % groups:
                return f"groups of several members of a vmap, which have {has} each"
            case MultipliersAsDepth() if (p := before().problem).member.out_channels < p.out_channels:
                return "a channel's results are of several members of a vmap"
    return None


def added_results_reason(transform: Transform, product: Product) -> str | None:
    """Why a result may not be a sum of several of the kernel's: those are rounded, and end with the epilogue."""
    role = RESULT[product.kind]
    if not apply(transform, product.problem).views[role].is_summed:
        return None
    if product.epilogue_kind is not EpilogueKind.NONE:
        return "an epilogue in front of the last additions"
    dtype = product.problem.dtype(role)
    return f"sums that are rounded to {dtype.name} before the last additions" if dtype.itemsize < 4 else None


def has_more_zeros(transform: Transform, problem: ConvProblem) -> bool:
    """Whether some outputs are zeros that no kernel computes. So none can end them with an epilogue."""
    if SeenPixels() not in transform:
        return False
    at = transform.index(SeenPixels())
    before, after = (apply(transform[:n], problem).problem for n in (at, at + 1))
    return before.out_spatial != after.out_spatial


def forward_of(problem: ConvProblem) -> ConvProblem:
    """The problem, or the forward problem that it is the data gradient of."""
    return problem.dgrad() if problem.reverse else problem
