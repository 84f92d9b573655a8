"""Convolutions of float8: every pairing of operands, and passes of small integers, whose sums are exact in float32."""

import dataclasses
import itertools

import numpy as np

from cases.problems import passes_of, problem_of
from cases.reference import integers, pullback, run_on_host

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
PAIRS = list(itertools.product(FLOAT8, FLOAT8))
RESULTS = ("float32", "bfloat16", "float16", *FLOAT8)
PASSES = {
    "fprop": ((0, 1), 0),
    "dgrad": ((2, 1), 1),
    "wgrad": ((0, 2), 2),
}  # operands of x, w and g; result of y, dx, dw


def exact(convolution):
    """x, w and g, and the result of each pass, in float32."""
    arrays = [integers(shape, "float32", seed) for seed, shape in enumerate((convolution.lhs, convolution.rhs))]
    arrays.append(integers(problem_of(convolution.lax(), convolution.lhs, convolution.rhs).out_shape, "float32", 2))
    return arrays, run_on_host(pullback(convolution.lax()), *arrays)


def passes(convolution, lhs, rhs, out):
    """`{pass: (kind, problem)}` with these types of x, w and the result."""
    problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs)
    return passes_of(
        dataclasses.replace(problem, lhs_dtype=np.dtype(lhs), rhs_dtype=np.dtype(rhs), out_dtype=np.dtype(out))
    )


def saturated(y, dtype):
    """As an epilogue rounds."""
    largest = largest_of(dtype) if dtype in FLOAT8 else np.inf
    return np.clip(np.asarray(y), -largest, largest).astype(dtype)


def largest_of(dtype):
    return {"float8_e4m3fn": 448, "float8_e5m2": 57344}[np.dtype(dtype).name]
