"""The kernel families: their tiles, what each cannot do, what it costs. `plan.choose` chooses among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from jaxconv.offsets import INT32_MAX, offset_tables
from jaxconv.problem import Dim
from jaxconv.product import Product, ceil_div


@dataclasses.dataclass(frozen=True)
class Device:
    """What a plan depends on of a GPU.

    clock_hz: of its multiprocessors, at most. bandwidth: of its memory, in bytes/s, by its clock and width.
    shared_bytes: the most shared memory that a thread block may have. wgmma: whether there are kernels with it.
    """

    multiprocessors: int
    clock_hz: float
    bandwidth: float
    shared_bytes: int
    wgmma: bool


TYPICAL_DEVICE = Device(132, 1.98e9, 4.9e12, 232448, True)  # an H200: planned for where no GPU is at hand
LAUNCH_SECONDS = 3e-6


class Tile(NamedTuple):
    """A thread block's part of the product: rows x columns of results, `depth` steps of the reduction at a time.

    stages: copies of the operands' tiles in shared memory.
    wgmma: multiplied by Hopper's own instruction. passes: 3 if float32 is multiplied as two tf32 numbers.
    """

    rows: int
    cols: int
    depth: int
    stages: int
    wgmma: bool = False
    passes: int = 1

    def __str__(self) -> str:
        how = " wgmma" if self.wgmma else f" in {self.passes} passes" if self.passes > 1 else ""
        return f"{self.rows}x{self.cols}x{self.depth}{how}"


class TileRow(NamedTuple):
    """A compiled tile.

    threads: of a thread block. resident: thread blocks that a multiprocessor holds.
    efficiency: measured for gather and reduce on products of whole tiles, of the family's rate at the highest clock.
    only_f32: for sums in float32 alone.
    """

    tile: Tile | None
    threads: int = 0
    resident: int = 0
    efficiency: dict[str, float] = {}
    only_f32: bool = False


class Settings(NamedTuple):
    """What a plan lays down besides its family; None where a family has no such setting.

    split: slices of the reduction, each summed on its own, then added in order.
    chunk: rows of im2col's column matrix that are in the scratch at a time.
    units: tiles of columns that a thread block of mma computes in turn; None leaves it to the launch.
    """

    tile: Tile | None = None
    split: int | None = None
    chunk: int | None = None
    units: int | None = None


class Rounds(NamedTuple):
    """How often a family launches its product, and the rows and steps of each launch."""

    count: int
    rows: int
    steps: int


class Family:
    """What the planner asks of every family, and what most answer."""

    REWRITES = False  # whether it takes problems that are rewritten

    def why_never(self, product: Product) -> str | None:
        """Why no tile takes the product."""
        return None

    def why_unasked(self, product: Product) -> str | None:
        """Why the product is for it only if the family is asked for."""
        return None

    def chunk(self, tile: Tile | None, product: Product) -> int | None:
        return None


class HostFamily(Family):
    """A host kernel: it has no settings. Its cost is in multiply-adds."""

    def tiles(self, product: Product) -> Sequence[TileRow]:
        return [TileRow(None)]

    def splits(self, row: TileRow, product: Product, device: Device) -> Iterable[None]:
        return (None,)

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


class Depthwise(HostFamily):
    def why_never(self, product: Product) -> str | None:
        if product.groups == 1 or 1 not in (product.problem.in_channels, product.cols):
            return "it is for groups of one channel"
        return None

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Vectors go along groups."""
        return product.multiply_adds


