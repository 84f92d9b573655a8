"""Sharded images: values against unsharded lax, and what the devices exchange against lax's for the same shardings."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.meshes import PASSES, compiled, exchanged, mesh, place
from cases.parts import diagonal, every_other, name, parts
from cases.reference import (
    WITHOUT_SIMPLIFIER,
    assert_same,
    cotangent,
    custom_calls,
    exception_of,
    integers,
    pullback,
    run_on_host,
)
from cases.small import ENTRIES, Case
from jaxconv.arguments import normalised, read
from jaxconv.fallback import LAX
from jaxconv.problem.product import OPERANDS
from jaxconv.sharding.block import Local, block

pytestmark = pytest.mark.usefixtures("on_the_host")  # GPU machines simulate the eight devices too

TALL = (2, 32, 3, 4)
HEIGHT = P(None, "a")
FRACTIONAL = Case(
    "strided_lhs_dilated",
    TALL,
    (3, 3, 4, 5),
    {"window_strides": (3, 1), "lhs_dilation": (2, 1), "padding": ((1, 9), (1, 1))},
)
# For each case: the shape of the mesh, the spec of x and of the result, and how many rows of x each exchange of the
# forward pass gives a device at most.
CASES = [
    (Case("same", TALL, (3, 3, 4, 5)), (8,), HEIGHT, [1, 1]),
    (Case("even_window", TALL, (4, 3, 4, 5)), (8,), HEIGHT, [1, 2]),
    (Case("strided", TALL, (3, 3, 4, 5), {"window_strides": (2, 1)}), (8,), HEIGHT, [1]),
    (Case("patches", TALL, (4, 3, 4, 5), {"window_strides": (4, 3), "padding": "VALID"}), (8,), HEIGHT, []),
    (Case("rhs_dilated", TALL, (3, 3, 4, 5), {"rhs_dilation": (3, 1)}), (8,), HEIGHT, [3, 3]),
    (
        Case("lhs_dilated", (2, 16, 3, 4), (3, 3, 4, 5), {"lhs_dilation": (2, 1), "padding": ((1, 2), (1, 1))}),
        (8,), HEIGHT, [1],
    ),
    (FRACTIONAL, (8,), HEIGHT, None),
    (Case("several_hops", (2, 16, 3, 4), (9, 3, 4, 5)), (8,), HEIGHT, [2, 2, 2, 2]),
    (Case("shifted_up", TALL, (3, 3, 4, 5), {"padding": ((-3, 5), (1, 1))}), (8,), HEIGHT, [4, 1]),
    (Case("cropped", TALL, (3, 3, 4, 5), {"padding": ((-3, -3), (1, 1))}), (8,), HEIGHT, None),
    (Case("causal", (2, 32, 4), (3, 4, 5), {"rhs_dilation": (2,), "padding": ((4, 0),)}), (8,), HEIGHT, [4]),
    (Case("uneven", (2, 40, 3, 4), (3, 3, 4, 5), {"window_strides": (2, 1)}), (8,), HEIGHT, None),
    (Case("valid", TALL, (3, 3, 4, 5), {"padding": "VALID"}), (8,), HEIGHT, [2]),
    (Case("more_devices_than_rows", (2, 8, 3, 4), (3, 3, 4, 5), {"padding": "VALID"}), (8,), HEIGHT, None),
    (Case("grouped", (2, 32, 3, 8), (3, 3, 2, 8), {"feature_group_count": 4}), (8,), HEIGHT, [1, 1]),
    (Case("depthwise", (2, 32, 3, 8), (3, 3, 1, 8), {"feature_group_count": 8}), (8,), HEIGHT, [1, 1]),
    (Case("width", (2, 3, 32, 4), (3, 3, 4, 5)), (8,), P(None, None, "a"), [1, 1]),
    (Case("batch_and_height", TALL, (3, 3, 4, 5)), (2, 4), P("a", "b"), [1, 1]),
    (Case("height_and_width", (2, 16, 8, 4), (3, 3, 4, 5)), (4, 2), P(None, "a", "b"), None),
    (Case("height_over_both", TALL, (3, 3, 4, 5)), (4, 2), P(None, ("b", "a")), [1, 1]),
    (Case("volume", (2, 8, 8, 4, 2), (3, 3, 3, 2, 3)), (2, 2, 2), P("c", "a", "b"), None),
]  # fmt: skip


def automatic(shape):
    return mesh(shape, ("a", "b", "c")[: len(shape)])


def placed(on, case, spec):
    """Operands and cotangent; what the mesh does not divide lies whole on each device."""
    x, w = case.operands()
    operands = (x, w, cotangent(case.lax(), x, w))
    return [place_evenly(on, a, s) for a, s in zip(operands, (spec, P(), spec))]


def place_evenly(on, array, spec):
    sharding = NamedSharding(on, spec)
    try:
        return jax.device_put(array, sharding)
    except ValueError:
        return jax.device_put(array, NamedSharding(on, P()))


@pytest.mark.parametrize(
    "case, shape, spec, rows, of_conv", diagonal(CASES, [of_conv for of_conv, _ in PASSES]), ids=name
)
def test_passes_exchange_rows(case, shape, spec, rows, of_conv):
    """No images are gathered, unless lax gathers them too, and never more bytes than lax sends."""
    operands = placed(automatic(shape), case, spec)
    actual, hlo = compiled(of_conv(case.general("cpu")), operands)
    assert_same(actual, run_on_host(of_conv(case.lax()), *jax.device_get(operands)))
    assert sum(custom_calls(hlo).values()) == 1
    assert_no_more(exchanged(hlo), exchanged(compiled(of_conv(case.lax()), operands)[1]))


def assert_no_more(ours, laxs):
    """No all-gather that lax has not, and no more bytes where it has none."""
    total = lambda found: sum(map(sum, found.values()))
    assert len(ours.get("all-gather", [])) <= len(laxs.get("all-gather", []))
    assert "all-gather" in laxs or total(ours) <= total(laxs)


@pytest.mark.parametrize(
    "case, shape, spec, rows, entry", diagonal([c for c in CASES if c[-1] is not None], ENTRIES), ids=str
)
def test_rows_of_each_exchange(case, shape, spec, rows, entry):
    """A forward pass sends the rows that windows reach into, and the result lies as lax's does."""
    x, w, _ = placed(automatic(shape), case, spec)
    actual, hlo = compiled(getattr(case, entry)("cpu"), (x, w))
    expected, _ = compiled(case.lax(), (x, w))
    assert_same(actual, expected)
    assert actual.sharding.is_equivalent_to(expected.sharding, actual.ndim)
    shard = x.sharding.shard_shape(x.shape)
    sharded = next(axis for axis in range(1, x.ndim) if shard[axis] < x.shape[axis])
    row = 4 * np.prod(shard) // shard[sharded]
    assert sorted(exchanged(hlo).get("collective-permute", [])) == sorted(count * row for count in rows)


