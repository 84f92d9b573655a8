"""The problems that native kernels take at all."""

from __future__ import annotations

import math
from functools import lru_cache

import jax.numpy as jnp
import numpy as np

from jaxconv.compiled import planning
from jaxconv.complex_numbers import as_real, is_complex
from jaxconv.problem import ROLES, SPATIAL, ConvProblem, algorithms
from jaxconv.problem.offsets import fits_int32
from jaxconv.problem.product import OPERANDS, RESULT
from jaxconv.problem.wider import FLOAT8, has_float8

# (lhs and rhs, out) of a forward convolution. Its gradients have the same three, in other roles.
DTYPES = frozenset(
    (jnp.dtype(operand), jnp.dtype(result))
    for operand, result in [
        ("float32", "float32"), ("float64", "float64"), ("bfloat16", "bfloat16"), ("float16", "float16"),
        ("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"), ("int8", "int32"), ("int8", "int8"),
    ]
)  # fmt: skip


# The same of a convolution that ends with an epilogue.
DTYPES_WITH_EPILOGUE = DTYPES | {
    (jnp.dtype("int8"), jnp.dtype(result)) for result in ("float32", "bfloat16", "float16")
}

# With float8 in any role. All are summed in float32.
DTYPES_WITH_FLOAT8 = FLOAT8 | set(map(jnp.dtype, ("float32", "bfloat16", "float16")))

MOST_CLASSES = 2**16  # each has a row in a constant of the program, and thread blocks search them


def _dtypes(p: ConvProblem, kind: str) -> tuple[np.dtype, np.dtype]:
    """Of the operands and of the result: those of the forward convolution, or of a wgrad with equal operands."""
    if kind == "wgrad" and p.lhs_dtype == p.out_dtype:
        return p.lhs_dtype, p.rhs_dtype
    return p.rhs_dtype, p.out_dtype if p.lhs_dtype == p.rhs_dtype else p.lhs_dtype


@lru_cache(maxsize=4096)
def unsupported_reason(problem: ConvProblem, kind: str = "conv", with_epilogue: bool = False) -> str | None:
    """Why no native kernel, on any platform, takes a pass of the problem; None if one may take it."""
    p = as_real(kind, problem) if is_complex(problem) else problem
    if len(p.kernel) > SPATIAL:
        return f"{len(p.kernel)} spatial dimensions (up to {SPATIAL} are native)"
    return _unsupported_dtypes(p, kind, with_epilogue) or unsupported_sizes(p)


def _unsupported_dtypes(p: ConvProblem, kind: str, with_epilogue: bool) -> str | None:
    operand, result = _dtypes(p, kind)
    if has_float8(p) and DTYPES_WITH_FLOAT8.issuperset(map(p.dtype, ROLES)):
        return None
    if (operand, result) not in (DTYPES_WITH_EPILOGUE if with_epilogue else DTYPES):
        return f"dtype {operand.name} with result {result.name}"
    if operand == jnp.float32 and (reason := algorithms.unsupported_reason(p.precision)):
        return reason
    are_two = len({p.dtype(role) for role in OPERANDS[kind]}) > 1
    if are_two and p.dtype(RESULT[kind]) == jnp.dtype("int8"):
        return "sums of integers as int8"
    return None


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
        return "2^34 output positions or more"
    return None
