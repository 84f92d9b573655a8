"""How thread blocks of the depthwise family share out a product: tiles, windows, pieces of them and areas."""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from jaxconv.families.base import Device, held_blocks
from jaxconv.offsets import in_three, offset_tables
from jaxconv.problem import ConvProblem
from jaxconv.product import Product, ceil_div

STRIP = 8  # neighbouring output columns, which read one band of source pixels
MULTIPLIED = 16  # strips, and source pixels
WARPS = 4  # that copy, and multiply, where no others do
THREADS = 32 * WARPS
PIECE_BYTES = 16  # that are copied at once
BATCH_BYTES = THREADS * PIECE_BYTES
BARRIER_BYTES = 256
STORED_TAP_BYTES = 8
TAP_COLS = 8  # of a window whose sums' diagonals lanes add
BOX_PIXEL_BYTES = 64  # that TMA copies of each pixel
BOX_TURN_BYTES = 8 * BOX_PIXEL_BYTES
SUMS_GAP = 2  # floats between channels'
MOST_APART = 2**16  # of a dilated window's taps, or tiles of an image under it
MOST_WASTE = 1.125  # of channels that are not there, in favour of more neighbours in memory
# Costs, fitted to measurements on an H200. Clocks are of a step of a thread block.
MULTIPLICATION_CLOCKS = 6.5  # for one of each warp
PIXEL_CLOCKS = 128  # for reading 16 source pixels of each strip
FMA_CLOCKS = 1.4  # for one of each lane
STEP_CLOCKS = 120
COPIERS_CLOCKS = 1.4  # for twice as many warps, as others copy
TMA_CLOCKS = {"gather": 1.2, "reduce": 1.4}  # the same, as TMA does
PIECE_CLOCKS = 6000  # from a piece of the window to the next


