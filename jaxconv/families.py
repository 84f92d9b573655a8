"""The kernel families: their tiles, what each cannot do, what it costs. `plan.choose` chooses among them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from jaxconv.offsets import INT32_MAX, offset_tables
from jaxconv.problem import Dim
from jaxconv.product import Product


@dataclasses.dataclass(frozen=True)
class Device:
    """What a plan depends on of a GPU.

    clock_hz: of its multiprocessors, at most. bandwidth: of its memory, in bytes/s, by its clock and width.
    shared_bytes: the most shared memory that a thread block may have.
    """

    multiprocessors: int
    clock_hz: float
    bandwidth: float
    shared_bytes: int


TYPICAL_DEVICE = Device(132, 1.98e9, 4.9e12, 232448)  # an H200: planned for where no GPU is at hand
LAUNCH_SECONDS = 3e-6


class Tile(NamedTuple):
    """A thread block's part of the product: rows x columns of results, `depth` steps of the reduction at a time.

    stages: copies of the operands' tiles in shared memory.
    """

    rows: int
    cols: int
    depth: int
    stages: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.cols}x{self.depth}"


class TileRow(NamedTuple):
    """A compiled tile.

    only_f32: for sums in float32 alone.
    efficiency: measured for gather and reduce on products of whole tiles in float32, of the rate at the highest clock.
    """

    tile: Tile
    threads: int
    only_f32: bool
    efficiency: dict[str, float]


class Settings(NamedTuple):
    """What a plan lays down besides its family; None where a family has no such setting.

    split: slices of the reduction, each summed on its own, then added in order.
    chunk: rows of im2col's column matrix that are in the scratch at a time.
    """

    tile: Tile | None = None
    split: int | None = None
    chunk: int | None = None


class Rounds(NamedTuple):
    """How often a family launches its product, and the rows and steps of each launch."""

    count: int
    rows: int
    steps: int


class HostFamily:
    """A host kernel: it has no settings. Its cost is in multiply-adds."""

    tiles = (TileRow(None, 0, only_f32=False, efficiency={}),)

    def splits(self, tile: None, product: Product, device: Device) -> Iterable[None]:
        return (None,)

    def chunk(self, tile: None, product: Product) -> None:
        return None

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
    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if product.groups == 1 or 1 not in (product.problem.in_channels, product.cols):
            return "it is for groups of one channel"
        return super().why_not(settings, product, device)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Vectors go along groups."""
        return product.multiply_adds