class CudaFamily(Family):
    """What the CUDA kernels share: a product in tiles of rows x columns, split along its reduction."""

    HAS_UNITS = False
    FILL = 4  # tiles of steps that filling and emptying the pipeline take as long as
    MAX_SPLIT = 264
    MAX_WAVES = 6  # of a split's thread blocks
    SLICE_SECONDS = 1e-8  # a thread's wait for a slice, while slices are added
    POINT_BYTES = 32  # of device/points.cuh

    TILES: tuple[TileRow, ...]

    def tiles(self, product: Product) -> Sequence[TileRow]:
        """Those made for the product's types."""
        return self.TILES

    def row_of(self, tile: Tile) -> TileRow:
        return next(row for row in self.TILES if row.tile == tile)

    def rounds(self, settings: Settings, product: Product) -> Rounds:
        return Rounds(1, product.rows, product.steps)

    def splits(self, row: TileRow, product: Product, device: Device) -> Iterable[int]:
        """One, and those that fill whole waves of thread blocks, if that leaves each slice some tiles."""
        whole = Settings(row.tile, 1, self.chunk(row.tile, product))
        blocks = max(1, self.blocks(whole, product))
        most = min(self.MAX_SPLIT, self.rounds(whole, product).steps // (4 * row.tile.depth))
        wave = row.resident * device.multiprocessors
        full = (waves * wave // blocks for waves in range(1, self.MAX_WAVES + 1))
        return sorted({max(1, min(split, most)) for split in (1, *full)})

    def blocks(self, settings: Settings, product: Product) -> int:
        """Thread blocks of a round."""
        tile, rows = settings.tile, self.rounds(settings, product).rows
        # Each residue class has its own tiles of rows.
        row_tiles = product.classes * ceil_div(ceil_div(rows, product.classes), tile.rows)
        return row_tiles * ceil_div(product.cols, tile.cols) * product.groups * settings.split

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if settings.units is not None and not self.HAS_UNITS:
            return "its blocks have one unit"
        if settings.split < 1:
            return f"a split of {settings.split}"
        if (settings.chunk is None) != (self.chunk(settings.tile, product) is None):
            return "it has no chunks"
        if (need := self.shared_bytes(self.row_of(settings.tile), product)) > device.shared_bytes:
            return f"{need} bytes of shared memory, the device has {device.shared_bytes}"
        if self.blocks(settings, product) > INT32_MAX:
            return "more than 2^31 - 1 thread blocks"
        return None

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """A multiprocessor's results, there or not, each for a slice of the reduction; then the slices' sum."""
        tile, row, rounds = settings.tile, self.row_of(settings.tile), self.rounds(settings, product)
        rate = self.rate(product) * device.clock_hz * row.efficiency[product.kind]
        steps = ceil_div(rounds.steps, settings.split) + self.FILL * tile.depth
        blocks = ceil_div(self.blocks(settings, product), device.multiprocessors)
        # Where fewer blocks run than a multiprocessor holds, latencies show.
        load = max(blocks, 0.2 * row.resident + 0.8 * blocks) * tile.rows * tile.cols
        seconds = rounds.count * (load * steps / rate + LAUNCH_SECONDS)
        if settings.split > 1:  # slices are written, and read by one more kernel
            slices = settings.split * product.planned_sums_bytes
            seconds += 2 * slices / device.bandwidth + settings.split * self.SLICE_SECONDS + LAUNCH_SECONDS
        return seconds

    def scratch_bytes(self, settings: Settings, product: Product) -> Dim:
        return settings.split * product.sums_bytes if settings.split > 1 else 0


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
    """Implicit GEMM: src_cuda/kernels/simt.cu."""

    TILES = (
        TileRow(Tile(128, 128, 8, 2), 256, 2, {"gather": 0.66, "reduce": 0.65}, only_f32=True),
        TileRow(Tile(128, 64, 8, 2), 128, 4, {"gather": 0.64, "reduce": 0.55}, only_f32=True),
        TileRow(Tile(64, 64, 8, 2), 128, 8, {"gather": 0.55, "reduce": 0.43}),
        TileRow(Tile(128, 32, 8, 2), 128, 8, {"gather": 0.47, "reduce": 0.34}),
    )


IM2COL_SCRATCH = 256 * 2**20  # bytes of the column matrix at a time, if that is a tile's rows


class Im2col(CudaCores):
    """An explicit column matrix, then its product: src_cuda/kernels/im2col.cu."""

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

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        copies = 2 * product.positions * product.column_bytes / device.bandwidth  # written and read
        launches = self.rounds(settings, product).count * LAUNCH_SECONDS
        return copies + launches + super().cost(settings, product, device)

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


class Mma(CudaFamily):
    """Implicit GEMM on tensor cores: src_cuda/kernels/mma.cu. float32 operands are multiplied as tf32."""

    REWRITES = True
    HAS_UNITS = True
    FILL = 3
    ROW_BYTES = 128  # of a tile in shared memory, along the steps
    PIECE_BYTES = 16  # of an asynchronous copy
    ALIGNMENT = 1024  # of shared memory: eight such rows are exchanged in turn
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
        first, second = product.operand_dtypes
        if first != second:
            return f"operands of two types, {first.name} and {second.name}"
        if first.name not in ("bfloat16", "float16", "float32"):
            return f"tensor cores of {first.name}"
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

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        slower = 1 if product.has_runs_of(self.piece(product.operand_dtypes[0])) else self.ELEMENTWISE
        return slower * super().cost(settings, product, device)

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


# Of each platform, in the order of src_cpu's `Family` and src_cuda's `kFamilies`.
FAMILIES: dict[str, dict[str, Family]] = {
    "cpu": {"gemm": Gemm(), "depthwise": Depthwise()},
    "cuda": {"simt": Simt(), "im2col": Im2col(), "mma": Mma()},
}
