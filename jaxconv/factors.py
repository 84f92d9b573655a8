"""The index factors of a convolution and the axes that carry them: what vmap and sharding have in common.

A convolution has four factors besides its spatial dimensions: images `n`, groups `g`, input channels `c` and output
channels `k`, the last two per group. Each array carries two of n, c, k on an axis of its own; g rides, as the major
part, on one of these. A vmapped axis folds into a factor, and a mesh axis shards one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from jaxconv.problem import ConvProblem, Dim, Member, Shape


class Carrier(NamedTuple):
    """The axis of an array that carries a factor."""

    axis: int
    grouped: bool  # the axis carries (g, factor), not the factor alone


def carriers(problem: ConvProblem) -> dict[str, dict[str, Carrier]]:
    """For each role (lhs, rhs, out), its factors' axes."""
    p = problem
    return {
        "lhs": {
            "n": Carrier(p.lhs_spec.first, p.lhs_batch_grouped),
            "c": Carrier(p.lhs_spec.second, not p.lhs_batch_grouped),
        },
        "rhs": {
            "k": Carrier(p.rhs_spec.first, not p.reverse),
            "c": Carrier(p.rhs_spec.second, p.reverse),
        },
        "out": {
            "n": Carrier(p.out_spec.first, p.out_batch_grouped),
            "k": Carrier(p.out_spec.second, not p.out_batch_grouped),
        },
    }


def axis_of(problem: ConvProblem, role: str, factor: str) -> int | None:
    """The axis of a role's array that carries a factor (g included), or None."""
    for name, carrier in carriers(problem)[role].items():
        if name == factor or (factor == "g" and carrier.grouped):
            return carrier.axis
    return None


def resize(problem: ConvProblem, factor: str, scale: Callable[[Dim], Dim]) -> ConvProblem:
    """The problem with one factor's size scaled, in every array that carries it.

    On a grouped axis the scale of either part is the scale of the axis.
    """
    shapes = {}
    for role in ("lhs", "rhs", "out"):
        shape: Shape = getattr(problem, f"{role}_shape")
        axis = axis_of(problem, role, factor)
        if axis is not None:
            shape = (*shape[:axis], scale(shape[axis]), *shape[axis + 1 :])
        shapes[f"{role}_shape"] = shape
    groups = scale(problem.groups) if factor == "g" else problem.groups
    resized = dataclasses.replace(problem, groups=groups, **shapes)
    sizes = Member(groups, resized.in_channels, resized.out_channels)
    return dataclasses.replace(resized, member=Member(*map(_common, problem.member, sizes)))


def _common(member: int, size: Dim) -> int:
    """What is left of a member's size where the whole is a part of it, or of several."""
    return math.gcd(member, size) if isinstance(size, int) else member


def with_group_axis(problem: ConvProblem) -> ConvProblem:
    """The problem prepared to take groups of a vmap that maps all its arrays.

    An ungrouped problem takes them on its batch axes: then a leading mapped axis of the activations folds without
    being moved in memory.
    """
    if problem.groups > 1:
        return problem
    return dataclasses.replace(problem, lhs_batch_grouped=True, out_batch_grouped=True)


def fold(x: Array, mapped_axis: int, problem: ConvProblem, role: str, factor: str) -> Array:
    """Merges a mapped axis into the axis that carries a factor in the *folded* problem's array of that role."""
    axis, groups = _place(problem, role, factor)
    x = jnp.moveaxis(x, mapped_axis, axis)
    size = x.shape[axis]
    before, rest, after = x.shape[:axis], x.shape[axis + 1], x.shape[axis + 2 :]
    if groups > 1:
        x = x.reshape(*before, size, groups, rest // groups, *after)
        x = jnp.swapaxes(x, axis, axis + 1)
    return x.reshape(*before, size * rest, *after)


def unfold(x: Array, size: int, problem: ConvProblem, role: str, factor: str) -> tuple[Array, int]:
    """The inverse of `fold`: the array and its mapped axis."""
    axis, groups = _place(problem, role, factor)
    before, merged, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    rest = merged // size
    if groups > 1:
        x = x.reshape(*before, groups, size, rest // groups, *after)
        x = jnp.swapaxes(x, axis, axis + 1)
    return x.reshape(*before, size, rest, *after), axis


def _place(problem: ConvProblem, role: str, factor: str) -> tuple[int, int]:
    """The axis that a mapped axis joins, and the groups it must stay inside of."""
    if factor == "g":
        return axis_of(problem, role, "g"), 1
    carrier = carriers(problem)[role][factor]
    return carrier.axis, problem.groups if carrier.grouped else 1
