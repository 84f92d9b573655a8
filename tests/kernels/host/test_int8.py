"""int8 on the host, in every pass and by the kernels of every instruction set: bit-equal to exact sums modulo 2^32."""

import functools

import jax
import numpy as np
import pytest

from cases.epilogue import EVERY, activated, of_channels, plan_with
from cases.for_host import CASES, check_by_every_instruction_set, named
from cases.int8 import PASSES, exact, passes, whole_range, wrapped
from cases.parts import diagonal
from cases.problems import problem_of
from cases.reference import integers
from jaxconv import _cpu, ffi
from jaxconv.activations import Clip, LeakyRelu, activation_of
from jaxconv.epilogue import Epilogue
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint


@functools.cache
def known(family, name, first=False):
    convolution = named(family, name, first)
    return convolution, *exact(convolution)


@pytest.mark.parametrize("family, name, first", diagonal(CASES, [False, True]))
def test_every_pass(family, name, first):
    convolution, arrays, expected = known(family, name, first)
    calls = {
        which: ffi.convolution(choose("cpu", *of_pass, Constraint("cpu", family, transform=())).plan, of_pass[1])
        for which, of_pass in passes(convolution).items()
    }
    every = lambda arrays: {which: call(*(arrays[i] for i in PASSES[which])) for which, call in calls.items()}
    check_by_every_instruction_set(every, arrays, expected)


def call_of(family, lhs, rhs, groups=1):
    """A 1x1 forward convolution."""
    conv = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(1,), padding="VALID", feature_group_count=groups,
        dimension_numbers=("NWC", "WIO", "NWC"),
    )  # fmt: skip
    problem = problem_of(conv, lhs, rhs, "int8", "int32")
    return ffi.convolution(plan_with("cpu", problem, family), problem)


@pytest.mark.parametrize("length", [131071, 131072, 140001])
def test_sums_wrap(length):
    """The largest products: the sum of 131,071 of them is the last that int32 holds."""
    x, w = np.full((1, 13, length), -128, "int8"), np.full((1, length, 3), -128, "int8")
    expected = np.broadcast_to(wrapped(length * 2**14), (1, 13, 3))
    assert (expected[0, 0, 0] > 0) == (length == 131071)
    check_by_every_instruction_set(lambda a: call_of("gemm", x.shape, w.shape)(*a), (x, w), expected)


@pytest.mark.parametrize("low", [-128, 127])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 511, 512, 513, 1023, 1025, 2047, 2048, 2049, 4099])
def test_words_end_anywhere(channels, low):
    """Words hold several channels, blocks many words."""
    x, w = np.full((2, 7, channels), low, "int8"), whole_range((1, channels, 37), 1)
    expected = np.broadcast_to(wrapped(low * w.astype("int64").sum((0, 1))), (2, 7, 37))
    check_by_every_instruction_set(lambda a: call_of("gemm", x.shape, w.shape)(*a), (x, w), expected)


# Epilogues: each step is rounded to float32 on its own.


def rounded(y, dtype):
    return np.clip(np.rint(y), -128, 127).astype("int8") if dtype == "int8" else y.astype(dtype)


def ended(problem, sums, given, activation):
    """By numpy, in float32."""
    y = sums.astype("float32")
    channels = lambda name: of_channels(problem, given[name]).astype("float32")
    if "scale" in given:
        y = y * channels("scale")
    if "bias" in given:
        y = y + channels("bias")
    if "residual" in given:
        y = y + given.get("residual_scale", np.float32(1)) * given["residual"].astype("float32")
    if activation is not None:
        y = activated(activation_of(activation), y)
    if "out_scale" in given:
        y = y * channels("out_scale")
    return rounded(y, problem.out_dtype)


