"""The direct family: a box of source pixels in shared memory serves all taps, on tensor cores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from jaxconv.families.base import LAUNCH_SECONDS, CudaFamily, Device, Settings, TileRow
from jaxconv.offsets import INT32_MAX, SPATIAL, offset_tables
from jaxconv.problem import ConvProblem
from jaxconv.product import Product, ceil_div

PIECE = 8  # channels of 16 bytes: a row of the 8 x 8 matrices that tensor cores are fed with
MOST_COL_BLOCKS = 8  # of a gradient's pixel in shared memory
RUN = 8  # neighbouring positions that are read at once
REDUCE_WARPS = 8
MOST_EXTENT = 256  # of a box of TMA
TURN_BYTES = 1024  # of shared memory, after which TMA exchanges pieces in the same way
# Costs, of which the last four are fitted to measurements on an H200.
SHARED_BYTES_A_CLOCK = 128
MULTIPLICATION_CLOCKS = 1.5  # of a multiprocessor
BOX_BYTES_A_CLOCK = 64
AREA_CLOCKS = 500
BEGIN_SECONDS = 4e-6
FILTER_BYTES_A_SECOND = 4e9
BLOCK_SHARED_BYTES = 1024  # that a thread block takes besides its own


class DirectTile(NamedTuple):
    """What a warp has: blocks of eight output channels, and of 16 positions or (tap, source channel)s.

    columns: of a set: output channels that read the same source channels. sets, positions: in a gather.
    warps: of a gather's thread block. pieces: of eight source or output channels that a thread block has at most.
    filter_rows: (tap, source channel)s in a reduce.
    """

    columns: int
    sets: int
    positions: int
    warps: int
    pieces: int
    filter_rows: int

    stages = 2
    wgmma = False
    passes = 1

    def __str__(self) -> str:
        return f"{self.sets}x{self.columns} by {self.positions} or {self.filter_rows}"


class Window(NamedTuple):
    """What a problem's residue classes need at most: the reach of taps in source pixels, how many, and positions."""

    reach: tuple[int, ...]
    taps: int
    counts: tuple[int, ...]
    classes: int
    steps: tuple[int, ...]  # source pixels between neighbouring positions


