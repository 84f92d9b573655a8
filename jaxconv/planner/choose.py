"""The planner: every candidate of every family and rewriting has a cost; the cheapest is chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

import jax.numpy as jnp

from jaxconv.planner.candidate import Candidate
from jaxconv.planner.devices import TYPICAL_DEVICE, Device
from jaxconv.planner.families import FAMILIES, Family
from jaxconv.planner.plan import ANY, Constraint, ConvPlan, kernel_name
from jaxconv.problem import ConvProblem, Shape
from jaxconv.problem.offsets import SPATIAL, fits_int32
from jaxconv.problem.product import TYPICAL_BATCH, Product
from jaxconv.transforms import (
    Rewriting,
    Rewritten,
    SwappedOperands,
    rewrite,
    rewritings,
    rewritings_of_channels,
    why_members_meet,
    why_not,
)

LAUNCH_SECONDS = 3e-6

# (lhs and rhs, out) of a forward convolution. Its gradients have the same three, in other roles.
DTYPES = frozenset(
    (jnp.dtype(operand), jnp.dtype(result))
    for operand, result in [
        ("float32", "float32"), ("float64", "float64"), ("bfloat16", "bfloat16"), ("float16", "float16"),
        ("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"), ("int8", "int32"),
    ]
)  # fmt: skip


class Rejection(NamedTuple):
    """A family, or one of its tiles, and why it was not chosen."""

    what: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """The cheapest plan that does it, or None.

    cost: estimated seconds on a GPU; multiply-adds' worth on the host.
    others: works out what is rejected, which choosing does not look at.
    """

    plan: ConvPlan | None
    cost: float
    others: Callable[[], tuple[Rejection, ...]] = dataclasses.field(compare=False)

    @classmethod
    def nothing(cls, reason: str) -> Choice:
        return cls(None, math.inf, lambda: (Rejection("", reason),))

    @cached_property
    def rejected(self) -> tuple[Rejection, ...]:
        """Everything else, with the reason."""
        return self.others()

    def why_nothing(self) -> str:
        return "; ".join(f"{what}: {reason}" if what else reason for what, reason in self.rejected)


def refusal(problem: ConvProblem, kind: str = "conv") -> str | None:
    """Why no native kernel, on any platform, takes the problem's pass; None if one may."""
    if len(problem.kernel) > SPATIAL:
        return f"{len(problem.kernel)} spatial dimensions (1 to {SPATIAL} are native)"
    operand = problem.rhs_dtype
    result = problem.out_dtype if problem.lhs_dtype == operand else problem.lhs_dtype  # of the forward convolution
    if (operand, result) not in DTYPES:
        return f"dtype {operand.name} with result {result.name}"
    if (problem.out_dtype if kind == "conv" else problem.rhs_dtype) == jnp.dtype("int8"):
        return "sums of integers as int8"
    # Every size and stride but those of an outermost batch is in the tables.
    if not _are_known(problem.rhs_shape + problem.lhs_shape[1:] + problem.out_shape[1:]) or not _are_known(
        (problem.in_channels, problem.out_channels, *problem.in_spatial, *problem.out_spatial)
    ):
        return "a symbolic dimension other than an outermost batch"
    if not fits_int32(problem):
        return "an offset inside an image does not fit 32 bits"
    return None


def _are_known(shape: Shape) -> bool:
    return all(isinstance(d, int) for d in shape)


class Version(NamedTuple):
    """The problem as it is or rewritten: its product, and seconds for the changes of its arrays."""

    rewriting: Rewriting
    product: Product
    conversions: float


class Option(NamedTuple):
    """What a family answers for a version of the problem."""

    family: str
    rewriting: Rewriting
    candidate: Candidate

    @property
    def name(self) -> str:
        return kernel_name(self.family, self.candidate.tile, self.rewriting)


