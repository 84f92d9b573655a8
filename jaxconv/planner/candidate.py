"""What a kernel family answers the planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Settings = Mapping[str, int]


class Asked(NamedTuple):
    """What settings must be: by name, a tile's name or any, and whether the family or its tile was named."""

    settings: Settings
    tile: str | None
    is_named: bool


class Candidate(NamedTuple):
    """A tile at its best settings, or the reason why it does not take the product.

    Without a tile: a family that has none, or the reason why no tile takes the product.
    seconds: estimated, on a GPU; of the host's kernels multiply-adds' worth.
    """

    tile: str | None
    reason: str | None
    seconds: float
    settings: Settings
