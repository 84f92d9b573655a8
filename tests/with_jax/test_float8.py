"""float8 in JAX programs: every pairing and result, gradients, what surrounds them, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases import fused
from cases.convolution import channels_last_convolution
from cases.float8 import FLOAT8, PAIRS, RESULTS, exact, largest_of, saturated
from cases.meshes import LAYOUTS, OF_ONE_AXIS, collectives, compiled, mesh, place
from cases.parts import diagonal
from cases.programs import CALLS_ALONE
from cases.reference import (
    HOST,
    assert_same,
    cotangent,
    custom_calls,
    exception_of,
    integers,
    lax_channels_last,
    opcodes,
    pullback,
    run,
    run_on_host,
)
from jaxconv import fallback
from jaxconv.explain import lines
from jaxconv.traced import KINDS

E4M3, E5M2 = FLOAT8
EACH_PAIR = pytest.mark.parametrize("lhs, rhs", PAIRS)
# By conv1d, conv2d and conv3d: (x, w, parameters).
LAYERS = {
    "line": ((3, 17, 6), (5, 6, 4), dict(rhs_dilation=2)),
    "dense": ((2, 5, 4, 6), (3, 2, 6, 8), {}),
    "strided": ((2, 7, 6, 5), (3, 3, 5, 7), dict(window_strides=(2, 3))),
    "lhs_dilated": ((2, 4, 3, 5), (3, 2, 5, 4), dict(lhs_dilation=(2, 3), padding=((1, 2), (2, 1)))),
    "grouped": ((2, 4, 5, 12), (3, 3, 4, 9), dict(feature_group_count=3)),
    "depthwise": ((2, 6, 5, 19), (3, 3, 1, 19), dict(feature_group_count=19)),
    "volume": ((2, 4, 3, 5, 4), (2, 3, 2, 4, 6), dict(window_strides=(1, 2, 1))),
}


@functools.cache
def known(name):
    """x, w and g of small integers, and y and the gradients, in float32."""
    x_shape, w_shape, params = LAYERS[name]
    theirs = functools.partial(lax_channels_last, **params)
    x, w = integers(x_shape), integers(w_shape, seed=1)
    operands = x, w, cotangent(theirs, x, w)
    return operands, run_on_host(pullback(theirs), *operands)


def ours_of(name, implementation, **more):
    x_shape, _, params = LAYERS[name]
    conv = getattr(jaxconv, f"conv{len(x_shape) - 2}d")
    return functools.partial(conv, **params, **more, implementation=implementation)


# Values and gradients.


@pytest.mark.parametrize("name, lhs, rhs", diagonal(list(LAYERS), PAIRS))
def test_value_and_gradients(name, lhs, rhs, implementation):
    """The cotangent has the result's type, each gradient that of its operand."""
    (x, w, g), (y, dx, dw) = known(name)
    every = [pullback(ours_of(name, implementation, out_dtype=out)) for out in RESULTS]
    operands = [(x.astype(lhs), w.astype(rhs), g.astype(out)) for out in RESULTS]
    expected = [(saturated(y, out), dx.astype(lhs), dw.astype(rhs)) for out in RESULTS]
    assert_same(run(lambda operands: [f(*of) for f, of in zip(every, operands, strict=True)], operands), expected)


@pytest.mark.parametrize("dtype", FLOAT8)
@pytest.mark.parametrize("out", [None, *RESULTS])
def test_as_lax_has_it(out, dtype, implementation):
    """Without an epilogue, rounded as JAX rounds: beyond the largest number to NaN or infinity."""
    case = channels_last_convolution((2, 5, 4, 6), (3, 2, 6, 8))
    (x, w, g), (_, dx, dw) = exact(case)
    operands = (100 * x).astype(dtype), w.astype(dtype)
    y = run(case.ours(implementation, out), *operands)
    if y.dtype not in FLOAT8:  # to which lax rounds in two steps, on the host
        assert_same(y, run_on_host(functools.partial(case.lax(), preferred_element_type=out), *operands))
    assert_same(y, run_on_host(case.lax(), *(a.astype("float32") for a in operands)).astype(y.dtype))
    assert np.any(np.isnan(np.asarray(y, "float32"))) == (y.dtype == E4M3)
    actual = run(pullback(case.ours(implementation, out)), x.astype(dtype), w.astype(dtype), g.astype(out or dtype))
    assert_same(actual[1:], (dx.astype(dtype), dw.astype(dtype)))


