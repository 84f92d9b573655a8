"""ConvPlan: which kernel answers a ConvProblem on a platform, with which settings, or why none does."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache, partial
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxconv.families import FAMILIES, LAUNCH_SECONDS, TYPICAL_DEVICE, Device, Family, Settings, Tile, TileRow
from jaxconv.offsets import SPATIAL, fits_int32
from jaxconv.problem import ConvProblem, Dim, Shape
from jaxconv.product import TYPICAL_BATCH, Product
from jaxconv.rewriting import (
    Rewriting,
    Rewritten,
    SwappedOperands,
    rewrite,
    rewritings,
    rewritings_of_channels,
    why_members_meet,
    why_not,
)  # fmt: skip

ROUNDED = 1 + 1e-9  # as bounds may be above costs by as much

# (lhs and rhs, out) of a forward convolution. Its gradients have the same three, in other roles.
DTYPES = frozenset(
    (jnp.dtype(operand), jnp.dtype(result))
    for operand, result in [
        ("float32", "float32"), ("float64", "float64"), ("bfloat16", "bfloat16"), ("float16", "float16"),
        ("bfloat16", "float32"), ("float16", "float32"), ("float32", "float64"), ("int8", "int32"),
    ]
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Constraint:
    """What a plan must be; None leaves it to the planner.

    It may stand for an implementation's name in every public function: that is how tests reach each tile.
    """

    platform: str | None = None
    family: str | None = None
    tile: Tile | None = None
    split: int | None = None
    chunk: int | None = None
    units: int | None = None
    area: tuple[int, int] | None = None
    rewriting: Rewriting | None = None

    @property
    def settings(self) -> Settings:
        return Settings(self.tile, self.split, self.chunk, self.units, self.area)


# The native implementations that users name: the platforms and their kernel families.
IMPLEMENTATIONS = {platform: Constraint(platform=platform) for platform in FAMILIES} | {
    family: Constraint(family=family) for families in FAMILIES.values() for family in families
}


def constraint_of(implementation: str | Constraint | None) -> Constraint:
    if isinstance(implementation, Constraint):
        return implementation
    return Constraint() if implementation is None else IMPLEMENTATIONS[implementation]


@dataclasses.dataclass(frozen=True)
class ConvPlan:
    """A kernel, its settings, and what its problem is rewritten by.

    kind: "gather" (fprop, dgrad) or "reduce" (wgrad).
    """

    platform: str
    kind: str
    family: str
    settings: Settings
    rewriting: Rewriting = ()

    def attributes(self, problem: ConvProblem) -> dict[str, np.generic | np.ndarray]:
        """What the platform's handler reads besides the problem, which is the rewritten one."""
        attributes: dict[str, Any] = {"family": np.int32(list(FAMILIES[self.platform]).index(self.family))}
        if self.platform == "cuda":
            tiles = [row.tile for row in self._family.TILES]
            attributes["tile"] = np.int32(tiles.index(self.settings.tile))
            attributes["split"] = np.int32(self.settings.split)
            attributes["chunk"] = np.int64(self.settings.chunk or 0)
            attributes["units"] = np.int32(self.settings.units or 0)
            attributes["shape"] = np.array(self._family.shape(self.settings, Product(self.kind, problem)), np.int64)
        return attributes

    def scratch_bytes(self, problem: ConvProblem) -> Dim | None:
        """Bytes of the scratch buffer; None on a platform whose kernels take none."""
        product = Product(self.kind, rewrite(self.rewriting, problem).problem)
        return self._family.scratch_bytes(self.settings, product)

    @property
    def takes_aligned(self) -> bool:
        """Whether operands and result must begin at multiples of 16 bytes."""
        return self._family.ALIGNED

    @property
    def _family(self) -> Family:
        return FAMILIES[self.platform][self.family]

    def __str__(self) -> str:
        tile, split, chunk, units, area = self.settings
        parts = {"stages": tile and tile.stages, "split": split, "chunk": chunk, "units": units,
                 "area": area and f"{area[0]}x{area[1]}"}  # fmt: skip
        known = (f"{name} {value}" for name, value in parts.items() if value is not None)
        return ", ".join([_name(self.family, tile, self.rewriting), *known])


