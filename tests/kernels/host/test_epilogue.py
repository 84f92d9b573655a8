"""The epilogue of the host's kernels: of each complete sum, once, before that is rounded to the result's dtype."""

import dataclasses
import functools
import itertools

import jax
import numpy as np
import pytest

from cases.convolution import channels_last_convolution
from cases.epilogue import EVERY, NUMBERS, ended, operands_of, with_epilogue
from cases.for_host import CASES, GEMM, named
from cases.parts import diagonal, every_other, repeated
from cases.problems import passes_of, problem_of
from cases.reference import FLOATS, assert_same, exception_of, pullback, run_on_host
from jaxconv.activations import Clip, LeakyRelu, activation_of

BOTH = pytest.mark.parametrize("family, name", [("gemm", "dense"), ("depthwise", "channels")])


@functools.cache
def exact(family, name, first):
    """A convolution, its operands, and the sums of both passes by lax."""
    convolution = named(family, name, first)
    with jax.enable_x64(True):
        x, w, g = convolution.operands("float64")
        forward, backward, _ = run_on_host(pullback(convolution.lax()), x, w, g)
    return convolution, w, {"fprop": (x, np.asarray(forward)), "dgrad": (g, np.asarray(backward))}


# The operands, the activation, and which operands are one number.
EXACT = [
    ((), None, ()), (("bias",), None, ()), (("scale",), "relu", ()), (("residual",), LeakyRelu(0.25), ()),
    (("scale", "bias"), "relu6", ("bias",)), (("residual", "residual_scale"), None, ()), (EVERY, "relu", ()),
    (("scale", "bias", "residual"), Clip(-5, 30), ("scale", "bias")),
]  # fmt: skip
SMOOTH = [((), "silu", ()), (("scale", "bias"), "gelu", ()), (EVERY, "hard_swish", ()), (("bias",), "silu", ("bias",))]


def check(family, name, operand, result, passes=("fprop", "dgrad"), first=False, endings=EXACT, rtol=0.0):
    """All endings in one program."""
    convolution, w, operands_of_passes = exact(family, name, first)
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, operand, result)
    with jax.enable_x64(True):
        for which in passes:
            of_pass = passes_of(problem)[which][1]
            lhs, sums = operands_of_passes[which]
            lhs, rhs = lhs.astype(of_pass.lhs_dtype), w.astype(of_pass.rhs_dtype)
            given = [operands_of(of_pass, NUMBERS.get(result, "float32"), names, one) for names, _, one in endings]
            conv = functools.partial(with_epilogue, "cpu", of_pass, family)
            every = jax.jit(lambda lhs, rhs, given: [
                conv(lhs, rhs, operands, ending[1]) for operands, ending in zip(given, endings, strict=True)
            ])  # fmt: skip
            expected = [ended(of_pass, sums, operands, ending[1]) for operands, ending in zip(given, endings)]
            assert_same(every(lhs, rhs, given), expected, rtol)


@pytest.mark.parametrize("family, name, dtype", diagonal(CASES, FLOATS))
def test_exact_epilogues(family, name, dtype):
    check(family, name, dtype, dtype)


@pytest.mark.parametrize("dtype", ["float32", repeated("bfloat16")])
@pytest.mark.parametrize("family, name", every_other(CASES))
def test_channels_first(family, name, dtype):
    check(family, name, dtype, dtype, first=True)


