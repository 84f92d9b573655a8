"""Explicit meshes, whose shardings are a part of types: vmap over a sharded axis, values, types and gradients.

And abstract meshes, which have no devices yet.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.meshes import collectives, mesh, place
from cases.parts import diagonal
from cases.reference import assert_same, cotangent, custom_calls, integers, lax_channels_last, pullback, run_on_host
from cases.small import ENTRIES, Case

pytestmark = pytest.mark.usefixtures("on_the_host")  # GPU machines simulate the eight devices too

DENSE = Case("dense", (2, 3, 4, 4), (3, 3, 4, 6))
GROUPED = Case("grouped", (2, 3, 4, 4), (3, 3, 2, 6), {"feature_group_count": 2})
BATCH_GROUPS = Case("batch_groups", (4, 3, 4, 4), (3, 3, 4, 6), {"batch_group_count": 2})
EIGHT_IMAGES = Case("eight_images", (8, 3, 4, 4), (3, 3, 4, 6))
MEMBERS = 4


def explicit_mesh():
    return mesh((4, 2), ("a", "b"), AxisType.Explicit)


def members(array, axis):
    return array if axis is None else np.stack([(i - 1) * array for i in range(MEMBERS)], axis)


def inserted(spec, axis, mesh_axis):
    """The spec of an array with a further axis over `mesh_axis`."""
    return P(*spec[:axis], mesh_axis, *spec[axis:])


def all_passes(conv, in_axes):
    """A convolution of each member, gradients of all of them together, and gradients of each."""

    def run(x, w):
        y, vjp = jax.vjp(jax.vmap(conv, in_axes), x, w)
        each = jax.vmap(jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), argnums=(0, 1)), in_axes)
        return y, *vjp(y), *each(x, w)

    return run


def run_explicitly(function, operands, specs, jit=True):
    """The results on an explicit mesh, and the specs in their types."""
    with jax.set_mesh(explicit_mesh()):
        results = (jax.jit if jit else lambda f: f)(function)(*place(explicit_mesh(), operands, specs))
        return results, [jax.typeof(r).sharding.spec for r in results]


# Axes that are mapped in x and w.
MAPPED = [(0, None), (1, None), (None, 0), (None, 2), (0, 0), (2, 1)]
# And the mesh axis of the images; batch groups' must not be sharded, as in lax.
IMAGES = [
    (DENSE, "general", None), (DENSE, "general", "b"), (DENSE, "front_door", "b"),
    (GROUPED, "general", None), (GROUPED, "general", "b"), (BATCH_GROUPS, "general", None),
]  # fmt: skip


@pytest.mark.parametrize("case, entry, batch, of_x, of_w", diagonal(IMAGES, MAPPED), ids=str)
def test_vmap_over_a_sharded_axis(case, entry, batch, of_x, of_w):
    """The result and all gradients keep the members' mesh axis, also where lax cannot."""
    in_axes = of_x, of_w
    own = (P(batch, None, None, None), P(None, None, None, None))
    specs = [spec if axis is None else inserted(spec, axis, "a") for spec, axis in zip(own, in_axes)]
    operands = [members(a, axis) for a, axis in zip(case.operands(), in_axes)]
    actual, types = run_explicitly(all_passes(getattr(case, entry)("cpu"), in_axes), operands, specs)
    assert_same(actual, run_on_host(all_passes(case.lax(), in_axes), *operands))
    assert types == [inserted(own[0], 0, "a"), *specs, *(inserted(spec, 0, "a") for spec in own)]


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0)], ids=["images", "cotangents"])
@pytest.mark.parametrize("case", [DENSE, GROUPED], ids=str)
def test_weight_gradients_for_one_operand_mapped(case, in_axes):
    """There the members fold into input or output channels, within each group."""
    x, w = case.operands()
    g = cotangent(case.lax(), x, w)
    operands = (members(x, in_axes[0]), members(g, in_axes[1]))
    specs = [P() if axis is None else P("a") for axis in in_axes]
    step = lambda conv: lambda x, g: (jax.vmap(lambda x, g: jax.vjp(conv, x, w)[1](g)[1], in_axes)(x, g),)
    actual, types = run_explicitly(step(case.general("cpu")), operands, specs)
    assert_same(actual, run_on_host(step(case.lax()), *operands))
    assert types == [P("a", None, None, None, None)]