def numbers(problem, names, dtype):
    """Of any bits: that products are rounded before they are added shows in them."""
    rng = np.random.default_rng(5)
    channels = problem.groups * problem.out_channels
    values = {
        "scale": rng.uniform(1e-4, 3e-4, channels), "bias": rng.normal(0, 9, channels),
        "residual": integers(problem.out_shape, problem.out_dtype, 8, 20), "residual_scale": np.full((), 0.3),
        "out_scale": rng.uniform(0.5, 4, channels),
    }  # fmt: skip
    return {name: x if name == "residual" else x.astype("float32") for name, x in values.items() if name in names}


ENDINGS = [
    ((), None), ((), "relu"), (("scale",), None), (("bias",), "relu"), (("scale", "bias"), "relu6"),
    (("residual",), LeakyRelu(0.3)), (EVERY, None), (EVERY, Clip(-20, 90.5)),
]  # fmt: skip
QUANTISED = [((*names, "out_scale"), activation) for names, activation in ENDINGS]


@pytest.mark.parametrize("family, name, result", diagonal(CASES, ["int8", "bfloat16", "float16", "float32"]))
def test_epilogues(family, name, result):
    """The same bits as the same steps one after the other."""
    convolution, (x, w, _), expected = known(family, name)
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, "int8", result)
    endings = ENDINGS + QUANTISED * (result == "int8")
    given = [numbers(problem, names, result) for names, _ in endings]
    plan = plan_with("cpu", problem, family)
    calls = [
        ffi.convolution(plan, problem, Epilogue(names, activation_of(activation), problem.out_dtype))
        for names, activation in endings
    ]
    in_order = [[of[name] for name in names] for of, (names, _) in zip(given, endings, strict=True)]
    every = lambda a: [call(*a[:2], *more) for call, more in zip(calls, a[2], strict=True)]
    with np.errstate(over="ignore"):  # a float16
        results = [ended(problem, expected["fprop"], of, e[1]) for of, e in zip(given, endings, strict=True)]
    check_by_every_instruction_set(every, (x, w, in_order), results)


def test_rounding_to_int8():
    """To the nearest even number, and to the ends of its range; NaN is 0."""
    wanted = np.array([0.5, 1.5, -0.5, -1.5, 2.5, 126.5, 127.5, 1e9, -128.5, -129, -1e30, np.inf, -np.inf, np.nan, 3],
                      "float32")  # fmt: skip
    problem = problem_of(
        functools.partial(
            jax.lax.conv_general_dilated, window_strides=(1,), padding="VALID", dimension_numbers=("NWC", "WIO", "NWC")
        ), (1, 1, 1), (1, 1, wanted.size), "int8", "int8",
    )  # fmt: skip
    call = ffi.convolution(plan_with("cpu", problem, "gemm"), problem, Epilogue(("bias",), None, problem.out_dtype))
    arrays = np.zeros((1, 1, 1), "int8"), np.zeros((1, 1, wanted.size), "int8"), wanted
    expected = np.array([0, 2, 0, -2, 2, 126, 127, 127, -128, -128, -128, 127, -128, 0, 3], "int8").reshape(1, 1, -1)
    check_by_every_instruction_set(lambda a: call(*a), arrays, expected)


def test_large_sums_are_rounded_once():
    """To float32, to nearest even: 2^24 + 1 and 2^24 + 3 lie between two numbers each."""
    w = np.zeros((1, 1030, 2), "int8")
    x = np.full((1, 1, 1030), -128, "int8")
    w[0, :1024] = -128
    x[0, 0, 1024:], w[0, 1024:, :] = 1, [[1, 1], [0, 1], [0, 1], [0, 0], [0, 0], [0, 0]]
    conv = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(1,), padding="VALID", dimension_numbers=("NWC", "WIO", "NWC")
    )
    problem = problem_of(conv, x.shape, w.shape, "int8", "float32")
    call = ffi.convolution(plan_with("cpu", problem, "gemm"), problem)
    expected = np.array([[[2**24, 2**24 + 4]]], "float32")
    check_by_every_instruction_set(lambda a: call(*a), (x, w), expected)


def test_an_unknown_instruction_set():
    with pytest.raises(ValueError, match="lacks"):
        _cpu.use_instruction_set("x86_64_v9")