@pytest.mark.parametrize("operand, result", [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64")])
@BOTH
def test_wider_results(family, name, operand, result):
    check(family, name, operand, result)


ENDED = ("float32", "bfloat16", "float16", "int8", "float8_e4m3fn", "float8_e5m2")


@pytest.mark.parametrize("operand", ENDED)
@BOTH
def test_results_and_residuals_of_every_type(family, name, operand):
    """Each residual with each result, also where nothing but the type of the result is asked for."""
    convolution, w, of_passes = exact(family, name, False)
    (x, sums), numbers = of_passes["fprop"], ("scale", "bias", "residual", "residual_scale")
    wide = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "float32", "float32")
    types = {"lhs_dtype": np.dtype(operand), "rhs_dtype": np.dtype(operand)}
    calls, expected = [], []
    for result, residual in itertools.product(ENDED, (None, *ENDED)):
        of_pass = dataclasses.replace(wide, **types, out_dtype=np.dtype(result))
        operands = operands_of(of_pass, "float32", numbers) if residual else {}
        if residual:
            operands["residual"] = operands["residual"].astype(residual)
        calls.append((of_pass, operands))
        expected.append(ended(of_pass, sums, operands, "relu" if residual else None))
    run = jax.jit(lambda x, w: [with_epilogue("cpu", of_pass, family, x, w, operands, "relu" if operands else None)
                                for of_pass, operands in calls])  # fmt: skip
    assert_same(run(x.astype(operand), w.astype(operand)), expected)


RTOL = [("float32", 1e-6), ("float64", 1e-14), ("bfloat16", 8e-3), ("float16", 1e-3)]


@pytest.mark.parametrize("family, name, dtype, rtol", diagonal(CASES, RTOL))
def test_smooth_activations(family, name, dtype, rtol):
    check(family, name, dtype, dtype, endings=SMOOTH, rtol=rtol)


@BOTH
def test_nans_and_infinities(family, name):
    """And large numbers, whose squares are infinite: they go through every activation as in `jax.nn`."""
    convolution = named(family, name)
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs)
    x, w = np.zeros(convolution.lhs, np.float32), np.ones(convolution.rhs, np.float32)
    residual = np.resize(np.array([np.nan, np.inf, -np.inf, 2, 1e25, -1e25], np.float32), problem.out_shape)
    for activation in ("relu", "relu6", LeakyRelu(0.25), "silu", "gelu", "hard_swish"):
        actual = with_epilogue("cpu", problem, family, x, w, {"residual": residual}, activation)
        np.testing.assert_allclose(actual, activation_of(activation)(residual), rtol=1e-6)


ZEROS = [None, 0.0, -0.0]
SIGNS = [None, "relu", "relu6", LeakyRelu(0.25), LeakyRelu(-2), Clip(-1, 2), Clip(-1, 0), "silu", "gelu", "hard_swish"]


@BOTH
@pytest.mark.parametrize("activation", SIGNS, ids=str)
def test_signs_of_zeros(family, name, activation):
    """As those of the formula: the derivative of leaky_relu is had from the result, where -0 is a negative number that
    was rounded, and no zero that was scaled by a negative number, whatever zeros are added to it."""
    convolution = named(family, name)
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs)
    x, w = np.zeros(convolution.lhs, np.float32), np.ones(convolution.rhs, np.float32)
    for scale, bias, residual in itertools.product([None, 1.0, -2.0], ZEROS, ZEROS):
        values = {"scale": scale, "bias": bias, "residual": residual}
        given = {
            name: np.full(problem.out_shape if name == "residual" else (), value, np.float32)
            for name, value in values.items()
            if value is not None
        }
        result = np.asarray(with_epilogue("cpu", problem, family, x, w, given, activation))
        expected = ended(problem, np.zeros(problem.out_shape), given, activation)
        np.testing.assert_array_equal(result, expected)
        np.testing.assert_array_equal(np.signbit(result), np.signbit(expected), str(values))


@pytest.mark.parametrize("family, groups", [("gemm", 1), ("depthwise", 16)])
def test_bias_before_rounding(family, groups):
    """To 256 + 1, which is no bfloat16."""
    convolution = channels_last_convolution((1, 1, 2, 16), (1, 2, 16 // groups, 16), padding="VALID",
                                            feature_group_count=groups)  # fmt: skip
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "bfloat16")
    x, w = np.ones(convolution.lhs, problem.lhs_dtype), np.zeros(convolution.rhs, problem.rhs_dtype)
    x[:, :, 0] = 256
    w[:] = np.eye(16) if groups == 1 else 1
    result = with_epilogue("cpu", problem, family, x, w, {"bias": np.full(16, -256, np.float32)})
    assert_same(result, np.ones(problem.out_shape, problem.out_dtype))


