"""The host's families' planning, which is C++: src_cpu/host_planning.h, through the module `_planning`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from jaxconv.compiled import planning
from jaxconv.planner.candidate import Asked, Candidate, Settings
from jaxconv.planner.devices import Device
from jaxconv.problem import ConvProblem
from jaxconv.problem.native import native
from jaxconv.problem.product import Product
from jaxconv.transforms import SwappedOperands, Transform


class HostFamily:
    """A kernel family of the host. It has no tiles and no settings.

    swaps: whether it may take a wgrad with its operands swapped.
    """

    needs_aligned = False

    def __init__(self, name: str, swaps: bool = False) -> None:
        self._transforms: list[Transform] = [(SwappedOperands(),)] if swaps else []
        self._native: Any = getattr(planning.host, name)

    def transforms(self, product: Product) -> list[Transform]:
        """Those that it may answer under, besides the problem as it is."""
        return self._transforms if product.kind == "wgrad" else []

    def takes_transform(self, transform: Transform) -> bool:
        return not transform or transform in self._transforms

    def candidates(self, product: Product, device: Device, asked: Asked) -> Iterator[Candidate]:
        reason = "a host kernel has no settings" if asked.settings or asked.tile else None
        reason = reason or self._native.unsupported_reason(native(product))
        yield Candidate(None, reason, math.inf if reason else self._native.cost(native(product)), {})

    def fit_digest(self, tile: str | None, settings: Settings, problem: ConvProblem) -> None:
        return None

    def workspace_bytes(self, tile: str | None, settings: Settings, product: Product, device: Device) -> None:
        return None