class CudaCores:
    """What simt and im2col share: sums on CUDA cores, in tiles of rows x columns."""

    RESIDENT_RESULTS = 2 * 128 * 128  # that a multiprocessor's resident blocks hold, whatever their tile
    MAX_SPLIT = 128
    MAX_WAVES = 6  # of a split's thread blocks
    SLICE_SECONDS = 5e-8  # a thread's wait for a slice, while slices are added
    POINT_BYTES = 32  # of device/points.cuh
    PADDING = 4  # of a tile's lines in shared memory

    tiles: tuple[TileRow, ...]

    def rounds(self, settings: Settings, product: Product) -> Rounds:
        return Rounds(1, product.rows, product.steps)

    def splits(self, tile: Tile, product: Product, device: Device) -> Iterable[int]:
        """One, and those that fill whole waves of thread blocks, if that leaves each slice some tiles."""
        whole = Settings(tile, 1, self.chunk(tile, product))
        blocks = max(1, self.blocks(whole, product))
        most = min(self.MAX_SPLIT, self.rounds(whole, product).steps // (4 * tile.depth))
        full = (waves * self.resident_blocks(tile, device) // blocks for waves in range(1, self.MAX_WAVES + 1))
        return sorted({max(1, min(split, most)) for split in (1, *full)})

    def resident_blocks(self, tile: Tile, device: Device) -> int:
        return device.multiprocessors * self.RESIDENT_RESULTS // (tile.rows * tile.cols)

    def row_of(self, tile: Tile | None) -> TileRow | None:
        return next((row for row in self.tiles if row.tile == tile), None)

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        row = self.row_of(settings.tile)
        if row is None:
            return f"no tile {settings.tile} is compiled"
        if row.only_f32 and product.sum_dtype != np.float32:
            return "compiled for float32 sums only"
        if settings.split < 1:
            return f"a split of {settings.split}"
        if (need := self.shared_bytes(row, product)) > device.shared_bytes:
            return f"{need} bytes of shared memory, the device has {device.shared_bytes}"
        if self.blocks(settings, product) > INT32_MAX:
            return "more than 2^31 - 1 thread blocks"
        return None

    def shared_bytes(self, row: TileRow, product: Product) -> int:
        tile = row.tile
        lines = tile.rows + tile.cols + 2 * self.PADDING
        points = tile.rows + 2 * row.threads
        return tile.stages * tile.depth * lines * product.sum_dtype.itemsize + points * self.POINT_BYTES

    def blocks(self, settings: Settings, product: Product) -> int:
        """Thread blocks of a round."""
        tile, rows = settings.tile, self.rounds(settings, product).rows
        return _ceil(rows, tile.rows) * _ceil(product.cols, tile.cols) * product.groups * settings.split

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """A multiprocessor's results, there or not, each for a slice of the reduction; then the slices' sum."""
        tile, rounds = settings.tile, self.rounds(settings, product)
        lanes = 128 if product.sum_dtype == np.float32 else 64
        rate = lanes * device.clock_hz * self.row_of(tile).efficiency[product.kind]
        steps = _ceil(rounds.steps, settings.split) + 4 * tile.depth  # and the pipeline's filling and emptying
        load = _ceil(self.blocks(settings, product), device.multiprocessors) * tile.rows * tile.cols
        seconds = rounds.count * (self.shared_load(load) * steps / rate + LAUNCH_SECONDS)
        if settings.split > 1:  # slices are written, and read by one more kernel
            slices = settings.split * product.rows * product.cols * product.groups * product.sum_dtype.itemsize
            seconds += 2 * slices / device.bandwidth + settings.split * self.SLICE_SECONDS + LAUNCH_SECONDS
        return seconds

    def shared_load(self, results: int) -> float:
        """A multiprocessor's results; if fewer than fit, as many as would take the same time: latencies show."""
        return max(results, 0.2 * self.RESIDENT_RESULTS + 0.8 * results)


class Simt(CudaCores):
    """Implicit GEMM: src_cuda/kernels/simt.cu."""

    tiles = (
        TileRow(Tile(128, 128, 8, 2), 256, only_f32=True, efficiency={"gather": 0.66, "reduce": 0.65}),
        TileRow(Tile(128, 64, 8, 2), 128, only_f32=True, efficiency={"gather": 0.64, "reduce": 0.55}),
        TileRow(Tile(64, 64, 8, 2), 128, only_f32=False, efficiency={"gather": 0.55, "reduce": 0.43}),
        TileRow(Tile(128, 32, 8, 2), 128, only_f32=False, efficiency={"gather": 0.47, "reduce": 0.34}),
    )

    def chunk(self, tile: Tile, product: Product) -> None:
        return None

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if settings.chunk is not None:
            return "it has no chunks"
        return super().why_not(settings, product, device)

    def scratch_bytes(self, settings: Settings, product: Product) -> Dim:
        return settings.split * product.sums_bytes if settings.split > 1 else 0


IM2COL_SCRATCH = 256 * 2**20  # bytes of the column matrix at a time, if that is a tile's rows


class Im2col(CudaCores):
    """An explicit column matrix, then its product: src_cuda/kernels/im2col.cu."""

    tiles = (
        TileRow(Tile(128, 128, 8, 1), 256, only_f32=True, efficiency={"gather": 0.17, "reduce": 0.11}),
        TileRow(Tile(64, 64, 8, 1), 64, only_f32=False, efficiency={"gather": 0.09, "reduce": 0.10}),
    )

    def rounds(self, settings: Settings, product: Product) -> Rounds:
        """A product for each chunk of the column matrix, by its rows or, in a reduce, its steps."""
        count = max(1, _ceil(product.positions, settings.chunk))
        if product.kind == "gather":
            return Rounds(count, min(product.rows, settings.chunk), product.steps)
        return Rounds(count, product.rows, min(product.steps, settings.chunk))

    def splits(self, tile: Tile, product: Product, device: Device) -> Iterable[int]:
        """Only weight gradients': slices of a whole output would be more scratch than the column matrix."""
        return super().splits(tile, product, device) if product.kind == "reduce" else [1]

    def chunk(self, tile: Tile, product: Product) -> int:
        """Whole tiles of rows: all that there are, if the scratch's cap allows."""
        rows = IM2COL_SCRATCH // max(1, product.column_bytes)
        if product.has_known_batch:
            rows = min(rows, self._rows(tile, product))
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


Family = HostFamily | Simt | Im2col

# Of each platform, in the order of src_cpu's `Family` and src_cuda's `kFamilies`.
FAMILIES: dict[str, dict[str, Family]] = {
    "cpu": {"gemm": Gemm(), "depthwise": Depthwise()},
    "cuda": {"simt": Simt(), "im2col": Im2col()},
}


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