HEIGHT_CASES = [case for case, _, spec, _ in CASES if spec == HEIGHT]


@pytest.mark.parametrize(
    "case", [case for case in HEIGHT_CASES if str(case) in ("same", "strided", "lhs_dilated")], ids=str
)
def test_second_derivatives(case):
    """A Hessian-vector product in both operands."""
    x, w, _ = placed(automatic((8,)), case, HEIGHT)

    def step(conv):
        gradients = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 3), argnums=(0, 1))
        return lambda x, w: jax.jvp(gradients, (x, w), (x, w))

    actual, hlo = compiled(step(case.general("cpu")), (x, w))
    assert_same(actual, run_on_host(step(case.lax()), *jax.device_get((x, w))), 1e-6)
    assert "all-gather" not in exchanged(hlo)


def test_vmap_of_sharded_images():
    case, *_ = CASES[0]
    x, w = case.operands()
    stacked = jnp.stack([x, 2 - x])
    operands = place(automatic((8,)), (stacked, w), (P(None, None, "a"), P()))
    step = lambda conv: jax.grad(lambda x, w: jnp.sum(jax.vmap(conv, (0, None))(x, w) ** 2), argnums=(0, 1))
    actual, hlo = compiled(step(case.general("cpu")), operands)
    assert_same(actual, run_on_host(step(case.lax()), stacked, w))
    assert "all-gather" not in exchanged(hlo)


