"""NCHW32: the same bits as NHWC, read and written as it lies, and what is refused."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from jax import export
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxconv
from cases.blocks import CASES, EVERY, FILTERS, LAYOUT, Images, in_blocks, to_blocks
from cases.meshes import mesh, place
from cases.parts import diagonal, parts
from cases.programs import CALLS_ALONE, exported
from cases.reference import HOST, assert_same, custom_calls, exception_of, integers, opcodes, run
from jaxconv.explain import lines

INT8 = dict(layout=LAYOUT, out_dtype="int8")


def ours(case, **more):
    """`(x, w, operands) -> y`, all but w in blocks."""
    conv = case.conv(**INT8 | more)
    return lambda x, w, operands: conv(x, w, **operands)


@pytest.mark.parametrize("name, prepare", diagonal(list(CASES), list(FILTERS)))
def test_same_bits(name, prepare, implementation):
    case, prepare = CASES[name], FILTERS[prepare]
    x, w, operands = case.arrays()
    conv = ours(case, activation="relu", implementation=implementation)
    y = run(conv, to_blocks(x), prepare(w), in_blocks(operands))
    assert_same(y, to_blocks(case.expected(x, w, operands, activation="relu")))
    assert len(np.unique(y)) > 20


@pytest.mark.parametrize("names", [(), ("bias",), ("residual",), ("scale", "out_scale")], ids=str)
def test_any_operands(names, implementation):
    case = CASES["dense"]
    x, w, operands = case.arrays(names)
    y = run(ours(case, implementation=implementation), to_blocks(x), w, in_blocks(operands))
    assert_same(y, to_blocks(case.expected(x, w, operands)))


def sizes(least, most):
    return st.integers(least, most)


@st.composite
def images(draw):
    pair = lambda strategy: (draw(strategy), draw(strategy))
    channels = 32 * draw(sizes(1, 3)), 32 * draw(sizes(1, 3))
    params = dict(window_strides=pair(sizes(1, 3)), rhs_dilation=pair(sizes(1, 2)),
                  padding=draw(st.sampled_from(["SAME", "SAME_LOWER", 4, ((3, 4), (5, 3))])))  # fmt: skip
    return Images((draw(sizes(1, 3)), *pair(sizes(1, 9)), channels[0]), (*pair(sizes(1, 3)), *channels), params)


@parts(3)
@settings(max_examples=2, database=None, print_blob=True, phases=[Phase.generate],
          suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])  # fmt: skip
@given(drawn=st.lists(images(), min_size=6, max_size=6))
def test_random_images(drawn, part, implementation):
    """Many in one program."""
    arrays = [case.arrays(EVERY) for case in drawn]
    expected = [case.expected(*of) for case, of in zip(drawn, arrays, strict=True)]
    given = [(to_blocks(x), w, in_blocks(operands)) for x, w, operands in arrays]
    convs = [ours(case, implementation=implementation) for case in drawn]
    results = run(lambda given: [conv(*of) for conv, of in zip(convs, given, strict=True)], given)
    assert_same(results, list(map(to_blocks, expected)))


@pytest.mark.parametrize("out_dtype", ["float32", "bfloat16", "float16"])
def test_other_results(out_dtype, implementation):
    """XLA converts them, and the way back removes that."""
    case = CASES["dense"]
    x, w, operands = case.arrays(EVERY[:-1])
    more = dict(out_dtype=out_dtype, activation="relu")
    conv = ours(case, implementation=implementation, **more)
    given = to_blocks(x), w, in_blocks(operands)
    assert_same(run(conv, *given), to_blocks(case.expected(x, w, operands, **more)))


def test_last_layer_needs_no_conversion():
    case = CASES["dense"]
    x, w, operands = case.arrays(("scale", "bias"))
    conv = ours(case, out_dtype="float32", implementation="cpu")
    with jax.default_device(HOST):
        last = jax.jit(lambda *given: jaxconv.from_nchw32(conv(*given)))
        assert set(opcodes(last.lower(to_blocks(x), w, operands).compile().as_text())) <= CALLS_ALONE


def test_sums(implementation):
    case = CASES["dense"]
    x, w, _ = case.arrays()
    sums = dict(out_dtype=None, preferred_element_type="int32")
    y = run(case.conv(layout=LAYOUT, implementation=implementation, **sums), to_blocks(x), w)
    assert_same(y, to_blocks(case.expected(x, w, {}, **sums)))


def test_circular(implementation):
    case = Images((2, 6, 7, 64), (3, 2, 64, 32), dict(padding=("CIRCULAR", (1, 2)), window_strides=(2, 1)))
    x, w, operands = case.arrays()
    y = run(ours(case, implementation=implementation), to_blocks(x), w, in_blocks(operands))
    assert_same(y, to_blocks(case.expected(x, w, operands)))


def test_outside_of_a_trace(implementation):
    case = CASES["strided"]
    x, w, operands = case.arrays()
    y = ours(case, implementation=implementation)(to_blocks(x), w, in_blocks(operands))
    assert_same(y, to_blocks(case.expected(x, w, operands)))


def test_converters():
    x = integers((2, 3, 4, 96), "int8", bound=100)
    assert_same(jaxconv.to_nchw32(x), to_blocks(x))
    assert_same(jaxconv.from_nchw32(jaxconv.to_nchw32(x)), jnp.asarray(x))
    assert_same(jax.jit(jaxconv.from_nchw32)(to_blocks(x.astype("bfloat16"))), jnp.asarray(x, "bfloat16"))


# What surrounds them.


@pytest.mark.parametrize("mapped", ["x", "x_and_residual", "w", "both", "bias"])
def test_vmap(mapped, implementation):
    """A mapped x is folded into the batch, and stays one call; of others the epilogue is mapped."""
    case = CASES["dense"]
    x, w, operands = case.arrays(("bias", "residual"))
    several = {"x": "x", "x_and_residual": ("x", "residual"), "both": ("x", "w")}.get(mapped, (mapped,))
    every = dict(x=x, w=w, **operands)
    stacked = {name: np.stack([a, a[::-1]]) if name in several else a for name, a in every.items()}
    axes = {name: 0 if name in several else None for name in every}
    conv = lambda a, layout, **more: case.conv(out_dtype="int8", layout=layout, **more)(**a)
    blocked = {name: jax.vmap(to_blocks_of)(a) if axes[name] == 0 and name in ("x", "residual")
               else to_blocks(a) if name in ("x", "residual") else a for name, a in stacked.items()}  # fmt: skip
    ours = jax.vmap(lambda a: conv(a, LAYOUT, implementation=implementation), (axes,))
    theirs = jax.vmap(lambda a: conv(a, "NHWC", implementation="xla"), (axes,))
    expected = run(lambda a: jax.vmap(jaxconv.to_nchw32)(theirs(a)), stacked)
    assert_same(run(ours, blocked), expected)
    if mapped.startswith("x"):
        assert custom_calls(jax.jit(ours).lower(blocked).as_text()) == {"conv": 1}


def to_blocks_of(x):
    return jaxconv.to_nchw32(x)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sharded_batch(kind):
    case = Images((8, 5, 6, 64), (3, 3, 64, 96))
    x, w, operands = case.arrays(("scale", "bias"))
    expected = to_blocks(case.expected(x, w, operands))
    with jax.default_device(HOST), jax.set_mesh(on := mesh(kind=kind)):
        arrays = place(on, (to_blocks(x), w), (P("a"), P()))
        y = jax.jit(ours(case, implementation="cpu"))(*arrays, operands)
    assert_same(y, expected)


def test_export_with_any_batch(implementation):
    case = CASES["dense"]
    x, w, operands = case.arrays(("scale",))
    (batch,) = export.symbolic_shape("b")
    types = jax.ShapeDtypeStruct((batch, 2, 9, 8, 32), "int8"), jax.ShapeDtypeStruct(w.shape, "int8")
    conv = lambda x, w: ours(case, implementation=implementation)(x, w, operands)
    program = export.deserialize(exported(conv, *types).serialize())
    assert_same(program.call(to_blocks(x), w), to_blocks(case.expected(x, w, operands)))


def test_derivatives(implementation):
    """As of NHWC: of a floating result those of the epilogue's operands, of int8 none."""
    case = CASES["dense"]
    x, w, operands = case.arrays(("scale", "bias"))
    loss = lambda operands, x, layout, **more: jnp.sum(
        case.conv(layout=layout, implementation=implementation, **more)(x, w, **operands).astype("float32") ** 2
    )
    gradient = jax.grad(loss)
    of_blocks, of_nhwc = (
        run(lambda o, x, layout=layout: gradient(o, x, layout), operands, a)
        for layout, a in ((LAYOUT, to_blocks(x)), ("NHWC", x))
    )
    assert_same(of_blocks, of_nhwc, rtol=1e-6)
    none = run(lambda o, x: gradient(o, x, LAYOUT, out_dtype="int8"), operands, to_blocks(x))
    assert_same(none, jax.tree.map(jnp.zeros_like, operands))


