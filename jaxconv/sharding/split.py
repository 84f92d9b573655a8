"""Which mesh axes split which factors of a convolution.

Besides the four factors of `jaxconv.problem.factors` (n, g, c, k), each spatial dimension is one: "s0", "s1", "s2".

An epilogue's residual has the role of the result, "out". Numbers of all output channels have the role "channels", and a
single number has "number".
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jax.sharding import PartitionSpec

from jaxconv.problem import ROLES, ConvProblem, Dim
from jaxconv.problem.conv_problem import BLOCK_CHANNELS
from jaxconv.problem.factors import Carrier, MeshAxes, carriers

Split = dict[str, MeshAxes]  # the mesh axes of each factor
MeshShape = Mapping[str, int]
Specs = dict[str, tuple[MeshAxes, ...]]  # by role: the mesh axes of each axis of an array
OF_EPILOGUE = {"channels": 1, "number": 0}  # the roles that only an epilogue has, and their arrays' dimensions


def choose(problem: ConvProblem, mesh_shape: MeshShape, specs: Specs, is_even: bool = False) -> Split:
    """The mesh axes that split each factor: those of an operand, or else of the result.

    specs: for the roles of the operands and of the result, in this order.

    An axis splits one factor. The first array chooses first: if weights are sharded for storage over an axis of the
    activations, these keep it. The axes must divide the factor's size, except that of a spatial dimension that is not
    periodic. is_even: those of all dimensions.
    """
    sizes, splittable = factor_sizes(problem), splittable_factors(problem) | {"g"}
    split: Split = {factor: () for factor in (*sizes, *spatial_axes(problem, "lhs"))}
    taken: set[str] = set()
    for role, spec in specs.items():
        for factor, axis in _split_axes(problem, role).items():
            axes = spec[axis]
            by = size_of(axes, mesh_shape)
            fits = (
                factor in splittable and sizes[factor] % by == 0
                if factor in sizes
                else _fits(problem, factor, by, is_even)
            )
            if fits and axes and not split[factor] and not taken & set(axes):
                split[factor] = axes
                taken |= set(axes)
    return split


def _fits(problem: ConvProblem, factor: str, by: int, is_even: bool) -> bool:
    """Whether a spatial factor can be split. The ends of a periodic dimension must meet."""
    i = int(factor[1:])
    return not (is_even or i in problem.periodic) or problem.in_spatial[i] % by == problem.out_spatial[i] % by == 0


def partition_spec(problem: ConvProblem, role: str, split: Split) -> PartitionSpec:
    """How a role's array lies."""
    entries: list[MeshAxes | None] = [None] * rank_of(problem, role)
    for factor, axis in _split_axes(problem, role).items():
        entries[axis] = split[factor] or None
    return PartitionSpec(*entries)


def rank_of(problem: ConvProblem, role: str) -> int:
    return len(problem.shape(role)) if role in ROLES else OF_EPILOGUE[role]


def size_of(axes: MeshAxes, mesh_shape: MeshShape) -> int:
    return math.prod(mesh_shape[axis] for axis in axes)


def factor_sizes(problem: ConvProblem) -> dict[str, Dim]:
    """Of the factors that are not spatial. Output channels in blocks are split by whole blocks."""
    outs = problem.out_channels // BLOCK_CHANNELS if problem.out_in_blocks else problem.out_channels
    return {"n": problem.batch, "g": problem.groups, "c": problem.in_channels, "k": outs}


def splittable_factors(problem: ConvProblem) -> set[str]:
    """The factors, besides g and the spatial ones, that are alone on their axis in every array."""
    grouped = {f for roles in carriers(problem).values() for f, c in roles.items() if c.grouped}
    return {"n", "c", "k"} - (grouped if problem.groups > 1 else set())


def spatial_axes(problem: ConvProblem, role: str) -> dict[str, int]:
    """The axes of the spatial factors. The filter has none, and those of empty arrays are not split. Nor are planes,
    where those of the result are blocks of channels."""
    if role not in ("lhs", "out") or problem.is_empty:
        return {}
    return {f"s{i}": axis for i, axis in enumerate(problem.spec(role).spatial) if i or not problem.out_in_blocks}


def carriers_of(problem: ConvProblem, role: str) -> dict[str, Carrier]:
    """The carriers of n, c and k in an array as it is stored."""
    if role in OF_EPILOGUE:
        return {"k": Carrier(0, True)} if OF_EPILOGUE[role] else {}
    own = carriers(problem)[role]
    if role == "out" and problem.out_in_blocks:
        own = own | {"k": Carrier(problem.out_spec.spatial[0], own["k"].grouped)}
    return own


def _split_axes(problem: ConvProblem, role: str) -> dict[str, int]:
    """For each factor of a role's array, the axis that is split with it: a grouped axis with g, its major part."""
    has_groups = problem.groups > 1
    axes = {"g" if has_groups and c.grouped else factor: c.axis for factor, c in carriers_of(problem, role).items()}
    return axes | spatial_axes(problem, role)
