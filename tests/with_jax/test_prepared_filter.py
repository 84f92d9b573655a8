"""Prepared filters: the same bits as with the filters that they are made of, and no transposition in a call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxconv
from cases.programs import exported
from cases.reference import FLOATS, assert_same, exception_of, integers, run
from jaxconv import PreparedFilter, prepare_filter
from jaxconv.epilogue import QUANTISED

CASES = {
    "line": ((2, 9, 6), (3, 6, 8), {}),
    "image": ((2, 7, 6, 5), (3, 2, 5, 7), dict(window_strides=2)),
    "volume": ((1, 4, 5, 4, 3), (2, 3, 2, 3, 4), dict(padding="VALID")),
    "grouped": ((2, 5, 6, 6), (3, 3, 2, 9), dict(feature_group_count=3)),
    "depthwise": ((2, 5, 6, 4), (3, 3, 1, 8), dict(feature_group_count=4)),
    "dilated": ((2, 7, 8, 4), (2, 3, 4, 6), dict(rhs_dilation=(2, 1), lhs_dilation=(1, 2), padding=((1, 1), (2, 0)))),
    "circular": ((2, 6, 8, 4), (2, 3, 4, 6), dict(padding="CIRCULAR")),
}
EPILOGUE = dict(scale=0.5, bias=1.0, activation="relu")
EACH = pytest.mark.parametrize("name", CASES)


def case(name, dtype="float32"):
    lhs, rhs, given = CASES[name]
    return integers(lhs, dtype, 0), integers(rhs, dtype, 1), given


def conv_of(name, **more):
    lhs, _, given = CASES[name]
    return functools.partial(getattr(jaxconv, f"conv{len(lhs) - 2}d"), **given, **more)


@EACH
@pytest.mark.parametrize("more", [{}, EPILOGUE], ids=["plain", "epilogue"])
def test_same_bits(name, more, implementation):
    x, w, _ = case(name)
    conv = conv_of(name, **more, implementation=implementation)
    assert_same(run(conv, x, prepare_filter(w)), run(conv, x, w))
    assert_same(conv(x, prepare_filter(w)), conv(x, w))


@pytest.mark.parametrize("dtype", [*FLOATS[2:], *(dtype.name for dtype in QUANTISED)])
def test_each_dtype(dtype, implementation):
    x, w, _ = case("image", dtype)
    conv = conv_of("image", **EPILOGUE, out_dtype="float32", implementation=implementation)
    assert_same(run(conv, x, prepare_filter(w)), run(conv, x, w))


def test_two_types_of_float8(implementation):
    x, w, _ = case("image")
    x, w = x.astype("float8_e4m3fn"), w.astype("float8_e5m2")
    conv = conv_of("image", out_dtype="bfloat16", implementation=implementation)
    assert_same(run(conv, x, prepare_filter(w)), run(conv, x, w))


@EACH
@pytest.mark.parametrize("more", [{}, EPILOGUE], ids=["plain", "epilogue"])
def test_gradients(name, more, implementation):
    """That of a prepared filter is one."""
    x, w, _ = case(name)
    conv = conv_of(name, **more, implementation=implementation)
    gradients = jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), (0, 1))
    of_x, of_w = run(gradients, x, w)
    assert_same(run(gradients, x, prepare_filter(w)), (of_x, prepare_filter(of_w)))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("name", ["image", "grouped"])
def test_vmap(name, axes, implementation):
    x, w, _ = case(name)
    x, w = (a if axis is None else np.stack([a, a[::-1], -a]) for a, axis in zip((x, w), axes, strict=True))
    conv = jax.vmap(conv_of(name, implementation=implementation), axes)
    prepared = prepare_filter(w) if axes[1] is None else jax.vmap(prepare_filter)(w)
    assert_same(run(conv, x, prepared), run(conv, x, w))


def test_is_a_pytree_of_one_array():
    w = integers((3, 2, 5, 7))
    prepared = jax.jit(prepare_filter)(w)
    assert isinstance(prepared, PreparedFilter)
    (array,) = jax.tree.leaves(prepared)
    assert_same(array, np.swapaxes(w, 2, 3))
    assert jax.tree.map(lambda a: a.shape, prepared).array == (3, 2, 7, 5)


@pytest.mark.parametrize("layout", [None, "NCHW32"])
def test_an_exported_function_takes_one(layout, implementation):
    """Its bytes name the type, and are read again."""
    w = prepare_filter(integers((3, 3, 32, 32), "int8"), layout)
    x = integers((1, 5, 5, 32) if layout is None else (1, 1, 5, 5, 32), "int8")
    conv = lambda x, w: jaxconv.conv2d(x, w, scale=0.5, out_dtype="int8", layout=layout or "NHWC")
    again = jax.export.deserialize(exported(conv, x, w).serialize())
    np.testing.assert_array_equal(again.call(x, w), conv(x, w))


def test_is_equal_to_itself_alone():
    a, b = (prepare_filter(integers((3, 3, 4, 8))) for _ in range(2))
    assert a == a and a != b and len({a, b}) == 2


@pytest.mark.parametrize("shape", [(4, 6), (1, 1, 1, 1, 4, 6)])
def test_no_filter(shape):
    error = exception_of(prepare_filter, integers(shape))
    assert type(error) is TypeError and str(error).startswith("w must have 1 to 3 spatial dimensions")


@pytest.mark.parametrize("function", [prepare_filter, jaxconv.to_nchw32, jaxconv.from_nchw32])
@pytest.mark.parametrize("value", ["text", None, 3])
def test_no_array(function, value):
    with pytest.raises(AttributeError, match=rf"^[wx] must be an array, got {type(value).__name__}$"):
        function(value)


def test_prepared_twice():
    error = exception_of(prepare_filter, prepare_filter(integers((3, 4, 6))))
    assert type(error) is TypeError and "prepared already" in str(error)


def test_wrong_rank():
    error = exception_of(jaxconv.conv2d, integers((1, 4, 4, 3)), prepare_filter(integers((3, 3, 5))))
    assert type(error) is TypeError and str(error).startswith("conv2d: w must have 4 dimensions, HWOI, got shape")


@pytest.mark.parametrize("function", ["conv_general_dilated", "fused_conv_general_dilated", "conv_transpose"])
def test_functions_that_take_arrays_alone(function):
    x, w = integers((1, 4, 4, 3)), prepare_filter(integers((3, 3, 3, 5)))
    error = exception_of(getattr(jaxconv, function), x, w, (1, 1), "SAME")
    assert type(error) is TypeError and str(error).startswith("rhs must be an array, got a PreparedFilter")
    error = exception_of(jaxconv.conv2d, w, w)
    assert type(error) is TypeError and str(error).startswith("x must be an array, got a PreparedFilter")


# On a GPU, where programs are lowered here, but not run.


@pytest.mark.parametrize("dtype", ["int8", "float32", "bfloat16"])
@pytest.mark.parametrize("family", ["wgmma", "mma"])
def test_no_transposition_on_a_gpu(family, dtype, without_tuning, cuda_kernels):
    """wgmma transposes a filter of 8 or 32 bits that is not prepared; and mma copies bytes by elements."""
    conv = functools.partial(jaxconv.conv2d, scale=0.5, out_dtype=dtype, implementation=family)
    x, w = jnp.zeros((8, 14, 14, 128), dtype), jnp.zeros((3, 3, 128, 256), dtype)

    def transpositions(w):
        text = jax.jit(conv).trace(x, w).lower(lowering_platforms=("cuda",)).as_text()
        assert "custom_call @jaxconv_conv" in text
        return text.count("stablehlo.transpose")

    assert transpositions(prepare_filter(w)) == 0
    assert transpositions(w) == (family == "wgmma" and dtype != "bfloat16")