def test_explained(implementation):
    case = CASES["dense"]
    x, w, _ = case.arrays(())
    (line,) = lines(ours(case, bias=1.0, implementation=implementation), to_blocks(x), w, {})
    assert line.startswith("fprop with its epilogue int8[2,2,9,8,32]") and "result in blocks of channels" in line


# No conversions.


def network(x, filters, implementation="cpu"):
    """Two layers with a residual."""
    for w in filters:
        x = jaxconv.conv2d(x, w, scale=0.01, residual=x, activation="relu", implementation=implementation, **INT8)
    return x


def operands_of_network(prepare):
    w = integers((3, 3, 64, 64), "int8")
    return to_blocks(integers((2, 8, 8, 64), "int8")), [prepare(w), prepare(w)]


@pytest.mark.parametrize("prepare", FILTERS.values(), ids=FILTERS)
def test_the_host_needs_only_our_calls(prepare):
    with jax.default_device(HOST):
        hlo = jax.jit(network).lower(*operands_of_network(prepare)).compile().as_text()
    assert custom_calls(hlo) == {"conv": 2} and set(opcodes(hlo)) <= CALLS_ALONE


@pytest.mark.parametrize("prepare, family", [
    *((prepare, family) for prepare in FILTERS for family in ("cuda", "mma", "simt")), ("as_it_is", "wgmma"),
    ("prepared_for_it", "wgmma"),
])  # fmt: skip
def test_a_gpu_needs_only_our_calls(prepare, family, without_tuning, cuda_kernels):
    """Programs are lowered for it, but not run. Only a filter that is not prepared may be transposed."""
    x, filters = operands_of_network(FILTERS[prepare])
    program = jax.jit(functools.partial(network, implementation=family)).trace(x, filters)
    text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert custom_calls(text) == {"conv": 2} and f'family = "{family}"' in text or family == "cuda"
    ops = Counter(opcodes_of_stablehlo(text))
    transposed = ops.pop("transpose", 0)
    assert set(ops) <= {"constant", "custom_call", "reshape", "optimization_barrier"}
    assert transposed == (2 if (prepare, family) == ("as_it_is", "wgmma") else 0) or family == "cuda"
    assert all("3x3x2x32x64" in line for line in text.splitlines() if "stablehlo.transpose" in line)
    assert transposed == 0 or prepare == "as_it_is"


