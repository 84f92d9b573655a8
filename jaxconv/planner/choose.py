"""The planner: each candidate of each family, under each transform, has a cost. The cheapest is chosen."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from typing import NamedTuple

from jaxconv import transforms
from jaxconv.planner.candidate import Candidate
from jaxconv.planner.devices import TYPICAL_DEVICE, Costs, Device
from jaxconv.planner.families import FAMILIES, Family
from jaxconv.planner.plan import ANY, Constraint, ConvPlan, Lax, kernel_name
from jaxconv.planner.support import unsupported_sizes
from jaxconv.problem import ConvProblem
from jaxconv.problem.product import OPERANDS, RESULT, TYPICAL_BATCH, EpilogueKind, Product
from jaxconv.transforms import ChannelsLast, Moves, SwappedOperands, Transform, Transformed


class Rejection(NamedTuple):
    """A family, or one of its tiles, and why it was not chosen."""

    what: str
    reason: str


class Times(NamedTuple):
    """Microseconds of a measured candidate. predicted: None for the host's kernels, and for lax if it is not known."""

    predicted: float | None
    measured: float

    def __str__(self) -> str:
        measured = f"{self.measured:.1f} us measured"
        return measured if self.predicted is None else f"{self.predicted:.1f} us predicted, {measured}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """The cheapest plan, or lax, or None if no native kernel takes the problem.

    cost: estimated seconds on a GPU, infinite if unknown; on the host, a number of multiply-adds.
    others: computes the rejections. Only those who ask pay for it.
    times: those of a choice that was measured.
    """

    plan: ConvPlan | Lax | None
    cost: float
    others: Callable[[], tuple[Rejection, ...]] = dataclasses.field(compare=False)
    times: Times | None = None

    @classmethod
    def nothing(cls, reason: str) -> Choice:
        return cls(None, math.inf, lambda: (Rejection("", reason),))

    @cached_property
    def rejected(self) -> tuple[Rejection, ...]:
        """Everything else, with the reason."""
        return self.others()

    def unsupported_reason(self) -> str:
        """Why there is no plan."""
        return "; ".join(f"{what}: {reason}" if what else reason for what, reason in self.rejected)


class Option(NamedTuple):
    """A family's candidate for the problem under a transform."""

    family: str
    transform: Transform
    candidate: Candidate

    @property
    def name(self) -> str:
        return kernel_name(self.family, self.candidate.tile, self.transform)

    def plan(self, platform: str, kind: str) -> ConvPlan:
        return ConvPlan(platform, kind, self.family, self.candidate.tile, self.candidate.settings, self.transform)


@lru_cache(maxsize=4096)
def choose(
    platform: str,
    kind: str,
    problem: ConvProblem,
    constraint: Constraint = ANY,
    device: Device = TYPICAL_DEVICE,
    epilogue_kind: EpilogueKind = EpilogueKind.NONE,
) -> Choice:
    """The plan for a problem without `unsupported_reason`, on a platform that has kernels."""
    every = partial(options, platform, Product(kind, problem, epilogue_kind), constraint, device)
    best = min((option for option in every() if option.candidate.reason is None), key=_cost, default=None)
    others = partial(_rejected, every, best)
    if best is None:
        return Choice(None, math.inf, others)
    return Choice(best.plan(platform, kind), _cost(best), others)


def _cost(option: Option) -> float:
    return option.candidate.seconds


def _rejected(every: Callable[[], Iterator[Option]], best: Option | None) -> tuple[Rejection, ...]:
    """All options but the chosen one, with reasons: first those that cost more."""
    dearer, others = [], {}
    for option in every():
        reason = option.candidate.reason
        if reason is not None:
            others.setdefault((option.family, option.candidate.tile, reason), Rejection(option.name, reason))
        elif best is not None and option != best:
            dearer.append(Rejection(option.name, f"{_cost(option) / _cost(best):.2f}x the cost"))
    return (*dearer, *others.values())


def options(platform: str, product: Product, constraint: Constraint, device: Device) -> Iterator[Option]:
    """The options of all families, under all their transforms, also those that have a reason against them."""
    for name, family in FAMILIES[platform].items():
        if constraint.family not in (None, name):
            yield Option(name, (), _refused(f"{constraint.family} was asked for"))
            continue
        tried = [(), *family.transforms(product)] if constraint.transform is None else [constraint.transform]
        for transform in tried:
            version = _unsupported_transform(transform, family, product.kind) or version_of(transform, product)
            if isinstance(version, str):
                yield Option(name, transform, _refused(version))
                continue
            conversions, doubt = version.conversion_seconds(device), version.doubt(device)
            for candidate in family.candidates(version.product, device, constraint.asked):
                seconds = (candidate.seconds + conversions) * doubt
                yield Option(name, transform, candidate._replace(seconds=seconds))