@lru_cache(maxsize=4096)
def window(problem: ConvProblem) -> Window:
    tables = offset_tables(problem)
    reach, most = np.ones(SPATIAL, np.int64), 0
    for first, count, *_ in tables.classes:
        shifts = tables.taps[first : first + count, 2:]
        if count:
            reach, most = np.maximum(reach, np.ptp(shifts, axis=0) + 1), max(most, int(count))
    counts = tables.classes[:, 5:].max(axis=0, initial=0)
    pairs = zip(problem.window_strides, problem.lhs_dilation, strict=True)
    steps = [stride // math.gcd(stride, dilation) for stride, dilation in pairs]
    steps = [1] * (SPATIAL - len(steps)) + steps
    return Window(tuple(map(int, reach)), most, tuple(map(int, counts)), len(tables.classes), tuple(steps))


@dataclasses.dataclass(frozen=True)
class Shape:
    """How thread blocks share out a product: what src_cuda/kernels/direct.cu works out likewise.

    area: rows and columns of output positions that a thread block computes at a time.
    """

    product: Product
    tile: DirectTile
    area: tuple[int, int]

    # Channels.

    @cached_property
    def block_groups(self) -> int:
        """Groups of a channel block: as many as the tile holds in whole pieces; 0 of a single group's channels."""
        return _block_groups(self.product, self.tile) if self.product.groups > 1 else 0

    @cached_property
    def chunks(self) -> int:
        """Parts of the source channels of a single group."""
        return 1 if self.block_groups else ceil_div(self._ins // PIECE, self.tile.pieces)

    @cached_property
    def src_pieces(self) -> int:
        """Of a pixel in shared memory."""
        return self.block_groups * self._ins // PIECE if self.block_groups else ceil_div(self._ins // PIECE, self.chunks)

    @cached_property
    def entry_pieces(self) -> int:
        """Pieces of source channels that a set of output channels reads of each tap.

        A power of two, at whose multiples each set's begin, if that is less than all.
        """
        if not self.block_groups:
            return self.src_pieces
        outs, pieces = self.block_groups * self._outs, 1
        for col in range(0, outs, self.tile.columns):
            last = min(col + self.tile.columns, outs) - 1
            first_piece = col // self._outs * self._ins // PIECE
            last_piece = ((last // self._outs + 1) * self._ins - 1) // PIECE
            while first_piece // pieces != last_piece // pieces:
                pieces *= 2
        return pieces if self.src_pieces % pieces == 0 else self.src_pieces

    @cached_property
    def channel_blocks(self) -> int:
        if self.block_groups:
            return ceil_div(self.product.groups, self.block_groups)
        return ceil_div(self._outs, self.col_blocks * 8)

    @cached_property
    def col_blocks(self) -> int:
        """Blocks of eight output channels of a channel block."""
        of_warp = self.tile.columns * (self.tile.sets if self.is_gather else 1)
        warps = ceil_div(self.block_groups * self._outs or self._outs, of_warp)
        most = math.inf if self.block_groups else max(1, self.tile.pieces * PIECE // of_warp)
        return min(warps, most) * of_warp // 8

    @cached_property
    def _ins(self) -> int:
        return self.product.problem.in_channels

    @cached_property
    def _outs(self) -> int:
        return self.product.problem.out_channels

    # Positions.

    @property
    def is_gather(self) -> bool:
        return self.product.kind == "gather"

    @cached_property
    def window(self) -> Window:
        return window(self.product.problem)

    @cached_property
    def box(self) -> tuple[int, int, int]:
        """Source pixels of an area; its rows are whole runs."""
        (d, h, w), steps = self.window.reach, self.window.steps
        wide = (self.area[1] - 1) * steps[2] + w
        return d, (self.area[0] - 1) * steps[1] + h, ceil_div(wide, RUN) * RUN

    @cached_property
    def entries(self) -> int:
        """(tap, piece)s that are multiplied for an output channel, of a chunk."""
        return self.window.taps * self.entry_pieces

    @cached_property
    def warps_across(self) -> int:
        """Of a gather: those that share out the output channels."""
        return max(1, self.col_blocks * 8 // (self.tile.columns * self.tile.sets))

    @cached_property
    def items(self) -> int:
        """Of a reduce: what a warp has, of which there are a thread block's sums."""
        sets = self.col_blocks * 8 // self.tile.columns
        return max(1, ceil_div(ceil_div(self.entries, 2) * 16, self.tile.filter_rows)) * sets

    @cached_property
    def positions(self) -> int:
        """Of a thread block at a time, with those behind the area's end that make whole multiplications."""
        if self.is_gather:
            return self.tile.warps // self.warps_across * self.tile.positions
        return ceil_div(math.prod(self.area), 32) * 32

    @cached_property
    def areas(self) -> int:
        """Of all classes and images."""
        depth, height, width = self.window.counts
        images = self.product.positions // max(1, math.prod(self.product.problem.out_spatial))
        in_class = depth * ceil_div(height, self.area[0]) * ceil_div(width, self.area[1])
        return images * in_class * self.window.classes

    # Shared memory.

    @cached_property
    def shared_bytes(self) -> int:
        stages = self.tile.stages * self._stage_bytes
        if not self.is_gather:
            stages = max(stages, self.tile.filter_rows * self.tile.columns * 4 * self.items)  # exchanged in their place
        return stages + self._fixed_bytes

    @cached_property
    def _stage_bytes(self) -> int:
        stage = _whole((math.prod(self.box) << _pitch(self.src_pieces)) * 16, TURN_BYTES)
        if self.is_gather:
            return stage
        return stage + _whole((self.positions << _pitch(self.col_blocks)) * 16, TURN_BYTES)

    @cached_property
    def _fixed_bytes(self) -> int:
        tables = _whole((self.entries + 1) * RUN * 4) + _whole(self.positions * 8) + _whole(16) + _whole(16 * self.tile.stages)
        if not self.is_gather:
            return tables + _whole(self.positions * 4)
        result = self.product.problem.out_dtype.itemsize * self.tile.columns * self.tile.sets + 16
        return _whole(self.filter_bytes) + tables + _whole(self.tile.warps * 16 * result)

    @cached_property
    def filter_bytes(self) -> int:
        """Of a gather, which a thread block begins with."""
        return self.chunks * ceil_div(self.entries, 2) * self.col_blocks * 256 if self.is_gather else 0

    # What an area costs, of a chunk of the source channels.

    @cached_property
    def area_bytes(self) -> int:
        """That multiplications read of shared memory: 512 bytes are a source's operand, 256 the other."""
        if self.is_gather:
            steps, sets = ceil_div(self.entries, 2), self.col_blocks * 8 // self.tile.columns
            return steps * (self.positions // 16 * sets * 512 + self.tile.warps * self._warp_col_blocks * 256)
        return self.positions // 16 * self.items * (self.tile.filter_rows // 16 * 512 + self.tile.columns // 8 * 256)

    @cached_property
    def area_multiplications(self) -> int:
        """Of 16 x 8 x 16."""
        if self.is_gather:
            return self.positions // 16 * ceil_div(self.entries, 2) * self.col_blocks
        return self.positions // 16 * self.items * self.tile.filter_rows // 16 * self.tile.columns // 8

    @cached_property
    def box_bytes(self) -> int:
        gradient = 0 if self.is_gather else self.positions * self.col_blocks
        return (math.prod(self.box) * self.src_pieces + gradient) * 16

    @cached_property
    def activation_bytes(self) -> int:
        """Of lhs and out, each once."""
        problem = self.product.problem
        sizes = {"lhs": math.prod(problem.in_spatial) * self._ins, "out": math.prod(problem.out_spatial) * self._outs}
        images = self.product.positions // max(1, math.prod(problem.out_spatial)) * self.product.groups
        return sum(images * size * getattr(problem, f"{role}_dtype").itemsize for role, size in sizes.items())

    @property
    def _warp_col_blocks(self) -> int:
        return self.tile.columns * self.tile.sets // 8

    def resident(self, device: Device) -> int:
        """Thread blocks that a multiprocessor holds."""
        # src_cuda/launch.h: as registers allow.
        most = {8: 2, 4: 3}[self.tile.warps] if self.is_gather else 2 if self.tile.filter_rows * self.tile.columns <= 20 * 128 else 1
        return min(most, (device.shared_bytes + BLOCK_SHARED_BYTES) // (self.shared_bytes + BLOCK_SHARED_BYTES))


def _whole(size: int, unit: int = 128) -> int:
    return ceil_div(size, unit) * unit


def _pitch(pieces: int) -> int:
    return (pieces - 1).bit_length()


def _block_groups(product: Product, tile: DirectTile) -> int:
    """0 where the tile holds no whole pieces of whole groups."""
    channels = product.problem.in_channels, product.problem.out_channels
    least = math.lcm(*(PIECE // math.gcd(c, PIECE) for c in channels))
    most = tile.pieces * PIECE // max(channels) // least * least
    if most == 0:
        return 0
    blocks = ceil_div(product.groups, most)
    return ceil_div(ceil_div(product.groups, blocks), least) * least


def _why_not_area(area: tuple[int, int]) -> str | None:
    rows, cols = area
    return f"an area of {area}" if rows < 1 or cols < 1 or cols % RUN else None


class Direct(CudaFamily):
    """Convolution from a box of source pixels in shared memory: src_cuda/kernels/direct.cu."""

    REWRITES = True
    PACKS_GROUPS = False

    TILES = tuple(
        TileRow(DirectTile(*tile))
        for tile in (
            (8, 2, 64, 8, 4, 80), (8, 2, 64, 8, 4, 208), (16, 1, 64, 8, 4, 144), (32, 1, 64, 4, 4, 80),
            (48, 1, 32, 4, 8, 64), (64, 1, 32, 8, 8, 32), (8, 1, 32, 8, 4, 144),
        )
    )  # fmt: skip

    def why_never(self, product: Product) -> str | None:
        first, second = product.operand_dtypes
        if first != second:
            return f"operands of two types, {first.name} and {second.name}"
        if first.name not in ("bfloat16", "float16"):
            return f"it has no kernels of {first.name}"
        return None

    def settings(self, row: TileRow, product: Product, device: Device, asked: Settings) -> list[Settings]:
        if self._why_not_channels(product, row.tile) is not None:
            return [asked._replace(tile=row.tile)]
        area = asked.area or self._area(row.tile, product, device)
        if asked.split is not None or product.kind == "gather" or _why_not_area(area):
            return [asked._replace(tile=row.tile, split=1 if asked.split is None else asked.split, area=area)]
        shape = Shape(product, row.tile, area)
        places = shape.resident(device) * device.multiprocessors
        blocks = shape.channel_blocks * shape.window.classes * shape.chunks
        split = max(1, min(places // blocks, self.MAX_SPLIT, shape.areas))
        return [asked._replace(tile=row.tile, split=split, area=area)]

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if settings.chunk is not None or settings.units is not None:
            return "it has neither chunks nor units"
        if (reason := self._why_not_channels(product, settings.tile)) is not None:
            return reason
        if (reason := _why_not_area(settings.area)) is not None:
            return reason
        shape = Shape(product, settings.tile, settings.area)
        if product.kind == "gather":
            if settings.split != 1:
                return f"a split of {settings.split}: its gather has none"
            if settings.tile.warps % shape.warps_across:
                return "its warps do not share out the channels"
            if math.prod(settings.area) > shape.positions:
                return "its warps do not cover the area"
        elif settings.split < 1:
            return f"a split of {settings.split}"
        elif shape.items > REDUCE_WARPS or shape.col_blocks > MOST_COL_BLOCKS:
            return "its warps do not hold the sums of all taps"
        if max(*shape.box, *settings.area) > MOST_EXTENT:
            return "the window's reach is too large"
        if not shape.is_gather and max(product.problem.lhs_dilation, default=1) > 1:
            return "an input that is dilated"
        if max(product.positions, self._image_elements(product.problem)) > INT32_MAX:
            return "positions, or the elements of an image, do not fit 32 bits"
        if shape.shared_bytes > device.shared_bytes:
            return f"{shape.shared_bytes} bytes of shared memory, the device has {device.shared_bytes}"
        return None

    def area(self, settings: Settings, product: Product) -> tuple[int, ...]:
        shape = Shape(product, settings.tile, settings.area)
        return (*settings.area, *shape.box, shape.window.taps)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Shared memory's bandwidth, or the tensor cores' rate, and part of the other; or memory. And the beginning."""
        shape = Shape(product, settings.tile, settings.area)
        shared, multiplications = shape.area_bytes, shape.area_multiplications
        clocks = [shared / SHARED_BYTES_A_CLOCK, multiplications * MULTIPLICATION_CLOCKS]
        area = max(clocks) + 0.5 * min(clocks) + shape.box_bytes / BOX_BYTES_A_CLOCK + AREA_CLOCKS
        areas = ceil_div(shape.areas * shape.channel_blocks * shape.chunks, device.multiprocessors)
        seconds = max(areas * area / device.clock_hz, 1.1 * shape.activation_bytes / device.bandwidth)
        seconds += BEGIN_SECONDS + LAUNCH_SECONDS + shape.filter_bytes / FILTER_BYTES_A_SECOND
        if settings.split > 1:
            seconds += 2 * settings.split * product.planned_sums_bytes / device.bandwidth + LAUNCH_SECONDS
        return seconds

    def _why_not_channels(self, product: Product, tile: DirectTile) -> str | None:
        problem = product.problem
        if problem.lhs_batch_grouped or problem.out_batch_grouped:
            return "groups of images"
        for role in ("lhs", "out"):
            shape, axis = getattr(problem, f"{role}_shape"), getattr(problem, f"{role}_spec").second
            if axis != len(shape) - 1 or shape[axis] % PIECE:
                return "channels are not last, in pieces of eight"
        if problem.is_empty or not math.prod(problem.kernel):
            return "nothing is to be computed"
        if product.groups > 1 and _block_groups(product, tile) == 0:
            return f"groups of {max(problem.in_channels, problem.out_channels)} channels"
        return None

    @staticmethod
    def _image_elements(problem: ConvProblem) -> int:
        """From an image's first element to behind its last, at most."""
        arrays = (problem.lhs_shape, problem.lhs_spec), (problem.out_shape, problem.out_spec)
        return max((math.prod(shape[axis:]) for shape, spec in arrays for axis in spec.spatial), default=0)

    def _area(self, tile: DirectTile, product: Product, device: Device) -> tuple[int, int]:
        """The one whose boxes and multiplications are least, if two thread blocks' shared memory holds it."""
        most = Shape(product, tile, (1, RUN)).positions if product.kind == "gather" else 256
        _, height, width = window(product.problem).counts
        reach, step = window(product.problem).reach[2], window(product.problem).steps[2]
        widest = min(most, ceil_div(width, RUN) * RUN, max(RUN, ((MOST_EXTENT - reach) // step + 1) // RUN * RUN))
        best, least = (1, RUN), math.inf
        for wide in {*(RUN << i for i in range(6) if RUN << i < widest), widest}:
            rows = max(1, min(most // wide, height))
            area = ceil_div(height, ceil_div(height, rows)), wide
            shape = Shape(product, tile, area)
            if max(shape.box) > MOST_EXTENT:
                continue
            cost = shape.areas * (shape.positions * shape.window.taps + 6 * math.prod(shape.box))
            cost *= 1 if shape.resident(device) > 1 else 1.3 if shape.resident(device) == 1 else 100
            if cost < least:
                best, least = area, cost
        return best
