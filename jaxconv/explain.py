"""`explain`: which kernel answers each convolution of a function, and why no other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.interpreters import partial_eval

from jaxconv.lowering import decide
from jaxconv.planner.choose import Choice
from jaxconv.planner.support import unsupported_reason
from jaxconv.primitives import PRIMITIVES
from jaxconv.problem import ConvProblem

KINDS = {primitive: kind for (kind, _), primitive in PRIMITIVES.items()}


def explain(fn: Callable, *args: Any, **kwargs: Any) -> None:
    """Prints a line for each convolution and pass of `fn(*args, **kwargs)`, which is traced, not run.

    A line has the pass (fprop, dgrad, wgrad), the problem, and what answers it: the kernel family with its tile and
    settings, the estimated time on a GPU, and the reason why each other family and tile was not chosen. If lax answers
    a convolution, its line has the reason. To see gradients, pass a function that computes them:
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
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = {place: leaf for place, leaf in enumerate(leaves) if _is_array(leaf)}

    def of_arrays(arrays):
        args, kwargs = jax.tree.unflatten(tree, (arrays.get(place, leaf) for place, leaf in enumerate(leaves)))
        return fn(*args, **kwargs)

    jaxpr = jax.make_jaxpr(of_arrays)(arrays).jaxpr
    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    platform = _platform(arrays)
    return [_line(equation, platform) for equation in _convolutions(needed)]


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, type)


def _platform(arrays: dict[int, Any]) -> str | None:
    """The platform of committed arrays, else of the default device; None if it has no native kernels."""
    concrete = (a for a in arrays.values() if isinstance(a, jax.Array) and not isinstance(a, Tracer))
    committed = next((device for a in concrete if a.committed for device in a.devices()), None)
    default = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue] (JAX adds its options)
    device = committed or default or jax.devices()[0]
    platform = device if isinstance(device, str) else device.platform
    return {"gpu": "cuda", "cuda": "cuda", "cpu": "cpu"}.get(platform)


def _convolutions(jaxpr: Jaxpr) -> Iterator[Any]:
    """The equations of our primitives and of lax's convolution, also inside loops, branches and calls."""
    for equation in jaxpr.eqns:
        if equation.primitive in KINDS or equation.primitive is lax.conv_general_dilated_p:
            yield equation
        for parameter in jax.tree.leaves(equation.params, is_leaf=lambda p: isinstance(p, ClosedJaxpr | Jaxpr)):
            if isinstance(parameter, ClosedJaxpr):
                parameter = parameter.jaxpr
            if isinstance(parameter, Jaxpr):
                yield from _convolutions(parameter)


def _line(equation: Any, platform: str | None) -> str:
    if equation.primitive is lax.conv_general_dilated_p:
        lhs, rhs, out = (v.aval for v in (*equation.invars, *equation.outvars))
        problem = ConvProblem.from_lax(lhs, rhs, out, equation.params)
        reason = unsupported_reason(problem)
        return f"convolution {problem}: lax" + (f": {reason}" if reason else ", as asked")
    kind, problem = KINDS[equation.primitive], equation.params["problem"]
    name = "wgrad" if kind == "wgrad" else "dgrad" if problem.reverse else "fprop"
    implementation = equation.params["implementation"]
    choice = decide(kind, platform, problem, implementation)
    if choice.plan is None:
        answer = "lax" if implementation is None else "an error"
        return f"{name} {problem}: {answer}: {choice.unsupported_reason()}"
    return f"{name} {problem}: {_answer(choice, platform)}"


def _answer(choice: Choice, platform: str | None) -> str:
    time = f" ({choice.cost * 1e6:.1f} us)" if platform == "cuda" else ""
    return "; ".join([f"{choice.plan}{time}", *(f"not {what}: {reason}" for what, reason in choice.rejected)])
