"""How a convolution splits over the devices of a mesh.

Images, groups, input and output channels stay sharded. If the summed factor is sharded (input channels of a conv,
images of a wgrad), a psum follows, as XLA does for its own convolution. Spatial dimensions are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
from jax import Array
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxconv._jax_private import GSPMDSharding, parse_flatten_op_sharding
from jaxconv.fallback import LAX
from jaxconv.problem import ConvProblem, Dim
from jaxconv.problem.factors import MeshAxes, carriers, mesh_axes, resize
from jaxconv.problem.product import OPERANDS, RESULT

SUMMED = {"conv": "c", "wgrad": "n"}

# A psum that is lowered outside the user's mesh. Inside an explicit mesh JAX would annotate its addition with a
# sharding, and collectives refuse that.
psum_p = Primitive("jaxconv_psum")
psum_p.def_abstract_eval(lambda x, axes: x)


def without_shardings(ctx: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
    """The context with the types of one device's arrays, which have no mesh axes, manual or explicit."""

    def plain(avals):
        return [ShapedArray(aval.shape, aval.dtype) for aval in avals]

    return ctx.replace(avals_in=plain(ctx.avals_in), avals_out=plain(ctx.avals_out))


def _lower_psum(ctx, x, *, axes: MeshAxes):
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        ctx = without_shardings(ctx)
        return mlir.lower_fun(lambda x: jax.lax.psum(x, axes), multiple_results=False)(ctx, x)


mlir.register_lowering(psum_p, _lower_psum)


