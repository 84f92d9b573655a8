"""The index factors of a convolution and the axes that carry them: what vmap and sharding have in common.

A convolution has four factors besides its spatial dimensions: images `n`, groups `g`, input channels `c` and output
channels `k`, the last two per group. Each array carries two of n, c, k on an axis of its own; g rides, as the major
part, on one of these. A vmapped axis folds into a factor, and a mesh axis shards one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxconv.problem import ConvProblem, Dim, Member, Shape

MeshAxes = tuple[str, ...]


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


def axis_of(problem: ConvProblem, role: str, factor: str) -> int | Any:
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


def mesh_axes(spec, rank: int) -> tuple[MeshAxes, ...]:
    """The mesh axes that a partition spec has for each axis of an array."""
    entries = (*spec, *(None,) * rank)[:rank]
    return tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in entries)


def fold(x: Array, mapped_axis: int, problem: ConvProblem, role: str, factor: str) -> Array:
    """Merges a mapped axis into the axis that carries a factor in the *folded* problem's array of that role.

    Under an explicit mesh the merged axis is sharded over the mesh axes of both, those of the mapped axis first.
    """
    axis, groups = _place(problem, role, factor)
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
    """The inverse of `fold`: the array and its mapped axis, which is sharded over the mesh axes `mapped`."""
    axis, groups = _place(problem, role, factor)
    rest = x.shape[axis] // size
    own = _mesh_axes_of_type(x)[axis][len(mapped) :]
    if groups == 1:
        return _reshape(x, axis, 1, (size, rest), (mapped, own)), axis
    x = _reshape(x, axis, 1, (groups, size, rest // groups), ((), mapped, ()))
    x = jnp.swapaxes(x, axis, axis + 1)
    return _reshape(x, axis + 1, 2, (rest,), (own,)), axis


def _mesh_axes_of_type(x: Array) -> tuple[MeshAxes, ...]:
    return mesh_axes(jax.typeof(x).sharding.spec, x.ndim)


def _reshape(x: Array, axis: int, count: int, sizes: Shape, sharded: tuple[MeshAxes, ...]) -> Array:
    """x with axes of `sizes`, sharded over the mesh axes `sharded`, in place of `count` axes from `axis` on.

    Under an explicit mesh the result's sharding must be said: a reshape keeps few shardings by itself.
    """
    shape = (*x.shape[:axis], *sizes, *x.shape[axis + count :])
    mesh = jax.typeof(x).sharding.mesh
    if not mesh.explicit_axes:
        return x.reshape(shape)
    own = _mesh_axes_of_type(x)
    spec = PartitionSpec(*own[:axis], *sharded, *own[axis + count :])
    return lax.reshape(x, shape, out_sharding=NamedSharding(mesh, spec))


def _place(problem: ConvProblem, role: str, factor: str) -> tuple[int, int]:
    """The axis that a mapped axis joins, and the groups it must stay inside of."""
    if factor == "g":
        return axis_of(problem, role, "g"), 1
    carrier = carriers(problem)[role][factor]
    return carrier.axis, problem.groups if carrier.grouped else 1