class Rejection(NamedTuple):
    """A family, or one of its tiles, and why it was not chosen."""

    what: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Choice:
    """The cheapest plan that does it, or None.

    cost: estimated seconds on a GPU; multiply-adds' worth on the host.
    others: works out what is rejected, which choosing hardly looks at.
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


def refusal(problem: ConvProblem, kind: str = "gather") -> str | None:
    """Why no native kernel, on any platform, takes the problem's pass; None if one may."""
    if len(problem.kernel) > SPATIAL:
        return f"{len(problem.kernel)} spatial dimensions (1 to {SPATIAL} are native)"
    operand = problem.rhs_dtype
    result = problem.out_dtype if problem.lhs_dtype == operand else problem.lhs_dtype  # of the forward convolution
    if (operand, result) not in DTYPES:
        return f"dtype {operand.name} with result {result.name}"
    if (problem.out_dtype if kind == "gather" else problem.rhs_dtype) == jnp.dtype("int8"):
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


class Question(NamedTuple):
    """What `choose` is asked."""

    platform: str
    kind: str
    problem: ConvProblem
    asked: Constraint
    device: Device


class Version(NamedTuple):
    """The problem as it is or rewritten: its product, and seconds for the changes of its arrays."""

    rewriting: Rewriting
    product: Product
    conversions: float


class Entrant(NamedTuple):
    """A family, with its tiles, for a version of the problem."""

    name: str
    family: Family
    rows: list[TileRow]
    version: Version

    def name_with(self, tile: Tile | None) -> str:
        return _name(self.name, tile, self.version.rewriting)

    def why_not(self, device: Device) -> str | None:
        return self.family.why_not_so(self.version.product, device)

    def least_cost(self, device: Device) -> float:
        """What no tile's cost is below."""
        return self.family.least_cost(self.version.product, device) + self.version.conversions

    def least_costs(self, device: Device) -> list[float]:
        """What each tile's cost is not below."""
        _, product, conversions = self.version
        return [self.family.least_cost_of(row, product, device) + conversions for row in self.rows]


class Candidate(NamedTuple):
    """A tile of an entrant's, at its best settings. Of equally dear ones the first in place is chosen."""

    cost: float
    place: tuple[int, int]
    plan: ConvPlan | None


@lru_cache(maxsize=4096)
def choose(
    platform: str,
    kind: str,
    problem: ConvProblem,
    constraint: Constraint = Constraint(),
    device: Device = TYPICAL_DEVICE,
) -> Choice:
    """The plan for a problem that `refusal` passed, on a platform that has kernels.

    Best first: a queue has the entrants, and then their tiles, by bounds of their costs. Once the least of
    these is above a candidate's cost, no other is better.
    """
    question = Question(platform, kind, problem, constraint, device)
    entrants = [entrant for entrant in _entrants(question) if isinstance(entrant, Entrant)]
    queue: list[tuple[float, Any]] = [(entrant.least_cost(device), (at,)) for at, entrant in enumerate(entrants)]
    heapify(queue)
    best = Candidate(math.inf, (len(entrants), 0), None)
    while queue and queue[0][0] <= best.cost * ROUNDED:
        match heappop(queue)[1]:
            case (at,) if entrants[at].why_not(device) is None:
                for i, least in enumerate(entrants[at].least_costs(device)):
                    heappush(queue, (least, (at, i)))
            case (at, i):
                candidate = _candidate(entrants[at], (at, i), question)
                best = best if isinstance(candidate, str) else min(best, candidate)
    return Choice(best.plan, best.cost, partial(_rejected, question, best))


