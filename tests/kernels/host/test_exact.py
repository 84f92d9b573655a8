"""The host's kernels at the sizes where their blocks end, bit-equal to lax for small integers."""

import functools

import jax
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.for_host import conv2d
from cases.parts import diagonal, in_turns
from cases.reference import (
    FLOATS,
    OPTIMIZED,
    assert_same,
    cotangent,
    integers,
    lax_channels_last,
    pullback,
    run_on_host,
)

conv3d = functools.partial(jaxconv.conv3d, implementation="cpu")


@functools.cache
def exact(x_shape, w_shape, params):
    """Operands of small integers, and the passes in float64 by lax."""
    theirs = functools.partial(lax_channels_last, **dict(params))
    with jax.enable_x64(True):
        x, w = integers(x_shape, "float64", 0, 3), integers(w_shape, "float64", 1, 3)
        operands = x, w, cotangent(theirs, x, w)
        options = OPTIMIZED if operands[2].size > 2**14 else {}
        return operands, run_on_host(pullback(theirs), *operands, **options)


def check_exactly(x_shape, w_shape, dtype, **params):
    """Bit-equal: sums of small integers are exact in the accumulator, and are rounded once to the result's dtype."""
    conv = getattr(jaxconv, f"conv{len(x_shape) - 2}d")
    ours = functools.partial(conv, implementation="cpu", **params)
    operands, expected = exact(x_shape, w_shape, tuple(params.items()))
    to_dtype = lambda arrays: tuple(np.asarray(a).astype(dtype) for a in arrays)
    with jax.enable_x64(dtype == "float64"):
        actual = jax.jit(pullback(ours))(*to_dtype(operands))
    assert_same(actual, to_dtype(expected))


# Around the widths of registers and tiles: in channels, out channels.
CHANNELS = [(1, 1), (1, 64), (2, 7), (3, 17), (5, 33), (7, 8), (8, 70), (9, 15), (15, 16), (16, 31), (17, 9), (31, 32),
            (32, 65), (33, 3), (63, 1), (64, 64), (65, 5), (70, 63)]  # fmt: skip


@pytest.mark.parametrize("c, k, dtype", diagonal(CHANNELS, FLOATS))
def test_channels(c, k, dtype):
    check_exactly((2, 5, 7, c), (3, 2, c, k), dtype)


@pytest.mark.parametrize("width, dtype", diagonal([1, 7, 8, 9, 15, 17, 31, 33, 64, 65, 129], FLOATS))
def test_widths(width, dtype):
    check_exactly((1, 3, width, 5), (2, 3, 5, 6), dtype, window_strides=(1, 2))