@pytest.mark.parametrize("activation", [None, "relu", "relu6"])
@EACH_PAIR
def test_a_float8_cotangent_is_multiplied_as_it_is(lhs, rhs, activation, implementation):
    """Numbers near the ends of its range, which float16 would not hold after a product. Also behind a mask."""
    x, w = np.full((1, 1, 1), 2.0**-6, lhs), np.full((1, 1, 1), 2.0**-6, rhs)
    conv = functools.partial(jaxconv.conv1d, activation=activation, out_dtype=E5M2, implementation=implementation)
    for g in (2.0**-10, 2.0**14):
        _, dx, dw = run(pullback(conv), x, w, np.full((1, 1, 1), g, E5M2))
        np.testing.assert_array_equal(
            [np.asarray(dx, "float32"), np.asarray(dw, "float32")],
            [np.full((1, 1, 1), g * 2.0**-6).astype(dtype).astype("float32") for dtype in (lhs, rhs)],
        )


@pytest.mark.parametrize("activation, narrow", [(None, E5M2), ("relu", E5M2), ("relu6", E5M2), ("silu", "float32")])
def test_the_type_that_gradients_multiply(activation, narrow):
    x, w, g = np.ones((1, 5, 4), E4M3), np.ones((3, 4, 6), E4M3), np.ones((1, 5, 6), E5M2)
    conv = functools.partial(jaxconv.conv1d, activation=activation, out_dtype=E5M2, padding="SAME")
    equations = jax.make_jaxpr(lambda x, w, g: jax.vjp(conv, x, w)[1](g))(x, w, g).jaxpr.eqns
    types = [{x.aval.dtype.name for x in equation.invars} for equation in equations if equation.primitive in KINDS]
    assert types == 2 * [{E4M3, narrow}]


ENDED = ["dense", "grouped", "scalars", "channels_first"]


@pytest.mark.parametrize("name, out, lhs, rhs", diagonal(ENDED, ["float32", "bfloat16", E5M2], PAIRS))
def test_epilogues(name, out, lhs, rhs, implementation):
    """Values, and gradients of everything: filters and cotangents are scaled in float32."""
    case = fused.CASES[name]
    x, w, *others = case.arrays()
    g = integers(jax.eval_shape(case.theirs(), x, w, *others).shape, "float32", 9)
    expected = run_on_host(fused.pullback(case.theirs()), (x, w, *others), g)
    arrays = x.astype(lhs), w.astype(rhs), *others
    y, gradients = run(fused.pullback(case.ours(implementation, out_dtype=out)), arrays, g.astype(out))
    assert_same(y, saturated(expected[0], out))
    assert_same(gradients, tuple(e.astype(a.dtype) for e, a in zip(expected[1], arrays, strict=True)))


def test_gradients_of_a_scale_beyond_float8(implementation):
    """Scaled numbers are rounded to no float8 on their way."""
    x, w = integers((2, 5, 4), E4M3, bound=4), integers((3, 4, 6), E4M3, 1, 4)
    scale = 2.0 ** np.array([-20, -12, 0, 9, 20, 40], "float32")
    ours = lambda x, w, scale: jaxconv.conv1d(x, w, scale=scale, out_dtype="float32", implementation=implementation)
    theirs = lambda x, w, scale: scale * lax_channels_last(x, w)
    g = integers((2, 5, 6), seed=2) / scale
    wide = [a.astype("float32") for a in (x, w)]
    y, (dx, dw, dscale) = run_on_host(fused.pullback(theirs), (*wide, scale), g)
    expected = y, (dx.astype(E4M3), dw.astype(E4M3), dscale)
    assert_same(run(fused.pullback(ours), (x, w, scale), g), expected)


def test_second_order(implementation):
    """Of x and w in float32, rounded to float8: gradients are those without the rounding."""
    case = fused.CASES["dense"].with_activation("silu")
    arrays = case.arrays()
    quantised = lambda x, w, *others: case.ours(implementation, out_dtype="float32")(
        x.astype(E4M3), w.astype(E5M2), *others
    )
    loss = lambda conv: lambda *arrays: jnp.sum(jnp.sin(0.1 * conv(*arrays)))
    of_scale = lambda conv: lambda *arrays: jnp.sum(jax.grad(loss(conv), 2)(*arrays))
    second = lambda conv: lambda *arrays: jax.grad(of_scale(conv), (2, 3))(*arrays)
    assert_same(run(second(quantised), *arrays), run_on_host(second(case.theirs()), *arrays), 2e-5)


