"""The host's kernels: src_cpu/."""

from __future__ import annotations

from collections.abc import Sequence

from jaxconv.families.base import Device, Family, Settings, TileRow
from jaxconv.product import Product


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
    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Vectors go along output channels: those of a narrow group are mostly empty."""
        vector = 16
        filled = min(max(product.cols, 1), vector) / vector
        return product.multiply_adds * (1 + 1 / filled if product.groups > 1 else 1)


class HostDepthwise(HostFamily):
    def why_never(self, product: Product) -> str | None:
        if product.groups == 1 or 1 not in (product.problem.in_channels, product.cols):
            return "it is for groups of one channel"
        return None

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Vectors go along groups."""
        return product.multiply_adds
