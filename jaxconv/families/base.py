"""What the planner asks of a kernel family, and what the CUDA families share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from jaxconv.devices import Device
from jaxconv.offsets import INT32_MAX
from jaxconv.problem import Dim
from jaxconv.product import Product, ceil_div

LAUNCH_SECONDS = 3e-6
BLOCK_SHARED_BYTES = 1024  # that a thread block takes besides its own


def held_blocks(shared_bytes: int, most: int, device: Device) -> int:
    """Thread blocks that a multiprocessor holds, whose registers hold `most`."""
    return min(most, (device.shared_bytes + BLOCK_SHARED_BYTES) // (shared_bytes + BLOCK_SHARED_BYTES))


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
    only_f32: for sums in float32 alone. tile: of the family's own class; None on the host.
    """

    tile: Any
    threads: int = 0
    resident: int = 0
    efficiency: dict[str, float] = {}
    only_f32: bool = False


class Settings(NamedTuple):
    """What a plan lays down besides its family; None where a family has no such setting.

    split: slices of the reduction, each summed on its own, then added in order.
    chunk: rows of im2col's column matrix that are in the scratch at a time.
    units: tiles of columns that a thread block of mma computes in turn; None leaves it to the launch.
    area: rows and columns of output positions that a thread block of direct computes at a time, or one of depthwise,
      of each image, one row after the other.
    """

    tile: Any = None
    split: int | Any = None
    chunk: int | Any = None
    units: int | Any = None
    area: tuple[int, int] | Any = None


class Rounds(NamedTuple):
    """How often a family launches its product, and the rows and steps of each launch."""

    count: int
    rows: int
    steps: int


class Family:
    """What the planner asks of every family, and what most answer."""

    REWRITES = False  # whether it takes problems that are rewritten
    SWAPS = False  # whether it takes them with operands swapped, if nothing else is
    OF_CHANNELS = False  # whether those are of each channel on its own
    PACKS_GROUPS = True  # whether packing groups may help those
    STORES_PARTS = False  # whether results of channels that are no whole pieces are stored as fast
    ALIGNED = False  # whether its operands and results begin at multiples of 16 bytes

    TILES: tuple[TileRow, ...]

    def tiles(self, product: Product) -> Sequence[TileRow]:
        """Those made for the product's types."""
        raise NotImplementedError

    def settings(self, row: TileRow, product: Product, device: Device, asked: Settings) -> list[Settings]:
        """Those that a tile may run with: what is not asked for."""
        raise NotImplementedError

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        """Why the settings do not take the product."""
        raise NotImplementedError

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        raise NotImplementedError

    def shape(self, settings: Settings, product: Product) -> tuple[int, ...]:
        """`Plan::shape` of src_cuda/common/plan.h."""
        return (0,)

    def scratch_bytes(self, settings: Settings, product: Product) -> Dim | None:
        """Bytes of the scratch buffer; None on a platform whose kernels take none."""
        return None

    def why_never(self, product: Product) -> str | None:
        """Why no tile takes the product."""
        return None

    def why_not_so(self, product: Product, device: Device) -> str | None:
        """Why no tile takes the product as it is, or is rewritten."""
        return None

    def why_unasked(self, product: Product) -> str | None:
        """Why the product is for it only if the family is asked for."""
        return None

    def least_cost(self, product: Product, device: Device) -> float:
        """What no tile's cost is below, worked out of little."""
        return 0.0

    def least_cost_of(self, row: TileRow, product: Product, device: Device) -> float:
        """What a tile's cost is not below, if it takes the product."""
        return 0.0