@pytest.mark.parametrize("family, x_shape, w_shape, groups", [
    ("gemm", (2, 3, 3, 0), (2, 2, 0, 5), 1), ("gemm", (2, 3, 3, 0), (2, 2, 0, 40), 2),
    ("depthwise", (2, 3, 3, 0), (2, 2, 0, 5), 5),
])  # fmt: skip
def test_empty_reduction(family, x_shape, w_shape, groups):
    """The epilogue of zeros."""
    convolution = channels_last_convolution(x_shape, w_shape, feature_group_count=groups)
    problem = problem_of(convolution.lax(), x_shape, w_shape)
    x, w, sums = (np.zeros(shape, np.float32) for shape in (x_shape, w_shape, problem.out_shape))
    for names, activation, one in EXACT:
        operands = operands_of(problem, "float32", names, one)
        result = with_epilogue("cpu", problem, family, x, w, operands, activation)
        assert_same(result, ended(problem, sums, operands, activation))


OUT = (2, 9, 8, 33)


@pytest.mark.parametrize("operand, result, operands, message", [
    ("float32", "float32", dict(bias=np.zeros(33, np.int32)), "the bias must be float32, as the sums are"),
    ("bfloat16", "bfloat16", dict(scale=np.zeros(33, "bfloat16")), "the scale must be float32, as the sums are"),
    ("float32", "float64", dict(bias=np.zeros(33, np.float32)), "the bias must be float64, as the sums are"),
    ("float32", "float32", dict(bias=np.zeros(33, np.uint8)), "the bias must be float32"),
    ("int8", "int8", dict(bias=np.zeros(33, np.int32)), "the bias must be float32, as the epilogue of integers is"),
    ("int8", "int32", dict(bias=np.zeros(33, np.float32)), "sums of integers that are the result have no epilogue"),
    ("float32", "float32", dict(out_scale=np.ones(33, np.float32)), "an out scale is for a result of int8"),
    ("float32", "float32", dict(bias=np.zeros(32, np.float32)), "the bias has 32 numbers for 33 output channels"),
    ("float32", "float32", dict(scale=np.zeros((33, 2), np.float32)), "the scale has 66 numbers for 33 output"),
    ("bfloat16", "bfloat16", dict(residual=np.zeros(OUT, np.float64)), "no residual of float64 is added in float32"),
    ("float64", "float64", dict(residual=np.zeros(OUT, "float8_e5m2")),
     "no residual of float8_e5m2 is added in float64"),
    ("float32", "float32", dict(residual=np.zeros(OUT, np.int32)), "no residual of int32 is added in float32"),
    ("float32", "float32", dict(residual=np.zeros(OUT, bool)), "there are no kernels for the residual's dtype"),
    ("float32", "float32", dict(residual=np.zeros((2, 9, 8, 32), np.float32)),
     "the residual has 4608 numbers for 4752 of the result"),
    ("float32", "float32", dict(residual=np.zeros(OUT, np.float32), residual_scale=np.zeros((), np.float64)),
     "the residual scale must be float32, as the sums are"),
    ("float32", "float32", dict(residual=np.zeros(OUT, np.float32), residual_scale=np.zeros(33, np.float32)),
     "the residual scale has 33 numbers"),
])  # fmt: skip
def test_refused(operand, result, operands, message):
    dense = GEMM["dense"]
    problem = problem_of(dense.lax(), dense.lhs, dense.rhs, operand, result)
    with jax.enable_x64(True):
        x, w, _ = dense.operands("float64")
        x, w = x.astype(problem.lhs_dtype), w.astype(problem.rhs_dtype)
        error = exception_of(lambda: jax.block_until_ready(with_epilogue("cpu", problem, "gemm", x, w, operands)))
    assert "INVALID_ARGUMENT: jaxconv: convolution of source (2, 9, 8, 17)" in str(error)
    assert message in str(error)
