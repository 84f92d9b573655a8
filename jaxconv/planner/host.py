"""The host's kernels: src_cpu/. They have no tiles and no settings. Their cost is in multiply-adds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from jaxconv.planner.candidate import Asked, Candidate, Settings
from jaxconv.planner.devices import Device
from jaxconv.problem.product import Product, ceil_div
from jaxconv.transforms import SwappedOperands, Transform

# Of the newest instruction set that kernels are compiled for. Costs are fitted to measurements with it, of float32.
# Those of int8 have about the same ratios.
VECTOR = 16  # float32 numbers
SHORT_VECTOR = 4  # two of them cost as much as one vector
TILE_ROWS = 12
ONE_BY_ONE = 4  # what a vector costs if its numbers are loaded one by one


class HostFamily:
    takes_aligned = False

    def transforms(self, product: Product) -> list[Transform]:
        """Those that it may answer under, besides the problem as it is."""
        return []

    def takes_transform(self, transform: Transform) -> bool:
        return not transform

    def candidates(self, product: Product, device: Device, asked: Asked) -> Iterator[Candidate]:
        reason = "a host kernel has no settings" if asked.settings or asked.tile else self.unsupported_reason(product)
        yield Candidate(None, reason, math.inf if reason else self.cost(product), {})

    def unsupported_reason(self, product: Product) -> str | None:
        return None

    def cost(self, product: Product) -> float:
        raise NotImplementedError

    def workspace_bytes(self, settings: Settings, product: Product, device: Device) -> None:
        return None


class Gemm(HostFamily):
    def transforms(self, product: Product) -> list[Transform]:
        return [(SwappedOperands(),)] if product.kind == "wgrad" else []

    def takes_transform(self, transform: Transform) -> bool:
        return transform in ((), (SwappedOperands(),))

    def cost(self, product: Product) -> float:
        """Vectors go along output channels: those of a narrow group are mostly empty."""
        if product.kind == "wgrad":
            return self._wgrad_cost(product)
        filled = min(max(product.n, 1), VECTOR) / VECTOR
        return product.multiply_adds * (1 + 1 / filled if product.groups > 1 else 1)

    def _wgrad_cost(self, product: Product) -> float:
        """Each position packs its (tap, channel)s, which are a tile's rows, and for each residue class its columns."""
        vectors = 0.5 if product.n <= SHORT_VECTOR else ceil_div(product.n, VECTOR)
        tiles = ceil_div(ceil_div(product.m, product.classes), TILE_ROWS)
        rows = product.m / 4 + 5 * math.prod(product.problem.kernel)
        each_class = tiles * TILE_ROWS * vectors + product.n / 4 + 10
        return max(1, VECTOR * product.groups * product.k * (rows + product.classes * each_class))


class HostDepthwise(HostFamily):
    def unsupported_reason(self, product: Product) -> str | None:
        if product.groups == 1 or 1 not in (product.problem.in_channels, product.n):
            return "it is for groups of one channel"
        return None

    def cost(self, product: Product) -> float:
        """Vectors go along groups. The numbers of a vector that is not full are read one by one."""
        filled = min(product.groups, VECTOR) / VECTOR
        return product.multiply_adds * (ONE_BY_ONE / filled if filled < 1 else 1)
