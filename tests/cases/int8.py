"""Convolutions of int8: operands of its whole range, sums reduced modulo 2^32, and gradients as JAX writes them."""

import dataclasses
import functools

import jax
import numpy as np
from jax import lax

from cases.convolution import channels_last_convolution
from cases.problems import passes_of, problem_of
from cases.reference import WITHOUT_SIMPLIFIER, pullback, run_on_host

CASES = {
    "dense": channels_last_convolution((2, 5, 4, 6), (3, 2, 6, 8)),
    "strided": channels_last_convolution((2, 7, 6, 5), (3, 3, 5, 7), window_strides=(2, 3)),
    "dilated": channels_last_convolution((2, 9, 8, 3), (3, 2, 3, 5), rhs_dilation=(2, 3), padding=((1, 2), (0, 4))),
    "lhs_dilated": channels_last_convolution((2, 4, 3, 5), (3, 2, 5, 4), lhs_dilation=(2, 3), padding=((1, 2), (2, 1))),
    "grouped": channels_last_convolution((2, 4, 5, 12), (3, 3, 4, 9), feature_group_count=3),
    "batch_groups": channels_last_convolution((6, 4, 5, 4), (2, 3, 4, 9), batch_group_count=3),
    "depthwise": channels_last_convolution((2, 6, 5, 19), (3, 3, 1, 19), feature_group_count=19),
    "stem": channels_last_convolution((2, 13, 12, 3), (7, 7, 3, 16), window_strides=(2, 2)),
    "line": channels_last_convolution((3, 17, 6), (5, 6, 4)),
    "volume": channels_last_convolution((2, 4, 3, 5, 4), (2, 3, 2, 4, 6)),
}
# Channels of whole vectors.
DENSE = {
    "channels_of_bytes": channels_last_convolution((16, 14, 14, 64), (3, 3, 64, 128)),
    "strided_bytes": channels_last_convolution((8, 28, 28, 32), (3, 3, 32, 96), window_strides=(2, 2)),
    "matrix": channels_last_convolution((16, 14, 14, 128), (1, 1, 128, 256), padding=((0, 0), (0, 0))),
    "odd_sizes": channels_last_convolution((3, 13, 11, 48), (5, 3, 48, 80)),
}
PASSES = {"fprop": (0, 1), "dgrad": (2, 1), "wgrad": (0, 2)}  # which of x, w and g they take


def whole_range(shape, seed):
    values = np.random.default_rng([seed, *shape]).integers(-128, 128, shape)
    values.ravel()[::5] = -128  # of which two products have the largest sum
    return values.astype("int8")


def wrapped(sums):
    """Exact sums as int32."""
    return np.asarray(sums).astype("int64").astype("uint64").astype("uint32").view("int32")


def operands(convolution):
    x, w = whole_range(convolution.lhs, 0), whole_range(convolution.rhs, 1)
    y = jax.eval_shape(convolution.lax(), *(jax.ShapeDtypeStruct(a.shape, "float32") for a in (x, w)))
    return x, w, whole_range(y.shape, 2)


def exact(convolution):
    """The operands, and each pass of them: float64 holds such sums."""
    given = operands(convolution)
    with jax.enable_x64(True):
        sums = run_on_host(pullback(convolution.lax()), *(a.astype("float64") for a in given), **WITHOUT_SIMPLIFIER)
    return given, dict(zip(("fprop", "dgrad", "wgrad"), map(wrapped, sums), strict=True))


def passes(convolution):
    """`{pass: (kind, problem)}`, all from int8 to int32."""
    of_one_dtype = passes_of(problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "int8"))
    result = {"conv": "out_dtype", "wgrad": "rhs_dtype"}
    wide = lambda kind, problem: dataclasses.replace(problem, **{result[kind]: np.dtype("int32")})
    return {name: (kind, wide(kind, problem)) for name, (kind, problem) in of_one_dtype.items()}


def gradients(convolution, conv_general_dilated):
    """`(g, w) -> x's gradient` and `(x, g) -> w's`, by the convolutions that JAX makes of those of floats."""
    x, w, g = (jax.ShapeDtypeStruct(a.shape, "float32") for a in operands(convolution))
    conv = convolution.lax()
    of_x = jax.make_jaxpr(lambda g, w: jax.linear_transpose(lambda x: conv(x, w), x)(g)[0])(g, w)
    of_w = jax.make_jaxpr(lambda x, g: jax.linear_transpose(lambda w: conv(x, w), w)(g)[0])(x, g)
    return [functools.partial(_of_integers, jaxpr.jaxpr, conv_general_dilated) for jaxpr in (of_x, of_w)]


def _of_integers(jaxpr, conv_general_dilated, *arrays):
    values = dict(zip(jaxpr.invars, arrays, strict=True))
    for equation in jaxpr.eqns:
        given, params = [values[v] for v in equation.invars], dict(equation.params)
        if equation.primitive is lax.conv_general_dilated_p:
            params = {name: value for name, value in params.items() if value is not None}
            result = conv_general_dilated(*given, **params | dict(preferred_element_type="int32"))
        else:
            result = equation.primitive.bind(*given, **params)
        values[equation.outvars[0]] = result
    return values[jaxpr.outvars[0]]
