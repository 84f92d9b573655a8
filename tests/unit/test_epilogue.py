"""The epilogue as a value: its arguments and what is refused, its arithmetic, and activations in kernels' form."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jaxconv
from cases.reference import channels_last, exception_of, integers
from jaxconv import activations
from jaxconv.activations import Clip, LeakyRelu
from jaxconv.epilogue import Epilogue

X, W = (2, 5, 4, 3), (3, 3, 3, 6)
OURS = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "leaky_relu": jax.nn.leaky_relu,
    "gelu": lambda z: jax.nn.gelu(z, approximate=True),
    "silu": jax.nn.silu,
    "hard_swish": jax.nn.hard_swish,
}
VALUES = [*activations.NAMED.values(), Clip(-1, 2.5), Clip(-np.inf, 3), LeakyRelu(0.25), LeakyRelu(-2), LeakyRelu(0)]


def conv(x_dtype="float32", **arguments):
    return jaxconv.conv2d(integers(X, x_dtype), integers(W, x_dtype), implementation="cpu", **arguments)


def numbers(dtype="float32"):
    """Around all corners, from tiny to large ones."""
    corners = [0.0, -0.0, 1, 2.5, 3, -3, 6, 5.999, -1, np.inf]
    return np.concatenate([corners, np.linspace(-9, 9, 181), [1e-30, -1e-30, 1e4, -1e4]]).astype(dtype)


# Activations.


@pytest.mark.parametrize("name", OURS)
def test_named_activations_are_those_of_jax_nn(name):
    z = numbers()
    activation = activations.activation_of(name)
    np.testing.assert_array_equal(activation(z), OURS[name](z))
    gradient = lambda function: jax.vmap(jax.grad(function))(z[np.isfinite(z)])
    np.testing.assert_array_equal(gradient(activation), gradient(OURS[name]))


@pytest.mark.parametrize("activation", VALUES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernel_form(activation, dtype, x64):
    """What a kernel computes, by numpy in float64."""
    kind, numbers_of = activation.kernel_form()
    a, b, c = numbers_of
    z = numbers(dtype)
    z = z[np.isfinite(z)]
    wide = z.astype("float64")
    with np.errstate(over="ignore"):
        expected = {
            "piecewise": lambda: np.clip(np.where(wide < 0, a * wide, wide), b, c),
            "sigmoid": lambda: wide / (1 + np.exp(-wide * (a + b * wide * wide))),
            "hard_sigmoid": lambda: wide * np.clip(wide + 3, 0, 6) / 6,
        }[kind]()
    actual = activation(z)
    assert actual.dtype == dtype
    np.testing.assert_allclose(actual, expected, rtol=1e-6 if dtype == "float32" else 1e-14, atol=1e-6)
    assert len(numbers_of) == 3 and all(isinstance(number, float) for number in numbers_of)


@pytest.mark.parametrize("activation", VALUES, ids=str)
def test_nans_go_through(activation):
    assert np.isnan(activation(jnp.float32(np.nan)))


@pytest.mark.parametrize("activation", VALUES, ids=str)
def test_derivative_from_the_result(activation):
    """Of those that are straight lines, and it is that of z. At -0 leaky_relu has the slope."""
    expected = isinstance(activation, activations.Relu | Clip) or (
        isinstance(activation, LeakyRelu) and activation.slope > 0
    )
    assert activation.derivative_from_result(np.dtype("float32")) == expected
    if expected:
        z = jnp.where(numbers() == 0, 0.0, numbers())
        y, pullback = jax.vjp(activation, z)
        dy = integers(z.shape)
        np.testing.assert_array_equal(activation.backward(y, dy), pullback(dy)[0])


def test_activations_are_values():
    assert Clip(0, 6) == activations.activation_of("relu6") and hash(Clip(0, 6)) == hash(Clip(0.0, 6.0))
    assert activations.activation_of(None) is None
    assert activations.activation_of(LeakyRelu()) == activations.activation_of("leaky_relu")
    with pytest.raises(dataclasses.FrozenInstanceError):
        Clip(0, 6).low = 1


@pytest.mark.parametrize("make, error, message", [
    (lambda: Clip(1, 0), ValueError, "low must be at most high, got 1.0 and 0.0"),
    (lambda: Clip(np.nan, 0), ValueError, "low must be a number, got nan"),
    (lambda: Clip("a", 0), TypeError, "low must be a number known while tracing, got 'a'"),
    (lambda: LeakyRelu(np.inf), ValueError, "slope must be finite, got inf"),
    (lambda: jax.jit(lambda slope: LeakyRelu(slope)(slope))(1.0), TypeError, "slope must be a number known while"),
])  # fmt: skip
def test_refused_activations(make, error, message):
    with pytest.raises(error, match=message):
        make()


# Arithmetic.


@pytest.mark.parametrize("dtype, largest", [("int8", 127), ("float8_e4m3fn", 448), ("float8_e5m2", 57344)])
def test_quantised(dtype, largest):
    """To nearest even, and not beyond the largest finite number."""
    y = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 17, 19, 1e9, np.inf, -1e9, -np.inf, 3e-3, np.nan], "float32")
    rounded = np.asarray(Epilogue(out_dtype=jnp.dtype(dtype)).rounded(jnp.asarray(y)))
    assert rounded.dtype == dtype
    if dtype == "int8":
        expected = [0, 2, 2, 0, -2, 17, 19, 127, 127, -128, -128, 0, 0]
    else:
        expected = np.clip(y, -largest, largest).astype(getattr(ml_dtypes, dtype))
    np.testing.assert_array_equal(rounded.astype("float32"), np.asarray(expected, "float32"))  # float8 NaNs differ


DTYPES = [
    # operands, preferred_element_type, out_dtype, the result's, that of the sums
    ("float32", None, None, "float32", "float32"),
    ("bfloat16", None, None, "bfloat16", "float32"),
    ("bfloat16", "float32", None, "float32", "float32"),
    ("float16", None, "bfloat16", "bfloat16", "float32"),
    ("bfloat16", "float32", "float32", "float32", "float32"),
    ("float64", None, "float32", "float32", "float64"),
    ("float32", None, "float64", "float64", "float64"),
    ("bfloat16", None, "float64", "float64", "float32"),
    ("int8", None, None, "float32", "int32"),
    ("int8", None, "int8", "int8", "int32"),
    ("float32", None, "float8_e5m2", "float8_e5m2", "float32"),
]  # fmt: skip


@pytest.mark.parametrize("dtype, preferred, out_dtype, result, sums", DTYPES)
def test_dtypes(dtype, preferred, out_dtype, result, sums, x64):
    arguments = dict(preferred_element_type=preferred, out_dtype=out_dtype, bias=1.0)
    assert jax.eval_shape(lambda: conv(dtype, **arguments)).dtype == result
    (equation,) = [e for e in fused_equations(lambda: conv(dtype, **arguments))]
    assert equation.params["epilogue"].sums_dtype(equation.params["problem"]) == sums


def fused_equations(function):
    jaxpr = jax.make_jaxpr(function)().jaxpr
    return [e for outer in jaxpr.eqns for e in inner(outer) if e.primitive.name == "jaxconv_fused_conv"]


def inner(equation):
    yield equation
    for parameter in equation.params.values():
        if hasattr(parameter, "eqns"):
            for e in parameter.eqns:
                yield from inner(e)


def general(x_dtype="float32", bound=2, **arguments):
    """The same by `fused_conv_general_dilated`."""
    x, w = integers(X, x_dtype, bound=bound), integers(W, x_dtype, bound=bound)
    layout = dict(window_strides=(1, 1), padding="SAME", dimension_numbers=channels_last(2))
    return jaxconv.fused_conv_general_dilated(x, w, **layout, **dict(implementation="cpu") | arguments)


@pytest.mark.parametrize("function", [conv, general])
def test_without_an_epilogue_nothing_changes(function):
    assert not fused_equations(lambda: function())
    assert fused_equations(lambda: function(activation="relu"))


@pytest.mark.parametrize("dtype, preferred, result", [
    ("bfloat16", "float32", "float32"), ("complex64", None, "complex64"), ("float8_e4m3fn", None, "float8_e4m3fn"),
    ("int8", None, "int8"), ("int8", "int32", "int32"),
])  # fmt: skip
def test_any_layout_without_an_epilogue(dtype, preferred, result):
    """Results are those of `conv2d`."""
    y = general(dtype, preferred_element_type=preferred)
    assert y.dtype == result
    np.testing.assert_array_equal(y, conv(dtype, preferred_element_type=preferred))


def test_without_an_epilogue_float8_does_not_saturate():
    beyond = np.abs(np.asarray(general(bound=16))) > 464
    assert np.any(beyond)
    np.testing.assert_array_equal(np.isnan(general("float8_e4m3fn", 16).astype("float32")), beyond)


@pytest.mark.usefixtures("warned_anew")
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_without_an_epilogue_lax_takes_what_it_took(dtype):
    with pytest.warns(jaxconv.FallbackWarning, match=f"dtype {dtype} with result {dtype}"):
        assert jax.eval_shape(lambda: general(dtype, implementation=None)).dtype == dtype


def test_float64_without_x64():
    """The result and the warning are those of `preferred_element_type`."""
    x = integers((1, 1, 3))
    with pytest.warns(UserWarning) as of_lax:
        jax.eval_shape(lambda: jax.lax.conv_general_dilated(x, x, (1,), "SAME", preferred_element_type="float64"))
    with pytest.warns(UserWarning) as ours:
        assert jax.eval_shape(lambda: conv(out_dtype="float64")).dtype == "float32"
    assert [str(w.message) for w in ours] == [str(w.message) for w in of_lax]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jax.eval_shape(lambda: conv(out_dtype=float)).dtype == "float32"  # Python's float is JAX's default


@pytest.mark.parametrize("arguments", [
    dict(scale=2.0), dict(scale=2), dict(scale=np.float32(2)), dict(scale=np.full(6, 2, "float32")),
    dict(scale=jnp.full(6, 2.0)),
])  # fmt: skip
def test_numbers_that_are_taken(arguments):
    np.testing.assert_array_equal(conv(**arguments), 2 * np.asarray(conv()))


# What is refused.

RESIDUAL = np.zeros((2, 5, 4, 6), "float32")


class Own(activations.Relu):
    """Which no kernel knows."""


REFUSED = {
    "scale_of_inputs": (dict(scale=np.ones(3, "float32")), TypeError, r"scale.*\(\) or \(6,\).*output channel.*\(3,\)"),
    "bias_of_rank_2": (dict(bias=np.ones((1, 6), "float32")), TypeError, r"bias.*\(6,\).*\(1, 6\)"),
    "one_in_an_array": (dict(bias=np.ones(1, "float32")), TypeError, r"bias.*\(1,\)"),
    "out_scale_of_inputs": (dict(out_scale=np.ones(3, "float32"), out_dtype="int8"), TypeError, r"out_scale.*\(3,\)"),
    "residual_scale_of_channels": (
        dict(residual=RESIDUAL, residual_scale=np.ones(6, "float32")), TypeError, r"residual_scale.*\(\).*\(6,\)"
    ),
    "bias_of_halves": (dict(bias=np.ones(6, "bfloat16")), TypeError, r"bias must be float32, got bfloat16"),
    "bias_of_integers": (dict(bias=np.ones(6, "int32")), TypeError, r"bias must be float32, got int32"),
    "complex_scale": (dict(scale=1j), TypeError, r"scale must be float32, got complex64"),
    "residual_of_the_input": (
        dict(residual=np.zeros(X, "float32")), TypeError, r"residual.*\(2, 5, 4, 6\).*\(2, 5, 4, 3\)"
    ),
    "residual_of_integers": (dict(residual=np.zeros((2, 5, 4, 6), "int32")), TypeError, r"residual.*int8.*int32"),
    "scale_of_text": (dict(scale="two"), TypeError, "scale must be an array or a number, got 'two'"),
    "residual_of_text": (dict(residual="x"), TypeError, "residual must be an array or a number, got 'x'"),
    "scale_of_nothing_known": (dict(scale={}), TypeError, "scale must be an array or a number, got {}"),
    "beyond_floats": (dict(bias=10**400), ValueError, "bias must be within the range of floats, got 1000"),
    "key_as_bias": (dict(bias=jax.random.key(0)), TypeError, "bias must be an array or a number, got .*key"),
    "own_activation": (dict(activation=Own()), ValueError, r"activation must be.*got Own\(\)"),
    "prepared_bias": (dict(bias=jaxconv.prepare_filter(np.ones((1, 1, 6), "float32"))), TypeError,
                      "bias must be an array or a number, got PreparedFilter"),
    "bare_activation": (dict(activation=jaxconv.activations.Activation()), ValueError, r"activation must be.*Clip"),
    "no_such_dtype": (dict(out_dtype="int7"), TypeError, "out_dtype must be one of float32, .*got 'int7'"),
    "no_residual": (dict(residual_scale=2.0), ValueError, r"residual_scale.*residual is None.*2\.0"),
    "not_quantised": (dict(out_scale=2.0), ValueError, r"out_scale.*int8, float8_e4m3fn, float8_e5m2.*float32"),
    "unknown_activation": (dict(activation="swish"), ValueError, r"'relu', 'relu6'.*'hard_swish'.*got 'swish'"),
    "a_function": (dict(activation=jax.nn.relu), ValueError, r"activation must be.*Clip"),
    "integral_result": (dict(out_dtype="int32"), TypeError, r"out_dtype.*float32.*int8.*got int32"),
    "two_results": (
        dict(out_dtype="bfloat16", preferred_element_type="float32"), ValueError,
        r"preferred_element_type and out_dtype.*float32 and bfloat16",
    ),
    "complex_operands": (
        dict(x_dtype="complex64", bias=1.0), TypeError, r"^x and w .* floating dtype or int8, got complex64"
    ),
    "other_integers": (dict(x_dtype="int32", bias=1.0), TypeError, r"^x and w .* floating dtype or int8, got int32"),
    "other_float8": (
        dict(x_dtype="float8_e4m3b11fnuz", bias=1.0), TypeError, r"out_dtype \(by default.*got float8_e4m3b11fnuz"
    ),
    "sums_of_int8": (
        dict(x_dtype="int8", bias=1.0, preferred_element_type="int32"), TypeError, r"preferred_element_type.*got int32"
    ),
    "laxs_own": (dict(bias=1.0, window_strides=0), ValueError, r"window_strides.*0"),
    "unknown_implementation": (dict(bias=1.0, feature_group_count=2), ValueError, r"feature_group_count.*2"),
}  # fmt: skip


@pytest.mark.parametrize("arguments, error, message", REFUSED.values(), ids=REFUSED)
def test_refused(arguments, error, message):
    """While tracing."""
    with pytest.raises(error, match=message):
        jax.eval_shape(lambda: conv(**arguments))


def test_refused_operands_of_any_layout():
    with pytest.raises(TypeError, match=r"^lhs and rhs .* floating dtype or int8, got uint8"):
        jax.eval_shape(lambda: general("uint8", bias=1.0))


def test_a_python_integer_beyond_32_bits():
    """It is a number as others."""
    np.testing.assert_array_equal(conv(bias=3_000_000_000), conv(bias=3e9))


def test_bias_of_float64_is_for_sums_of_float64(x64):
    bias = np.full(6, 2.0)
    assert conv("float64", bias=bias).dtype == "float64"
    assert conv("float32", bias=bias, out_dtype="float64").dtype == "float64"
    with pytest.raises(TypeError, match="bias must be float32, got float64"):
        conv("float32", bias=bias)


@pytest.mark.parametrize("name", ["cuda", "unknown"])
def test_implementations(name):
    error = exception_of(jaxconv.conv2d, integers(X), integers(W), bias=1.0, implementation=name)
    assert type(error) is (ValueError if name == "unknown" else NotImplementedError) and name in str(error)


@pytest.mark.usefixtures("warned_anew")
def test_what_no_kernel_takes_goes_to_lax():
    x, w = integers((1, *[3] * 4, 2)), integers((*[2] * 4, 2, 3))
    arguments = dict(window_strides=(1,) * 4, padding="SAME", dimension_numbers=("NABDEC", "ABDEIO", "NABDEC"))
    with pytest.warns(jaxconv.FallbackWarning, match="4 spatial dimensions"):
        y = jaxconv.fused_conv_general_dilated(x, w, **arguments, bias=1.0)
    np.testing.assert_array_equal(y, jax.lax.conv_general_dilated(x, w, **arguments) + 1)
    with pytest.raises(NotImplementedError, match="4 spatial dimensions"):
        jaxconv.fused_conv_general_dilated(x, w, **arguments, bias=1.0, implementation="cpu")


def test_no_gradient_of_int8():
    with pytest.raises(TypeError, match="real-valued outputs"):
        jax.grad(lambda bias: conv(bias=bias, out_dtype="int8").sum())(1.0)


def test_gradient_of_leaky_relu_where_the_result_is_rounded_to_zero():
    x, w = integers(X), integers(W)
    loss = lambda bias: jaxconv.conv2d(
        (0 * x).astype("float16"), w.astype("float16"), bias=bias, activation=LeakyRelu(2.0**-10)
    ).astype("float32")
    count = loss(0.0).size
    assert jax.grad(lambda bias: loss(bias).sum())(jnp.float32(-(2.0**-17))) == count * 2.0**-10