def test_conv_transpose():
    x, w = integers((2, 16, 3, 4)), integers((4, 4, 4, 5))
    operands = place(automatic((8,)), (x, w), (HEIGHT, P()))
    step = lambda conv: jax.grad(lambda x, w: jnp.sum(conv(x, w, (2, 2), "SAME") ** 2), argnums=(0, 1))
    ours = lambda *args: jaxconv.conv_transpose(*args, implementation="cpu")
    actual, hlo = compiled(step(ours), operands)
    assert_same(actual, run_on_host(step(lax.conv_transpose), x, w))
    assert "all-gather" not in exchanged(hlo)


def test_weights_that_are_stored_in_shards():
    """Images keep the mesh axis over which the filter is stored; the filter is gathered, as in lax."""
    case, *_ = CASES[0]
    case = replace(case, rhs=(3, 3, 4, 8))
    operands = place(automatic((8,)), (*case.operands(),), (HEIGHT, P(None, None, None, "a")))
    actual, hlo = compiled(case.general("cpu"), operands)
    _, lax_hlo = compiled(case.lax(), operands)
    assert_same(actual, run_on_host(case.lax(), *case.operands()))
    assert_no_more(exchanged(hlo), exchanged(lax_hlo))


def decoder(conv, conv_transpose, params, z):
    """A VAE's: residual layers and two upsamplings, by a repetition and by a transposed convolution."""
    for i in range(2):
        z = z + conv(jnp.maximum(z, 0), params["residual"][i])
    z = jnp.repeat(jnp.repeat(z, 2, axis=1), 2, axis=2)
    z = jnp.maximum(conv(z, params["wide"]), 0)
    z = conv_transpose(z, params["up"], (2, 2), "SAME")
    return conv(z, params["image"])


@pytest.mark.parametrize("shape, spec", [((8,), HEIGHT), ((2, 4), P("a", "b"))], ids=["height", "batch_and_height"])
def test_decoder(shape, spec):
    """The images of unsharded lax; no gathers, and a part of the memory."""
    z, on = integers((2, 16, 6, 8)), automatic(shape)
    windows = {"residual": (2, 3, 3, 8, 8), "wide": (3, 3, 8, 6), "up": (4, 4, 6, 4), "image": (3, 3, 4, 3)}
    params = {name: integers(window, bound=1) for name, window in windows.items()}
    conv = lambda x, w: jaxconv.conv2d(x, w, implementation="cpu")
    up = lambda *args: jaxconv.conv_transpose(*args, implementation="cpu")
    by_lax = lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    decode = lambda params, z: decoder(conv, up, params, z)
    operands = jax.device_put(params, NamedSharding(on, P())), jax.device_put(z, NamedSharding(on, spec))
    program, alone = jax.jit(decode).lower(*operands).compile(), jax.jit(decode).lower(params, z).compile()
    images = program(*operands)
    assert_same(images, run_on_host(lambda params, z: decoder(by_lax, lax.conv_transpose, params, z), params, z))
    assert images.sharding.is_equivalent_to(NamedSharding(on, spec), images.ndim)
    assert "all-gather" not in exchanged(program.as_text())
    memory = [p.memory_analysis().temp_size_in_bytes for p in (alone, program)]
    print(f"temporary memory: {memory[0]} bytes alone, {memory[1]} a device of eight")
    assert memory[1] < memory[0] / 3


# Periodic dimensions.


