"""How a convolution splits over the devices of a mesh.

Images, groups, input and output channels and spatial dimensions stay sharded. Along a spatial dimension the devices
exchange the rows that their windows read. If a summed factor is sharded (input channels of a conv, images and spatial
dimensions of a wgrad), a psum follows, as XLA does for its own convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from jaxconv._jax_private import GSPMDSharding, ShardingContext, enable_x64, parse_flatten_op_sharding
from jaxconv.fallback import LAX
from jaxconv.problem import ROLES, ConvProblem
from jaxconv.problem.factors import MeshAxes, mesh_axes
from jaxconv.problem.product import OPERANDS, RESULT
from jaxconv.sharding.block import SUMMED, End, Local, block, ended_block
from jaxconv.sharding.split import (
    MeshShape,
    Specs,
    Split,
    carriers_of,
    choose,
    factor_sizes,
    partition_spec,
    rank_of,
    spatial_axes,
    splittable_factors,
)

# One device's part of a convolution, lowered outside the user's mesh: collectives refuse shardings on its operations.
block_p = Primitive("jaxconv_block")
block_p.def_abstract_eval(lambda *operands, run, out: out)


def without_shardings(ctx: mlir.LoweringRuleContext) -> mlir.LoweringRuleContext:
    """The context with the types of one device's arrays, which have no mesh axes, manual or explicit."""

    def plain(avals: Sequence[Any]) -> list[ShapedArray]:
        return [ShapedArray(aval.shape, aval.dtype) for aval in avals]

    return ctx.replace(avals_in=plain(ctx.avals_in), avals_out=plain(ctx.avals_out))


def lower_without_mesh(
    function: Callable[..., Array | tuple[Array, ...]],
    ctx: mlir.LoweringRuleContext,
    *operands: mlir.Value,
    multiple_results: bool = False,
) -> Sequence[mlir.Value]:
    """The lowering of a function outside the user's mesh: inside an explicit one JAX annotates results."""
    with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
        return mlir.lower_fun(function, multiple_results=multiple_results)(without_shardings(ctx), *operands)


def _lower_block(
    ctx: mlir.LoweringRuleContext, *operands: mlir.Value, run: Callable[..., Array], out: ShapedArray
) -> Sequence[mlir.Value]:
    return lower_without_mesh(run, ctx, *operands)


mlir.register_lowering(block_p, _lower_block)


class Automatic(NamedTuple):
    """What XLA's partitioner splits a program over.

    devices: their number. Which they are is not known: what is lowered may be compiled for any.
    sizes: of the mesh axes, if types tell them; else the number of devices.
    meshes: the mesh and the part of it that is not manual, under a shard_map over some of its axes. XLA shows shardings
      over that part, but collectives are over the whole.
    """

    devices: int
    sizes: tuple[int, ...]
    meshes: tuple[Mesh | AbstractMesh, AbstractMesh] | None = None

    @classmethod
    def of(cls, ctx: mlir.LoweringRuleContext) -> Automatic:
        axis_context: Any = ctx.module_context.axis_context
        if manual := getattr(axis_context, "manual_axes", None):
            mesh = axis_context.mesh
            own = {axis: size for axis, size in mesh.shape.items() if axis not in manual and size > 1}
            part = AbstractMesh(tuple(own.values()), tuple(own))
            return cls(math.prod(own.values()), part.axis_sizes, (mesh, part))
        devices = getattr(axis_context, "num_devices", 1)
        mesh = _mesh_of([aval.sharding for aval in [*ctx.avals_in, *ctx.avals_out]])
        return cls(devices, (devices,) if mesh.empty else mesh.axis_sizes)


NEED_X64 = frozenset(map(jnp.dtype, ("float64", "complex128")))


def unpartitioned_reason(problem: ConvProblem, automatic: Automatic) -> str | None:
    """Why XLA's partitioner cannot split a problem by `partitioned`; None if it can."""
    if not NEED_X64.isdisjoint(map(problem.dtype, ROLES)) and not enable_x64.get_global():
        return (
            "jax.enable_x64(True) is for one thread, and XLA partitions programs in others: "
            'jax.config.update("jax_enable_x64", True) is for all'
        )
    has_shardy = jax.config.jax_use_shardy_partitioner  # pyright: ignore[reportAttributeAccessIssue]
    if automatic.meshes and not has_shardy:
        return "a shard_map over some axes of a mesh is partitioned without Shardy"
    return None


