"""Problems of narrow numbers as problems of wider ones, which hold these numbers exactly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jax import Array

from jaxconv.problem.algorithms import precision_of_lax, unsupported_reason
from jaxconv.problem.conv_problem import ROLES, ConvProblem
from jaxconv.problem.product import OPERANDS, RESULT

FLOAT8 = frozenset(map(jnp.dtype, ("float8_e4m3fn", "float8_e5m2")))
FLOAT32, BFLOAT16, FLOAT16 = map(jnp.dtype, ("float32", "bfloat16", "float16"))
INT8, INT32 = map(jnp.dtype, ("int8", "int32"))
EXACT_INT8_PRODUCTS = 2**24 // 2**14  # float32 holds integers up to 2**24, and -128 squared is 2**14

Compute = Callable[[Array, Array], Array]


def wider_dtype(a: np.dtype, b: np.dtype) -> np.dtype:
    """The one of more bytes. JAX's promotion is an error where its mode is strict, and of float8."""
    return max(a, b, key=lambda dtype: dtype.itemsize)


def holds(wide: np.dtype, narrow: np.dtype) -> bool:
    """Whether a floating dtype or int8 has every number of another one."""
    if wide in (narrow, INT8):
        return wide == narrow
    of_wide = jnp.finfo(wide)
    if narrow == INT8:
        return bool(of_wide.nmant >= 7 and of_wide.max >= 128)
    of_narrow = jnp.finfo(narrow)
    has_range = of_wide.max >= of_narrow.max and of_wide.smallest_subnormal <= of_narrow.smallest_subnormal
    has_infinities = _has_infinities(wide) or not _has_infinities(narrow)
    return bool(of_wide.nmant >= of_narrow.nmant and has_range and has_infinities)


def _has_infinities(dtype: np.dtype) -> bool:
    return bool(np.isinf(np.array(np.inf).astype(dtype)))


def has_float8(problem: ConvProblem) -> bool:
    return not FLOAT8.isdisjoint(map(problem.dtype, ROLES))


def is_of_two_float8(lhs: np.dtype, rhs: np.dtype) -> bool:
    """Whether they are both float8, and not the same."""
    return lhs != rhs and {lhs, rhs} <= FLOAT8


def with_dtypes(problem: ConvProblem, **dtypes: np.dtype) -> ConvProblem:
    """With other dtypes, by `lhs_dtype`, `rhs_dtype` and `out_dtype`. An algorithm that float32 does not have was asked
    for the caller's dtypes. float32 in their place is multiplied at the highest precision then."""
    wider = dataclasses.replace(problem, **dtypes)
    if FLOAT32 not in map(wider.dtype, ROLES) or unsupported_reason(problem.precision) is None:
        return wider
    return dataclasses.replace(wider, precision=precision_of_lax(problem.precision))


def in_float32(problem: ConvProblem) -> ConvProblem:
    return with_dtypes(problem, lhs_dtype=FLOAT32, rhs_dtype=FLOAT32, out_dtype=FLOAT32)


def without_float8(kind: str, problem: ConvProblem) -> ConvProblem:
    """With operands of 16 bits in place of float8, or of the other operand's type. A float8 result is float32: it is
    rounded to float8 once."""
    result = problem.dtype(RESULT[kind])
    others = [dtype for dtype in map(problem.dtype, OPERANDS[kind]) if dtype not in FLOAT8]
    halves = FLOAT16 if result == FLOAT16 else BFLOAT16
    dtypes = {f"{role}_dtype": jnp.result_type(*others) if others else halves for role in OPERANDS[kind]}
    wider = with_dtypes(problem, **dtypes)
    return with_result(kind, wider, FLOAT32) if result in FLOAT8 else wider


def halves_of_int8(problem: ConvProblem) -> ConvProblem | None:
    """A convolution of int8 with operands of its result's 16 bits. If the result is int8, they are bfloat16. None if
    float32 does not hold each sum exactly."""
    of_int8 = problem.lhs_dtype == problem.rhs_dtype == INT8 and problem.out_dtype in (BFLOAT16, FLOAT16, INT8)
    products = math.prod(problem.kernel) * problem.in_channels
    if not of_int8 or products > EXACT_INT8_PRODUCTS:
        return None
    halves = BFLOAT16 if problem.out_dtype == INT8 else problem.out_dtype
    return with_dtypes(problem, lhs_dtype=halves, rhs_dtype=halves)


def wraps_to_int8(problem: ConvProblem) -> bool:
    """Whether sums of int8 are to be int8: those of int32, modulo 256."""
    return {problem.dtype(role) for role in ROLES} == {INT8}


def with_result(kind: str, problem: ConvProblem, dtype: np.dtype) -> ConvProblem:
    return dataclasses.replace(problem, **{f"{RESULT[kind]}_dtype": dtype})


def converted(kind: str, problem: ConvProblem, wider: ConvProblem, local: Callable[[ConvProblem], Compute]) -> Compute:
    """What computes the problem, by what computes the wider one."""
    compute = local(wider)
    a_dtype, b_dtype = map(wider.dtype, OPERANDS[kind])
    return lambda a, b: compute(a.astype(a_dtype), b.astype(b_dtype)).astype(problem.dtype(RESULT[kind]))