def test_residuals_of_float8(implementation):
    (x, w, _), (y, *_) = known("dense")
    residual = integers(y.shape, E5M2, 5)
    conv = ours_of("dense", implementation, out_dtype="float32")
    assert_same(
        run(lambda x, w, r: conv(x, w, residual=r), x.astype(E4M3), w.astype(E5M2), residual),
        np.asarray(y) + residual.astype("float32"),
    )


# What surrounds them.


@pytest.mark.parametrize(
    "axes, name, lhs, rhs", diagonal([((0, None),), ((None, 0),), ((0, 0),)], ["dense", "grouped"], PAIRS)
)
def test_vmap(name, axes, lhs, rhs, implementation):
    (x, w, g), _ = known(name)
    stack = lambda a, axis: a if axis is None else np.stack([np.roll(a, i) for i in range(3)])
    arrays = stack(x, axes[0]), stack(w, axes[1]), stack(g, 0)
    theirs = functools.partial(lax_channels_last, **LAYERS[name][2])
    mapped = lambda conv: jax.vmap(pullback(conv), (*axes, 0))
    y, dx, dw = run_on_host(mapped(theirs), *arrays)
    actual = run(mapped(ours_of(name, implementation, out_dtype="float32")), arrays[0].astype(lhs),
                 arrays[1].astype(rhs), arrays[2])  # fmt: skip
    assert_same(actual, (y, dx.astype(lhs), dw.astype(rhs)))


@pytest.mark.parametrize("layout", OF_ONE_AXIS)
@pytest.mark.parametrize("out", ["float32", None])
def test_sharded(out, layout):
    """What devices add up is rounded to float8 after that."""
    case = channels_last_convolution((8, 6, 5, 8), (3, 3, 8, 16))
    (x, w, g), (y, dx, dw) = exact(case)
    out_dtype, on = np.dtype(out or E4M3), mesh()
    with jax.default_device(HOST), jax.set_mesh(on):
        arrays = place(on, (x.astype(E4M3), w.astype(E4M3), g.astype(out_dtype)), LAYOUTS[layout][1:])
        actual, text = compiled(pullback(case.ours("cpu", out)), arrays)
    assert_same(actual, (np.asarray(y).astype(out_dtype), dx.astype(E4M3), dw.astype(E4M3)))
    assert collectives(text) == {"all-reduce": 1}


@pytest.mark.parametrize("dtype", FLOAT8)
def test_install(dtype, implementation, uninstalled):
    case = channels_last_convolution((2, 5, 4, 6), (3, 2, 6, 8))
    (x, w, g), expected = exact(case)
    arrays = [a.astype(dtype) for a in (x, w, g)]
    jaxconv.install(implementation)
    assert_same(run(pullback(case.lax()), *arrays), tuple(e.astype(dtype) for e in expected))
    assert custom_calls(jax.jit(pullback(case.lax())).lower(*arrays).as_text()) == {"conv": 2, "wgrad": 1}


@EACH_PAIR
def test_by_lax(lhs, rhs):
    """implementation="xla", which is in float32 where lax has no such convolution."""
    (x, w, g), (y, dx, dw) = known("grouped")
    conv = pullback(ours_of("grouped", "xla", out_dtype="bfloat16"))
    operands = x.astype(lhs), w.astype(rhs), g.astype("bfloat16")
    assert not custom_calls(jax.jit(conv).lower(*operands).as_text())
    assert_same(run(conv, *operands), (y.astype("bfloat16"), dx.astype(lhs), dw.astype(rhs)))


@EACH_PAIR
def test_other_platforms(lhs, rhs):
    """lax answers there, with a warning."""
    (x, w, _), _ = known("dense")
    conv = jax.jit(functools.partial(ours_of("dense", None), out_dtype="float32"))
    fallback._warned.clear()
    with pytest.warns(jaxconv.FallbackWarning, match="this platform"):
        program = conv.trace(x.astype(lhs), w.astype(rhs)).lower(lowering_platforms=("tpu",)).as_text()
    assert "stablehlo.convolution" in program


# On the host.