# A call of a custom_partitioning. JAX lowers one only for known devices, but uses their number alone: any device stands
# for all of them, and the program is for devices of any mesh.
split_p = Primitive("jaxconv_split")
split_p.def_abstract_eval(lambda *operands, call, out: out)


def _lower_split(
    ctx: mlir.LoweringRuleContext, *operands: mlir.Value, call: Callable[..., Array], out: ShapedArray
) -> Sequence[mlir.Value]:
    module, (any_device, *_) = ctx.module_context, jax.local_devices()
    axis_context: Any = module.axis_context
    mesh = getattr(axis_context, "mesh", None)
    count = axis_context.num_devices if mesh is None else mesh.size
    module = module.replace(axis_context=ShardingContext(count, (any_device,) * count))
    return mlir.lower_fun(call, multiple_results=False)(ctx.replace(module_context=module), *operands)


mlir.register_lowering(split_p, _lower_split)


def partitioned(
    kind: str, problem: ConvProblem, local: Local, operands: Sequence[Any], automatic: Automatic, end: End | None
) -> Callable[..., Array]:
    """A problem on one device, as a function that XLA's partitioner splits into functions of smaller problems.

    operands: anything with their dimensions.
    """
    roles, result_role = roles_of(kind, operands, end), RESULT[kind]
    count = len(roles)
    # The decorated function only gives the result's type: XLA always asks `partition`, so it never runs. It must not
    # hold constants such as offset tables, so it is lax's.
    by_lax = blocks_of(kind, problem, Local(LAX[kind]), end and end.by_xla)({}, {})
    call = custom_partitioning(lambda *operands: by_lax(*operands[:count]))
    rule, special = _sharding_rule(kind, problem, roles, automatic)
    part = blocks_of(kind, problem, local, end)

    def specs_of(arrays: Sequence[Any], mesh: Mesh | AbstractMesh, numbers: Sequence[int]) -> Specs:
        roles = (*OPERANDS[kind], result_role)
        return {role: _mesh_axes(array, mesh, numbers) for role, array in zip(roles, arrays, strict=False)}

    def partition(
        _: Mesh, operands: Sequence[Any], result: Any
    ) -> tuple[Mesh | AbstractMesh, Callable[..., Array], Sharding, tuple[Sharding, ...]]:
        (a, b), chart = operands[:2], operands[count:]
        mesh, own = automatic.meshes or (_axes_of((a, b, result), automatic.devices),) * 2
        numbers = _charted(*chart) if chart else list(range(own.size))
        if len(numbers) != own.size or own.size != automatic.devices:  # no axes can be named: gather everything
            whole, run = GSPMDSharding.get_replicated(a.sharding._device_assignment), part({}, {})
            return mesh, lambda *operands: run(*operands[:count]), whole, (whole,) * len(operands)
        split = choose(problem, own.shape, specs_of((a, b, result), own, numbers))
        run = part(split, own.shape)

        def lower(*operands: Array) -> Array:
            out = jax.eval_shape(run, *operands[:count])
            return block_p.bind(*operands[:count], run=run, out=ShapedArray(out.shape, out.dtype))

        def sharding(role: str) -> GSPMDSharding:
            sharding = NamedSharding(own, partition_spec(problem, role, split))
            sharding = sharding._to_xla_hlo_sharding(rank_of(problem, role))
            return GSPMDSharding(a.sharding._device_assignment, _renumbered(sharding, numbers))

        args = (*map(sharding, roles), *(array.sharding for array in chart))
        return mesh, lower, sharding(result_role), args

    def infer(_: Mesh, operands: Sequence[Any], result: Any) -> Sharding:
        mesh = automatic.meshes[1] if automatic.meshes else _axes_of(operands[:2], automatic.devices)
        if mesh.size != automatic.devices:  # no axes can be named
            return GSPMDSharding.get_replicated(operands[0].sharding._device_assignment)
        specs = specs_of(operands[:2], mesh, list(range(mesh.size)))
        return NamedSharding(mesh, partition_spec(problem, result_role, choose(problem, mesh.shape, specs)))

    call.def_partition(
        partition, infer_sharding_from_operands=infer, decode_shardings=False, sharding_rule=rule, **special
    )
    out = ShapedArray(problem.stored_shape(result_role), problem.dtype(result_role))
    return lambda *operands: split_p.bind(*operands, *_chart(automatic), call=call, out=out)