def test_second_derivatives_over_a_sharded_axis():
    """A Hessian-vector product of each member."""
    operands = [members(a, 0) for a in DENSE.operands()]

    def step(conv):
        def product(x, w):
            gradient = jax.grad(lambda w: jnp.sum(conv(x, w) ** 3))
            return jax.jvp(gradient, (w,), (w,))

        return jax.vmap(product)

    actual, types = run_explicitly(step(DENSE.general("cpu")), operands, [P("a"), P("a")])
    assert_same(actual, run_on_host(step(DENSE.lax()), *operands), 1e-6)
    assert types == [P("a", None, None, None, None)] * 2


@pytest.mark.parametrize("jit", [True, False])
def test_types_are_laxs(jit):
    """Where lax takes a sharded mapped axis: of x, in a forward pass and the gradients through it."""

    def outcome(conv):
        def run(x, w):
            y, vjp = jax.vjp(jax.vmap(conv, (0, None)), x, w)
            return y, *vjp(y)

        x, w = DENSE.operands()
        return run_explicitly(run, (members(x, 0), w), (P("a", "b"), P()), jit)

    actual, types = outcome(DENSE.general("cpu"))
    expected, lax_types = outcome(DENSE.lax())
    assert types == lax_types
    assert_same(actual[0], expected[0])


@pytest.mark.parametrize("entry", ENTRIES)
def test_nested_vmaps_over_two_mesh_axes(entry):
    """An ensemble over one mesh axis. Each member has its data over the other one."""
    x, w = integers((4, 2, 2, 3, 4, 4)), integers((4, 3, 3, 4, 6))
    nested = lambda conv: jax.vmap(jax.vmap(conv, (0, None)), (0, 0))

    def run(conv):
        def passes(x, w):
            y, vjp = jax.vjp(nested(conv), x, w)
            return y, *vjp(y)

        return passes

    specs = (P("a", "b", None, None, None, None), P("a", None, None, None, None))
    actual, types = run_explicitly(run(getattr(DENSE, entry)("cpu")), (x, w), specs)
    assert_same(actual, run_on_host(run(DENSE.lax()), x, w))
    assert types == [specs[0], *specs]


FEWER_ROWS = Case("fewer_rows", (2, 8, 3, 4), (3, 3, 4, 5), {"window_strides": (2, 2)})
MORE_ROWS = Case("more_rows", (2, 3, 3, 4), (2, 2, 4, 5), {"padding": ((1, 1), (1, 1)), "lhs_dilation": (2, 2)})


@pytest.mark.parametrize("case, spec, out_spec", [
    (FEWER_ROWS, P(None, ("a", "b")), P()), (MORE_ROWS, P(), P(None, "b")),
], ids=str)  # fmt: skip
def test_rows_that_divide_on_one_side(case, spec, out_spec):
    """They are not split: shard_map takes no uneven parts."""
    run = lambda conv: lambda x, w: (conv(x, w),)
    actual, types = run_explicitly(
        run(functools.partial(case.general("cpu"), out_sharding=out_spec)), case.operands(), (spec, P())
    )
    assert_same(actual, run_on_host(run(case.lax()), *case.operands()))
    assert types == [P(*out_spec, *(4 - len(out_spec)) * (None,))]


@pytest.mark.parametrize("bias", [None, 2.0])
def test_out_sharding_of_channels_last_functions(bias):
    """What devices add up has the sharding that is asked for."""
    x, w = integers((8, 3, 4, 4)), integers((3, 3, 4, 6), seed=1)
    conv = lambda x, w: (jaxconv.conv2d(x, w, bias=bias, out_sharding=P("a"), implementation="cpu"),)
    specs = P(None, None, None, "b"), P(None, None, "b")
    (y,), types = run_explicitly(conv, (x, w), specs)
    assert_same(y, run_on_host(lax_channels_last, x, w) + (bias or 0))
    assert types == [P("a", None, None, None)]
    with pytest.raises(ValueError, match="out_sharding must be None with layout 'NCHW32'"):
        jaxconv.conv2d(x, w, layout="NCHW32", out_sharding=P("a"))


def test_vmap_over_several_mesh_axes():
    x, w = integers((8, 2, 3, 4, 4)), DENSE.operands()[1]
    run = lambda conv: lambda x, w: (jax.vmap(conv, (0, None))(x, w),)
    actual, types = run_explicitly(run(DENSE.general("cpu")), (x, w), (P(("a", "b")), P()))
    assert_same(actual, run_on_host(run(DENSE.lax()), x, w))
    assert types == [P(("a", "b"), None, None, None, None)]


