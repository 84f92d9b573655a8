"""The families whose sums are made on CUDA cores, of every type: simt and im2col."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxconv.families.base import LAUNCH_SECONDS, CudaFamily, Device, Rounds, Settings, Tile, TileRow
from jaxconv.offsets import offset_tables
from jaxconv.problem import Dim
from jaxconv.product import Product, ceil_div


class CudaCores(CudaFamily):
    """What simt and im2col share: sums on CUDA cores."""

    PADDING = 4  # of a tile's lines in shared memory

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if self.row_of(settings.tile).only_f32 and product.sum_dtype != np.float32:
            return "compiled for float32 sums only"
        return super().why_not(settings, product, device)

    def rate(self, product: Product) -> int:
        """Multiply-adds of a multiprocessor in a clock."""
        return 128 if product.sum_dtype == np.float32 else 64

    def shared_bytes(self, row: TileRow, product: Product) -> int:
        tile = row.tile
        lines = tile.rows + tile.cols + 2 * self.PADDING
        points = tile.rows + 2 * row.threads
        return tile.stages * tile.depth * lines * product.sum_dtype.itemsize + points * self.POINT_BYTES


class Simt(CudaCores):
    """Implicit GEMM: src_cuda/simt/."""

    TILES = (
        TileRow(Tile(128, 128, 8, 2), 256, 2, {"gather": 0.66, "reduce": 0.65}, only_f32=True),
        TileRow(Tile(128, 64, 8, 2), 128, 4, {"gather": 0.64, "reduce": 0.55}, only_f32=True),
        TileRow(Tile(64, 64, 8, 2), 128, 8, {"gather": 0.55, "reduce": 0.43}),
        TileRow(Tile(128, 32, 8, 2), 128, 8, {"gather": 0.47, "reduce": 0.34}),
    )


IM2COL_SCRATCH = 256 * 2**20  # bytes of the column matrix at a time, if that is a tile's rows


class Im2col(CudaCores):
    """An explicit column matrix, then its product: src_cuda/im2col/."""

    TILES = (
        TileRow(Tile(128, 128, 8, 1), 256, 2, {"gather": 0.17, "reduce": 0.11}, only_f32=True),
        TileRow(Tile(64, 64, 8, 1), 64, 8, {"gather": 0.09, "reduce": 0.10}),
    )

    def rounds(self, settings: Settings, product: Product) -> Rounds:
        """A product for each chunk of the column matrix, by its rows or, in a reduce, its steps."""
        count = max(1, ceil_div(product.positions, settings.chunk))
        if product.kind == "gather":
            return Rounds(count, min(product.rows, settings.chunk), product.steps)
        return Rounds(count, product.rows, min(product.steps, settings.chunk))

    def splits(self, row: TileRow, product: Product, device: Device) -> Iterable[int]:
        """Those whose slices need no more scratch than the column matrix may: an output can be large."""
        fits = lambda split: split == 1 or split * product.planned_sums_bytes <= IM2COL_SCRATCH
        return list(filter(fits, super().splits(row, product, device)))

    def chunk(self, tile: Tile, product: Product) -> int:
        """Whole tiles of rows: all that there are, if the scratch's cap allows."""
        rows = min(IM2COL_SCRATCH // max(1, product.column_bytes), self._rows(tile, product))
        return max(1, rows // tile.rows) * tile.rows

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if settings.chunk < 1 or settings.chunk % settings.tile.rows:
            return f"a chunk of {settings.chunk} rows, not whole tiles of {settings.tile.rows}"
        return super().why_not(settings, product, device)

    def least_cost_of(self, row: TileRow, product: Product, device: Device) -> float:
        return self._copy_seconds(product, device) + LAUNCH_SECONDS + super().least_cost_of(row, product, device)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        launches = self.rounds(settings, product).count * LAUNCH_SECONDS
        return self._copy_seconds(product, device) + launches + super().cost(settings, product, device)

    def _copy_seconds(self, product: Product, device: Device) -> float:
        """Of columns, which are written and read."""
        return 2 * product.positions * product.column_bytes / device.bandwidth

    def scratch_bytes(self, settings: Settings, product: Product) -> Dim:
        columns = settings.chunk * product.column_bytes
        one_chunk = product.has_known_batch and self._rows(settings.tile, product) <= settings.chunk
        if settings.split == 1 and (product.kind == "gather" or one_chunk):
            return columns
        alignment = 16
        return -(-settings.split * product.sums_bytes // alignment) * alignment + columns

    def _rows(self, tile: Tile, product: Product) -> int:
        """Rows of the column matrix: each residue class has whole tiles of them."""
        classes = len(offset_tables(product.problem).classes)
        return (product.positions + classes * (tile.rows - 1)) // tile.rows * tile.rows