class CudaFamily(Family):
    """What the CUDA kernels share: a product in tiles of rows x columns, split along its reduction."""

    HAS_UNITS = False
    FILL = 4  # tiles of steps that filling and emptying the pipeline take as long as
    MAX_SPLIT = 264
    MAX_WAVES = 6  # of a split's thread blocks
    SLICE_SECONDS = 1e-8  # a thread's wait for a slice, while slices are added
    BANDWIDTH = 0.75  # of the memory's, that is reached
    POINT_BYTES = 32  # of common/points.cuh

    def tiles(self, product: Product) -> Sequence[TileRow]:
        return self.TILES

    def rate(self, product: Product) -> float:
        """Multiply-adds of a multiprocessor in a clock."""
        raise NotImplementedError

    def shared_bytes(self, row: TileRow, product: Product) -> int:
        """Of a thread block."""
        raise NotImplementedError

    def settings(self, row: TileRow, product: Product, device: Device, asked: Settings) -> list[Settings]:
        splits = self.splits(row, product, device) if asked.split is None else [asked.split]
        chunk = self.chunk(row.tile, product) if asked.chunk is None else asked.chunk
        return [Settings(row.tile, split, chunk, asked.units, asked.area) for split in splits]

    def chunk(self, tile: Tile, product: Product) -> int | None:
        return None

    def row_of(self, tile: Tile) -> TileRow:
        return self._by_tile[tile]

    @cached_property
    def _by_tile(self) -> dict[Tile, TileRow]:
        return {row.tile: row for row in self.TILES}

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
        tile, rows, merged = settings.tile, self.rounds(settings, product).rows, self.merged(settings.tile, product)
        # Each residue class has its own tiles of rows.
        row_tiles = product.classes // merged * ceil_div(ceil_div(rows, product.classes), tile.rows)
        return row_tiles * ceil_div(merged * product.cols, tile.cols) * product.groups * settings.split

    def merged(self, tile: Tile, product: Product) -> int:
        """Residue classes whose columns are one matrix's."""
        return 1

    def most_merged(self, tile: Tile, product: Product) -> int:
        """The same at most, at first sight."""
        return 1

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if settings.units is not None and not self.HAS_UNITS:
            return "its blocks have one unit"
        if settings.area is not None:
            return "it has no areas"
        if settings.split < 1:
            return f"a split of {settings.split}"
        if (settings.chunk is None) != (self.chunk(settings.tile, product) is None):
            return "it has no chunks"
        if (need := self.shared_bytes(self.row_of(settings.tile), product)) > device.shared_bytes:
            return f"{need} bytes of shared memory, the device has {device.shared_bytes}"
        if self.blocks(settings, product) > INT32_MAX:
            return "more than 2^31 - 1 thread blocks"
        return None

    def least_cost(self, product: Product, device: Device) -> float:
        return min(self.least_cost_of(row, product, device) for row in self.tiles(product))

    def least_cost_of(self, row: TileRow, product: Product, device: Device) -> float:
        """As if multiprocessors had equally many whole tiles; or memory."""
        tile, merged = row.tile, self.most_merged(row.tile, product)
        rate = self.rate(product) * device.clock_hz * device.multiprocessors * row.efficiency[product.kind]
        rows = product.classes * ceil_div(ceil_div(product.rows, product.classes), tile.rows) * tile.rows
        cols = ceil_div(merged * product.cols, tile.cols) * tile.cols / merged
        seconds = rows * cols * (product.steps + self.FILL * tile.depth) * product.groups / rate
        return max(seconds, self.bytes_seconds(product, device)) + LAUNCH_SECONDS

    def bytes_seconds(self, product: Product, device: Device) -> float:
        """What the memory takes for the activations."""
        return product.activation_bytes / (self.BANDWIDTH * device.bandwidth)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """A multiprocessor's results, there or not, each for a slice of the reduction; then the slices' sum."""
        tile, row, rounds = settings.tile, self.row_of(settings.tile), self.rounds(settings, product)
        rate = self.rate(product) * device.clock_hz * row.efficiency[product.kind]
        steps = ceil_div(rounds.steps, settings.split) + self.FILL * tile.depth
        blocks = ceil_div(self.blocks(settings, product), device.multiprocessors)
        # Where fewer blocks run than a multiprocessor holds, latencies show.
        load = max(blocks, 0.2 * row.resident + 0.8 * blocks) * tile.rows * tile.cols
        seconds = max(rounds.count * load * steps / rate, self.bytes_seconds(product, device))
        seconds += rounds.count * LAUNCH_SECONDS
        if settings.split > 1:  # slices are written, and read by one more kernel
            slices = settings.split * product.planned_sums_bytes
            seconds += 2 * slices / device.bandwidth + settings.split * self.SLICE_SECONDS + LAUNCH_SECONDS
        return seconds

    def scratch_bytes(self, settings: Settings, product: Product) -> Dim:
        return settings.split * product.sums_bytes if settings.split > 1 else 0


class TensorCores(CudaFamily):
    """What the families on tensor cores share: both operands are of one type, and problems may be rewritten."""

    REWRITES = True

    def why_never(self, product: Product) -> str | None:
        first, second = product.operand_dtypes
        return f"operands of two types, {first.name} and {second.name}" if first != second else None