def _refused(reason: str) -> Candidate:
    return Candidate(None, reason, math.inf, {})


def _unsupported_transform(transform: Transform, family: Family, kind: str) -> str | None:
    if not family.takes_transform(transform):
        return "it takes operands as they lie"
    if kind == "conv" and SwappedOperands() in transform:
        return "only a wgrad is the same with its operands swapped"
    return None


class Conversion(NamedTuple):
    """An array that a kernel of XLA changes: elements read and elements written, the bytes of each, and how."""

    elements: int
    itemsize: int
    moves: Moves = Moves.COPY

    def seconds(self, device: Device) -> float:
        copies = max(_copies(move, self.itemsize, device.own_costs) for move in self.moves)
        return copies * (self.elements * self.itemsize / device.bandwidth) + device.own_costs["next_kernel_seconds"]


def _copies(move: Moves, itemsize: int, costs: Costs) -> float:
    """How many times the time of a copy it takes. A gather moves so many elements in a second, whatever their size."""
    if move is Moves.GATHER:
        return max(costs["gather_copies"], costs["gather_copies_of_byte"] / itemsize)
    return costs["transpose_copies"] if move is Moves.TRANSPOSE else 1


class Version(NamedTuple):
    """A transformed problem's product, and how its arrays become those. repeats: elements are in them several times."""

    product: Product
    conversions: tuple[Conversion, ...]
    repeats: bool = False

    def conversion_seconds(self, device: Device) -> float:
        return sum(conversion.seconds(device) for conversion in self.conversions)

    def doubt(self, device: Device) -> float:
        """What an estimate is multiplied by: with repeats it must promise more than others are wrong by."""
        return device.own_costs["repeat_doubt"] if self.repeats else 1.0


@lru_cache(maxsize=4096)
def version_of(transform: Transform, product: Product) -> Version | str:
    """The version under a transform, or why there is none."""
    problem = product.problem
    for_others = () if ChannelsLast() in transform else _conversions_of_order(problem)
    if not transform:
        return Version(product, for_others)
    if reason := transforms.unsupported_reason(transform, problem):
        return reason
    for reason_of in (transforms.mixed_members_reason, transforms.added_results_reason):
        if reason := reason_of(transform, product):
            return reason
    transformed = transforms.apply(transform, problem)
    conversions = (*_conversions(product, problem, transformed), *for_others)
    repeats = any(view.is_summed for view in transformed.views.values())
    version = dataclasses.replace(product, problem=transformed.problem)
    return unsupported_sizes(transformed.problem) or Version(version, conversions, repeats)


def _conversions_of_order(problem: ConvProblem) -> tuple[Conversion, ...]:
    """A kernel that takes channels first has XLA transpose images for a network's other convolutions."""
    return tuple(_copy(problem, role) for role in transforms.channels_first(problem))


def _conversions(product: Product, problem: ConvProblem, transformed: Transformed) -> tuple[Conversion, ...]:
    """Each array that moves in memory is read and written. Of one that is spread, no more is read than written. A
    residual moves as the result does."""
    result, before = RESULT[product.kind], problem.dgrad() if transformed.swapped else problem

    def conversion(role: str) -> Conversion:
        view, sizes = transformed.views[role], [_elements(p, role) for p in (before, transformed.problem)]
        read, written = reversed(sizes) if role == result else sizes
        elements = written + (min(read, written) if view.is_spread else read)
        return Conversion(elements, before.dtype(role).itemsize, view.moves)

    residual = (result,) if product.epilogue_kind is EpilogueKind.RESIDUAL else ()
    return tuple(conversion(role) for role in (*transformed.views, *residual) if transformed.views[role].moves)


def widening_seconds(kind: str, problem: ConvProblem, wider: ConvProblem, device: Device) -> float:
    """To convert the operands of one to those of the other, and the result back, each in a kernel. XLA's converts only
    so many elements a second, however few bytes they have.
    """

    def seconds(role: str) -> float:
        sizes, elements = problem.dtype(role).itemsize + wider.dtype(role).itemsize, _elements(problem, role)
        return max(Conversion(elements, sizes).seconds(device), elements * device.own_costs["convert_seconds"])

    roles = (*OPERANDS[kind], RESULT[kind])
    return sum(seconds(role) for role in roles if problem.dtype(role) != wider.dtype(role))


def copy_seconds(problem: ConvProblem, role: str, device: Device) -> float:
    """To write an array that is put together of others."""
    return _copy(problem, role).seconds(device)


def _copy(problem: ConvProblem, role: str) -> Conversion:
    return Conversion(2 * _elements(problem, role), problem.dtype(role).itemsize)


def _elements(problem: ConvProblem, role: str) -> int:
    return math.prod(d if isinstance(d, int) else TYPICAL_BATCH for d in problem.shape(role))