def opcodes_of_stablehlo(text):
    return [line.partition("stablehlo.")[2].partition(" ")[0] for line in text.splitlines() if "stablehlo." in line]


# Bad input.

X, W = (2, 2, 5, 6, 32), (3, 3, 64, 96)
REFUSED = {
    "channels_of_w": (dict(w=(3, 3, 40, 96)), ValueError, "w must have input channels that are a multiple of 32"),
    "outputs_of_w": (dict(w=(3, 3, 64, 40)), ValueError, "w must have output channels that are a multiple of 32"),
    "other_channels": (dict(w=(3, 3, 96, 96)), ValueError, "w must have the input channels of x, 64, got 96"),
    "block_of_x": (dict(x=(2, 2, 5, 6, 30)), ValueError, "x must have its channels in blocks of 32"),
    "nhwc": (dict(x=(2, 5, 6, 64)), TypeError, "x must have 5 dimensions, [N, C/32, H, W, 32]"),
    "filter_of_a_volume": (dict(w=(1, 3, 3, 64, 96)), TypeError, "w must have 4 dimensions, HWIO"),
    "floats": (dict(x_dtype="float32"), TypeError, "x must be int8"),
    "filter_of_floats": (dict(w_dtype="bfloat16"), TypeError, "w must be int8"),
    "groups": (dict(feature_group_count=2), ValueError, "feature_group_count must be 1"),
    "filter_of_groups": (dict(w=(3, 3, 32, 96), feature_group_count=2), ValueError, "feature_group_count must be 1"),
    "lhs_dilation": (dict(lhs_dilation=(1, 2)), ValueError, "lhs_dilation must be 1"),
    "strides": (dict(window_strides=(1, 1, 1)), ValueError, "window_strides must have an entry for each of 2 spatial"),
    "dilations": (dict(lhs_dilation=(1, 1, 1)), ValueError, "lhs_dilation must have an entry for each of 2 spatial"),
    "strides_of_0": (dict(window_strides=0), ValueError, "window_strides must be positive integers, got (0, 0)"),
    "fraction": (dict(window_strides=1.5), TypeError, "window_strides must be an integer or a sequence of integers"),
    "no_dilation": (dict(rhs_dilation=0), TypeError, "rhs_dilation must be positive integers, got (0, 0)"),
    "flat_pads": (dict(padding=(1, 1)), ValueError, "(low, high) pairs, got (1, 1)"),
    "pads": (dict(padding=((1, 1),)), ValueError, "padding must have an entry for each of 2 spatial dimensions"),
    "no_padding": (dict(padding=None), ValueError, "padding must be a string or a sequence of (low, high) pairs"),
    "residual": (dict(residual=(2, 5, 6, 96)), TypeError, "residual must have the output's shape (2, 3, 5, 6, 32)"),
    "unknown": (dict(layout="NCHW4"), ValueError, 'layout must be "NHWC" or "NCHW32", got \'NCHW4\''),
}


