"""Gradients of convolutions with an epilogue, by dtype, against those of lax's convolution and the same expression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxconv
from cases.fused import CASES, channels_last_fused, cotangent, pullback
from cases.reference import assert_same, custom_calls, integers, run, run_on_host
from jaxconv.activations import Clip

RTOL = 2e-5


pytestmark = pytest.mark.usefixtures("full_precision")


def test_gradients_of_float64_with_a_scale_of_float32(implementation, x64):
    """They are as exact as those of a scale of float64."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 6, 6, 4)), rng.normal(size=(3, 3, 4, 6))
    scale = rng.normal(size=6).astype("float32")
    loss = lambda x, w, scale: jnp.sum(jaxconv.conv2d(x, w, scale=scale, implementation=implementation) ** 2)
    ours = jax.grad(loss, (0, 1))(x, w, scale)
    expected = jax.grad(loss, (0, 1))(x, w, scale.astype("float64"))
    for actual, of_float64 in zip(ours, expected, strict=True):
        np.testing.assert_allclose(actual, of_float64, rtol=0, atol=1e-13 * np.abs(of_float64).max())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_gradients_in_other_dtypes(dtype, activation, implementation, x64):
    """Those of halves within their rounding, of all that is rounded on the way."""
    case = CASES["dense"].with_activation(activation)
    arrays = case.arrays(dtype)
    g = integers(jax.eval_shape(case.theirs(), *arrays).shape, dtype, 9)
    actual = run(pullback(case.ours(implementation)), arrays, g)
    wide = [np.asarray(a).astype("float64") for a in (*arrays, g)]
    y, gradients = run_on_host(pullback(case.theirs()), wide[:-1], wide[-1])
    expected = y.astype(dtype), tuple(e.astype(a.dtype) for e, a in zip(gradients, arrays, strict=True))
    assert_same(actual, expected, {"bfloat16": 2e-2, "float16": 4e-3, "float64": 1e-7}[dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cotangents_of_wider_results_are_not_narrowed(dtype, implementation):
    """They have more bits than the operands, and are beyond the range of float16."""
    shapes = [(2, 8, 8, 8), (3, 3, 8, 16)]
    x, w = ((integers(shape, seed=seed) * 2.0**-12).astype(dtype) for seed, shape in enumerate(shapes))
    g = integers((2, 8, 8, 16), "float32", 9, 1000) * 2**10

    def ours(x, w):
        return jaxconv.conv2d(x, w, bias=jnp.zeros(16), preferred_element_type="float32", implementation=implementation)

    theirs = channels_last_fused(*shapes, (), (), "none").theirs()
    _, gradients = run_on_host(pullback(theirs), [x.astype("float32"), w.astype("float32")], g)
    _, actual = run(pullback(ours), [x, w], g)
    assert_same(actual, tuple(e.astype(dtype) for e in gradients))
    plain = lambda x, w: jaxconv.conv2d(x, w, preferred_element_type="float32", implementation=implementation)
    of_gradient = lambda f: run(lambda w: jax.jvp(lambda w: jax.vjp(f, x, w)[1](g)[0], (w,), (w,))[1], w)
    assert_same(of_gradient(ours), of_gradient(plain))


def test_gradients_of_int8_operands(implementation):
    """Of the epilogue's operands: the others have none."""
    case = CASES["grouped"]
    x, w, *operands = case.arrays("int8", "float32")
    g = integers(jax.eval_shape(case.conv(), x, w).shape, "float32", 9)
    ours = lambda *operands: case.ours(implementation)(x, w, *operands)
    theirs = lambda *operands: case.theirs()(x.astype("float32"), w.astype("float32"), *operands)
    assert_same(run(pullback(ours), operands, g), run_on_host(pullback(theirs), operands, g))
    assert jax.vjp(case.ours(implementation), x, w, *operands)[1](g)[0].dtype == jax.dtypes.float0


def test_residual_of_int8_has_no_gradient(implementation):
    case = CASES["dense"]
    arrays = case.arrays("float32", "int8")
    g = cotangent(case, arrays)
    actual = jax.vjp(case.ours(implementation), *arrays)[1](g)
    expected = jax.vjp(case.theirs(), *arrays)[1](g)
    assert actual[4].dtype == jax.dtypes.float0
    assert_same([a for i, a in enumerate(actual) if i != 4], [e for i, e in enumerate(expected) if i != 4])


@pytest.mark.parametrize("activation", ["none", "relu", "silu"])
def test_gradients_of_float8(activation, implementation):
    """As if the result were not rounded: of the largest numbers too."""
    case = CASES["dense"].with_activation(activation)
    arrays = case.arrays()
    out_scale = np.array([1, 0.5, 2, 256], "float32")
    ours = lambda out_scale, *arrays: case.ours(implementation, out_dtype="float8_e5m2", out_scale=out_scale)(*arrays)
    theirs = lambda out_scale, *arrays: out_scale * case.theirs()(*arrays)
    g = integers(jax.eval_shape(theirs, out_scale, *arrays).shape, "float32", 9)
    actual = jax.jit(pullback(ours))((out_scale, *arrays), g.astype("float8_e5m2"))[1]
    assert_same(actual, jax.jit(pullback(theirs))((out_scale, *arrays), g)[1], RTOL)


def test_int8_results_have_no_gradient(implementation):
    case = CASES["dense"]
    arrays = case.arrays()
    y, vjp = jax.vjp(case.ours(implementation, out_dtype="int8"), *arrays)
    gradients = vjp(np.zeros(y.shape, jax.dtypes.float0))
    assert all(not np.any(gradient) for gradient in gradients)


@pytest.mark.parametrize("more", [dict(scale=2.0), dict(residual_scale=2.0), dict(out_dtype="float32")], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_gradients_where_promotion_is_strict(activation, more, implementation):
    """The epilogue is of other dtypes than the convolution, which is no implicit promotion of the caller's."""
    x, w, residual = (jnp.asarray(integers(s), "bfloat16") for s in [(2, 5, 4, 3), (3, 3, 3, 6), (2, 5, 4, 6)])
    given = {"scale": jnp.arange(1.0, 7), "bias": jnp.ones(6), "residual": residual, "activation": activation} | more

    def loss(x, w, residual):
        y = jaxconv.conv2d(x, w, **given | {"residual": residual}, implementation=implementation)
        return y.astype("float32").sum()

    gradients = jax.grad(loss, (0, 1, 2))
    with jax.numpy_dtype_promotion("strict"):
        actual = run(gradients, x, w, residual)
    assert_same(actual, run(gradients, x, w, residual))


@pytest.mark.parametrize("out_dtype", [None, "bfloat16"], ids=["by a kernel", "by XLA"])
@pytest.mark.parametrize("named", ["native", "xla"])
def test_leaky_relu_of_zero_by_a_negative_scale(out_dtype, named, implementation):
    """It is no negative number, also where XLA ends the epilogue."""
    x, w = np.zeros((1, 4, 1), "float32"), np.ones((1, 1, 1), "float32")
    more = dict(scale=np.float32(-1), activation=jaxconv.activations.LeakyRelu(0.25), out_dtype=out_dtype)
    by = implementation if named == "native" else "xla"
    grad = jax.grad(lambda x: jaxconv.conv1d(x, w, **more, implementation=by).astype("float32").sum())
    np.testing.assert_array_equal(grad(x), np.full_like(x, -1))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bias_is_summed_as_the_convolutions_read_it(dtype, implementation):
    """In bfloat16. Here the data gradient shows what they read, and each sum is of one number."""
    x, w = np.linspace(-1, 2, 32, dtype="float32").astype(dtype)[None, None], np.eye(32, dtype=dtype)[None]
    conv = lambda x, bias: jaxconv.conv1d(x, w, bias=bias, activation="silu", implementation=implementation)
    _, pullback = jax.vjp(conv, x, np.zeros(32, "float32"))
    of_x, of_bias = jax.jit(pullback)(np.full((1, 1, 32), 0.7, dtype))
    np.testing.assert_array_equal(of_bias.astype(dtype), of_x[0, 0])
    assert np.array_equal(of_bias, of_x[0, 0].astype("float32")) == (dtype == "bfloat16")


def test_gradients_of_float16_with_a_small_scale(implementation):
    """The gradients without scale, and the scaled filter, would not fit in float16."""
    scale = np.float32(2.0**-10)
    x, w = np.full((1, 400, 4), 256, "float16"), np.full((1, 4, 4), 2.0**-7, "float16")
    conv = lambda x, w, scale: jaxconv.conv1d(x, w, scale=scale, implementation=implementation)
    _, pullback = jax.vjp(conv, x, w, scale)
    dx, dw, dscale = pullback(np.ones((1, 400, 4), "float16"))
    np.testing.assert_array_equal(dw, np.full((1, 4, 4), 100, "float16"))
    assert dscale == 400 * 4 * 4 * 256 * 2.0**-7
    np.testing.assert_array_equal(dx, np.full_like(x, 4 * 2.0**-17))
    tiny = np.full((1, 4, 4), 2.0**-14, "float16")
    _, pullback = jax.vjp(lambda x: conv(x, tiny, np.float32(2.0**-14)), x)
    (dx,) = pullback(np.full((1, 400, 4), 2.0**13, "float16"))
    np.testing.assert_array_equal(dx, np.full_like(x, 4 * 2.0**-15))


KEPT = {
    "linear": ("bfloat16", {}, None),
    "relu": ("bfloat16", dict(activation="relu"), "bfloat16"),
    "ends that bfloat16 has": ("bfloat16", dict(activation="relu6"), "bfloat16"),
    "ends that it rounds": ("bfloat16", dict(activation=Clip(0.1, 6)), "bool"),
    "curved": ("bfloat16", dict(activation="silu"), "bfloat16"),
    "float8, linear": ("float8_e4m3fn", {}, None),
    "float8, scaled": ("float8_e4m3fn", dict(out_scale=0.5), "float32"),
    "float8, relu": ("float8_e4m3fn", dict(activation="relu"), "bool"),
    "float8, scaled relu": ("float8_e4m3fn", dict(activation="relu", out_scale=0.5), "float32"),
}


@pytest.mark.parametrize("dtype, ends, kept", KEPT.values(), ids=KEPT)
def test_of_results_or_sums_at_most_one_is_kept(dtype, ends, kept, implementation):
    """Operands besides. A straight line keeps the result, in its own dtype, or a mask."""
    x, w = integers((2, 6, 6, 8), "bfloat16"), integers((3, 3, 8, 16), "bfloat16")
    conv = lambda x, w: jaxconv.conv2d(x, w, bias=1.0, out_dtype=dtype, implementation=implementation, **ends)
    y, pull_back = jax.vjp(conv, x, w)
    of_result = [str(a.dtype) for a in jax.tree.leaves(pull_back) if getattr(a, "shape", None) == y.shape]
    assert of_result == ([] if kept is None else [kept])


@pytest.mark.parametrize("activation", ["relu", Clip(-2.5, 1.5)])
@pytest.mark.parametrize("dtype", [None, "float8_e5m2"])
def test_a_mask_is_that_of_float32(dtype, activation, implementation):
    """Also of numbers that the result rounds to an end, and behind a scale."""
    x, w = integers((2, 6, 6, 8), "bfloat16"), integers((3, 3, 8, 16), "bfloat16")
    conv = lambda x, w: jaxconv.conv2d(x, w, scale=2.0**-20, bias=2.0**-24, activation=activation, out_dtype=dtype,
                                       implementation=implementation)  # fmt: skip
    z = 2.0**-20 * jaxconv.conv2d(x, w, out_dtype="float32", implementation="xla") + 2.0**-24
    mask = (z > 0) if activation == "relu" else (z > -2.5) & (z < 1.5)
    y, pull_back = jax.vjp(conv, x, w)
    g = jnp.ones_like(y)
    actual = pull_back(g)
    linear = lambda x, w: jaxconv.conv2d(x, w, scale=2.0**-20, out_dtype="float32", implementation="xla")
    expected = jax.vjp(linear, x, w)[1](mask.astype("float32"))
    assert 0 < mask.mean() < 1 or activation != "relu"
    assert_same(actual, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_derivative_of_clipped_results(dtype, implementation):
    """Of numbers at both ends, and of some that are rounded to one: the clip is of what is rounded."""
    z = np.array([-1, -0.0, 1e-30, 0.5, 5.99, 5.9999, 6, 6.5, np.inf]).reshape(1, 1, -1, 1)
    x, one = jnp.asarray(z, dtype), jnp.ones((1, 1, 1, 1), dtype)
    conv = lambda x: jaxconv.conv2d(x, one, activation="relu6", implementation=implementation)
    (actual,) = jax.vjp(conv, x)[1](jnp.ones_like(x))
    assert_same(actual, ((x > 0) & (x < 6)).astype(dtype))


def gradients_of_bias(x, w, bias, activation="relu"):
    loss = lambda w, bias: jnp.sum(jaxconv.conv2d(x, w, bias=bias, activation=activation).astype(jnp.float32) ** 2)
    return lambda argnums: jax.grad(loss, argnums)(w, bias)


OF_BIAS = [integers((2, 6, 6, 8), "bfloat16"), integers((3, 3, 8, 16), "bfloat16", 1), jnp.zeros(16)]


@pytest.mark.parametrize("argnums, has_both", [((0, 1), True), ((0,), False), ((1,), False)])
def test_the_gradient_of_a_bias_comes_with_that_of_its_filter(argnums, has_both):
    """Alone it must not cost a convolution."""
    jaxpr = str(jax.make_jaxpr(lambda *arrays: gradients_of_bias(*arrays)(argnums))(*OF_BIAS))
    assert jaxpr.count("jaxconv_wgrad_and_bias") == has_both
    compiled = jax.jit(lambda *arrays: gradients_of_bias(*arrays)(argnums)).lower(*OF_BIAS).compile()
    assert custom_calls(compiled.as_text())["wgrad"] == (0 in argnums)


@pytest.mark.parametrize("argnum, calls", [(0, 1), (1, 0)], ids=["filter", "bias"])
def test_a_gradient_that_is_thrown_away_costs_nothing(argnum, calls):
    of_one = lambda *arrays: gradients_of_bias(*arrays)((0, 1))[argnum]
    compiled = jax.jit(of_one).lower(*OF_BIAS).compile()
    assert custom_calls(compiled.as_text())["wgrad"] == calls
    assert len(jaxconv.traced.trace(jax.jit(of_one), *OF_BIAS).equations) == 1 + calls


@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_derivatives_of_the_gradient_of_a_bias(activation):
    """Forward, reverse and mapped: those of the filter's gradient and the sum."""
    x, w, bias = OF_BIAS
    both = lambda w, bias: gradients_of_bias(x, w, bias, activation)((0, 1))
    alone = lambda w, bias: tuple(gradients_of_bias(x, w, bias, activation)((i,))[0] for i in (0, 1))
    tangents = (jnp.ones_like(w), jnp.full_like(bias, 2))
    for derivative in (
        lambda f: jax.jvp(f, (w, bias), tangents),
        lambda f: jax.vjp(f, w, bias)[1]((jnp.ones_like(w), jnp.full_like(bias, 2))),
        lambda f: jax.vmap(f)(jnp.stack([w, -w]), jnp.stack([bias, bias + 1])),
        lambda f: jax.vmap(f, (None, 0))(w, jnp.stack([bias, bias + 1])),
        lambda f: jax.vmap(lambda _: f(w, bias), out_axes=None)(jnp.arange(3)),
        lambda f: jax.jacfwd(f, 1)(w, bias),
    ):
        actual, expected = (jax.tree.leaves(jax.jit(lambda: derivative(f))()) for f in (both, alone))
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e, 1e-2)


def test_the_transpose_of_a_pullback_with_a_bias():
    """It is the convolution of the filter's tangent, and the bias's."""
    x, w, bias = OF_BIAS
    conv = lambda w, bias: jaxconv.conv2d(x, w, bias=bias)
    y, pullback_of = jax.vjp(conv, w, bias)
    (tangent,) = jax.linear_transpose(pullback_of, y)((w, bias + 1))
    assert jnp.array_equal(tangent, jaxconv.conv2d(x, w) + jnp.ones((), "bfloat16"))


@pytest.mark.parametrize("more, has_sums", [({}, True), ({"window_strides": 2}, True), ({"rhs_dilation": 12}, False)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_call_of_a_gpu_sums_for_the_bias(cuda_kernels, more, has_sums, dtype):
    """In 16 bits, unless clusters leave out steps."""
    x, w = integers((2, 32, 32, 64), dtype), integers((3, 3, 64, 64), dtype)
    conv = lambda w, bias: jaxconv.conv2d(x, w, bias=bias, padding="SAME", implementation="wgmma", **more)
    loss = lambda w, bias: jnp.sum(conv(w, bias).astype(jnp.float32) ** 2)
    lowered = jax.jit(jax.grad(loss, (0, 1))).trace(w, jnp.zeros(64)).lower(lowering_platforms=("cuda",))
    (call,) = (line for line in lowered.as_text().splitlines() if "@jaxconv_wgrad(" in line)
    names = call.partition("setting_names = ")[2].split('"')[1].split()
    numbers = [int(n) for n in call.partition("settings = dense<[")[2].partition("]")[0].split(",")]
    assert (dict(zip(names, numbers, strict=True))["gradient_sums"] == 1) == (has_sums and dtype == "bfloat16")
