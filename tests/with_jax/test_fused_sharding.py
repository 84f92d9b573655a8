"""Convolutions with an epilogue over several devices, against lax's on one."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxconv
from cases import blocks
from cases.fused import channels_last_fused, cotangent, pullback
from cases.meshes import ONE_AXIS, TWO_AXES, collectives, compiled, mesh, place
from cases.parts import diagonal
from cases.programs import exported
from cases.reference import assert_same, custom_calls, opcodes, run_on_host

pytestmark = pytest.mark.usefixtures("on_the_host")  # GPU machines simulate the eight devices too

WIDE = channels_last_fused((8, 8, 6, 8), (3, 3, 8, 16))
CHANNELS = P(None, None, None, "a")
# x, w, scale and bias, residual.
LAYOUTS = {
    "batch": (ONE_AXIS, P("a"), P(), P(), P("a")),
    "in_channels": (ONE_AXIS, CHANNELS, P(None, None, "a"), P(), P()),
    "out_channels": (ONE_AXIS, P(), CHANNELS, P("a"), CHANNELS),
    "rows": (ONE_AXIS, P(None, "a"), P(), P(), P(None, "a")),
    "batch_and_out_channels": (TWO_AXES, P("a"), P(None, None, None, "b"), P("b"), P("a", None, None, "b")),
    "batch_and_in_channels": (TWO_AXES, P("a", None, None, "b"), P(None, None, "b"), P(), P("a")),
    "batch_over_two_axes": (TWO_AXES, P(("b", "a")), P(), P(), P(("b", "a"))),
    "replicated": (ONE_AXIS, P(), P(), P(), P()),
}
# Where no device needs anything of another one.
APART = ("batch", "out_channels", "batch_and_out_channels", "batch_over_two_axes", "replicated")


@pytest.fixture
def operands():
    arrays = WIDE.arrays()
    g = cotangent(WIDE, arrays)
    return arrays, g, run_on_host(pullback(WIDE.theirs()), arrays, g)


def placed(on, arrays, x, w, channels, residual):
    return place(on, arrays, (x, w, channels, channels, residual, P()))


def ended(hlo):
    """The operands of the epilogue of each call."""
    return re.findall(r'operands = "([^"]*)"', hlo)


EVERY = " ".join(WIDE.operands)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sharded(layout, operands):
    """Where input channels are split, the epilogue comes after the sum over devices."""
    arrays, g, expected = operands
    make_mesh, *specs = LAYOUTS[layout]
    step = lambda *arrays: pullback(WIDE.ours("cpu"))(arrays, g)
    actual, hlo = compiled(step, placed(make_mesh(), arrays, *specs))
    assert_same(actual, expected)
    assert "all-gather" not in collectives(hlo)
    assert sorted(ended(hlo)) == ["", "", "" if "in_channels" in layout else EVERY]


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("layout", APART)
def test_one_kernel_is_all_of_a_device(layout, operands):
    """With the epilogue: nothing else is in the program."""
    arrays, _, (expected, _) = operands
    make_mesh, *specs = LAYOUTS[layout]
    *sharded, residual_scale = placed(make_mesh(), arrays, *specs)
    actual, hlo = compiled(WIDE.ours("cpu"), (*sharded, residual_scale))
    assert_same(actual, expected)
    assert actual.sharding.is_equivalent_to(sharded[-1].sharding, actual.ndim)
    assert ended(hlo) == [EVERY] and set(opcodes(hlo)) == {"parameter", "constant", "custom-call"}


GROUPED = channels_last_fused((8, 4, 3, 16), (3, 3, 2, 16), feature_group_count=8)
DEPTHWISE = channels_last_fused((8, 4, 3, 16), (3, 3, 1, 16), ("bias", "residual"), feature_group_count=16)
FEW_GROUPS = channels_last_fused((8, 4, 3, 16), (3, 3, 8, 16), feature_group_count=2)
BATCH_GROUPS = channels_last_fused((16, 4, 3, 8), (3, 3, 8, 16), batch_group_count=8)
FRACTIONAL = channels_last_fused(
    (2, 32, 3, 4), (3, 3, 4, 5), window_strides=(3, 1), lhs_dilation=(2, 1), padding=((1, 9), (1, 1))
)
UNEVEN = channels_last_fused((2, 40, 3, 4), (3, 3, 4, 5), window_strides=(2, 1))
# The case, where x, w, numbers of channels and residual lie, and whether the kernel has the epilogue.
OTHERS = {
    "groups": (GROUPED, CHANNELS, CHANNELS, P("a"), CHANNELS, True),
    "groups_of_x": (GROUPED, CHANNELS, P(), P(), P(), True),
    "depthwise": (DEPTHWISE, CHANNELS, CHANNELS, P("a"), CHANNELS, True),
    "depthwise_batch": (DEPTHWISE, P("a"), P(), P(), P("a"), True),
    "few_groups": (FEW_GROUPS, CHANNELS, CHANNELS, P("a"), CHANNELS, True),
    "batch_groups": (BATCH_GROUPS, P("a"), P(), P(), P(), True),
    "more_rows_than_their_own": (FRACTIONAL, P(None, "a"), P(), P(), P(None, "a"), False),
    "uneven_rows": (UNEVEN, P(None, "a"), P(), P(), P(), True),
    "only_the_residual": (WIDE, P(), P(), P(), P("a"), True),
    "only_numbers": (WIDE, P(), P(), P("a"), P(), True),
    "x_and_w_on_one_axis": (WIDE, P("a"), CHANNELS, P("a"), CHANNELS, True),
}


@pytest.mark.parametrize("case, x, w, channels, residual, is_fused", OTHERS.values(), ids=OTHERS)
def test_any_sharding_is_right(case, x, w, channels, residual, is_fused):
    of = {"scale": channels, "bias": channels, "residual": residual, "residual_scale": P()}
    arrays = case.arrays()
    sharded = place(ONE_AXIS(), arrays, (x, w, *(of[name] for name in case.operands)))
    actual, hlo = compiled(case.ours("cpu"), sharded)
    assert_same(actual, run_on_host(case.theirs(), *arrays))
    assert ended(hlo) == [" ".join(case.operands) if is_fused else ""]
    g = cotangent(case, arrays)
    actual, _ = compiled(lambda *arrays: pullback(case.ours("cpu"))(arrays, g), sharded)
    assert_same(actual, run_on_host(pullback(case.theirs()), arrays, g))


def test_activation_derived_from_its_input(operands):
    """The kernel computes that, and XLA applies the activation."""
    arrays, g, _ = operands
    case = WIDE.with_activation("silu")
    step = lambda *arrays: pullback(case.ours("cpu"))(arrays, g)
    actual, hlo = compiled(step, placed(ONE_AXIS(), arrays, *LAYOUTS["batch"][1:]))
    assert_same(actual, run_on_host(pullback(case.theirs()), arrays, g), 2e-5)
    assert sorted(ended(hlo)) == ["", "", EVERY]


def test_periodic_rows(operands):
    (x, w, _, bias, *_), *_ = operands
    sharded = place(ONE_AXIS(), (x, w, bias), (P(None, "a"), P(), P()))
    conv = lambda x, w, bias: jaxconv.conv2d(x, w, bias=bias, padding="CIRCULAR", activation="relu")
    actual, hlo = compiled(conv, sharded)
    assert_same(actual, run_on_host(conv, x, w, bias))
    assert ended(hlo) == [""] and "all-gather" not in collectives(hlo)


# int8, of which sums are exact: also in blocks of channels.

IMAGES = blocks.Images((8, 5, 4, 256), (3, 3, 256, 256))
INT8_LAYOUTS = {  # of x as NHWC, w, numbers of channels and residual
    "batch": (P("a"), P(), P(), P("a")),
    "out_channels": (P(), CHANNELS, P("a"), CHANNELS),
    "in_channels": (CHANNELS, P(None, None, "a"), P(), P()),
}


def of_blocks(spec):
    """A spec of NHWC, of the same images in blocks."""
    images, height, width, channels = (*spec, None, None, None, None)[:4]
    return P(images, channels, height, width)


@pytest.mark.parametrize("layout", INT8_LAYOUTS)
@pytest.mark.parametrize("is_in_blocks", [False, True], ids=["nhwc", "nchw32"])
def test_int8(layout, is_in_blocks):
    of_x, of_w, of_channels, of_residual = INT8_LAYOUTS[layout]
    x, w, more = IMAGES.arrays()
    expected = IMAGES.expected(x, w, more, activation="relu")
    more_specs = {name: of_channels if value.ndim == 1 else P() for name, value in more.items()}
    if is_in_blocks:
        x, more, expected = blocks.to_blocks(x), blocks.in_blocks(more), blocks.to_blocks(expected)
        of_x, of_residual = of_blocks(of_x), of_blocks(of_residual)
    arrays = (x, w, *more.values())
    specs = (of_x, of_w, *(more_specs | {"residual": of_residual}).values())
    layout_of = {"layout": blocks.LAYOUT} if is_in_blocks else {}
    conv = IMAGES.conv(activation="relu", out_dtype="int8", implementation="cpu", **layout_of)
    actual, hlo = compiled(
        lambda x, w, *operands: conv(x, w, **dict(zip(more, operands, strict=True))), place(ONE_AXIS(), arrays, specs)
    )
    assert_same(actual, expected)
    is_summed = layout == "in_channels" and not is_in_blocks  # blocks of x are gathered
    assert ended(hlo) == ["" if is_summed else " ".join(blocks.EVERY)]
    if layout != "in_channels":
        assert set(opcodes(hlo)) <= {"parameter", "constant", "custom-call", "bitcast"} and not collectives(hlo)
        assert not actual.sharding.is_fully_replicated


# Explicit meshes, and shard_map.


def explicit(shape=(8,), names=("a",)):
    return mesh(shape, names, AxisType.Explicit)


EXPLICIT = {
    "batch": (explicit, *LAYOUTS["batch"][1:], None, EVERY),
    "out_channels": (explicit, *LAYOUTS["out_channels"][1:], CHANNELS, EVERY),
    "in_channels": (explicit, *LAYOUTS["in_channels"][1:], P(), ""),
    "residual_apart": (explicit, P("a"), P(), P(), P(), None, EVERY),
    "others_in_conflict": (explicit, P("a"), P(), P("a"), P(None, None, None, "a"), None, EVERY),
    "scale_over_input_channels": (
        lambda: explicit((4, 2), ("a", "b")), P("a"), P(None, None, "b"), P("b"), P(), P("a"), ""
    ),
    "batch_and_out_channels": (
        lambda: explicit((4, 2), ("a", "b")), *LAYOUTS["batch_and_out_channels"][1:], P("a", None, None, "b"), EVERY
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", EXPLICIT)
def test_explicit_mesh(layout, operands):
    arrays, g, expected = operands
    make_mesh, *specs, out_sharding, epilogue = EXPLICIT[layout]
    on = make_mesh()
    with jax.set_mesh(on):
        sharded = placed(on, arrays, *specs)
        conv = WIDE.ours("cpu", out_sharding=out_sharding)
        like = jax.typeof(jax.jit(conv)(*sharded)).sharding.spec
        assert tuple(like) == (*(P("a") if out_sharding is None else out_sharding), None, None, None, None)[:4]
        (g,) = place(on, (g,), (like,))
        actual, hlo = compiled(lambda *arrays: pullback(conv)(arrays, g), sharded)
        for gradient, array in zip(actual[1], sharded, strict=True):
            assert jax.typeof(gradient).sharding == jax.typeof(array).sharding
    assert_same(actual, expected)
    assert sorted(ended(hlo)) == sorted(["", "", epilogue])


def test_vmap_and_second_derivatives_over_an_explicit_mesh(operands):
    arrays, *_ = operands

    def step(conv):
        def product(x, w, *others):
            gradient = jax.grad(lambda w: jnp.sum(conv(x, w, *others) ** 3))
            return jax.jvp(gradient, (w,), (w,))

        return jax.vmap(product, (0, *(None,) * 5))

    x, w, scale, bias, _, residual_scale = arrays
    given = (np.stack([x, -x]), w, scale, bias, np.zeros((8, 8, 6, 16), "float32"), residual_scale)
    for of_x, of_residual in ((P(None, "a"), P("a")), (P("a"), P())):
        on = explicit((2,), ("a",)) if of_x == P("a") else explicit()
        with jax.set_mesh(on):
            actual = jax.jit(step(WIDE.ours("cpu")))(*placed(on, given, of_x, P(), P(), of_residual))
        assert_same(actual, run_on_host(step(WIDE.theirs()), *given), 1e-6)


def test_blocks_over_an_explicit_mesh():
    """XLA puts the result into blocks."""
    x, w, _ = IMAGES.arrays(())
    conv = IMAGES.conv(scale=0.25, out_dtype="int8", implementation="cpu", layout=blocks.LAYOUT)
    with jax.set_mesh(explicit()):
        actual = jax.jit(conv)(*place(explicit(), (blocks.to_blocks(x), w), (P("a"), P())))
    assert_same(actual, run_on_host(conv, blocks.to_blocks(x), w))


@pytest.mark.usefixtures("warned_anew")
@pytest.mark.parametrize("kind", [AxisType.Explicit, AxisType.Auto], ids=str)
def test_export(kind, operands):
    """XLA would split automatic axes where this Python is not: there lax answers."""
    arrays, _, (expected, _) = operands
    on, is_explicit = mesh(kind=kind), kind is AxisType.Explicit
    with jax.set_mesh(on):
        sharded = placed(on, arrays, *LAYOUTS["batch"][1:])
        warned = contextlib.nullcontext() if is_explicit else pytest.warns(jaxconv.FallbackWarning, match="an export")
        with warned:
            program = exported(WIDE.ours(None), *sharded)
        actual = jax.jit(export.deserialize(program.serialize()).call)(*sharded)
    assert_same(np.asarray(actual), np.asarray(expected))
    assert ended(program.mlir_module()) == ([EVERY] if is_explicit else [])


@pytest.mark.parametrize("manual, check_vma", diagonal(["ab", "a"], [True, False]), ids=str)
def test_shard_map(manual, check_vma, operands):
    """Gradients of replicated operands are sums over the devices. Inside, one device's part is one call."""
    arrays, g, expected = operands
    spec = P("a")
    in_specs = (spec, P(), P(), P(), spec, P())
    on = TWO_AXES()
    mapped = jax.shard_map(
        WIDE.ours("cpu"), mesh=on, in_specs=in_specs, out_specs=spec, axis_names=set(manual), check_vma=check_vma
    )  # fmt: skip
    actual, hlo = compiled(lambda *arrays: pullback(mapped)(arrays, g), place(on, arrays, in_specs))
    assert_same(actual, expected)
    assert custom_calls(hlo) == {"conv": 2, "wgrad": 1} and sorted(ended(hlo)) == ["", "", EVERY]