def wrapped(x, w, window_strides):
    """The longitudes, which are columns, are a ring."""
    reach = w.shape[1] - 1
    x = jnp.pad(x, ((0, 0), (0, 0), (reach // 2, reach - reach // 2), (0, 0)), "wrap")
    padding = ((1, 1), (0, 0))
    return lax.conv_general_dilated(x, w, window_strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


# (columns of the filter, stride, columns of each exchange of a forward pass)
RINGS = [(3, 1, [1, 1]), (4, 1, [1, 2]), (3, 2, [1]), (9, 1, [4, 4]), (11, 1, [1, 4, 4, 1])]


@pytest.mark.parametrize("columns, stride, exchanges, kind", diagonal(RINGS, [AxisType.Auto, AxisType.Explicit]))
def test_rings(columns, stride, exchanges, kind):
    """The ends exchange columns as all neighbours do, and nothing else travels."""
    x, w = integers((1, 4, 32, 2)), integers((3, columns, 2, 3))
    strides = (1, stride)
    padding = ((1, 1), "CIRCULAR")
    conv = lambda x, w: jaxconv.conv2d(x, w, padding=padding, window_strides=strides, implementation="cpu")
    theirs = lambda x, w: wrapped(x, w, strides)
    on, spec = mesh(kind=kind), P(None, None, "a")
    operands = (x, w, cotangent(theirs, x, w))
    with jax.set_mesh(on):
        placed = place(on, operands, (spec, P(), spec))
        actual, hlo = compiled(pullback(conv), placed)
        _, forward = compiled(conv, placed[:2])
    assert_same(actual, run_on_host(pullback(theirs), *operands))
    assert "all-gather" not in exchanged(hlo)
    assert sorted(exchanged(forward)["collective-permute"]) == sorted(4 * 4 * 2 * count for count in exchanges)


# Sizes that the devices do not divide.


@pytest.mark.parametrize("stride", [1, 2])
def test_rows_after_the_last_are_never_read(stride):
    """XLA pads uneven shards with anything: here with NaN, between two layers."""
    x, w = 1 + np.abs(integers((2, 32, 3, 4))), 1 + np.abs(integers((3, 3, 4, 4)))
    on = automatic((8,))

    def step(conv):
        layer = lambda x, w: conv(x, w, (stride, 1), ((0, 0), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC"))

        def loss(x, w):
            y = layer(x, w)
            y = jnp.where(y > 0, y, jnp.nan)  # windows of zeros have a result of zero
            return jnp.sum(layer(y, w)), y

        return lambda x, w: jax.value_and_grad(lambda x, w: loss(x, w)[0], argnums=(0, 1))(x, w)

    actual, hlo = compiled(
        step(lambda *a, **k: jaxconv.conv_general_dilated(*a, **k, implementation="cpu")),
        place(on, (x, w), (HEIGHT, P())),
    )
    assert_same(actual, run_on_host(step(lax.conv_general_dilated), x, w))
    assert "all-gather" not in exchanged(hlo)


@st.composite
def problems(draw):
    small = st.integers(1, 3)
    size, kernel = draw(st.integers(1, 20)), draw(st.integers(1, 5))
    arguments = {
        "window_strides": (draw(small),),
        "padding": ((draw(st.integers(-4, 6)), draw(st.integers(-4, 6))),),
        "lhs_dilation": (draw(small),),
        "rhs_dilation": (draw(small),),
    }
    return Case("random", (1, size, 2), (kernel, 2, 3), arguments)


@pytest.mark.parametrize("kind", OPERANDS)
@parts(12)
@settings(max_examples=5)
@given(case=problems(), devices=st.sampled_from([2, 3, 8]))
def test_any_blocks_with_anything_after_the_last_row(kind, part, case, devices):
    """A device's part, under shard_map, of arrays that are filled with NaN to whole blocks."""
    x, w = case.operands()
    size = (case.lhs[1] - 1) * case.params["lhs_dilation"][0] + 1
    assume(size + sum(p for p in case.params["padding"][0] if p < 0) >= 0)  # lax's condition
    y = jax.eval_shape(case.lax(), x, w)
    assume(0 not in y.shape)
    g = integers(y.shape)
    arguments = case.general("cpu").keywords | {"lhs_dilation": case.params["lhs_dilation"]}
    del arguments["implementation"]
    problem, _ = read(lax.conv_general_dilated, x, w, normalised(x, w, arguments))
    on = jax.make_mesh((devices,), ("a",), axis_types=(AxisType.Auto,), devices=jax.devices("cpu")[:devices])
    split = {"n": (), "c": (), "k": (), "g": (), "s0": ("a",)}
    local = Local(LAX[kind], by_joining) if kind == "conv" else Local(LAX[kind])
    run = block(kind, problem, local, split, on.shape)
    specs = {"conv": (HEIGHT, P(), HEIGHT), "wgrad": (HEIGHT, HEIGHT, P())}[kind]
    operands = (x, w) if kind == "conv" else (x, g)
    filled = [fill(a, devices) if spec == HEIGHT else a for a, spec in zip(operands, specs)]
    out = jax.jit(jax.shard_map(run, mesh=on, in_specs=specs[:2], out_specs=specs[2], check_vma=False))(*filled)
    expected = run_on_host(LAX[kind](problem), *operands, **WITHOUT_SIMPLIFIER)
    assert_same(out[:, : expected.shape[1]] if kind == "conv" else out, expected)


def by_joining(apart):
    """In place of a kernel that reads the rows of neighbours where they lie."""
    problem, (before, after), _ = apart
    (low, *_), (axis, *_) = problem.pad_low, problem.lhs_spec.spatial
    size = problem.lhs_shape[axis]

    def convolve(x, w, *neighbours):
        first = neighbours[:1] if before else ()
        last = neighbours[-1:] if after else ()
        assert [n.shape[axis] for n in neighbours] == [n for n in apart.rows if n]
        whole = jnp.concatenate((*first, x, *last), axis)
        shape = (*problem.lhs_shape[:axis], size + before + after, *problem.lhs_shape[axis + 1 :])
        seen = replace(problem, lhs_shape=shape, pad_low=(low - before, *problem.pad_low[1:]))
        return LAX["conv"](seen)(whole, w)

    return convolve


def fill(x, devices):
    return np.pad(x, ((0, 0), (0, -x.shape[1] % devices), (0, 0)), constant_values=np.nan)


APART = {"same": (1, 1), "even_window": (1, 2), "strided": (0, 1), "rhs_dilated": (3, 3), "causal": (4, 0),
         "grouped": (1, 1), "depthwise": (1, 1), "valid": (0, 2), "patches": None, "lhs_dilated": None,
         "several_hops": None, "uneven": None, "shifted_up": None, "width": None}  # fmt: skip


@pytest.mark.parametrize("case, spec", [(case, spec) for case, _, spec, _ in CASES if str(case) in APART], ids=str)
def test_rows_of_neighbours_stay_apart(case, spec):
    """Where a kernel may read them where they lie: they are those of the next devices, of the first dimension."""
    x, w = case.operands()
    arguments = dict(case.general("cpu").keywords)
    arguments["lhs_dilation"] = case.params.get("lhs_dilation", (1,) * (x.ndim - 2))
    del arguments["implementation"]
    problem, _ = read(lax.conv_general_dilated, x, w, normalised(x, w, arguments))
    seen = []

    def with_rows(apart):
        seen.append(apart.rows)
        return by_joining(apart)

    on = automatic((8,))
    split = {"n": (), "c": (), "k": (), "g": ()} | {f"s{i - 1}": axes or () for i, axes in enumerate(spec) if i}
    run = block("conv", problem, Local(LAX["conv"], with_rows), {k: v and ("a",) for k, v in split.items()}, on.shape)
    assert (seen or [None])[0] == APART[str(case)]
    if seen:
        run = jax.shard_map(run, mesh=on, in_specs=(spec, P()), out_specs=spec, check_vma=False)
        expected = run_on_host(LAX["conv"](problem), x, w)
        assert_same(jax.jit(run)(x, w)[:, : expected.shape[1]], expected)


# Explicit meshes.


def explicit(shape):
    return mesh(shape, ("a", "b", "c")[: len(shape)], AxisType.Explicit)


@pytest.mark.parametrize("case, shape, spec, rows", every_other(CASES), ids=[str(case) for case, *_ in CASES])
def test_explicit_meshes(case, shape, spec, rows):
    """Types, and the error where a result's rows are not a multiple of the devices, are lax's."""
    on = explicit(shape)
    operands = placed(on, case, spec)
    with jax.set_mesh(on):
        error = exception_of(jax.eval_shape, case.lax(), *operands[:2])
        assert type(exception_of(jax.eval_shape, case.general("cpu"), *operands[:2])) is type(error)
        if error is not None:
            return
        actual, hlo = compiled(pullback(case.general("cpu")), operands)
        types = [jax.eval_shape(pullback(conv), *operands) for conv in (case.general("cpu"), case.lax())]
    assert_same(actual, run_on_host(pullback(case.lax()), *jax.device_get(operands)))
    assert [t.sharding.spec for t in types[0]] == [t.sharding.spec for t in types[1]]
    assert "all-gather" not in exchanged(hlo)
