"""Plans: which kernel answers a problem on a platform, with which settings; and what may be asked of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeAlias

from jaxconv.planner.candidate import Asked
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.planner.families import FAMILIES, Family
from jaxconv.planner.native import NativeFamily
from jaxconv.problem import ConvProblem, Dim
from jaxconv.problem.product import Product
from jaxconv.transforms import Transform, apply

SETTINGS_TO_ASK_FOR = ("split", "chunk", "n_tiles_per_cta")


@dataclasses.dataclass(frozen=True)
class Constraint:
    """What a plan must be; None leaves it to the planner.

    It may stand for an implementation's name in every public function: that is how tests reach each tile.

    tile: its name. split: slices of the reduction, each summed on its own, then added in order. chunk: rows of im2col's
    column matrix that are in the workspace at a time. n_tiles_per_cta: tiles of columns that a thread block of mma
    computes in turn. output_tile: rows and columns of output positions of a thread block of direct or depthwise.
    rows_before, rows_after: of the first spatial dimension, that the kernel reads from arrays of neighbours.
    gradient_sums: 1 for a wgrad that also gives the sums of the cotangent over positions. or_lax: if no kernel can do
    so, lax answers with a warning. Without it that is an error.
    """

    platform: str | None = None
    family: str | None = None
    tile: str | None = None
    split: int | None = None
    chunk: int | None = None
    n_tiles_per_cta: int | None = None
    output_tile: tuple[int, int] | None = None
    rows_before: int | None = None
    rows_after: int | None = None
    gradient_sums: int | None = None
    transform: Transform | None = None
    or_lax: bool = False

    def is_for(self, platform: str | None) -> bool:
        """Whether a plan on a platform can be such."""
        families = FAMILIES.get(platform, {}) if platform else {}
        return self.platform in (None, platform) and self.family in (None, *families)

    def allows(self, plan: ConvPlan) -> bool:
        """Whether a plan is such."""
        of_plan = dataclasses.replace(plan.constraint, or_lax=self.or_lax)
        return all(asked in (None, getattr(of_plan, name)) for name, asked in vars(self).items())

    @property
    def asked(self) -> Asked:
        rows, cols = self.output_tile or (None, None)
        names = (*SETTINGS_TO_ASK_FOR, "rows_before", "rows_after", "gradient_sums")
        settings = {name: getattr(self, name) for name in names} | {"rows": rows, "cols": cols}
        known = {name: value for name, value in settings.items() if value is not None}
        return Asked(known, self.tile, self.family is not None or self.tile is not None)


ANY = Constraint()
Implementation: TypeAlias = str | Constraint | None  # what a caller names

# The native implementations that users name: the platforms and their kernel families.
IMPLEMENTATIONS = {platform: Constraint(platform=platform) for platform in FAMILIES} | {
    family: Constraint(family=family) for families in FAMILIES.values() for family in families
}


def check_implementation(implementation: Implementation, *others: str) -> None:
    """Raises ValueError for an unknown name. others: names that the caller takes besides."""
    allowed = (None, *IMPLEMENTATIONS, *others)
    if implementation not in allowed and not isinstance(implementation, Constraint):
        raise ValueError(f"implementation must be one of {allowed}, got {implementation!r}")


def constraint_of(implementation: Implementation) -> Constraint:
    if isinstance(implementation, Constraint):
        return implementation
    return ANY if implementation is None else IMPLEMENTATIONS[implementation]


@dataclasses.dataclass(frozen=True)
class ConvPlan:
    """A kernel, its settings, and the transform of its problem.

    kind: "conv" (fprop, dgrad) or "wgrad". tile: its name, of a family that has tiles.
    """

    platform: str
    kind: str
    family: str
    tile: str | None
    settings: Mapping[str, int] = dataclasses.field(hash=False)
    transform: Transform = ()

    def workspace_bytes(self, problem: ConvProblem) -> Dim | None:
        """Bytes of the workspace; None on a platform whose kernels take none."""
        product = Product(self.kind, apply(self.transform, problem).problem)
        return self._family.workspace_bytes(self.tile, self.settings, product, TYPICAL_DEVICE)

    def fit_digest(self, problem: ConvProblem) -> int | None:
        """Of the transformed problem and the settings; None on a platform whose kernels have none."""
        return self._family.fit_digest(self.tile, self.settings, problem)

    @property
    def needs_aligned(self) -> bool:
        """Whether operands and result must begin at multiples of 16 bytes."""
        return self._family.needs_aligned

    @property
    def rows(self) -> tuple[str, ...]:
        """The operands that are rows of neighbours."""
        return tuple(name for name in ("rows_before", "rows_after") if self.settings.get(name))

    def gradient_sum_rows(self, problem: ConvProblem) -> int:
        """Rows of sums that the workspace begins with, to be added."""
        family = self._family
        assert isinstance(family, NativeFamily), "a host has no such kernels"
        product = Product(self.kind, apply(self.transform, problem).problem)
        return family.gradient_sum_rows(self.tile, self.settings, product, TYPICAL_DEVICE)

    @property
    def constraint(self) -> Constraint:
        """What leaves the planner nothing but this plan."""
        sums = ("gradient_sums",) if self.settings.get("gradient_sums") else ()
        asked: dict[str, Any] = {name: self.settings.get(name) for name in (*SETTINGS_TO_ASK_FOR, *self.rows, *sums)}
        return Constraint(
            self.platform, self.family, self.tile, **asked, output_tile=self.output_tile, transform=self.transform
        )

    @property
    def output_tile(self) -> tuple[int, int] | None:
        """Rows and columns of the output positions that a thread block computes at a time."""
        return (self.settings["rows"], self.settings["cols"]) if "rows" in self.settings else None

    @property
    def _family(self) -> Family:
        return FAMILIES[self.platform][self.family]

    def __str__(self) -> str:
        output_tile = self.output_tile and f"{self.output_tile[0]}x{self.output_tile[1]}"
        names = (*SETTINGS_TO_ASK_FOR, *self.rows)
        parts = {name: self.settings.get(name) for name in names} | {"output tile": output_tile}
        known = (f"{name.replace('_', ' ')} {value}" for name, value in parts.items() if value)
        return ", ".join([kernel_name(self.family, self.tile, self.transform), *known])


@dataclasses.dataclass(frozen=True)
class Lax:
    """In place of a plan: lax answers, by a kernel that XLA chooses."""

    def __str__(self) -> str:
        return "lax"


def kernel_name(family: str, tile: str | None, transform: Transform) -> str:
    kernel = family if tile is None else f"{family} {tile}"
    return f"{kernel} of {' and '.join(map(str, transform))}" if transform else kernel