def partitioned(
    kind: str,
    problem: ConvProblem,
    local: Callable[[ConvProblem], Callable[[Array, Array], Array]],
    mesh_sizes: tuple[int, ...],
) -> Callable[[Array, Array], Array]:
    """`local(problem)`, as a function that XLA's partitioner splits into functions of smaller problems.

    mesh_sizes: the sizes of the mesh axes; without a mesh, the number of devices.
    """
    roles = (*OPERANDS[kind], RESULT[kind])
    # The decorated function only gives the result's type: XLA always asks `partition`, so it never runs. It must not
    # hold constants such as offset tables, so it is lax's.
    call = custom_partitioning(LAX[kind](problem))
    rule, special = _sharding_rule(kind, problem, mesh_sizes)

    def partition(mesh, operands, result):
        if mesh.empty:  # there are no axes to name: gather everything
            whole = GSPMDSharding.get_replicated(operands[0].sharding._device_assignment)
            return mesh, local(problem), whole, (whole,) * len(operands)
        split = _choose(problem, mesh, dict(zip(roles, (*operands, result), strict=True)))
        shard = problem
        for factor, axes in split.items():
            by = _size(axes, mesh.shape)
            shard = resize(shard, factor, lambda size, by=by: size // by)
        compute, summed = local(shard), split[SUMMED[kind]]

        def lower(a, b):
            out = compute(a, b)
            return psum_p.bind(out, axes=summed) if summed else out

        *args, out = (NamedSharding(mesh, _spec(problem, role, split)) for role in roles)
        return mesh, lower, out, tuple(args)

    def infer(mesh, operands, result):
        split = _choose(problem, mesh, dict(zip(roles, operands, strict=False)))
        return NamedSharding(mesh, _spec(problem, roles[-1], split))

    call.def_partition(
        partition, infer_sharding_from_operands=infer, decode_shardings=False, sharding_rule=rule, **special
    )
    return call


def _sharding_rule(kind: str, problem: ConvProblem, mesh_sizes: tuple[int, ...]) -> tuple[str, dict[str, Any]]:
    """Shardy's rule, and its arguments: the summed factors, the whole ones, and the sizes of those without an axis.

    A factor whose name begins with a role stays whole.
    """
    splittable, sizes = _splittable(problem), _sizes(problem)
    # Few groups would be split over a part of a mesh axis. JAX has no name for such a part, so they stay whole.
    splits_groups = all(problem.groups % size == 0 for size in mesh_sizes)
    whole, given = [], {}

    def name(role: str, factor: str, grouped: bool) -> str:
        own = f"{role}_{factor}"
        if grouped and problem.groups > 1 and splits_groups:
            if sizes[factor] == 1:  # Shardy refuses a factor of one element next to another
                return "g"
            given.update({"g": problem.groups, own: sizes[factor]})
            return f"(g {own})"
        return factor if factor in splittable else own

    def array(role: str) -> str:
        names = [f"{role}_{axis}" for axis in range(len(problem.shape(role)))]
        for factor, (axis, grouped) in carriers(problem)[role].items():
            names[axis] = name(role, factor, grouped)
        whole.extend(n.removeprefix("(g ").removesuffix(")") for n in names if role in n)
        return " ".join(names)

    rule = f"{', '.join(array(role) for role in OPERANDS[kind])} -> {array(RESULT[kind])}"
    if "g" in rule.replace("(g ", "").split():
        given.pop("g", None)
    summed = {SUMMED[kind]} & splittable
    return rule, dict(reduction_factors=tuple(summed), need_replication_factors=tuple(whole), **given)


def _sizes(problem: ConvProblem) -> dict[str, Dim]:
    return {"n": problem.batch, "g": problem.groups, "c": problem.in_channels, "k": problem.out_channels}


def _splittable(problem: ConvProblem) -> set[str]:
    """The factors, besides g, that are alone on their axis in every array."""
    grouped = {f for roles in carriers(problem).values() for f, c in roles.items() if c.grouped}
    return {"n", "c", "k"} - (grouped if problem.groups > 1 else set())


def _mesh_axes(sharding: GSPMDSharding | None, mesh: Mesh, rank: int) -> tuple[MeshAxes, ...]:
    """The mesh axes of each array axis; none if mesh axes cannot express how the array is split."""
    if sharding is None:
        return ((),) * rank
    try:
        spec = parse_flatten_op_sharding(sharding._to_xla_hlo_sharding(rank), mesh)[0]
    except (AssertionError, NotImplementedError, ValueError):
        spec = ()
    return mesh_axes(spec, rank)


def _choose(problem: ConvProblem, mesh: Mesh, arrays: dict[str, Any]) -> dict[str, MeshAxes]:
    """The mesh axes that split each factor: those of an operand, or else of the result.

    They must divide the factor's size, and no other factor may have them. Images choose first: if weights are sharded
    for storage over the same mesh axis, the activations keep it.
    """
    specs = {role: _mesh_axes(aval.sharding, mesh, len(aval.shape)) for role, aval in arrays.items()}
    sizes, splittable = _sizes(problem), _splittable(problem) | {"g"}
    split: dict[str, MeshAxes] = {}
    taken: set[str] = set()
    for factor in ("n", "g", "c", "k"):
        split[factor] = ()
        for role in specs if factor in splittable else ():
            axis = _split_axes(problem, role).get(factor)
            axes = () if axis is None else specs[role][axis]
            if axes and not taken & set(axes) and sizes[factor] % _size(axes, mesh.shape) == 0:
                split[factor] = axes
                taken |= set(axes)
                break
    return split


def _split_axes(problem: ConvProblem, role: str) -> dict[str, int]:
    """For each factor of a role's array, the axis that is split with it: a grouped axis with g, its major part."""
    has_groups = problem.groups > 1
    return {"g" if has_groups and c.grouped else factor: c.axis for factor, c in carriers(problem)[role].items()}


def _spec(problem: ConvProblem, role: str, split: dict[str, MeshAxes]) -> PartitionSpec:
    entries: list[MeshAxes | None] = [None] * len(problem.shape(role))
    for factor, axis in _split_axes(problem, role).items():
        entries[axis] = split[factor] or None
    return PartitionSpec(*entries)


def _size(axes: MeshAxes, mesh_shape) -> int:
    return math.prod(mesh_shape[a] for a in axes)
