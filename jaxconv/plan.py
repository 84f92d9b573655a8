"""ConvPlan: which kernel answers a ConvProblem on a platform, with which settings, or why none does."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxconv.families import FAMILIES, TYPICAL_DEVICE, Device, Family, Settings, Tile, TileRow
from jaxconv.offsets import SPATIAL, fits_int32
from jaxconv.problem import ConvProblem, Dim, Shape
from jaxconv.product import Product

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
    """A kernel and its settings. kind: "gather" (fprop, dgrad) or "reduce" (wgrad)."""

    platform: str
    kind: str
    family: str
    settings: Settings

    def attributes(self) -> dict[str, np.generic]:
        """What the platform's handler reads besides the problem."""
        attributes = {"family": np.int32(list(FAMILIES[self.platform]).index(self.family))}
        if self.platform == "cuda":
            tiles = [row.tile for row in self._family.TILES]
            attributes["tile"] = np.int32(tiles.index(self.settings.tile))
            attributes["split"] = np.int32(self.settings.split)
            attributes["chunk"] = np.int64(self.settings.chunk or 0)
        return attributes

    def scratch_bytes(self, problem: ConvProblem) -> Dim | None:
        """Bytes of the scratch buffer; None on a platform whose kernels take none."""
        return self._family.scratch_bytes(self.settings, Product(self.kind, problem))

    @property
    def _family(self) -> Family:
        return FAMILIES[self.platform][self.family]

    def __str__(self) -> str:
        tile, split, chunk = self.settings
        parts = {"stages": tile and tile.stages, "split": split, "chunk": chunk}
        known = (f"{name} {value}" for name, value in parts.items() if value is not None)
        return ", ".join([_name(self.family, tile), *known])


class Rejection(NamedTuple):
    """A family, or one of its tiles, and why it was not chosen."""

    what: str
    reason: str


class Choice(NamedTuple):
    """The cheapest plan that does it, or None.

    cost: estimated seconds on a GPU; multiply-adds' worth on the host.
    rejected: everything else, with the reason.
    """

    plan: ConvPlan | None
    cost: float
    rejected: tuple[Rejection, ...]

    @classmethod
    def nothing(cls, reason: str) -> Choice:
        return cls(None, float("inf"), (Rejection("", reason),))

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
    if not (fits_int32(problem) and fits_int32(problem.dgrad())):
        return "an offset inside an image does not fit 32 bits"
    return None


def _are_known(shape: Shape) -> bool:
    return all(isinstance(d, int) for d in shape)


class Candidate(NamedTuple):
    """A family with a tile, at its best settings."""

    plan: ConvPlan
    cost: float

    @property
    def name(self) -> str:
        return _name(self.plan.family, self.plan.settings.tile)


@lru_cache(maxsize=4096)
def choose(
    platform: str,
    kind: str,
    problem: ConvProblem,
    constraint: Constraint = Constraint(),
    device: Device = TYPICAL_DEVICE,
) -> Choice:
    """The plan for a problem that `refusal` passed, on a platform that has kernels."""
    product = Product(kind, problem)
    candidates: list[Candidate] = []
    rejected: list[Rejection] = []
    for name, family in FAMILIES[platform].items():
        if constraint.family not in (None, name):
            rejected.append(Rejection(name, f"{constraint.family} was asked for"))
            continue
        reason = family.why_never(product)
        if reason is not None:
            rejected.append(Rejection(name, reason))
            continue
        rows = [row for row in family.tiles(product) if constraint.tile in (None, row.tile)]
        if not rows:
            rejected.append(Rejection(_name(name, constraint.tile), "no such tile is compiled for these types"))
        for row in rows:
            settings = _settings(family, row, product, constraint, device)
            reason = family.why_not(settings[0], product, device)
            if reason is not None:
                rejected.append(Rejection(_name(name, row.tile), reason))
                continue
            cost, best = min((family.cost(s, product, device), i) for i, s in enumerate(settings))
            candidates.append(Candidate(ConvPlan(platform, kind, name, settings[best]), cost))
    if not candidates:
        return Choice(None, float("inf"), tuple(rejected))
    best = min(candidates, key=lambda c: c.cost)
    dearer = (Rejection(c.name, f"{c.cost / best.cost:.2f}x the cost") for c in candidates if c is not best)
    return Choice(best.plan, best.cost, (*dearer, *rejected))


def _settings(
    family: Family, row: TileRow, product: Product, asked: Constraint, device: Device
) -> list[Settings]:
    """Those that a tile may run with."""
    splits = family.splits(row, product, device) if asked.split is None else [asked.split]
    chunk = family.chunk(row.tile, product) if asked.chunk is None else asked.chunk
    return [Settings(row.tile, split, chunk) for split in splits]


def _name(family: str, tile: Tile | None) -> str:
    return family if tile is None else f"{family} {tile}"
