"""`explain`: which kernel answers each convolution of a function, and why no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jax.extend.core import JaxprEqn

from jaxconv import fallback
from jaxconv.lowering import decide
from jaxconv.planner.choose import Choice
from jaxconv.planner.plan import Lax
from jaxconv.planner.support import unsupported_reason
from jaxconv.problem import ConvProblem
from jaxconv.traced import pass_of, trace
from jaxconv.tuning.loaded import tuning_for


def explain(fn: Callable, *args: Any, **kwargs: Any) -> None:
    """Prints a line for each convolution and pass of `fn(*args, **kwargs)`, which is traced, not run.

    A line has the pass (fprop, dgrad, wgrad), the problem, and what answers it: the kernel family with its tile and
    settings, the estimated time on a GPU, and the reason why each other family and tile was not chosen. If lax answers
    a convolution, its line has the reason. Of a convolution in the loaded tuning (`load_tuning`), a line has the
    measured times of all its candidates. To see gradients, pass a function that computes them:
    `explain(jax.grad(loss), params, x)`. A convolution inside a loop has one line. With sharded arrays, a line has the
    whole problem.

    Args:
      fn: a function, jitted or not.
      *args, **kwargs: its arguments. Arrays may be `jax.ShapeDtypeStruct`s; other arguments are static. The platform is
        that of committed arrays, else that of the default device.

    Raises:
      What tracing `fn` raises.
    """
    for line in lines(fn, *args, **kwargs):
        print(line)


def lines(fn: Callable, *args: Any, **kwargs: Any) -> list[str]:
    """What `explain` prints."""
    traced = trace(fn, *args, **kwargs)
    return [_line(equation, traced.platform) for equation in traced.equations]


def _line(equation: JaxprEqn, platform: str | None) -> str:
    ours = pass_of(equation, platform)
    if ours is None:
        lhs, rhs, out = (v.aval for v in (*equation.invars, *equation.outvars))
        problem = ConvProblem.from_lax(lhs, rhs, out, equation.params)
        reason = unsupported_reason(problem)
        return f"convolution {problem}: lax" + (f": {reason}" if reason else ", as asked")
    kind, problem, implementation, epilogue = ours
    name = ("wgrad" if kind == "wgrad" else "dgrad" if problem.reverse else "fprop") + epilogue
    choice = decide(kind, platform, problem, implementation, tuning_for(implementation))
    if choice.plan is None:
        answer = "lax" if fallback.allows_lax(implementation) else "an error"
        return f"{name} {problem}: {answer}: {choice.unsupported_reason()}"
    return f"{name} {problem}: {_answer(choice, platform)}"


def _answer(choice: Choice, platform: str | None) -> str:
    times = choice.times or (_estimate(choice) if platform == "cuda" else None)
    answer = f"{choice.plan}{f' ({times})' if times else ''}"
    return "; ".join([answer, *(f"not {what}: {reason}" for what, reason in choice.rejected)])


def _estimate(choice: Choice) -> str | None:
    if math.isinf(choice.cost):
        return None
    return f"{choice.cost * 1e6:.1f} us{' expected' if isinstance(choice.plan, Lax) else ''}"
