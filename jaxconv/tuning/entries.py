"""An entry of a tuning file: the measured candidates for a pass of a problem, as a value and as JSON."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxconv import ffi
from jaxconv.fallback import LAX
from jaxconv.planner.choose import Choice, Rejection, Times, choose
from jaxconv.planner.plan import ConvPlan, Lax
from jaxconv.planner.support import unsupported_reason
from jaxconv.problem import ConvProblem, Spec
from jaxconv.problem.algorithms import names_algorithm
from jaxconv.problem.conv_problem import Member
from jaxconv.problem.product import OPERANDS, RESULT, Product
from jaxconv.transforms import STEPS, Step


@dataclasses.dataclass(frozen=True)
class Entry:
    """What was measured of a pass of a problem.

    kind: "conv" or "wgrad". measured: the times of each candidate, the best first.
    """

    kind: str
    problem: ConvProblem
    measured: Mapping[ConvPlan | Lax, Times] = dataclasses.field(hash=False)

    def __post_init__(self) -> None:
        if not self.measured:
            raise ValueError("nothing was measured")
        for times in self.measured.values():
            if not all(_is_time(us) for us in times if us is not None) or times.measured is None:
                raise ValueError(f"times must be positive numbers of microseconds, got {times!r}")

    def choices(self, platform: str) -> tuple[Choice, ...]:
        """The candidates, the best first. Plans are made again by this installation's planner, so kernels can run them.

        Raises:
          ValueError: this installation does not take the problem so.
        """
        _check_problem(self.kind, self.problem)
        return tuple(
            dataclasses.replace(self._choice(platform, plan), others=partial(self._others, plan), times=times)
            for plan, times in self.measured.items()
        )

    def _choice(self, platform: str, plan: ConvPlan | Lax) -> Choice:
        if isinstance(plan, Lax):
            if names_algorithm(self.problem.precision):
                raise ValueError(f"lax does not honour the algorithm {self.problem.precision.name}. {self.problem}")
            return Choice(plan, math.inf, tuple)
        choice = choose(platform, self.kind, self.problem, plan.constraint, ffi.device(platform))
        if choice.plan is None:
            raise ValueError(f"{plan} cannot run: {choice.unsupported_reason()}. {self.problem}")
        if choice.plan != plan:
            raise ValueError(f"{plan} has other settings than this version of jaxconv gives it. {self.problem}")
        return choice

    def _others(self, chosen: ConvPlan | Lax) -> tuple[Rejection, ...]:
        return tuple(Rejection(str(plan), str(times)) for plan, times in self.measured.items() if plan != chosen)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "problem": {name: _plain(value) for name, value in _fields(self.problem).items()},
            "measured": [{"plan": _plan_to_json(plan), "us": t._asdict()} for plan, t in self.measured.items()],
        }

    @classmethod
    def from_json(cls, platform: str, entry: dict[str, Any]) -> Entry:
        kind = entry["kind"]
        problem = ConvProblem(**{name: _field(name, value) for name, value in entry["problem"].items()})
        return cls(
            kind,
            problem,
            {_plan_from_json(platform, kind, one["plan"]): Times(**one["us"]) for one in entry["measured"]},
        )


def _is_time(us: Any) -> bool:
    return isinstance(us, int | float) and not isinstance(us, bool) and 0 < us < math.inf


def unstored_reason(problem: ConvProblem) -> str | None:
    """Why a file cannot hold a problem; None if it can."""
    if not Product("conv", problem).has_known_batch:
        return "a symbolic batch"
    if isinstance(problem.precision, lax.DotAlgorithm):
        return f"precision {problem.precision}"
    return "no elements" if problem.is_empty else None


def operand_types(kind: str, problem: ConvProblem) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(problem.shape(role), problem.dtype(role)) for role in OPERANDS[kind])


@lru_cache(maxsize=4096)
def _check_problem(kind: str, problem: ConvProblem) -> None:
    """Raises if it is no convolution, or if native kernels do not take it: the planner trusts what it gets."""
    if reason := unsupported_reason(problem, kind):
        raise ValueError(f"{reason}. {problem}")
    with jax.enable_x64(True):
        out = jax.eval_shape(LAX[kind](problem), *operand_types(kind, problem))
    result = RESULT[kind]
    if (out.shape, out.dtype) != (problem.shape(result), problem.dtype(result)):
        raise ValueError(f"the sizes of the problem do not fit each other: {problem}")


# Values as JSON, and back.


def _fields(value: Any) -> dict[str, Any]:
    """Those of a dataclass, without cached values."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _plain(value: Any) -> Any:
    match value:
        case Spec():
            return value.axes
        case lax.Precision() | lax.DotAlgorithmPreset():
            return value.name
        case np.dtype():
            return value.name
        case tuple():
            return [_plain(v) for v in value]
    return value


def _field(name: str, value: Any) -> Any:
    if name == "member":
        return Member(*value)
    if name == "precision":
        if isinstance(value, str):
            return lax.DotAlgorithmPreset[value]
        return value and tuple(lax.Precision[p] for p in value)
    if name.endswith("_spec"):
        return Spec.of(value)
    if name.endswith("_dtype"):
        return jnp.dtype(value)
    return tuple(value) if isinstance(value, list) else value


def _plan_to_json(plan: ConvPlan | Lax) -> dict[str, Any] | None:
    """None is lax."""
    if isinstance(plan, Lax):
        return None
    steps = [{"step": type(step).__name__, **_fields(step)} for step in plan.transform]
    return {"family": plan.family, "tile": plan.tile, "settings": dict(plan.settings), "transform": steps}


def _plan_from_json(platform: str, kind: str, plan: dict[str, Any] | None) -> ConvPlan | Lax:
    if plan is None:
        return Lax()
    transform = tuple(_step(**step) for step in plan["transform"])
    return ConvPlan(platform, kind, plan["family"], plan["tile"], plan["settings"], transform)


def _step(step: str, **fields: Any) -> Step:
    if step not in STEPS:
        raise ValueError(f"there is no transform {step!r}")
    return STEPS[step](**fields)