def _rejected(question: Question, best: Candidate) -> tuple[Rejection, ...]:
    """Everything but the chosen candidate, with the reason: dearer ones first."""
    dearer, others, at = [], [], 0
    for entrant in _entrants(question):
        if isinstance(entrant, Rejection):
            others.append(entrant)
            continue
        reason = entrant.why_not(question.device)
        if reason is not None:
            others.append(Rejection(entrant.name_with(question.asked.tile), reason))
        for i, row in enumerate(entrant.rows if reason is None else ()):
            candidate, name = _candidate(entrant, (at, i), question), entrant.name_with(row.tile)
            if isinstance(candidate, str):
                others.append(Rejection(name, candidate))
            elif candidate.place != best.place:
                dearer.append(Rejection(name, f"{candidate.cost / best.cost:.2f}x the cost"))
        at += 1
    return (*dearer, *others)


def _entrants(question: Question) -> Iterator[Entrant | Rejection]:
    """Families and versions of the problem, if nothing rules them out that is known at first sight."""
    platform, kind, problem, asked, device = question
    product = Product(kind, problem)
    for name, family in FAMILIES[platform].items():
        if asked.family not in (None, name):
            yield Rejection(name, f"{asked.family} was asked for")
            continue
        reason = family.why_never(product) or (None if _is_named(asked) else family.why_unasked(product))
        if reason is not None:
            yield Rejection(name, reason)
            continue
        rows = [row for row in family.tiles(product) if asked.tile in (None, row.tile)]
        if not rows:
            reason = "no such tile is compiled for these types at this precision"
            yield Rejection(_name(name, asked.tile, ()), reason)
            continue
        for rewriting in _rewritings(family, product, asked):
            version = _why_not_rewritten(rewriting, family, kind) or _version(rewriting, product, device)
            if isinstance(version, Version):
                yield Entrant(name, family, rows, version)
            else:
                yield Rejection(_name(name, asked.tile, rewriting), version)


def _is_named(asked: Constraint) -> bool:
    return asked.family is not None or asked.tile is not None


def _rewritings(family: Family, product: Product, asked: Constraint) -> list[Rewriting]:
    """Those that a family may answer: the problem as it is comes first."""
    if asked.rewriting is not None:
        return [asked.rewriting]
    if family.SWAPS:
        return [(), (SwappedOperands(),)] if product.kind == "reduce" else [()]
    if not family.REWRITES:
        return [()]
    if family.OF_CHANNELS:
        return [(), *rewritings_of_channels(product)]
    return [(), *rewritings(product, family.PACKS_GROUPS, family.STORES_PARTS)]


def _candidate(entrant: Entrant, place: tuple[int, int], question: Question) -> Candidate | str:
    """Or why the entrant's tile at that place does not do it."""
    name, family, rows, (rewriting, product, conversions) = entrant
    settings = family.settings(rows[place[1]], product, question.device, question.asked.settings)
    reason = family.why_not(settings[0], product, question.device)
    if reason is not None:
        return reason
    cost, best = min((family.cost(s, product, question.device), i) for i, s in enumerate(settings))
    plan = ConvPlan(question.platform, question.kind, name, settings[best], rewriting)
    return Candidate(cost + conversions, place, plan)


def _why_not_rewritten(rewriting: Rewriting, family: Family, kind: str) -> str | None:
    if not rewriting:
        return None
    if not (family.REWRITES or (family.SWAPS and rewriting == (SwappedOperands(),))):
        return "it takes operands as they lie"
    if kind == "gather" and SwappedOperands() in rewriting:
        return "only a reduce is the same with its operands swapped"
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


def _name(family: str, tile: Tile | None, rewriting: Rewriting) -> str:
    kernel = family if tile is None else f"{family} {tile}"
    return f"{kernel} of {' and '.join(map(str, rewriting))}" if rewriting else kernel