def test_vmap_of_no_members():
    x, w = integers((0, 2, 3, 4, 4)), DENSE.operands()[1]
    run = lambda x, w: (jax.vmap(DENSE.general("cpu"), (0, None))(x, w),)
    (y,), types = run_explicitly(run, (x, w), (P("a", "b"), P()))
    assert y.shape == (0, 2, 3, 4, 6)
    assert types == [P("a", "b", None, None, None)]


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_spmd_axis_name_around_shard_map(in_axes, check_vma):
    """Members over one axis of an automatic mesh, images over the other: values and shardings are lax's."""
    automatic = mesh((4, 2), ("a", "b"))
    operands = [members(a, axis) for a, axis in zip(DENSE.operands(), in_axes)]
    own = (P("b"), P())
    specs = [spec if axis is None else inserted(spec, axis, "a") for spec, axis in zip(own, in_axes)]

    def passes(conv):
        def run(x, w):
            sharded = jax.shard_map(conv, mesh=automatic, in_specs=own, out_specs=P("b"), check_vma=check_vma)
            y, vjp = jax.vjp(jax.vmap(sharded, in_axes, spmd_axis_name="a"), x, w)
            return y, *vjp(y)

        return jax.jit(run)(*place(automatic, operands, specs))

    actual, expected = passes(DENSE.general("cpu")), passes(DENSE.lax())
    assert_same(actual, expected)
    assert [a.sharding for a in actual] == [e.sharding for e in expected]


# Lowering for an abstract mesh, before there are devices.


AUTOMATIC = AbstractMesh((8,), ("a",), axis_types=(AxisType.Auto,))


def lowered(function, operands, mesh, specs, platform):
    with_sharding = lambda a, spec: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=NamedSharding(mesh, spec))
    traced = jax.jit(function).trace(*map(with_sharding, operands, specs))
    return traced.lower(lowering_platforms=(platform,))


@pytest.mark.parametrize("is_manual, spec", [
    (False, P("a")), (False, P(None, "a", "b")), (False, P("b", None, None, "a")), (True, P("a", None, None, "b")),
], ids=["images", "rows_and_columns", "channels", "partly_manual"])  # fmt: skip
def test_automatic_abstract_mesh_is_native(is_manual, spec):
    """What was lowered without devices is compiled for some, in any order, with lax's values and collectives."""
    case = Case("eight_rows", (8, 8, 4, 4), (3, 3, 4, 6))
    abstract = AbstractMesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))
    specs = (spec, P(None, None, *spec[3:]), P(*spec[:3]))

    def step(conv):
        if is_manual:
            conv = jax.shard_map(conv, mesh=abstract, in_specs=(P("a"), P()), out_specs=P("a"), axis_names={"a"})
        return pullback(conv)

    ours = lowered(step(case.general("cpu")), operands, abstract, specs, "cpu")
    by_lax = lowered(step(case.lax()), operands, abstract, specs, "cpu")
    expected = run_on_host(pullback(case.lax()), *operands)
    for devices in (jax.devices("cpu"), jax.devices("cpu")[::-1]):
        on = Mesh(np.reshape(devices, (4, 2)), ("a", "b"))
        program, theirs = (p.compile(device_assignment=tuple(devices)) for p in (ours, by_lax))
        assert_same(program(*place(on, operands, specs)), expected)
        assert custom_calls(program.as_text()) == {"conv": 2, "wgrad": 1}
        assert collectives(program.as_text()) == collectives(theirs.as_text())


@pytest.mark.parametrize("spec", [P("a"), P(None, "a")], ids=["images", "rows"])
def test_explicit_abstract_mesh_is_native(spec):
    """Types tell how to split, so no devices are missed."""
    case = Case("eight_rows", (8, 8, 4, 4), (3, 3, 4, 6))
    abstract = AbstractMesh((8,), ("a",), axis_types=(AxisType.Explicit,))
    operands = (*case.operands(), cotangent(case.lax(), *case.operands()))
    program = lowered(pullback(case.general("cpu")), operands, abstract, (spec, P(), spec), "cpu")
    assert custom_calls(program.as_text()) == {"conv": 2, "wgrad": 1}
    devices = mesh((8,), ("a",), AxisType.Explicit)
    program = program.compile(device_assignment=tuple(devices.devices.flat))
    assert_same(program(*place(devices, operands, (spec, P(), spec))), run_on_host(pullback(case.lax()), *operands))


def test_shard_map_over_an_abstract_mesh_is_native():
    """There nothing is left to split, so no devices are missed."""
    x, w = EIGHT_IMAGES.operands()
    conv = jax.shard_map(DENSE.general("cpu"), mesh=AUTOMATIC, in_specs=(P("a"), P()), out_specs=P("a"))
    text = lowered(conv, (x, w), AUTOMATIC, (P("a"), P()), "cpu").as_text()
    assert custom_calls(text) == {"conv": 1}
    assert "stablehlo.convolution" not in text
