"""The bilinear primitives: `conv` (fprop and dgrad) and `wgrad`, each the transpose of the others.

conv[p](lhs, rhs) is the convolution p. Its transpose in the lhs is conv[p.dgrad()], in the rhs wgrad[p], and
wgrad[p](lhs, cotangent of out) has two convs as its transposes. So all derivatives of all orders are these two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import Array, lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jaxconv import ffi, lowering
from jaxconv._jax_private import simple_impl
from jaxconv.planner.plan import Implementation
from jaxconv.problem import ConvProblem, factors
from jaxconv.problem.product import OPERANDS, RESULT

try:
    from jax.experimental.jet import jet_rules
except ImportError:  # experimental: a jax without jet needs no rules for it
    jet_rules = {}

PRIMITIVES = {kind: Primitive(f"jaxconv_{kind}") for kind in OPERANDS}


def conv(
    lhs: Array, rhs: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> Array:
    """The convolution of lhs and rhs. sharding: of the result's type."""
    return _bind("conv", lhs, rhs, problem, implementation, sharding)


def wgrad(
    lhs: Array, out: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> Array:
    """The filter's cotangent for an output's cotangent `out`."""
    if problem.reverse:  # the same sum from the other side has one residue class, where this one may have many
        lhs, out, problem = out, lhs, problem.dgrad()
    return _bind("wgrad", lhs, out, problem, implementation, sharding)


def _bind(
    kind: str, a: Array, b: Array, problem: ConvProblem, implementation: Implementation, sharding: NamedSharding
) -> Array:
    a, b = promote(a, b)
    return PRIMITIVES[kind].bind(a, b, problem=problem, implementation=implementation, sharding=sharding)


def promote(*arrays: Array) -> tuple[Array, ...]:
    """The arrays, cast to vary over the same manual mesh axes, as shard_map wants a primitive's operands.

    The transpose of this cast is a psum. Without it the gradient of a replicated operand would be wrong.
    """
    varying = [jax.typeof(a).manual_axis_type.varying for a in arrays]
    union = frozenset().union(*varying)
    return tuple(
        lax.pcast(a, tuple(union - own), to="varying") if union - own else a
        for a, own in zip(arrays, varying, strict=True)
    )


# Shapes and types.


def abstract(
    kind: str,
    a: ShapedArray,
    b: ShapedArray,
    *,
    problem: ConvProblem,
    implementation: Implementation,
    sharding: NamedSharding,
) -> ShapedArray:
    roles = OPERANDS[kind]
    for role, aval in zip(roles, (a, b), strict=True):
        expected = (problem.shape(role), problem.dtype(role))
        assert (aval.shape, aval.dtype) == expected, (role, aval, expected)
    result = RESULT[kind]
    return a.update(
        shape=problem.shape(result),
        dtype=problem.dtype(result),
        weak_type=a.weak_type and b.weak_type,
        sharding=sharding,
    )


# Derivatives. `x` is the operand whose cotangent is computed: only its type is known.


def _conv_transpose_lhs(
    ct: Array, x: ad.UndefinedPrimal, rhs: Array, *, problem: ConvProblem, implementation: Implementation, **_: Any
) -> Array:
    return conv(ct, rhs, problem.dgrad(), implementation, x.aval.sharding)


def _conv_transpose_rhs(
    ct: Array, lhs: Array, x: ad.UndefinedPrimal, *, problem: ConvProblem, implementation: Implementation, **_: Any
) -> Array:
    return wgrad(lhs, ct, problem, implementation, x.aval.sharding)


def _wgrad_transpose_lhs(
    ct: Array, x: ad.UndefinedPrimal, out: Array, *, problem: ConvProblem, implementation: Implementation, **_: Any
) -> Array:
    return conv(out, ct, problem.dgrad(), implementation, x.aval.sharding)


def _wgrad_transpose_out(
    ct: Array, lhs: Array, x: ad.UndefinedPrimal, *, problem: ConvProblem, implementation: Implementation, **_: Any
) -> Array:
    return conv(lhs, ct, problem, implementation, x.aval.sharding)


def _taylor(
    product: Callable[..., Array], operands: Sequence[Array], series: Sequence[Sequence[Array]], **params: Any
) -> tuple[ArrayLike, Sequence[ArrayLike]]:
    """jet's rule, the product of two polynomials: coefficient k is the sum of a[i] * b[k - i]."""
    a, b = ([x, *coefficients] for x, coefficients in zip(operands, series, strict=True))
    first, *others = (sum(product(a[i], b[k - i], **params) for i in range(k + 1)) for k in range(len(a)))
    return first, others


TRANSPOSES = {
    "conv": (_conv_transpose_lhs, _conv_transpose_rhs),
    "wgrad": (_wgrad_transpose_lhs, _wgrad_transpose_out),
}


# vmap: a mapped axis folds into the factor that only the mapped arrays and the result have.


def _batch(
    kind: str,
    axis_data: Any,
    operands: tuple[Array, Array],
    mapped_axes: Sequence[int | None],
    *,
    problem: ConvProblem,
    implementation: Implementation,
    sharding: NamedSharding,
) -> tuple[Array, int | None]:
    if all(axis is None for axis in mapped_axes):
        return _bind(kind, *operands, problem, implementation, sharding), None
    roles, result = OPERANDS[kind], RESULT[kind]
    mapped = [role for role, axis in zip(roles, mapped_axes, strict=True) if axis is not None]
    mesh_axes = axis_data.explicit_mesh_axis or ()
    if mesh_axes and sharding.mesh.empty:  # for example, the cotangent of a constant
        meshes = (jax.typeof(x).sharding.mesh for x in operands)
        sharding = NamedSharding(next(mesh for mesh in meshes if not mesh.empty), PartitionSpec())
    size = next(x.shape[a] for x, a in zip(operands, mapped_axes, strict=True) if a is not None)
    if isinstance(size, int) and size == 0:  # an empty axis cannot be unfolded
        return _no_members(problem, result, sharding, mesh_axes), 0
    factor = _shared_factor(mapped + [result])
    if factor == "g":
        problem = factors.with_group_axis(problem)
    a, b = (
        x if axis is None else factors.fold(x, axis, problem, role, factor)
        for x, role, axis in zip(operands, roles, mapped_axes, strict=True)
    )
    big = factors.resize(problem, factor, lambda n: n * size)
    axis = factors.axis_of(problem, result, factor)
    out = _bind(kind, a, b, big, implementation, _shard_merged(sharding, axis, mesh_axes))
    return factors.unfold(out, size, problem, result, factor, mesh_axes)


def _no_members(problem: ConvProblem, result: str, sharding: NamedSharding, mapped: factors.MeshAxes) -> Array:
    sharding = NamedSharding(sharding.mesh, PartitionSpec(mapped, *sharding.spec))
    shape, dtype = (0, *problem.shape(result)), problem.dtype(result)
    return lax.full(shape, 0, dtype, sharding=sharding if sharding.mesh.explicit_axes else None)


def _shard_merged(sharding: NamedSharding, axis: int, mapped: factors.MeshAxes) -> NamedSharding:
    """A result's sharding after a mapped axis, sharded over the mesh axes `mapped`, was folded into `axis`."""
    if not mapped:
        return sharding
    axes = list(factors.mesh_axes(sharding.spec, max(axis + 1, len(sharding.spec))))
    axes[axis] = mapped + axes[axis]
    return NamedSharding(sharding.mesh, PartitionSpec(*axes))


def _shared_factor(roles: list[str]) -> str:
    pair = {frozenset(("lhs", "out")): "n", frozenset(("lhs", "rhs")): "c", frozenset(("rhs", "out")): "k"}
    return pair.get(frozenset(roles), "g")


# The registration of all rules.

for _kind, _primitive in PRIMITIVES.items():
    simple_impl(_primitive)
    _primitive.def_abstract_eval(partial(abstract, _kind))
    ad.defbilinear(_primitive, *TRANSPOSES[_kind])
    batching.fancy_primitive_batchers[_primitive] = partial(_batch, _kind)
    jet_rules[_primitive] = partial(_taylor, {"conv": conv, "wgrad": wgrad}[_kind])
    mlir.register_lowering(_primitive, partial(lowering.lower, _kind, None))
    for _platform in ffi.FFI_PLATFORMS:
        mlir.register_lowering(_primitive, partial(lowering.lower, _kind, _platform), platform=_platform)
