"""The index factors of a convolution, and the axes that carry them: vmap and sharding both need them.

Besides its spatial dimensions a convolution has four factors: images `n`, groups `g`, input channels `c` and output
channels `k` of a group. Each array carries two of n, c, k, each on an axis of its own. g is the major part of one of
these axes. vmap folds an axis into a factor, and a mesh axis shards a factor.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxconv.problem.conv_problem import ROLES, ConvProblem, Dim, Member, Shape

MeshAxes = tuple[str, ...]


class Carrier(NamedTuple):
    """The axis of an array that carries a factor; if grouped, it carries (g, factor)."""

    axis: int
    grouped: bool


def carriers(problem: ConvProblem) -> dict[str, dict[str, Carrier]]:
    """The carrier of each factor, for each role (lhs, rhs, out)."""
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


def axis_of(problem: ConvProblem, role: str, factor: str) -> int | Any:
    """The axis of a role's array that carries a factor (g included), or None."""
    for name, carrier in carriers(problem)[role].items():
        if name == factor or (factor == "g" and carrier.grouped):
            return carrier.axis
    return None


def resize(problem: ConvProblem, factor: str, scale: Callable[[Dim], Dim]) -> ConvProblem:
    """The problem with one factor's size scaled, in every array that carries it.

    On a grouped axis, scaling either part scales the axis.
    """
    shapes = {}
    for role in ROLES:
        shape = problem.shape(role)
        axis = axis_of(problem, role, factor)
        if axis is not None:
            shape = (*shape[:axis], scale(shape[axis]), *shape[axis + 1 :])
        shapes[f"{role}_shape"] = shape
    groups = scale(problem.groups) if factor == "g" else problem.groups
    resized = dataclasses.replace(problem, groups=groups, **shapes)
    sizes = Member(groups, resized.in_channels, resized.out_channels)
    return dataclasses.replace(resized, member=Member(*map(_common, problem.member, sizes)))


def _common(member: int, size: Dim) -> int:
    """A member's size in a problem of `size`: a shard may have only a part of the member."""
    return math.gcd(member, size) if isinstance(size, int) else member


def with_group_axis(problem: ConvProblem) -> ConvProblem:
    """The problem, ready to take a vmap over all its arrays as groups.

    An ungrouped problem takes them on its batch axes: then a leading mapped axis of the activations folds, and nothing
    moves in memory.
    """
    if problem.groups > 1:
        return problem
    return dataclasses.replace(problem, lhs_batch_grouped=True, out_batch_grouped=True)


def mesh_axes(spec: Iterable[Any], rank: int) -> tuple[MeshAxes, ...]:
    """The mesh axes that a partition spec has for each axis of an array."""
    entries = (*spec, *(None,) * rank)[:rank]
    return tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)


def fold(x: Array, mapped_axis: int, problem: ConvProblem, role: str, factor: str) -> Array:
    """Merges a mapped axis into the axis of a role's array that carries a factor.

    Under an explicit mesh the merged axis is sharded over the mesh axes of both, first those of the mapped axis.
    """
    axis, groups = _axis_and_groups(problem, role, factor)
    x = jnp.moveaxis(x, mapped_axis, axis)
    size, rest = x.shape[axis : axis + 2]
    mapped, own = _mesh_axes_of_type(x)[axis : axis + 2]
    if groups == 1:
        return _reshape(x, axis, 2, (size * rest,), (mapped + own,))
    x = _reshape(x, axis + 1, 1, (groups, rest // groups), ((), ()))
    x = jnp.swapaxes(x, axis, axis + 1)
    return _reshape(x, axis, 3, (size * rest,), (mapped + own,))


def unfold(
    x: Array, size: int, problem: ConvProblem, role: str, factor: str, mapped: MeshAxes = ()
) -> tuple[Array, int]:
    """The inverse of `fold`: the array and its mapped axis, now sharded over the mesh axes `mapped`."""
    axis, groups = _axis_and_groups(problem, role, factor)
    rest = x.shape[axis] // size
    own = _mesh_axes_of_type(x)[axis][len(mapped) :]
    if groups == 1:
        return _reshape(x, axis, 1, (size, rest), (mapped, own)), axis
    x = _reshape(x, axis, 1, (groups, size, rest // groups), ((), mapped, ()))
    x = jnp.swapaxes(x, axis, axis + 1)
    return _reshape(x, axis + 1, 2, (rest,), (own,)), axis


def other_filter(problem: ConvProblem, rhs: Array) -> Array:
    """A problem's filter, as the same problem with the other `reverse` has it: its groups are on the other axis."""
    other = dataclasses.replace(problem, reverse=not problem.reverse)
    rhs, groups = unfold(lax.rev(rhs, problem.rhs_spec.spatial), problem.groups, problem, "rhs", "g")
    return fold(rhs, groups, other, "rhs", "g")


def _mesh_axes_of_type(x: Array) -> tuple[MeshAxes, ...]:
    return mesh_axes(jax.typeof(x).sharding.spec, x.ndim)


def _reshape(x: Array, axis: int, count: int, sizes: Shape, sharded: tuple[MeshAxes, ...]) -> Array:
    """Replaces `count` axes, from `axis` on, by axes of `sizes` that are sharded over the mesh axes `sharded`.

    Under an explicit mesh a reshape needs the result's sharding: it keeps few shardings by itself.
    """
    shape = (*x.shape[:axis], *sizes, *x.shape[axis + count :])
    mesh = jax.typeof(x).sharding.mesh
    if not mesh.explicit_axes:
        return x.reshape(shape)
    own = _mesh_axes_of_type(x)
    spec = PartitionSpec(*own[:axis], *sharded, *own[axis + count :])
    return lax.reshape(x, shape, out_sharding=NamedSharding(mesh, spec))


def _axis_and_groups(problem: ConvProblem, role: str, factor: str) -> tuple[int, int]:
    """The axis that a mapped axis joins, and the number of groups that it is inside of."""
    if factor == "g":
        return axis_of(problem, role, "g"), 1
    carrier = carriers(problem)[role][factor]
    return carrier.axis, problem.groups if carrier.grouped else 1
