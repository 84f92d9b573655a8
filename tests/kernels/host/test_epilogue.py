"""The bias of the host's kernels: added once to the complete sum, before that is rounded to the result's dtype."""

import functools

import jax
import numpy as np
import pytest

from cases.convolution import Convolution, channels_last_convolution
from cases.epilogue import added, with_bias
from cases.problems import passes_of, problem_of
from cases.reference import FLOATS, assert_same, exception_of, integers, pullback, run_on_host

GEMM = {
    "dense": channels_last_convolution((2, 9, 8, 17), (3, 3, 17, 33)),
    "one": channels_last_convolution((2, 5, 7, 1), (3, 3, 1, 1)),
    "few_outputs": channels_last_convolution((1, 70, 60, 24), (5, 5, 24, 3)),
    "few_inputs": channels_last_convolution((2, 33, 31, 3), (7, 7, 3, 20), window_strides=(2, 2)),
    "deep": channels_last_convolution((1, 4, 5, 600), (2, 2, 600, 40)),
    "wide": channels_last_convolution((1, 3, 4, 5), (1, 1, 5, 700)),
    "groups": channels_last_convolution((2, 5, 6, 15), (3, 3, 5, 21), feature_group_count=3),
    "batch_groups": channels_last_convolution((6, 5, 6, 4), (3, 3, 4, 9), batch_group_count=3),
    "classes_without_taps": channels_last_convolution(
        (2, 6, 5, 17), (2, 1, 17, 19), lhs_dilation=(3, 2), padding=((1, 3), (2, 1))),
    "patches_apart": channels_last_convolution((2, 11, 9, 6), (2, 1, 6, 18), window_strides=(3, 2), padding="VALID"),
    "out_of_reach": channels_last_convolution((1, 3, 3, 4), (2, 2, 4, 5), padding=((9, 9), (9, 9))),
    "line": channels_last_convolution((3, 70, 6), (5, 6, 2)),
    "volume": channels_last_convolution((2, 5, 4, 6, 7), (3, 2, 3, 7, 18)),
}  # fmt: skip
DEPTHWISE = {
    "channels": channels_last_convolution((2, 6, 9, 33), (3, 3, 1, 33), feature_group_count=33),
    "fewer_than_lanes": channels_last_convolution((2, 6, 70, 3), (3, 3, 1, 3), feature_group_count=3),
    "multiplier": channels_last_convolution((2, 6, 9, 17), (3, 3, 1, 34), feature_group_count=17),
    "classes_without_taps": channels_last_convolution(
        (2, 5, 6, 18), (2, 1, 1, 18), lhs_dilation=(3, 2), padding=((1, 3), (2, 1)), feature_group_count=18),
    "patches_apart": channels_last_convolution(
        (2, 11, 9, 16), (2, 1, 1, 16), window_strides=(3, 2), padding="VALID", feature_group_count=16),
    "batch_groups": channels_last_convolution((6, 5, 6, 1), (3, 3, 1, 6), batch_group_count=6),
}  # fmt: skip
FAMILIES = {"gemm": GEMM, "depthwise": DEPTHWISE}
CASES = [(family, name) for family, convolutions in FAMILIES.items() for name in convolutions]
EVERY = pytest.mark.parametrize("family, name", CASES)
BOTH = pytest.mark.parametrize("family, name", [("gemm", "dense"), ("depthwise", "channels")])
SUMS = {"int32": "int32", "float64": "float64"}  # of results; others are float32


def channels_first(convolution):
    """The same with NCHW and OIHW."""
    rank = len(convolution.lhs) - 2
    spatial = "DHW"[3 - rank :]
    lhs, rhs = convolution.lhs, convolution.rhs
    layouts = dict(dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"))
    return Convolution((lhs[0], lhs[-1], *lhs[1:-1]), (rhs[-1], rhs[-2], *rhs[:-2]), convolution.params | layouts)


@functools.cache
def exact(family, name, first):
    """A convolution, its operands, and the sums of both passes by lax."""
    convolution = FAMILIES[family][name]
    convolution = channels_first(convolution) if first else convolution
    with jax.enable_x64(True):
        x, w, g = convolution.operands("float64")
        forward, backward, _ = run_on_host(pullback(convolution.lax()), x, w, g)
    return convolution, w, {"fprop": (x, np.asarray(forward)), "dgrad": (g, np.asarray(backward))}


def bias_of(problem, dtype):
    """Of other numbers than the sums: each shows where it is missing, or added twice."""
    return integers((problem.groups * problem.out_channels,), dtype, 7, 40)


def check(family, name, operand, result, passes=("fprop", "dgrad"), first=False):
    convolution, w, operands_of = exact(family, name, first)
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, operand, result)
    with jax.enable_x64(True):
        for which in passes:
            of_pass = passes_of(problem)[which][1]
            lhs, sums = operands_of[which]
            bias = bias_of(of_pass, SUMS.get(result, "float32"))
            conv = functools.partial(with_bias, "cpu", of_pass, family)
            operands = lhs.astype(of_pass.lhs_dtype), w.astype(of_pass.rhs_dtype)
            both = jax.jit(lambda *operands: (conv(*operands), conv(*operands[:2], None)))
            expected = added(of_pass, sums, bias), sums
            assert_same(both(*operands, bias), tuple(e.astype(of_pass.out_dtype) for e in expected))