@pytest.mark.parametrize("out_dtype", RESULTS)
@pytest.mark.parametrize("name", ["dense", "grouped", "depthwise", "channels_first", "activation_alone"])
def test_one_call_has_all_of_it(name, out_dtype):
    """Neither operands nor sums are written in a wider type."""
    case = fused.CASES[name]
    with jax.default_device(HOST):
        arrays = case.arrays(E4M3, out_dtype)
        more = dict(out_scale=0.25) if out_dtype in FLOAT8 else {}
        conv = case.ours("cpu", out_dtype=out_dtype, **more)
        hlo = jax.jit(conv).lower(*arrays).compile().as_text()
        assert custom_calls(hlo) == {"conv": 1}
        assert set(opcodes(hlo)) <= CALLS_ALONE
        (line,) = lines(conv, *arrays)
        assert line.startswith(f"fprop with its epilogue {E4M3}") and f"-> {out_dtype}" in line


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", E4M3])
@pytest.mark.parametrize("out_dtype", FLOAT8)
def test_float8_results_of_any_float(out_dtype, dtype):
    """By the kernel alone, also if nothing else is asked for."""
    (x, w, _), (y, *_) = known("dense")
    x, w, conv = (16 * x).astype(dtype), w.astype(dtype), ours_of("dense", "cpu", out_dtype=out_dtype)
    with jax.default_device(HOST):
        assert set(opcodes(jax.jit(conv).lower(x, w).compile().as_text())) <= CALLS_ALONE
        assert_same(run(conv, x, w), saturated(16 * np.asarray(y), out_dtype))


# What is refused.


@pytest.mark.parametrize("lhs, rhs", [pair for pair in PAIRS if pair[0] != pair[1]])
def test_two_types_need_a_result_type(lhs, rhs):
    (x, w, _), (y, *_) = known("dense")
    x, w = x.astype(lhs), w.astype(rhs)
    for more in ({}, dict(bias=1.0)):
        error = exception_of(ours_of("dense", "cpu", **more), x, w)
        assert type(error) is TypeError
        assert str(error).startswith("out_dtype must be one of float32, ") and f"{lhs} and {rhs}" in str(error)
    assert ours_of("dense", "cpu", preferred_element_type="float32")(x, w).dtype == "float32"
    assert_same(ours_of("dense", "cpu", out_dtype="float32")(x, w), y)


@pytest.mark.parametrize("lhs, rhs", [(E4M3, E5M2), (E4M3, "bfloat16"), ("int8", E5M2), (E4M3, "float8_e4m3b11fnuz")])
@pytest.mark.parametrize("preferred", [None, "float32"])
def test_refused_as_lax_refuses(preferred, lhs, rhs):
    x, w = np.ones((1, 2, 3, 3), lhs), np.ones((2, 2, 1, 1), rhs)
    arguments = x, w, (1, 1), "SAME"
    theirs, ours = (
        exception_of(f, *arguments, preferred_element_type=preferred)
        for f in (lax.conv_general_dilated, jaxconv.conv_general_dilated)
    )
    assert type(theirs) is type(ours) is TypeError and str(theirs) == str(ours)


@pytest.mark.parametrize(
    "lhs, rhs", [(E4M3, "bfloat16"), ("int8", E5M2), (E4M3, "float8_e4m3b11fnuz"), ("float32", "float16")]
)
@pytest.mark.parametrize("more", [{}, dict(out_dtype="float32"), dict(preferred_element_type="float32")], ids=str)
def test_other_pairs_are_refused_by_the_names_of_the_arguments(more, lhs, rhs):
    x, w = np.ones((1, 3, 2), lhs), np.ones((2, 2, 2), rhs)
    general = functools.partial(jaxconv.fused_conv_general_dilated, window_strides=(1,), padding="SAME")
    allowed = f"must be of one dtype, or of {E4M3} and {E5M2} with an out_dtype, got {lhs} and {rhs}"
    for conv, names in ((jaxconv.conv1d, "x and w"), (general, "lhs and rhs")):
        error = exception_of(functools.partial(conv, **more), x, w)
        assert type(error) is TypeError and str(error) == f"{names} {allowed}"


def test_results_of_float64_are_laxs(x64):
    x = np.ones((1, 3, 3, 2), E4M3)
    fallback._warned.clear()
    with pytest.warns(jaxconv.FallbackWarning, match=f"dtype {E4M3} with result float64"):
        y = jaxconv.conv2d(x, np.ones((1, 1, 2, 2), E4M3), preferred_element_type="float64")
    assert y.dtype == "float64" and np.all(np.asarray(y) == 2)


def test_largest_numbers_saturate(implementation):
    x = np.full((1, 2, 1), 448, E4M3)
    for out in FLOAT8:
        y = jaxconv.conv1d(x, np.full((1, 1, 1), 57344, E5M2), out_dtype=out, implementation=implementation)
        assert np.all(np.asarray(y, "float32") == largest_of(out))
