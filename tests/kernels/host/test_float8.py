"""float8 on the host, in every pass and by the kernels of every instruction set: exact sums, rounded once."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from cases.epilogue import EVERY, ended, operands_of, plan_with
from cases.float8 import FLOAT8, PAIRS, PASSES, RESULTS, exact, largest_of, passes
from cases.for_host import CASES, check_by_every_instruction_set, named
from cases.parts import diagonal
from cases.problems import problem_of
from cases.reference import assert_same
from jaxconv import ffi
from jaxconv.activations import activation_of
from jaxconv.epilogue import Epilogue
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint


@functools.cache
def known(family, name, first):
    convolution = named(family, name, first)
    return convolution, *exact(convolution)


@pytest.mark.parametrize("family, name, first, lhs, rhs", diagonal(CASES, [False, True], PAIRS))
def test_every_pass(family, name, first, lhs, rhs):
    """To every type of result; gradients take a cotangent of that type."""
    convolution, arrays, expected = known(family, name, first)
    calls, operands, results = [], [], []
    for out in RESULTS:
        for which, (kind, problem) in passes(convolution, lhs, rhs, out).items():
            plan = choose("cpu", kind, problem, Constraint("cpu", family, transform=())).plan
            roles, result = PASSES[which]
            dtypes = lhs, rhs, out
            calls.append(ffi.convolution(plan, problem))
            operands.append([arrays[i].astype(dtypes[i]) for i in roles])
            results.append(np.asarray(expected[result]).astype((out, lhs, rhs)[result]))
    every = lambda operands: [call(*of) for call, of in zip(calls, operands, strict=True)]
    check_by_every_instruction_set(every, operands, results)


def conv_of(lhs, rhs, dtypes, family="gemm", groups=1, epilogue=None):
    """A 1x1 forward convolution of lhs, rhs and result of these types, which may end with an epilogue."""
    conv = functools.partial(
        jax.lax.conv_general_dilated, window_strides=(1,), padding="VALID", feature_group_count=groups,
        dimension_numbers=("NWC", "WIO", "NWC"),
    )  # fmt: skip
    types = dict(zip(("lhs_dtype", "rhs_dtype", "out_dtype"), map(np.dtype, dtypes), strict=True))
    problem = dataclasses.replace(problem_of(conv, lhs, rhs), **types)
    return problem, ffi.convolution(plan_with("cpu", problem, family), problem, *([epilogue] if epilogue else []))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_number_is_read(dtype):
    """As the left operand, in rows and columns, and as the right one; NaNs and infinities too."""
    every = np.arange(256, dtype="uint8").view(dtype)
    one, wide = np.ones((1, 1, 1), "float32"), every.astype("float32")
    cases = [
        (every.reshape(1, 256, 1), one, "gemm", 1), (every.reshape(1, 1, 256), np.ones((1, 1, 256), "float32"),
        "depthwise", 256), (one, every.reshape(1, 1, 256), "gemm", 1),
        (np.ones((1, 1, 256), "float32"), every.reshape(1, 1, 256), "depthwise", 256),
    ]  # fmt: skip
    calls = [
        conv_of(x.shape, w.shape, (x.dtype, w.dtype, "float32"), family, groups)[1] for x, w, family, groups in cases
    ]
    arrays = [(x, w) for x, w, *_ in cases]
    expected = [wide.reshape(1, 256, 1), *[wide.reshape(1, 1, 256)] * 3]
    check_by_every_instruction_set(lambda a: [c(*of) for c, of in zip(calls, a, strict=True)], arrays, expected)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_rounding(dtype):
    """To nearest even. Beyond the largest number: to infinity, or NaN if the type has none, as lax rounds."""
    finite = np.arange(256, dtype="uint8").view(dtype).astype("float32")
    finite = np.unique(finite[np.isfinite(finite)])
    between = (finite[1:] + finite[:-1]) / 2
    special = np.array(
        [np.inf, -np.inf, np.nan, 464, 465, 480, 61440, 61441, 1e30, -1e30, 2.0**-10, 2.0**-17], "float32"
    )
    exactly = np.concatenate([finite, between, special])
    values = np.concatenate([exactly, np.nextafter(between, np.float32(1e9)), np.nextafter(between, np.float32(-1e9))])
    x, w = values.reshape(1, -1, 1), np.ones((1, 1, 1), dtype)
    _, rows = conv_of(x.shape, w.shape, ("float32", dtype, dtype))
    _, columns = conv_of(w.shape, (1, 1, values.size), (dtype, "float32", dtype))
    calls = lambda a: (rows(*a), columns(a[1], a[0].reshape(1, 1, -1)))
    rounded = values.astype(dtype)
    assert_same(np.asarray(jax.numpy.asarray(values).astype(dtype)), rounded)
    check_by_every_instruction_set(calls, (x, w), (rounded.reshape(1, -1, 1), rounded.reshape(1, 1, -1)))


@pytest.mark.parametrize("lhs, rhs", PAIRS)
def test_sums_are_float32(lhs, rhs):
    """In float16 this one would be infinite."""
    x = np.array([[[448, 448, 256, 2.0**-3]]], lhs)
    w = np.array([[[448], [448], [256], [2.0**-2]]], rhs)
    expected = np.einsum("nwc,wck->nwk", x.astype("float32"), w.astype("float32"))
    assert expected > 65504
    _, conv = conv_of(x.shape, w.shape, (lhs, rhs, "float32"))
    check_by_every_instruction_set(lambda a: conv(*a), (x, w), expected)


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("lhs, rhs", PAIRS)
@pytest.mark.parametrize("family, name", [("gemm", "dense"), ("gemm", "groups"), ("depthwise", "multiplier")])
def test_epilogues(family, name, lhs, rhs, result):
    convolution, (x, w, _), (y, *_) = known(family, name, False)
    _, problem = passes(convolution, lhs, rhs, result)["fprop"]
    given = operands_of(problem, "float32", EVERY)
    call = ffi.convolution(
        plan_with("cpu", problem, family), problem, Epilogue(EVERY, activation_of("relu"), problem.out_dtype)
    )
    arrays = x.astype(lhs), w.astype(rhs), *given.values()
    check_by_every_instruction_set(lambda a: call(*a), arrays, ended(problem, y, given, "relu"))


@pytest.mark.parametrize("dtype, largest", [(dtype, largest_of(dtype)) for dtype in FLOAT8])
def test_epilogues_end_at_the_largest_number(dtype, largest):
    """Of each sign, and infinities too; NaN stays NaN. Without a step it is the same, after it was asked for."""
    wanted = np.array([largest, 1.2 * largest, np.inf, np.nan, 3], "float32")
    wanted = np.concatenate([wanted, -wanted])
    x, w, bias = np.zeros((1, 1, 1), dtype), np.zeros((1, 1, 10), dtype), wanted / 2
    steps = Epilogue(("bias", "out_scale"), None, np.dtype(dtype))
    _, with_steps = conv_of(x.shape, w.shape, (dtype,) * 3, epilogue=steps)
    _, without = conv_of((1, 1, 1), (1, 1, 10), ("float32", "float32", dtype),
                         epilogue=Epilogue((), None, np.dtype(dtype)).for_kernels)  # fmt: skip
    wide = wanted.reshape(1, 1, 10)
    expected = np.clip(wide, -largest, largest).astype(dtype)
    arrays = (x, w, bias, np.full((), 2, "float32")), (np.ones((1, 1, 1), "float32"), wide)
    check_by_every_instruction_set(lambda a: (with_steps(*a[0]), without(*a[1])), arrays, (expected, expected))