@pytest.mark.parametrize("channels, multiplier, dtype", diagonal(
    [(1, 1), (7, 1), (8, 1), (15, 1), (17, 1), (33, 1), (64, 1), (70, 1), (1, 3), (8, 2), (17, 2), (5, 7)], FLOATS
))  # fmt: skip
def test_depthwise(channels, multiplier, dtype):
    shapes = (2, 6, 9, channels), (3, 3, 1, channels * multiplier)
    check_exactly(*shapes, dtype, feature_group_count=channels, window_strides=(2, 1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("groups, c, k", [(2, 16, 8), (3, 5, 7), (4, 33, 1), (5, 1, 17)])
def test_groups(groups, c, k, dtype):
    check_exactly((2, 5, 6, groups * c), (3, 3, c, groups * k), dtype, feature_group_count=groups)


@pytest.mark.parametrize("dtype", FLOATS)
def test_large(dtype):
    """Several blocks in every dimension of both products, for every thread."""
    params = dict(lhs_dilation=(1, 2), padding=((1, 1), (2, 2)), window_strides=(2, 3))
    check_exactly((3, 33, 31, 35), (3, 3, 35, 67), dtype, **params)


# Several blocks of positions, cut along each dimension. (x, w, parameters)
FEW_OUTPUTS = {
    "rows": ((2, 90, 70, 5), (5, 5, 5, 4), {}),
    "columns": ((1, 2, 6000, 3), (3, 5, 3, 4), {}),
    "line": ((3, 4001, 6), (5, 6, 2), dict(rhs_dilation=7)),
    "volume": ((1, 40, 19, 33, 4), (3, 3, 3, 4, 3), {}),
    "rows_of_volumes": ((2, 5, 60, 41, 3), (5, 3, 3, 3, 3), dict(padding="VALID")),
    "one": ((2, 67, 65, 17), (3, 3, 17, 1), {}),
    "as_many_as_lanes": ((1, 33, 40, 16), (3, 3, 16, 16), {}),
    "deep": ((1, 9, 8, 1100), (2, 3, 1100, 2), {}),
    "wide_padding": ((1, 30, 8, 9), (3, 3, 9, 2), dict(padding=9)),
    "strides": ((1, 91, 68, 20), (5, 3, 20, 2), dict(window_strides=(2, 1))),
    "dilated_input": ((1, 41, 50, 20), (5, 5, 20, 3), dict(lhs_dilation=(3, 2), window_strides=(2, 1), padding=3)),
    "patches": ((2, 96, 64, 3), (16, 16, 3, 24), dict(window_strides=16, padding="VALID")),
    "stem": ((2, 75, 71, 3), (7, 7, 3, 20), dict(window_strides=2)),
    "groups": ((2, 47, 50, 24), (3, 3, 6, 12), dict(feature_group_count=4)),
    "many_groups": ((2, 28, 28, 32), (3, 3, 4, 32), dict(feature_group_count=8)),
}


@pytest.mark.parametrize("x_shape, w_shape, params, dtype", in_turns(FEW_OUTPUTS, FLOATS))
def test_few_outputs(x_shape, w_shape, params, dtype):
    """In the forward pass, or in the data gradient: products of pixels with all taps, in all dtypes and dimensions."""
    check_exactly(x_shape, w_shape, dtype, **params)


@pytest.mark.parametrize("lhs, rhs, groups", [
    ((2, 9, 7, 65), (3, 3, 65, 33), 1), ((2, 9, 7, 64), (3, 3, 1, 64), 64), ((2, 9, 7, 12), (3, 3, 4, 9), 3),
    ((1, 16, 16, 130), (5, 5, 130, 2), 1),
])  # fmt: skip
def test_int8(lhs, rhs, groups):
    """The whole range of int8, summed without saturation."""
    x, w = integers(lhs, "int8", bound=127), integers(rhs, "int8", 1, 127)
    x[:1], w[:, :, :, :1] = -128, -128
    params = dict(feature_group_count=groups, window_strides=(1, 2), padding="VALID")
    actual = jax.jit(functools.partial(conv2d, **params, preferred_element_type="int32"))(x, w)
    wide = run_on_host(functools.partial(lax_channels_last, **params), x.astype(np.int32), w.astype(np.int32))
    assert_same(actual, wide)


def test_three_dimensions():
    x, w = integers((2, 5, 9, 7, 17)), integers((3, 2, 3, 17, 9), seed=1)
    params = dict(window_strides=(1, 2, 1), rhs_dilation=(2, 1, 1))
    ours, theirs = (functools.partial(f, **params) for f in (conv3d, lax_channels_last))
    g = cotangent(theirs, x, w)
    assert_same(jax.jit(pullback(ours))(x, w, g), run_on_host(pullback(theirs), x, w, g))


@pytest.mark.parametrize("strides", [(1, 1), (1, 2)], ids=str)
@pytest.mark.parametrize("c, k", [(17, 33), (19, 3), (3, 19), (1, 5)])
def test_transposed_layouts(c, k, strides):
    """Channels first, where neighbouring elements are pixels."""
    x, w = integers((2, c, 9, 10)), integers((k, c, 3, 3), seed=1)
    ours = lambda x, w: jaxconv.conv_general_dilated(x, w, strides, "SAME", implementation="cpu")
    theirs = lambda x, w: lax.conv_general_dilated(x, w, strides, "SAME")
    g = cotangent(theirs, x, w)
    assert_same(jax.jit(pullback(ours))(x, w, g), run_on_host(pullback(theirs), x, w, g))
