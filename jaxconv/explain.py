"""`explain`: which kernel answers each convolution of a function, and why no other."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn

from jaxconv import fallback
from jaxconv.lowering import decide, decide_apart, seen_by_kernels
from jaxconv.planner.choose import Choice, Rejection
from jaxconv.planner.plan import Lax, constraint_of
from jaxconv.planner.support import unsupported_reason
from jaxconv.problem import ConvProblem
from jaxconv.problem.wider import has_float8
from jaxconv.traced import pass_of, trace
from jaxconv.tuning.file import Tuning
from jaxconv.tuning.loaded import loaded_tuning


def explain(fn: Callable, *args: Any, **kwargs: Any) -> None:
    """Prints a line for each convolution and pass of `fn(*args, **kwargs)`, which is traced, not run.

    A line has the pass (fprop, dgrad, wgrad), the problem, and what answers it: the kernel family with its tile and
    settings, the wider type in which float8 or int8 is multiplied, if it is, the estimated time on a GPU, and the
    reason why each other family and tile was not chosen. If lax answers a convolution, its line has the reason. Of a
    convolution in the loaded tuning (`load_tuning`), a line has the measured times of all its candidates. To see
    gradients, pass a function that computes them: `explain(jax.grad(loss), params, x)`. A convolution inside a loop has
    one line. With sharded arrays, a line has the whole problem.

    Args:
      fn: a function, jitted or not.
      *args, **kwargs: its arguments. In place of an array there may be a `jax.ShapeDtypeStruct`. Other arguments are
        static. The platform is that of committed arrays, else that of the default device.

    Raises:
      Exception: what `fn` raises while it is traced.
    """
    for line in lines(fn, *args, **kwargs):
        print(line)


def lines(fn: Callable, *args: Any, **kwargs: Any) -> list[str]:
    """What `explain` prints."""
    return [answer.line() for answer in answers(fn, *args, **kwargs)]


class Answer(NamedTuple):
    """What answers a convolution.

    name: the pass. by: a kernel with its settings, lax, or an error. time: measured or estimated, if it is known.
    reason: why no kernel does. others: those that were not chosen.
    """

    name: str
    problem: ConvProblem
    by: str
    time: str | None = None
    reason: str | None = None
    others: tuple[Rejection, ...] = ()

    def line(self) -> str:
        time, reason = (f" ({self.time})" if self.time else ""), (f": {self.reason}" if self.reason else "")
        others = (f"; not {what}: {why}" for what, why in self.others)
        return f"{self.name} {self.problem}: {self.by}{time}{reason}{''.join(others)}"


def answers(fn: Callable, *args: Any, **kwargs: Any) -> list[Answer]:
    """One for each convolution of `fn(*args, **kwargs)`, as `explain` has them."""
    traced = trace(fn, *args, **kwargs)
    return [_answer(equation, traced.platform, loaded_tuning()) for equation in traced.equations]


def _answer(equation: JaxprEqn, platform: str | None, tuning: Tuning) -> Answer:
    ours = pass_of(equation, platform, tuning)
    if ours is None:
        avals: list[Any] = [v.aval for v in (*equation.invars, *equation.outvars)]
        problem = ConvProblem.from_lax(*avals, params=equation.params)
        reason = unsupported_reason(problem)
        return Answer("convolution", problem, "lax" if reason else "lax, as asked", reason=reason)
    kind, problem, implementation, epilogue, epilogue_kind, apart = ours
    name = ("wgrad" if kind == "wgrad" else "dgrad" if problem.reverse else "fprop") + epilogue
    choice, rows = decide(kind, platform, problem, implementation, tuning, epilogue_kind), ""
    if apart is not None and (of_apart := decide_apart(platform, apart, implementation, tuning)):
        choice, rows = of_apart.choice, " of the other end, where they lie"
    if choice.plan is None:
        by = "lax" if fallback.allows_lax(implementation) else "an error"
        return Answer(name, problem, by, reason=choice.unsupported_reason())
    seen = seen_by_kernels(kind, platform, problem, constraint_of(implementation), epilogue_kind).problem
    is_float8 = has_float8(problem) and not has_float8(seen)
    is_wider = is_float8 or seen.lhs_dtype.itemsize > problem.lhs_dtype.itemsize
    wider = f" in {seen.lhs_dtype}" if is_wider else ""
    return Answer(name, problem, f"{choice.plan}{rows}{wider}", _time(choice, platform), others=choice.rejected)


def _time(choice: Choice, platform: str | None) -> str | None:
    if choice.times:
        return str(choice.times)
    if platform != "cuda" or math.isinf(choice.cost):
        return None
    return f"{choice.cost * 1e6:.1f} us{' expected' if isinstance(choice.plan, Lax) else ''}"
