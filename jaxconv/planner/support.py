"""The problems that native kernels take at all."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from jaxconv.compiled import planning
from jaxconv.complex_numbers import as_real, is_complex
from jaxconv.problem import ROLES, SPATIAL, ConvProblem, algorithms
from jaxconv.problem.offsets import fits_int32
from jaxconv.problem.product import OPERANDS, RESULT
from jaxconv.problem.wider import INT32, with_result, wraps_to_int8

MOST_CLASSES = 2**16  # each has a row in a constant of the program, and thread blocks search them


@lru_cache(maxsize=4096)
def unsupported_reason(problem: ConvProblem, kind: str = "conv", with_epilogue: bool = False) -> str | None:
    """Why no native kernel, on any platform, takes a pass of the problem; None if one may take it."""
    p = as_real(kind, problem) if is_complex(problem) else problem
    if len(p.kernel) > SPATIAL:
        return f"{len(p.kernel)} spatial dimensions (up to {SPATIAL} are native)"
    return _unsupported_dtypes(p, kind, with_epilogue) or unsupported_sizes(p)


def _unsupported_dtypes(p: ConvProblem, kind: str, with_epilogue: bool) -> str | None:
    if wraps_to_int8(p) and not with_epilogue:
        p = with_result(kind, p, INT32)
    # Those of the forward convolution: a gradient's operands are one of its operands and its result.
    operand, other = sorted(map(p.dtype, OPERANDS[kind]), key=lambda dtype: dtype.itemsize)
    lhs, rhs, out = (p.dtype(role).name for role in ROLES)
    if not planning.takes_types(kind == "wgrad", lhs, rhs, out, with_epilogue):
        return f"dtype {operand.name} with result {(p.dtype(RESULT[kind]) if operand == other else other).name}"
    return algorithms.unsupported_reason(p.precision) if operand == np.float32 else None


def unsupported_sizes(p: ConvProblem) -> str | None:
    """Why no native kernel takes a problem of these sizes."""
    # The tables hold every size and stride, except those of an outermost batch.
    sizes = (*p.rhs_shape, *p.lhs_shape[1:], *p.out_shape[1:], *p.in_spatial, *p.out_spatial)
    if not all(isinstance(d, int) for d in (*sizes, p.in_channels, p.out_channels)):
        return "a symbolic dimension other than an outermost batch"
    if not fits_int32(p):
        return "an offset inside an image does not fit 32 bits, or a coordinate 30"
    if (classes := math.prod(map(min, p.periods, p.out_spatial))) > MOST_CLASSES:
        return f"{classes:,} residue classes of the strides and dilations (up to {MOST_CLASSES:,} are native)"
    if isinstance(p.batch, int) and p.batch * math.prod(p.out_spatial) >= planning.POSITIONS_LIMIT:
        return planning.TOO_MANY_POSITIONS
    return None