@lru_cache(maxsize=4096)
def choose(
    platform: str,
    kind: str,
    problem: ConvProblem,
    constraint: Constraint = ANY,
    device: Device = TYPICAL_DEVICE,
) -> Choice:
    """The plan for a problem that `refusal` passed, on a platform that has kernels."""
    options = partial(_options, platform, kind, problem, constraint, device)
    best = min((option for option in options() if option.candidate.reason is None), key=_cost, default=None)
    others = partial(_rejected, options, best)
    if best is None:
        return Choice(None, math.inf, others)
    plan = ConvPlan(platform, kind, best.family, best.candidate.tile, best.candidate.settings, best.rewriting)
    return Choice(plan, _cost(best), others)


def _cost(option: Option) -> float:
    return option.candidate.seconds


def _rejected(options: Callable[[], Iterator[Option]], best: Option | None) -> tuple[Rejection, ...]:
    """Everything but the chosen option, with the reason: dearer ones first."""
    dearer, others = [], {}
    for option in options():
        reason = option.candidate.reason
        if reason is not None:
            others.setdefault((option.family, option.candidate.tile, reason), Rejection(option.name, reason))
        elif best is not None and option != best:
            dearer.append(Rejection(option.name, f"{_cost(option) / _cost(best):.2f}x the cost"))
    return (*dearer, *others.values())


def _options(
    platform: str, kind: str, problem: ConvProblem, constraint: Constraint, device: Device
) -> Iterator[Option]:
    """Of all families, for the problem as it is and rewritten."""
    product = Product(kind, problem)
    for name, family in FAMILIES[platform].items():
        if constraint.family not in (None, name):
            yield Option(name, (), _refused(f"{constraint.family} was asked for"))
            continue
        for rewriting in _rewritings(family, product, constraint):
            version = _why_not_rewritten(rewriting, family, kind) or _version(rewriting, product, device)
            if isinstance(version, str):
                yield Option(name, rewriting, _refused(version))
                continue
            for candidate in family.candidates(version.product, device, constraint.asked):
                seconds = candidate.seconds + version.conversions
                yield Option(name, rewriting, candidate._replace(seconds=seconds))


def _refused(reason: str) -> Candidate:
    return Candidate(None, reason, math.inf, {})


def _rewritings(family: Family, product: Product, constraint: Constraint) -> list[Rewriting]:
    """Those that a family may answer: the problem as it is comes first."""
    if constraint.rewriting is not None:
        return [constraint.rewriting]
    if family.swaps:
        return [(), (SwappedOperands(),)] if product.kind == "wgrad" else [()]
    if not family.rewrites:
        return [()]
    if family.of_channels:
        return [(), *rewritings_of_channels(product)]
    return [(), *rewritings(product, family.packs_groups, family.stores_parts)]


def _why_not_rewritten(rewriting: Rewriting, family: Family, kind: str) -> str | None:
    if not rewriting:
        return None
    if not (family.rewrites or (family.swaps and rewriting == (SwappedOperands(),))):
        return "it takes operands as they lie"
    if kind == "conv" and SwappedOperands() in rewriting:
        return "only a wgrad is the same with its operands swapped"
    return None


@lru_cache(maxsize=4096)
def _version(rewriting: Rewriting, product: Product, device: Device) -> Version | str:
    """Or why the problem is not rewritten so."""
    kind, problem = product.kind, product.problem
    if not rewriting:
        return Version(rewriting, product, 0.0)
    if (reason := why_not(rewriting, problem) or why_members_meet(rewriting, product)) is not None:
        return reason
    rewritten = rewrite(rewriting, problem)
    reason = refusal(rewritten.problem, kind)
    seconds = _conversion_seconds(problem, rewritten, device)
    return Version(rewriting, Product(kind, rewritten.problem), seconds) if reason is None else reason


def _conversion_seconds(problem: ConvProblem, rewritten: Rewritten, device: Device) -> float:
    """Each array that changes its place in memory is read and written once."""
    before = problem.dgrad() if rewritten.swapped else problem

    def seconds(role: str) -> float:
        shapes = (getattr(p, f"{role}_shape") for p in (before, rewritten.problem))
        known = ([d if isinstance(d, int) else TYPICAL_BATCH for d in shape] for shape in shapes)
        elements = sum(map(math.prod, known))
        return elements * getattr(before, f"{role}_dtype").itemsize / device.bandwidth + LAUNCH_SECONDS

    return sum(seconds(role) for role, form in rewritten.forms.items() if not form.is_view)