@pytest.mark.parametrize("dtype", FLOATS)
@EVERY
def test_bias(family, name, dtype):
    check(family, name, dtype, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@EVERY
def test_bias_channels_first(family, name, dtype):
    check(family, name, dtype, dtype, first=True)


@pytest.mark.parametrize("operand, result", [("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64")])
@BOTH
def test_bias_of_wider_results(family, name, operand, result):
    check(family, name, operand, result)


@EVERY
def test_bias_of_integers(family, name):
    check(family, name, "int8", "int32", ("fprop",))


@BOTH
def test_integers_with_their_bias_wrap(family, name):
    convolution = FAMILIES[family][name]
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "int8", "int32")
    x, w = np.ones(convolution.lhs, np.int8), np.ones(convolution.rhs, np.int8)
    sums = run_on_host(functools.partial(convolution.lax(), preferred_element_type="int32"), x, w)
    bias = np.full(problem.groups * problem.out_channels, 2**31 - 1, np.int32)
    assert_same(with_bias("cpu", problem, family, x, w, bias), np.asarray(sums) + bias)


@pytest.mark.parametrize("family, groups", [("gemm", 1), ("depthwise", 16)])
def test_bias_is_added_before_rounding(family, groups):
    """To 256 + 1, which is no bfloat16."""
    convolution = channels_last_convolution((1, 1, 2, 16), (1, 2, 16 // groups, 16), padding="VALID",
                                            feature_group_count=groups)  # fmt: skip
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "bfloat16")
    x, w = np.ones(convolution.lhs, problem.lhs_dtype), np.zeros(convolution.rhs, problem.rhs_dtype)
    x[:, :, 0] = 256
    w[:] = np.eye(16) if groups == 1 else 1
    result = with_bias("cpu", problem, family, x, w, np.full(16, -256, np.float32))
    assert_same(result, np.ones(problem.out_shape, problem.out_dtype))


@pytest.mark.parametrize("family, x_shape, w_shape, groups", [
    ("gemm", (2, 3, 3, 0), (2, 2, 0, 5), 1), ("gemm", (2, 3, 3, 0), (2, 2, 0, 40), 2),
    ("depthwise", (2, 3, 3, 0), (2, 2, 0, 5), 5),
])  # fmt: skip
def test_empty_reduction(family, x_shape, w_shape, groups):
    """The bias alone."""
    convolution = channels_last_convolution(x_shape, w_shape, feature_group_count=groups)
    problem = problem_of(convolution.lax(), x_shape, w_shape)
    bias = bias_of(problem, "float32")
    result = with_bias("cpu", problem, family, np.zeros(x_shape, np.float32), np.zeros(w_shape, np.float32), bias)
    assert_same(result, added(problem, np.zeros(problem.out_shape, np.float32), bias))


@pytest.mark.parametrize("operand, result, bias, message", [
    ("float32", "float32", np.zeros(33, np.int32), "the bias must be float32"),
    ("bfloat16", "bfloat16", np.zeros(33, "bfloat16"), "the bias must be float32"),
    ("float32", "float64", np.zeros(33, np.float32), "the bias must be float64"),
    ("int8", "int32", np.zeros(33, np.float32), "the bias must be int32"),
    ("float32", "float32", np.zeros(33, np.uint8), "the bias must be float32"),
    ("float32", "float32", np.zeros(32, np.float32), "the bias has 32 numbers for 33 output channels"),
    ("float32", "float32", np.zeros((33, 2), np.float32), "the bias has 66 numbers for 33 output channels"),
    ("float32", "float32", np.float32(0), "the bias has 1 numbers for 33 output channels"),
])  # fmt: skip
def test_refused(operand, result, bias, message):
    dense = GEMM["dense"]
    problem = problem_of(dense.lax(), dense.lhs, dense.rhs, operand, result)
    with jax.enable_x64(True):
        x, w, _ = dense.operands("float64")
        operands = x.astype(problem.lhs_dtype), w.astype(problem.rhs_dtype)
        error = exception_of(lambda: jax.block_until_ready(with_bias("cpu", problem, "gemm", *operands, bias)))
    assert "INVALID_ARGUMENT: jaxconv: convolution of source (2, 9, 8, 17)" in str(error)
    assert message in str(error)
