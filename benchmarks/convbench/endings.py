"""`python -m benchmarks epilogue`: passes of layers that end with an epilogue, beside XLA's of the same on lax."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from tabulate import tabulate

import jaxconv
from convbench import forward, selection
from convbench.cases import Case
from convbench.measure import operands_of, rounded, timed
from convbench.programs import Program
from convbench.results import geomean_speedup
from convbench.rows import grouped

GRADIENTS = ", and all gradients"  # of an ending: its backward passes, too
ENDINGS = (
    "bias relu",
    "bias residual relu",
    *(f"{end}{GRADIENTS}" for end in ("bias", "bias relu", "bias residual relu")),
)
KEY = ("case", "ending", "dtype")


def main(arguments: Sequence[str]) -> int:
    """Exit status: 1 if one of our kernels failed."""
    description = "Convolutions with bias, residual and relu, beside XLA's on lax."
    parser = forward.parser("epilogue", description)
    selection.add_dtypes(parser, "bfloat16")
    options = parser.parse_args(arguments)
    forward.begin("epilogue")
    every = [
        (case, ending, dtype) for case in selection.selected(options) for dtype in options.dtypes for ending in ENDINGS
    ]
    return forward.measure_all(options, every, measure, KEY, table)


def programs(case: Case, ending: str, dtype: str, implementation: str | None) -> tuple[Program, Program]:
    """Ours in one call, and the expression that users of lax write: bias and residual in the operands' dtype."""
    lhs, rhs, out = (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in (case.lhs, case.rhs, case.out))
    bias = jax.ShapeDtypeStruct(case.out[-1:], jnp.float32)
    residual = (out,) if "residual" in ending else ()
    activation, activated = ("relu", jax.nn.relu) if "relu" in ending else (None, lambda z: z)

    def ours(x: Array, w: Array, bias: Array, *residual: Array) -> Array:
        more = dict(zip(("residual",), residual, strict=False))
        return jaxconv.fused_conv_general_dilated(
            x, w, **case.arguments, bias=bias, activation=activation, implementation=implementation, **more
        )

    def theirs(x: Array, w: Array, bias: Array, *residual: Array) -> Array:
        return activated(sum(residual, lax.conv_general_dilated(x, w, **case.arguments) + bias))

    bias_of_lax = jax.ShapeDtypeStruct(bias.shape, lhs.dtype)
    sides = Program(ours, (lhs, rhs, bias, *residual)), Program(theirs, (lhs, rhs, bias_of_lax, *residual))
    return (_with_gradients(sides[0], out), _with_gradients(sides[1], out)) if ending.endswith(GRADIENTS) else sides


def _with_gradients(forward: Program, cotangent: jax.ShapeDtypeStruct) -> Program:
    def function(g: Array, *operands: Array) -> tuple[Array, tuple[Any, ...]]:
        y, backward = jax.vjp(forward.function, *operands)
        return y, backward(g)

    return Program(function, (cotangent, *forward.operands))


def measure(case: Case, ending: str, dtype: str, budget_s: float) -> dict:
    """A row. No failure of a side raises."""
    sides = [
        timed(side, operands_of(side), budget_s, ours=ours)
        for side, ours in zip(programs(case, ending, dtype, "cuda"), (True, False), strict=True)
    ]
    ours, theirs = sides
    speedup = ours.us and theirs.us and theirs.us / ours.us
    numbers = {"us": ours.us, "lax_us": theirs.us, "speedup": speedup}
    names = {"case": case.name, "suite": case.suite, "ending": ending, "dtype": dtype, "plan": ours.plan}
    return names | rounded(numbers) | {"error": ours.error, "lax_error": theirs.error}


def table(rows: list[dict], tablefmt: str = "simple") -> str:
    """The speed against XLA's, by suite: the geometric mean, and the least."""
    lines = []
    for names, group in grouped(rows, "suite", "ending", "dtype").items():
        speedups = [row["speedup"] for row in group if row["speedup"]]
        lines.append((*names, len(speedups), geomean_speedup(group), min(speedups, default=None)))
    header = ("suite", "ending", "dtype", "layers", "x XLA, geometric mean", "least")
    return tabulate(lines, header, tablefmt, floatfmt=".3g", missingval="-")