class DepthwiseTile(NamedTuple):
    """Along columns a thread block goes in steps, of `step` source rows or `period` rows of the output.

    lags: steps after which a source row is used for the last time, and one.
    blocks: of 16 source pixels, which eight neighbouring outputs read; none of a tile on CUDA cores.
    channels: of a warp on tensor cores.
    width: of a window on CUDA cores, whose columns have the strides of the rows.
    depths: planes of a volume that a position's taps are in, whose rows a step takes together.
    has_pieces: whether larger windows are taken in pieces, one after the other.
    has_copiers: whether four warps copy source rows, four what belongs to strips, and eight multiply; on Hopper.
    by_tma: whether TMA does so instead: boxes of whole rows of two images or more, of which a tile has 16 strips.
    in_pairs: whether pairs of source rows are multiplied at once, of images of at most eight columns: a reduce by TMA.
    """

    step: int
    period: int
    lags: int
    blocks: int
    channels: int = 0
    width: int = 0
    depths: int = 1
    has_pieces: bool = False
    has_copiers: bool = False
    by_tma: bool = False
    in_pairs: bool = False

    wgmma = False
    passes = 1

    @property
    def on_cuda_cores(self) -> bool:
        return self.blocks == 0

    @property
    def dtypes(self) -> tuple[str, ...]:
        return ("float32",) if self.on_cuda_cores else ("bfloat16", "float16")

    @property
    def has_planes(self) -> bool:
        """Whether it takes three dimensions."""
        return self.depths > 1 or self.has_pieces

    @property
    def sources(self) -> int:
        """Source rows of a step, of all planes."""
        return self.step * self.depths

    @property
    def slots(self) -> int:
        return self.sources * self.period * self.lags

    @property
    def pixels(self) -> int:
        """Source pixels that a strip reads."""
        if self.on_cuda_cores:
            return (STRIP // self.period - 1) * self.step + self.width
        return self.blocks * MULTIPLIED

    @property
    def stages(self) -> int:
        return 6 if self.by_tma else 8 if self.sources * self.blocks == 1 else 4

    @property
    def warps(self) -> int:
        """That multiply."""
        return 2 * WARPS if self.has_copiers else WARPS

    @property
    def results(self) -> int:
        """Of a gather, rows that wait in shared memory to be written."""
        return 6 if self.by_tma else 4 if self.has_copiers and self.period == 1 else 2

    @property
    def set_strips(self) -> int:
        """Strips of a thread block in which each channel has one set of warps, or of lanes."""
        return WARPS if self.on_cuda_cores else MULTIPLIED

    @property
    def most_channel_bytes(self) -> int:
        """A thread block's channels then."""
        return 32 * 4 if self.on_cuda_cores else self.warps * self.channels * 2

    @property
    def strip_pieces(self) -> int:
        """Of a tile's row of the output, of each thread."""
        return self.set_strips * STRIP * self.most_channel_bytes // BATCH_BYTES

    @property
    def most_copies(self) -> int:
        """Pieces of a source row, of each thread."""
        return 2 * self.strip_pieces + 1

    @property
    def row_sums(self) -> int:
        """Registers of a row's."""
        return STRIP if self.on_cuda_cores else 4 * self.channels

    def sums(self, kind: str) -> int:
        """Registers of them."""
        if kind == "gather":
            return self.period * self.lags * self.row_sums
        if self.in_pairs:
            return (self.lags + 1) * 4 * self.channels
        return self.slots * (self.width if self.on_cuda_cores else 4 * self.blocks * self.channels)

    @property
    def table_gap(self) -> int:
        """Channels left out behind each pixel's in a gather's table of taps on tensor cores, for the banks' sake."""
        return self.channels if self.has_copiers else 0

    @property
    def box_rows(self) -> int:
        """By TMA, source rows of a step, and of a reduce's gradient."""
        return 2 if self.in_pairs else 1

    @property
    def gathers(self) -> bool:
        return not self.in_pairs

    @property
    def reduces(self) -> bool:
        """Whether a warp's registers hold a reduce's sums."""
        return self.period == 1 and self.sums("reduce") <= 160

    def resident(self, kind: str) -> int:
        """Thread blocks that a multiprocessor's registers hold."""
        if self.has_copiers:
            return 1
        if self.on_cuda_cores:
            return 2 if kind == "gather" and self.has_pieces and self.sums(kind) + self.slots * self.width > 80 else 3
        return 3 if self.sums(kind) <= 32 and (kind == "reduce" or self.blocks == 1) else 2

    def clocks(self, kind: str) -> float:
        """A step's share of a multiprocessor."""
        if self.on_cuda_cores:
            return self.slots * self.width * STRIP * FMA_CLOCKS + STEP_CLOCKS
        multiplications, blocks = self.channels * self.slots * self.blocks, self.sources * self.blocks
        if self.in_pairs:  # for each of their rows
            multiplications, blocks = self.channels * (self.lags + 1) / 2, blocks / 2
        clocks = multiplications * MULTIPLICATION_CLOCKS + blocks * PIXEL_CLOCKS + STEP_CLOCKS
        return (TMA_CLOCKS[kind] if self.by_tma else COPIERS_CLOCKS if self.has_copiers else 1) * clocks

    def __str__(self) -> str:
        rows = f"{self.step}:{self.period} " if self.step * self.period > 1 else ""
        reach = f"{self.width}" if self.on_cuda_cores else f"{self.blocks * MULTIPLIED} by {self.channels}"
        depths = f"{self.depths}x" if self.depths > 1 else ""
        copied = " by TMA" if self.by_tma else " copied by others" if self.has_copiers else ""
        copied += " in pairs" if self.in_pairs else ""
        how = " in pieces" if self.has_pieces else copied
        return f"{rows}{depths}{self.lags}x{reach}{how}"


class Window(NamedTuple):
    """Where a problem's taps reach from the first position: their first source depth, row and column, and how far.

    steps, periods: source pixels and output positions between a residue class's neighbours, along each dimension.
    depths: source planes, each as often as there are phases. rows, cols: of the source. pixels: source pixels that a
      strip reads.
    apart: rows, and columns, between taps of a dilated window. The output is as many interleaved ones, and so is the
      source: rows, cols and pixels are of one.
    """

    first: tuple[int, int, int]
    steps: tuple[int, ...]
    periods: tuple[int, ...]
    depths: int
    rows: int
    cols: int
    pixels: int
    apart: tuple[int, ...]


@lru_cache(maxsize=4096)
def window(problem: ConvProblem) -> Window | Any:
    """None if no position sees a tap."""
    tables = offset_tables(problem)
    steps, periods = in_three(problem.steps), in_three(problem.periods)
    shifts, ends = [], []
    for first, count, _, _, phase, *counts in tables.classes.tolist():
        if count and all(counts):
            shifts.append(tables.taps[first : first + count, 2:])
            last = (STRIP - 1 - phase) // periods[2] * steps[2] if phase < STRIP else 0
            ends.append(shifts[-1][:, 2].max() + last)
    if not shifts:
        return None
    every = np.concatenate(shifts)
    first = tuple(every.min(axis=0).tolist())
    depths, rows, cols = (every.max(axis=0) - first + 1).tolist()
    apart = tuple(_apart(every[:, i] - first[i]) if steps[i] == periods[i] == 1 else 1 for i in (1, 2))
    rows, cols = ceil_div(rows, apart[0]), ceil_div(cols, apart[1])
    pixels = cols + STRIP - 1 if apart[1] > 1 else int(max(ends)) - first[2] + 1
    return Window(first, steps, periods, depths * periods[0], rows, cols, pixels, apart)


def _apart(distances: np.ndarray) -> int:
    """What all of taps' distances from the first are multiples of, if kernels can count so far."""
    return max(1, int(np.gcd.reduce(distances))) if distances.max() < MOST_APART else 1


@lru_cache(maxsize=4096)
def depths_seen(problem: ConvProblem) -> float:
    """Of the window's, those in which a plane of the output has a source, on average."""
    reach = window(problem)
    plane, depth = np.arange(out_depth(problem))[:, None], np.arange(reach.depths)
    step, period = reach.steps[0], reach.periods[0]
    at = plane // period * step + depth // period + reach.first[0]
    seen = (plane % period == depth % period) & (at >= 0) & (at < in_three(problem.in_spatial)[0])
    return float(seen.sum(axis=1).mean())


class Stream:
    """How thread blocks share out a product: what src_cuda/depthwise/ works out likewise.

    channels: of a thread block. channel_tiles: as many channels each. most_strips: of a thread block.
    pieces: of the window, along each dimension. planes: of all images.
    all_rows, all_strips: of a plane's output, or of each that it is interleaved of; rows of a step.
    joins_images: whether all images' rows may follow each other as one's.
    clocks: of a step. resident_most: thread blocks that a multiprocessor's registers hold.

    What else there is depends on the area:

    images: of a tile, or planes of volumes; 0 if all images' rows follow each other as one's.
    rows, strips: of a tile, at most: of each image.
    tiles: of an image's columns, or of all columns that its rows are interleaved of.
    height: of all images' tiles, one below the other: those of one channel tile, which thread blocks share out
      by rows.
    """

    images: int
    rows: int
    strips: int
    tiles: int
    height: int

    def __init__(self, tile: DepthwiseTile, product: Product) -> None:
        self.tile, self.product, self.window = tile, product, window(product.problem)
        self.channel_bytes = channel_bytes_of(tile, product)
        self.channels = self.channel_bytes // product.problem.lhs_dtype.itemsize
        self.channel_tiles = ceil_div(product.groups, self.channels)
        sets = tile.most_channel_bytes // self.channel_bytes
        self.most_strips = tile.set_strips * sets
        self.pieces = pieces_of(tile, product)
        self.all_pieces = math.prod(self.pieces)
        self.planes = planes_of(product)
        height, width = interleaved_size(product.problem)
        self.all_rows, self.all_strips = ceil_div(height, tile.period), ceil_div(width, STRIP)
        self.joins_images = tile.slots == 1 and _rows_follow(product.problem)
        self.clocks, self.resident_most = tile.clocks(product.kind), tile.resident(product.kind)
        self._strip_step = STRIP * self.window.steps[2] // self.window.periods[2]
        self._most_copies = tile.most_copies
        self._batch, self._fixed = self._batch_bytes(), self._fixed_bytes()

    def at(self, area: tuple[int, int]) -> Stream | Any:
        """With an area; None if the tile does not have its strips, or its threads do not copy them."""
        strips = area[1] // STRIP
        is_joined = self.joins_images and 2 * strips > self.most_strips
        images = 0 if is_joined else self.most_strips // strips
        while images > 1 and self._copies(images, strips) > self._most_copies:
            images -= 1
        if strips > self.most_strips or self._copies(max(1, images), strips) > self._most_copies:
            return None
        planes, rows = (1, self.all_rows * self.planes) if is_joined else (self.planes, self.all_rows)
        other = Stream.__new__(Stream)
        other.__dict__.update(self.__dict__)
        other.images, other.strips, other.rows = images, strips, min(area[0], rows)
        other.tiles = math.prod(self.window.apart) * ceil_div(self.all_strips, strips)
        other.height = ceil_div(planes, max(1, images)) * other.tiles * rows
        return other

    def _copies(self, images: int, strips: int) -> int:
        """Pieces of a source row that a thread copies."""
        return ceil_div(images * self._source_width(strips) * self.channel_bytes, BATCH_BYTES)

    def _source_width(self, strips: int) -> int:
        return (strips - 1) * self._strip_step + self.tile.pixels

    @cached_property
    def most_workers(self) -> int:
        """Thread blocks that may share a channel tile out."""
        return ceil_div(self.height, self.rows)

    def cuts(self, workers: int) -> int:
        """Of columns: tiles of a thread block."""
        rows = ceil_div(self.height, workers)
        return ceil_div(rows, self.rows) + (rows % self.rows > 0)

    def steps(self, workers: int) -> int:
        """Of a thread block: its rows, and at each cut of a column those of the window. Where that is an image's edge,
        half of them, as steps without a source row are left out."""
        return ceil_div(self.height, workers) + (self.cuts(workers) + 1) * (self.tile.lags - 1) // 2

    def clocks_of_pieces(self, workers: int, step: float) -> float:
        """Of a gather's thread block that takes the window's pieces in turn: they leave no steps out."""
        cuts = self.cuts(workers)
        steps = ceil_div(self.height, workers) + cuts * (self.tile.lags - 1)
        return self.all_pieces * (steps * step + cuts * PIECE_CLOCKS)

    def least_clocks(self) -> float:
        """Of all thread blocks' steps, if each had as many strips and channels as it may."""
        there = self.product.groups * self.product.problem.lhs_dtype.itemsize
        strips = self.planes * math.prod(self.window.apart) * self.all_strips
        steps = self.all_rows * strips / self.tile.set_strips * there / self.tile.most_channel_bytes
        depths = depths_seen(self.product.problem) if self.tile.has_pieces else 1
        return steps * self.clocks * math.prod(self.pieces[1:]) * depths

    @cached_property
    def shared_bytes(self) -> int:
        """Of a thread block: MakePlaces of src_cuda/depthwise/."""
        tile = self.tile
        if tile.by_tma:
            row = _box_bytes(self.images * self.source_pitch + self.source_behind)
            result_row = _box_bytes(self.images * self.strips_pitch)
        else:
            row = self._copies(max(1, self.images), self.strips) * self._batch
            result_row = tile.strip_pieces * self._batch
        barriers = BARRIER_BYTES if tile.has_copiers else 0
        if self.product.kind == "reduce":
            stored = math.prod(self.product.problem.kernel) * STORED_TAP_BYTES if tile.has_copiers else 0
            taps = tile.lags * TAP_COLS * 4 if tile.by_tma else stored
            stages = tile.stages * tile.box_rows * (tile.sources * row + result_row)
            return max(stages, self._fixed) + taps + barriers
        sums = self.rows * tile.row_sums * 4 * THREADS if tile.has_pieces else 0
        results = tile.results * tile.period * result_row
        return tile.stages * tile.sources * row + results + self._fixed + sums + barriers

    def _box_pitch(self, width: int) -> int:
        """Pixels from a row of one of the tile's images to the next one's, so that banks differ."""
        if self.product.kind == "gather" or self.tile.in_pairs:
            return width | 1
        even = width + width % 2
        return (width + 3) // 8 * 8 + 4 if self.images < 4 else even if even % 8 else even + 2

    @property
    def source_pitch(self) -> int:
        """By TMA: pixels from an image's source row to the next image's.

        A row ends with the image's last pixel, or where strips read nothing but zeros of the next image; in a reduce
        also other pixels, but only for taps that there are none of, or outputs whose gradient is zero.
        """
        problem, taken = self.product.problem, self._source_width(self.strips)
        if self.tile.in_pairs:  # no zeros
            return self._box_pitch(max(problem.in_spatial[-1], problem.out_spatial[-1]))
        if self.product.kind == "reduce":
            taken = min(taken, problem.out_spatial[-1] + self.tile.pixels - STRIP)
        zeros = min(max(-self.window.first[2], 0), taken)
        return self._box_pitch(max(min(zeros + problem.in_spatial[-1], taken), taken - zeros))

    @property
    def strips_pitch(self) -> int:
        """The same of what belongs to strips."""
        return self.source_pitch if self.tile.in_pairs else self._box_pitch(self.strips * STRIP)

    @property
    def source_behind(self) -> int:
        """By TMA: zeros behind a box, that strips of the last image read."""
        return 0 if self.tile.in_pairs else max(0, self._source_width(self.strips) - self.source_pitch)

    def _batch_bytes(self) -> int:
        """Of what all threads copy at once, with gaps."""
        tile = self.tile
        log_pieces = (self.channel_bytes // PIECE_BYTES).bit_length() - 1
        log_gap = 1 if self.product.kind == "gather" and tile.channels == 8 else 3
        has_gaps = not tile.on_cuda_cores and tile.channels != 4
        return BATCH_BYTES + (THREADS >> log_pieces >> log_gap) * PIECE_BYTES * has_gaps

    def _fixed_bytes(self) -> int:
        """Of a gather's filter, or a reduce's sums."""
        tile, gathers = self.tile, self.product.kind == "gather"
        (_, _, step), (_, _, period) = self.window.steps, self.window.periods
        if tile.on_cuda_cores:
            fixed = tile.slots * tile.width * 4 * (self.all_pieces * tile.period if gathers else THREADS)
        elif gathers:
            table = self.all_pieces * tile.slots * period * tile.pixels + STRIP * step // period - step
            fixed = table * (self.channels + tile.table_gap) * self.product.problem.lhs_dtype.itemsize
        elif tile.by_tma:
            fixed = 0  # lanes add them
        else:
            fixed = (tile.slots * tile.pixels * STRIP + SUMS_GAP) * 4 * tile.channels * tile.warps
        return ceil_div(fixed, 128) * 128

    def resident(self, device: Device) -> int:
        """Thread blocks that a multiprocessor holds."""
        return max(1, held_blocks(self.shared_bytes, self.resident_most, device))


@lru_cache(maxsize=4096)
def stream_of(tile: DepthwiseTile, product: Product, area: tuple[int, int] | None = None) -> Stream | Any:
    """Of a tile that takes the product's window; without an area what those of all areas have in common."""
    return Stream(tile, product) if area is None else stream_of(tile, product).at(area)


def channel_bytes_of(tile: DepthwiseTile, product: Product) -> int:
    """Of a thread block's channels: the most, if few of them are missing."""
    size, there = tile.most_channel_bytes, product.groups * product.problem.lhs_dtype.itemsize
    while size > PIECE_BYTES and ceil_div(there, size) * size > MOST_WASTE * there:
        size //= 2
    return size


def out_size(problem: ConvProblem) -> tuple[int, ...]:
    return (1, *problem.out_spatial)[-2:]


def interleaved_size(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of each output that a dilated window's is interleaved of, at most."""
    (height, width), (row, col) = out_size(problem), window(problem).apart
    return ceil_div(height, row), ceil_div(width, col)


def out_depth(problem: ConvProblem) -> int:
    return in_three(problem.out_spatial)[0]


def planes_of(product: Product) -> int:
    """Of all images."""
    return product.images * out_depth(product.problem)


def piece_cols(tile: DepthwiseTile, product: Product) -> int:
    """Source pixels of a piece of the window: its taps then reach no further than a strip's."""
    reach = window(product.problem)
    return tile.pixels - (STRIP - 1) // reach.periods[2] * reach.steps[2]


def pieces_of(tile: DepthwiseTile, product: Product) -> tuple[int, int, int]:
    """Of the window, along each dimension."""
    if not tile.has_pieces:
        return (1, 1, 1)
    reach = window(product.problem)
    cols = 1 if reach.pixels <= tile.pixels else ceil_div(reach.cols, piece_cols(tile, product))
    return (reach.depths, ceil_div(reach.rows, tile.step * tile.lags), cols)


def _box_bytes(pixels: int) -> int:
    """Of pixels that TMA copies, in shared memory."""
    return ceil_div(pixels * BOX_PIXEL_BYTES, BOX_TURN_BYTES) * BOX_TURN_BYTES


@lru_cache(maxsize=4096)
def _rows_follow(problem: ConvProblem) -> bool:
    """All images', as one's: no tap leaves its row."""
    same = (1, *problem.in_spatial)[-2] == out_size(problem)[0]
    batch_first = problem.lhs_spec.first == problem.out_spec.first == 0
    in_order = problem.lhs_spec.spatial == tuple(sorted(problem.lhs_spec.spatial)) and (
        problem.out_spec.spatial == tuple(sorted(problem.out_spec.spatial))
    )
    is_flat = len(problem.kernel) < 3 and window(problem).first[1] == 0
    return is_flat and same and batch_first and in_order