@pytest.mark.parametrize("given, type_, text", REFUSED.values(), ids=REFUSED)
def test_refused_while_tracing(given, type_, text, implementation):
    given = dict(x=X, w=W, x_dtype="int8", w_dtype="int8", layout=LAYOUT) | given
    arrays = [jax.ShapeDtypeStruct(given.pop(name), given.pop(f"{name}_dtype")) for name in ("x", "w")]
    if "residual" in given:
        given["residual"] = jnp.zeros(given["residual"], "int8")
    conv = lambda x, w: jaxconv.conv2d(x, w, bias=1.0, out_dtype="int8", implementation=implementation, **given)
    error = exception_of(jax.eval_shape, conv, *arrays)
    assert type(error) is type_ and text in str(error), error


@pytest.mark.parametrize("shape, type_", [((2, 3, 4, 40), ValueError), ((2, 3, 32), TypeError)])
def test_no_images_to_convert(shape, type_):
    error = exception_of(jax.eval_shape, jaxconv.to_nchw32, jax.ShapeDtypeStruct(shape, "int8"))
    assert type(error) is type_ and str(error).startswith("x must have")


@pytest.mark.parametrize("shape", [(2, 3, 4, 64), (2, 3, 4, 5, 16)])
def test_no_blocks_to_convert(shape):
    error = exception_of(jaxconv.from_nchw32, jnp.zeros(shape, "int8"))
    assert type(error) is TypeError and str(error).startswith("x must have 5 dimensions, [N, C/32, H, W, 32]")


def test_filters_of_another_layout():
    x, w, _ = CASES["dense"].arrays(())
    error = exception_of(jaxconv.conv2d, x, jaxconv.prepare_filter(w, LAYOUT), bias=1.0)
    assert type(error) is ValueError and 'w is prepared for layout "NCHW32" alone' in str(error)
    error = exception_of(jaxconv.prepare_filter, w, "NHWC")
    assert type(error) is ValueError and str(error).startswith("layout must be None or")


@pytest.mark.parametrize("shape, dtype, type_, text", [
    ((3, 3, 40, 64), "int8", ValueError,
     'w must have input channels that are a multiple of 32 with layout "NCHW32", got 40'),
    ((3, 3, 64, 8), "int8", ValueError,
     'w must have output channels that are a multiple of 32 with layout "NCHW32", got 8'),
    ((3, 3, 64, 64), "float32", TypeError, 'w must be int8 with layout "NCHW32", got float32'),
    ((3, 64, 64), "int8", TypeError, "w must have 4 dimensions, HWIO, got shape (3, 64, 64)"),
])  # fmt: skip
def test_filters_that_cannot_be_prepared(shape, dtype, type_, text):
    error = exception_of(
        jax.eval_shape, lambda w: jaxconv.prepare_filter(w, LAYOUT), jax.ShapeDtypeStruct(shape, dtype)
    )
    assert type(error) is type_ and str(error) == text


@pytest.mark.parametrize("change, type_, text", [
    (lambda w: w.astype("float32"), TypeError, "w must be int8"),
    (lambda w: w[..., :40, :], ValueError, "w must have output channels that are a multiple of 32"),
])  # fmt: skip
def test_prepared_filters_that_were_changed(change, type_, text):
    """They are a pytree."""
    x, w, _ = CASES["dense"].arrays(())
    w = jax.tree.map(change, jaxconv.prepare_filter(w, LAYOUT))
    error = exception_of(jaxconv.conv2d, to_blocks(x), w, layout=LAYOUT)
    assert type(error) is type_ and str(error).startswith(text)
