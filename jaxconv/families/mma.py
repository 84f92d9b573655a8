"""The mma family: implicit GEMM on tensor cores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from jaxconv.families.base import Device, Settings, TensorCores, Tile, TileRow
from jaxconv.offsets import INT32_MAX, offset_tables
from jaxconv.problem import ConvProblem, row_major_strides
from jaxconv.product import Product, ceil_div


@lru_cache(maxsize=4096)
def merged_classes(problem: ConvProblem) -> int:
    """Residue classes of a gather, all or 1, that read the same source pixels: where a window does not overlap its
    neighbours, as in patch embeddings' data gradients. Their columns make one matrix, and each pixel is read once.
    """
    tables = offset_tables(problem)
    classes = len(tables.classes)
    if not len(tables.taps) or np.ptp(tables.classes[:, 1]) or np.ptp(tables.classes[:, 5:], axis=0).any():
        return 1
    taps = tables.taps.reshape(classes, -1, tables.taps.shape[1])
    places = taps[:, :, 1] - taps[:1, :, 1]
    if np.any(taps[:, :, 2:] != taps[0, :, 2:]) or np.any(places != places[:, :1]):
        return 1
    strides = row_major_strides(problem.rhs_shape)
    in_stride, out_stride = strides[problem.rhs_spec.second], strides[problem.rhs_spec.first]
    # A filter that lies along its input channels is copied in columns that are equally far apart.
    follow = np.array_equal(places[:, 0], np.arange(classes) * (problem.out_channels * out_stride))
    fits = strides[0] * problem.rhs_shape[0] * problem.rhs_dtype.itemsize < INT32_MAX
    return classes if fits and (follow or in_stride > out_stride) else 1


class Mma(TensorCores):
    """Implicit GEMM on tensor cores: src_cuda/mma/. float32 operands are multiplied as tf32."""

    HAS_UNITS = True
    FILL = 3
    ROW_BYTES = 128  # of a tile in shared memory, along the steps
    PIECE_BYTES = 16  # of an asynchronous copy
    ALIGNMENT = 1024  # of shared memory: eight such rows are exchanged in turn
    MERGED_COLS = 128  # of tiles that merge residue classes
    ELEMENTWISE = 3  # times as long, if operands cannot be copied in such pieces

    TILES = (
        TileRow(Tile(128, 128, 64, 3), 128, 2, {"gather": 0.37, "reduce": 0.34}),
        TileRow(Tile(128, 64, 64, 4), 128, 2, {"gather": 0.29, "reduce": 0.24}),
        TileRow(Tile(64, 64, 64, 4), 128, 3, {"gather": 0.23, "reduce": 0.19}),
        TileRow(Tile(128, 16, 64, 4), 128, 2, {"gather": 0.12, "reduce": 0.082}),
        TileRow(Tile(256, 128, 64, 4, wgmma=True), 256, 1, {"gather": 0.52, "reduce": 0.49}),
        TileRow(Tile(128, 128, 64, 3, wgmma=True), 128, 2, {"gather": 0.49, "reduce": 0.44}),
        TileRow(Tile(128, 64, 64, 2, wgmma=True), 128, 4, {"gather": 0.37, "reduce": 0.30}),
        TileRow(Tile(128, 16, 64, 2, wgmma=True), 128, 5, {"gather": 0.15, "reduce": 0.10}),
        TileRow(Tile(128, 128, 32, 3), 128, 2, {"gather": 0.33, "reduce": 0.31}),
        TileRow(Tile(128, 64, 32, 4), 128, 2, {"gather": 0.26, "reduce": 0.22}),
        TileRow(Tile(64, 64, 32, 4), 128, 3, {"gather": 0.22, "reduce": 0.18}),
        TileRow(Tile(128, 16, 32, 4), 128, 2, {"gather": 0.11, "reduce": 0.084}),
        TileRow(Tile(128, 128, 32, 3, passes=3), 256, 1, {"gather": 0.14, "reduce": 0.13}),
        TileRow(Tile(64, 64, 32, 4, passes=3), 128, 2, {"gather": 0.12, "reduce": 0.10}),
    )

    def tiles(self, product: Product) -> Sequence[TileRow]:
        dtype = product.operand_dtypes[0]
        depth, passes = self.ROW_BYTES // dtype.itemsize, 3 if dtype == np.float32 and product.is_exact else 1
        return [row for row in self.TILES if (row.tile.depth, row.tile.passes) == (depth, passes)]

    def why_never(self, product: Product) -> str | None:
        if (reason := super().why_never(product)) is not None:
            return reason
        name = product.operand_dtypes[0].name
        if name not in ("bfloat16", "float16", "float32"):
            return f"tensor cores of {name}"
        if product.sum_dtype != np.float32:
            return f"sums in {product.sum_dtype.name}"
        return None

    def why_unasked(self, product: Product) -> str | None:
        if product.operand_dtypes[0] == np.float32 and product.is_exact:
            return "precision HIGHEST is float32 itself; by name, mma multiplies it as tf32 in three passes"
        return None

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if settings.tile.wgmma and not device.wgmma:
            return "wgmma is of compute capability 9.0, and in kernels that are built for it"
        return super().why_not(settings, product, device)

    def rate(self, product: Product) -> int:
        """Multiply-adds of a multiprocessor in a clock, by Hopper's own instructions for dense matrices."""
        return 4096 // product.operand_dtypes[0].itemsize

    def least_cost_of(self, row: TileRow, product: Product, device: Device) -> float:
        return self._slower(product) * super().least_cost_of(row, product, device)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        return self._slower(product) * super().cost(settings, product, device)

    def _slower(self, product: Product) -> int:
        return 1 if product.has_runs_of(self.piece(product.operand_dtypes[0])) else self.ELEMENTWISE

    def merged(self, tile: Tile, product: Product) -> int:
        return merged_classes(product.problem) if self.most_merged(tile, product) > 1 else 1

    def most_merged(self, tile: Tile, product: Product) -> int:
        if product.classes == 1 or product.kind == "reduce" or tile.cols != self.MERGED_COLS:
            return 1
        if math.prod(product.problem.kernel) % product.classes:  # they do not have equally many taps
            return 1
        piece = self.piece(product.operand_dtypes[0])  # results are stored as such, too
        return product.classes if product.has_runs_of(piece) and product.cols % piece == 0 else 1

    def shape(self, settings: Settings, product: Product) -> tuple[int, ...]:
        return (self.merged(settings.tile, product),)

    @classmethod
    def piece(cls, dtype: np.dtype) -> int:
        """Elements of an asynchronous copy."""
        return cls.PIECE_BYTES // dtype.itemsize

    def shared_bytes(self, row: TileRow, product: Product) -> int:
        tile = row.tile
        stages = tile.stages * (tile.rows + tile.cols) * self.ROW_BYTES
        sums = tile.rows * (tile.cols + 8) * product.sum_dtype.itemsize
        ring = 2 if tile.stages == 2 else 4  # tiles of which the steps are known
        points = (tile.rows + ring * tile.depth) * 9 // 8  # every ninth place is padding
        return ceil_div(max(stages, sums) + points * self.POINT_BYTES, self.ALIGNMENT) * self.ALIGNMENT
