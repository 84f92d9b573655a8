"""Which mesh axes split which factors of a convolution.

Besides the four factors of `jaxconv.problem.factors` (n, g, c, k), each spatial dimension is one: "s0", "s1", "s2".
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from jax.sharding import PartitionSpec

from jaxconv.problem import ConvProblem, Dim
from jaxconv.problem.factors import MeshAxes, carriers

Split = dict[str, MeshAxes]  # the mesh axes of each factor
MeshShape = Mapping[str, int]


def choose(problem: ConvProblem, mesh_shape: MeshShape, specs: dict[str, tuple[MeshAxes, ...]]) -> Split:
    """The mesh axes that split each factor: those of an operand, or else of the result.

    specs: the mesh axes of each axis of an array, for the roles of the operands and of the result, in this order.

    An axis splits one factor. The first array chooses first: if weights are sharded for storage over an axis of the
    activations, these keep it. The axes must divide the factor's size, except that of a spatial dimension that is not
    periodic.
    """
    sizes, splittable = factor_sizes(problem), splittable_factors(problem) | {"g"}
    split: Split = {factor: () for factor in (*sizes, *spatial_axes(problem, "lhs"))}
    taken: set[str] = set()
    for role, spec in specs.items():
        for factor, axis in _split_axes(problem, role).items():
            axes = spec[axis]
            by = size_of(axes, mesh_shape)
            fits = factor in splittable and sizes[factor] % by == 0 if factor in sizes else _fits(problem, factor, by)
            if fits and axes and not split[factor] and not taken & set(axes):
                split[factor] = axes
                taken |= set(axes)
    return split


def _fits(problem: ConvProblem, factor: str, by: int) -> bool:
    """Whether a spatial factor can be split. The ends of a periodic dimension must meet."""
    i = int(factor[1:])
    return i not in problem.periodic or problem.in_spatial[i] % by == problem.out_spatial[i] % by == 0


def partition_spec(problem: ConvProblem, role: str, split: Split) -> PartitionSpec:
    """How a role's array lies."""
    entries: list[MeshAxes | None] = [None] * len(problem.shape(role))
    for factor, axis in _split_axes(problem, role).items():
        entries[axis] = split[factor] or None
    return PartitionSpec(*entries)


def size_of(axes: MeshAxes, mesh_shape: MeshShape) -> int:
    return math.prod(mesh_shape[axis] for axis in axes)


def factor_sizes(problem: ConvProblem) -> dict[str, Dim]:
    """Of the factors that are not spatial."""
    return {"n": problem.batch, "g": problem.groups, "c": problem.in_channels, "k": problem.out_channels}


def splittable_factors(problem: ConvProblem) -> set[str]:
    """The factors, besides g and the spatial ones, that are alone on their axis in every array."""
    grouped = {f for roles in carriers(problem).values() for f, c in roles.items() if c.grouped}
    return {"n", "c", "k"} - (grouped if problem.groups > 1 else set())


def spatial_axes(problem: ConvProblem, role: str) -> dict[str, int]:
    """The axes of the spatial factors. The filter has none, and those of empty arrays are not split."""
    if role == "rhs" or problem.is_empty:
        return {}
    return {f"s{i}": axis for i, axis in enumerate(problem.spec(role).spatial)}


def _split_axes(problem: ConvProblem, role: str) -> dict[str, int]:
    """For each factor of a role's array, the axis that is split with it: a grouped axis with g, its major part."""
    has_groups = problem.groups > 1
    axes = {"g" if has_groups and c.grouped else factor: c.axis for factor, c in carriers(problem)[role].items()}
    return axes | spatial_axes(problem, role)
