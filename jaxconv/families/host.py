"""The host's kernels: src_cpu/."""

from __future__ import annotations

import math
from collections.abc import Sequence

from jaxconv.families.base import Device, Family, Settings, TileRow
from jaxconv.product import Product, ceil_div

# Of the newest instruction set that kernels are compiled for. Costs are fitted to measurements with it.
VECTOR = 16  # float32 numbers
SHORT_VECTOR = 4  # of which two take as long
TILE_ROWS = 12


class HostFamily(Family):
    """A host kernel: it has no settings. Its cost is in multiply-adds."""

    def tiles(self, product: Product) -> Sequence[TileRow]:
        return [TileRow(None)]

    def settings(self, row: TileRow, product: Product, device: Device, asked: Settings) -> list[Settings]:
        return [asked]

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        return "a host kernel has no settings" if settings != Settings() else None

    def scratch_bytes(self, settings: Settings, product: Product) -> None:
        return None


class Gemm(HostFamily):
    SWAPS = True

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Vectors go along output channels: those of a narrow group are mostly empty."""
        if product.kind == "reduce":
            return self._reduce_cost(product)
        filled = min(max(product.cols, 1), VECTOR) / VECTOR
        return product.multiply_adds * (1 + 1 / filled if product.groups > 1 else 1)

    def _reduce_cost(self, product: Product) -> float:
        """Each position packs its (tap, channel)s, which are a tile's rows, and for each residue class its columns."""
        vectors = 0.5 if product.cols <= SHORT_VECTOR else ceil_div(product.cols, VECTOR)
        tiles = ceil_div(ceil_div(product.rows, product.classes), TILE_ROWS)
        rows = product.rows / 4 + 5 * math.prod(product.problem.kernel)
        each_class = tiles * TILE_ROWS * vectors + product.cols / 4 + 10
        return max(1, VECTOR * product.groups * product.steps * (rows + product.classes * each_class))


class HostDepthwise(HostFamily):
    def why_never(self, product: Product) -> str | None:
        if product.groups == 1 or 1 not in (product.problem.in_channels, product.cols):
            return "it is for groups of one channel"
        return None

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Vectors go along groups."""
        return product.multiply_adds
