"""What a kernel family answers the planner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Settings = Mapping[str, int]


class Asked(NamedTuple):
    """What a constraint asks of a family. tile: a name, or None for any. is_named: the family or the tile was named."""

    settings: Settings
    tile: str | None
    is_named: bool


class Candidate(NamedTuple):
    """A tile at its best settings, or the reason why it does not take the product.

    tile: None if the family has no tiles, or if the reason is for all of them.
    seconds: an estimate on a GPU; for the host's kernels a number of multiply-adds.
    """

    tile: str | None
    reason: str | None
    seconds: float
    settings: Settings