def roles_of(kind: str, operands: Sequence[Any], end: End | None) -> tuple[str, ...]:
    """Of all operands."""
    return (*OPERANDS[kind], *(end.roles(operands[2:]) if end else ()))


def blocks_of(
    kind: str, problem: ConvProblem, local: Local, end: End | None
) -> Callable[[Split, MeshShape], Callable[..., Array]]:
    """What a device computes of a split problem."""
    return partial(block, kind, problem, local) if end is None else partial(ended_block, problem, local, end)


# XLA shows no mesh, but numbers the devices, and tells which numbers have which part of an array.


def _axes_of(arrays: Sequence[Any], devices: int) -> AbstractMesh:
    """The fewest mesh axes that express how the arrays lie; one of size 1 if there are no such axes."""
    strides = {1, devices}.union(*map(_strides, arrays))
    steps = list(pairwise(sorted(strides, reverse=True)))
    if any(step < 1 or before % step for before, step in steps):
        return AbstractMesh((1,), ("devices",))
    sizes = tuple(before // step for before, step in steps)
    return AbstractMesh(sizes, tuple(f"devices_{i}" for i in range(len(sizes))))


def _strides(array: Any) -> set[int]:
    """Of mesh axes: where the numbers of devices, along a dimension of an array, change their step."""
    sharding = array.sharding and array.sharding._to_xla_hlo_sharding(len(array.shape))
    if sharding is None or not sharding.is_tiled():
        return set()
    strides = set()
    numbers = np.reshape(sharding.tile_assignment_devices(), sharding.tile_assignment_dimensions())
    for axis, size in enumerate(numbers.shape):
        along = np.moveaxis(numbers, axis, 0).reshape(size, -1)[:, 0]
        while len(along) > 1:
            step = int(along[1] - along[0])
            (others,) = np.nonzero(np.diff(along) != step)
            count = int(others[0]) + 1 if others.size else len(along)
            strides |= {step, step * count}
            along = along[::count]
    return strides


# Under a shard_map over some axes of a mesh, XLA numbers the devices of the other axes anew for each operation, by how
# its result lies. One more operand, the chart, is split over these axes in their order. It shows the numbers.


def _chart(automatic: Automatic) -> list[Array]:
    if automatic.meshes is None:
        return []
    mesh, own = automatic.meshes
    chart = jnp.zeros(own.axis_sizes, jnp.int8)
    return [jax.lax.with_sharding_constraint(chart, NamedSharding(mesh, PartitionSpec(*own.axis_names)))]


def _charted(chart: Any) -> list[int]:
    """XLA's number of each device, in the order of the axes; fewer if the chart is not split so."""
    sharding = chart.sharding._to_xla_hlo_sharding(len(chart.shape))
    is_split = list(sharding.tile_assignment_dimensions()) == list(chart.shape)
    return list(sharding.tile_assignment_devices()) if is_split else []


def _renumbered(sharding: Any, numbers: Sequence[int]) -> Any:
    """An HloSharding of other numbers for the devices."""
    if sharding.is_replicated():
        return sharding
    proto = sharding.to_proto()
    proto.tile_assignment_devices = [numbers[device] for device in sharding.tile_assignment_devices()]
    proto.iota_reshape_dims = proto.iota_transpose_perm = []
    return type(sharding).from_proto(proto)


def _sharding_rule(
    kind: str, problem: ConvProblem, roles: Sequence[str], automatic: Automatic
) -> tuple[str, dict[str, Any]]:
    """Shardy's rule, and its arguments: the summed factors, the whole ones, and the sizes of those without an axis.

    roles: of the operands. A factor whose name begins with a role stays whole. A spatial dimension is one factor of
    input and output, although their sizes differ: Shardy takes the smaller one. So are output channels and blocks of
    them.
    """
    splittable, sizes = splittable_factors(problem), factor_sizes(problem)
    # Few groups would be split over a part of a mesh axis. XLA then gathers other arrays, so they stay whole.
    splits_groups = all(problem.groups % size == 0 for size in automatic.sizes)
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
        names = [f"{role}_{axis}" for axis in range(rank_of(problem, role))]
        for factor, axis in spatial_axes(problem, role).items():
            names[axis] = factor
        for factor, (axis, grouped) in carriers_of(problem, role).items():
            names[axis] = name(role, factor, grouped)
        whole.extend(n.removeprefix("(g ").removesuffix(")") for n in names if role in n)
        return " ".join(names)

    operands = [array(role) for role in roles]
    if automatic.meshes:
        operands.append(" ".join(f"chart_{axis}" for axis in range(len(automatic.sizes))))
    rule = f"{', '.join(operands)} -> {array(RESULT[kind])}"
    if "g" in rule.replace("(g ", "").replace(",", "").split():
        given.pop("g", None)
    spatial = tuple(spatial_axes(problem, "lhs"))
    summed = tuple(factor for factor in SUMMED[kind] if factor in (*splittable, *spatial))
    permuted = spatial if kind == "conv" else ()
    replicated = tuple(dict.fromkeys(whole))
    special = dict(reduction_factors=summed, permutation_factors=permuted, need_replication_factors=replicated)
    return rule, special | given


def _mesh_axes(array: Any, mesh: Mesh | AbstractMesh, numbers: Sequence[int]) -> tuple[MeshAxes, ...]:
    """The mesh axes of each axis of an array; none if mesh axes cannot express how it is split.

    numbers: XLA's, of the devices in the mesh's order.
    """
    sharding, rank = array.sharding, len(array.shape)
    if sharding is None:
        return ((),) * rank
    indices = [numbers.index(device) for device in range(len(numbers))]
    try:
        spec = parse_flatten_op_sharding(_renumbered(sharding._to_xla_hlo_sharding(rank), indices), mesh)[0]
    except (AssertionError, KeyError, NotImplementedError, ValueError):
        spec = ()
    return mesh_axes(spec, rank)


# Explicit meshes: the types of the arrays tell how they lie.


def has_explicit_axes(shardings: Sequence[NamedSharding]) -> bool:
    return any(sharding.mesh.explicit_axes for sharding in shardings)


def is_explicit(shardings: Sequence[NamedSharding]) -> bool:
    """Whether types tell how the arrays lie, over all axes of their mesh that are not manual."""
    mesh = _mesh_of(shardings)
    return bool(mesh.explicit_axes) and not mesh.auto_axes


def explicitly_partitioned(
    kind: str, problem: ConvProblem, local: Local, types: Sequence[ShapedArray], end: End | None
) -> Callable[..., Array]:
    """A problem on arrays over an explicit mesh. types: of the operands and of the result."""
    a, b, *_, out = shardings = [aval.sharding for aval in types]
    mesh, named = _mesh_of(shardings), zip((*OPERANDS[kind], RESULT[kind]), (a, b, out), strict=True)
    specs = {role: mesh_axes(sharding.spec, rank_of(problem, role)) for role, sharding in named}
    split = choose(problem, mesh.shape, specs, is_even=True)  # shard_map takes no other
    in_specs = tuple(partition_spec(problem, role, split) for role in roles_of(kind, types[:-1], end))
    run = blocks_of(kind, problem, local, end)(split, mesh.shape)
    out_spec = partition_spec(problem, RESULT[kind], split)
    run = jax.shard_map(run, mesh=mesh, in_specs=in_specs, out_specs=out_spec, check_vma=False)

    def convolve(*operands: Array) -> Array:
        with jax.sharding.use_abstract_mesh(mesh):
            return jax.sharding.reshard(run(*map(jax.sharding.reshard, operands, in_specs)), out)

    return convolve


def _mesh_of(shardings: Sequence[NamedSharding]) -> Any:
    """The mesh of the types; some may have none, such as a constant's."""
    return next((sharding.mesh for sharding in shardings if not sharding.mesh.empty), AbstractMesh((), ()))
