"""A pass of a layer as a program: its problem, compiling it, and the check that our kernels answer it."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

import jaxconv
from convbench.cases import Case
from jaxconv.problem import ConvProblem
from jaxconv.traced import KINDS

PASSES = ("fprop", "dgrad", "wgrad")
SUMS = {"int8": "int32"}  # the results of dtypes whose sums are of another
PRECISIONS = {"default": lax.Precision.DEFAULT, "highest": lax.Precision.HIGHEST}


class Program(NamedTuple):
    """A function and the types of the arrays it takes: only those that the pass reads."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]


def passes_of(dtype: str, asked: Sequence[str]) -> list[str]:
    """Those of the asked passes that JAX has for a dtype: it has no gradients of integers."""
    return [which for which in asked if which == "fprop" or dtype not in SUMS]


def program(case: Case, which: str, dtype: str, precision: str, conv_general_dilated: Callable) -> Program:
    """The pass `which` of a case, on lax's function or one in its place."""
    lhs, rhs, out = (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in (case.lhs, case.rhs, case.out))

    def fprop(x, w):
        return conv_general_dilated(
            x, w, **case.arguments, precision=PRECISIONS[precision], preferred_element_type=SUMS.get(dtype)
        )

    def dgrad(g, w):
        return jax.linear_transpose(lambda x: fprop(x, w), lhs)(g)[0]

    def wgrad(x, g):
        return jax.linear_transpose(lambda w: fprop(x, w), rhs)(g)[0]

    return {
        "fprop": Program(fprop, (lhs, rhs)),
        "dgrad": Program(dgrad, (out, rhs)),
        "wgrad": Program(wgrad, (lhs, out)),
    }[which]


def problem_of_row(row: dict, case: Case) -> tuple[str, ConvProblem]:
    """Kind and problem of a row's pass of a case."""
    return problem_of(program(case, row["pass"], row["dtype"], row["precision"], jaxconv.conv_general_dilated))


def problem_of(side: Program) -> tuple[str, ConvProblem]:
    """Kind and problem of the one convolution of a program on jaxconv, as its planner sees them."""
    equations = jax.make_jaxpr(side.function)(*side.operands).jaxpr.eqns
    (equation,) = (equation for equation in equations if equation.primitive in KINDS)
    return KINDS[equation.primitive], equation.params["problem"]


class Compilation(NamedTuple):
    compiled: jax.stages.Compiled
    lower_s: float  # tracing and lowering, wall time
    compile_s: float  # XLA's compilation, wall time


def compile_fresh(program: Program) -> Compilation:
    """Traces, lowers and compiles a function that JAX has not seen."""
    start = time.perf_counter()
    lowered = jax.jit(lambda *operands: program.function(*operands)).lower(*program.operands)
    lowered_at = time.perf_counter()
    compiled = lowered.compile()
    return Compilation(compiled, lowered_at - start, time.perf_counter() - lowered_at)


def answered_by_us(hlo: str) -> bool:
    """Whether our kernels compute the convolution of a compiled module, and nothing else does."""
    others = re.search(r"\bconvolution\(|__cudnn|__onednn", hlo)
    return 'custom_call_target="jaxconv_' in hlo and not others
