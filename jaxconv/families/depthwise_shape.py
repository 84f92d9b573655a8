"""How thread blocks of the depthwise family share out a product: tiles, windows, pieces of them and areas."""

from __future__ import annotations

import dataclasses
import math
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from jaxconv.families.base import Device, held_blocks
from jaxconv.offsets import SPATIAL, offset_tables
from jaxconv.problem import ConvProblem
from jaxconv.product import Product, ceil_div

STRIP = 8  # neighbouring output columns, which read one band of source pixels
MULTIPLIED = 16  # strips, and source pixels
WARPS = 4
THREADS = 32 * WARPS
PIECE_BYTES = 16  # that are copied at once
BATCH_BYTES = THREADS * PIECE_BYTES
MOST_APART = 2**16  # of a dilated window's taps, or tiles of an image under it
MOST_WASTE = 1.125  # of channels that are not there, in favour of more neighbours in memory
# Costs, fitted to measurements on an H200. Clocks are of a step of a thread block.
MULTIPLICATION_CLOCKS = 6.5  # for one of each warp
PIXEL_CLOCKS = 128  # for reading 16 source pixels of each strip
FMA_CLOCKS = 1.4  # for one of each lane
STEP_CLOCKS = 120
PIECE_CLOCKS = 6000  # from a piece of the window to the next


class DepthwiseTile(NamedTuple):
    """Along columns a thread block goes in steps, of `step` source rows or `period` rows of the output.

    lags: steps after which a source row is used for the last time, and one.
    blocks: of 16 source pixels, which eight neighbouring outputs read; none of a tile on CUDA cores.
    channels: of a warp on tensor cores.
    width: of a window on CUDA cores, whose columns have the strides of the rows.
    depths: planes of a volume that a position's taps are in, whose rows a step takes together.
    has_pieces: whether larger windows are taken in pieces, one after the other.
    """

    step: int
    period: int
    lags: int
    blocks: int
    channels: int = 0
    width: int = 0
    depths: int = 1
    has_pieces: bool = False

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
        return 8 if self.sources * self.blocks == 1 else 4

    @property
    def set_strips(self) -> int:
        """Strips of a thread block in which each channel has one set of warps, or of lanes."""
        return WARPS if self.on_cuda_cores else MULTIPLIED

    @property
    def most_channel_bytes(self) -> int:
        """A thread block's channels then."""
        return 32 * 4 if self.on_cuda_cores else WARPS * self.channels * 2

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
        return self.slots * (self.width if self.on_cuda_cores else 4 * self.blocks * self.channels)

    @property
    def reduces(self) -> bool:
        """Whether a warp's registers hold a reduce's sums."""
        return self.period == 1 and self.sums("reduce") <= 160

    def resident(self, kind: str) -> int:
        """Thread blocks that a multiprocessor's registers hold."""
        if self.on_cuda_cores:
            return 2 if kind == "gather" and self.has_pieces and self.sums(kind) + self.slots * self.width > 80 else 3
        return 3 if self.sums(kind) <= 32 and (kind == "reduce" or self.blocks == 1) else 2

    @property
    def clocks(self) -> float:
        """A step's share of a multiprocessor."""
        if self.on_cuda_cores:
            return self.slots * self.width * STRIP * FMA_CLOCKS + STEP_CLOCKS
        multiplications = self.channels * self.slots * self.blocks * MULTIPLICATION_CLOCKS
        return multiplications + self.sources * self.blocks * PIXEL_CLOCKS + STEP_CLOCKS

    def __str__(self) -> str:
        rows = f"{self.step}:{self.period} " if self.step * self.period > 1 else ""
        reach = f"{self.width}" if self.on_cuda_cores else f"{self.blocks * MULTIPLIED} by {self.channels}"
        depths = f"{self.depths}x" if self.depths > 1 else ""
        return f"{rows}{depths}{self.lags}x{reach}{' in pieces' if self.has_pieces else ''}"


class Window(NamedTuple):
    """Where a problem's taps reach from the first position: their first source depth, row and column, and how far.

    steps, periods: source pixels and output positions between a residue class's neighbours, along each dimension.
    depths: source planes, each as often as there are phases. rows, cols: of the source. pixels: source pixels that a
      strip reads.
    apart: rows, and columns, between taps of a dilated window. The output is as many interleaved ones, and so is the
      source: rows, cols and pixels are of one.
    """

    first: tuple[int, int, int]
    steps: tuple[int, int, int]
    periods: tuple[int, int, int]
    depths: int
    rows: int
    cols: int
    pixels: int
    apart: tuple[int, int]


@lru_cache(maxsize=4096)
def window(problem: ConvProblem) -> Window | None:
    """None if no position sees a tap."""
    tables = offset_tables(problem)
    units = (1,) * (SPATIAL - len(problem.kernel))
    steps, periods = (*units, *problem.steps), (*units, *problem.periods)
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
    seen = (plane % period == depth % period) & (at >= 0) & (at < (1, 1, *problem.in_spatial)[-3])
    return float(seen.sum(axis=1).mean())


@dataclasses.dataclass(frozen=True)
class Stream:
    """How thread blocks share out a product: what src_cuda/kernels/depthwise.cu works out likewise.

    channels: of a thread block. images: of a tile, or planes of volumes; 0 if all images' rows follow each other as
      one's.
    rows, strips: of a tile, at most: of each image.
    tiles: of an image's columns, or of all columns that its rows are interleaved of.
    height: of all images' tiles, one below the other: those of one channel tile, of channel_tiles, which thread blocks
      share out by rows.
    pieces: of the window, along each dimension. slices: of a reduce, that a thread block sums.
    """

    tile: DepthwiseTile
    product: Product
    channels: int
    images: int
    rows: int
    strips: int
    tiles: int
    height: int
    channel_tiles: int
    pieces: tuple[int, int, int]
    slices: int

    @property
    def channel_bytes(self) -> int:
        return self.channels * self.product.problem.lhs_dtype.itemsize

    @cached_property
    def all_pieces(self) -> int:
        return math.prod(self.pieces)

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

    @cached_property
    def shared_bytes(self) -> int:
        """Of a thread block: MakePlaces of src_cuda/kernels/depthwise.cu."""
        tile, product, channel_bytes = self.tile, self.product, self.channel_bytes
        gathers = product.kind == "gather"
        log_pieces = (channel_bytes // PIECE_BYTES).bit_length() - 1
        log_gap = 1 if gathers and tile.channels == 8 else 3
        has_gaps = not tile.on_cuda_cores and tile.channels != 4
        batch = BATCH_BYTES + (THREADS >> log_pieces >> log_gap) * PIECE_BYTES * has_gaps
        row = _copies(tile, product, max(1, self.images), self.strips, channel_bytes) * batch
        result_row = tile.strip_pieces * batch
        if tile.on_cuda_cores:
            other = tile.slots * tile.width * 4 * (self.all_pieces * tile.period if gathers else THREADS)
        else:
            where = window(product.problem)
            begin = STRIP * where.steps[2] // where.periods[2] - where.steps[2]
            table = self.all_pieces * tile.slots * where.periods[2] * tile.pixels + begin
            other = table * channel_bytes if gathers else tile.slots * tile.pixels * STRIP * 4 * WARPS
        other = ceil_div(other, 128) * 128
        stages = tile.stages * (tile.sources * row + (0 if gathers else result_row))
        if not gathers:
            return max(stages, other)
        sums = self.rows * tile.row_sums * 4 * THREADS if tile.has_pieces else 0
        return stages + 2 * tile.period * result_row + other + sums

    def resident(self, device: Device) -> int:
        """Thread blocks that a multiprocessor holds."""
        return max(1, held_blocks(self.shared_bytes, self.tile.resident(self.product.kind), device))


def channel_bytes_of(tile: DepthwiseTile, product: Product) -> int:
    """Of a thread block's channels: the most, if few of them are missing."""
    size, there = tile.most_channel_bytes, product.groups * product.problem.lhs_dtype.itemsize
    while size > PIECE_BYTES and ceil_div(there, size) * size > MOST_WASTE * there:
        size //= 2
    return size


def out_size(problem: ConvProblem) -> tuple[int, int]:
    return (1, *problem.out_spatial)[-2:]


def interleaved_size(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of each output that a dilated window's is interleaved of, at most."""
    (height, width), (row, col) = out_size(problem), window(problem).apart
    return ceil_div(height, row), ceil_div(width, col)


def out_depth(problem: ConvProblem) -> int:
    return (1, 1, *problem.out_spatial)[-3]


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


def joins_images(tile: DepthwiseTile, product: Product) -> bool:
    """Whether all images' rows may follow each other as one's: no tap leaves its row."""
    return tile.slots == 1 and _rows_follow(product.problem)


@lru_cache(maxsize=4096)
def _rows_follow(problem: ConvProblem) -> bool:
    same = (1, *problem.in_spatial)[-2] == out_size(problem)[0]
    batch_first = problem.lhs_spec.first == problem.out_spec.first == 0
    in_order = problem.lhs_spec.spatial == tuple(sorted(problem.lhs_spec.spatial)) and (
        problem.out_spec.spatial == tuple(sorted(problem.out_spec.spatial))
    )
    is_flat = len(problem.kernel) < 3 and window(problem).first[1] == 0
    return is_flat and same and batch_first and in_order


@lru_cache(maxsize=4096)
def stream_of(tile: DepthwiseTile, area: tuple[int, int], product: Product) -> Stream | None:
    """None if the tile does not have the area's strips, or its threads do not copy them."""
    problem, channel_bytes = product.problem, channel_bytes_of(tile, product)
    sets = tile.most_channel_bytes // channel_bytes
    strips, most = area[1] // STRIP, tile.set_strips * sets
    height, width = interleaved_size(problem)
    images, rows = planes_of(product), ceil_div(height, tile.period)
    if strips > most:
        return None
    if joins_images(tile, product) and 2 * strips > most:
        images, rows, of_tile = 1, rows * images, 0
    else:
        of_tile = most // strips
        while of_tile > 1 and _copies(tile, product, of_tile, strips, channel_bytes) > tile.most_copies:
            of_tile -= 1
    if _copies(tile, product, max(1, of_tile), strips, channel_bytes) > tile.most_copies:
        return None
    high = min(area[0], rows)
    tiles = math.prod(window(problem).apart) * ceil_div(ceil_div(width, STRIP), strips)
    stream_rows = ceil_div(images, max(1, of_tile)) * tiles * rows
    channels = channel_bytes // problem.lhs_dtype.itemsize
    slices = 1 if tile.on_cuda_cores else sets
    channel_tiles, pieces = ceil_div(product.groups, channels), pieces_of(tile, product)
    return Stream(
        tile, product, channels, of_tile, high, strips, tiles, stream_rows, channel_tiles, pieces, slices
    )  # fmt: skip


def least_clocks(tile: DepthwiseTile, product: Product) -> float:
    """Of all thread blocks' steps, if each had as many strips and channels as it may."""
    height, width = interleaved_size(product.problem)
    there = product.groups * product.problem.lhs_dtype.itemsize
    strips = planes_of(product) * math.prod(window(product.problem).apart) * ceil_div(width, STRIP)
    steps = ceil_div(height, tile.period) * strips / tile.set_strips * there / tile.most_channel_bytes
    _, *pieces = pieces_of(tile, product)
    return steps * tile.clocks * math.prod(pieces) * (depths_seen(product.problem) if tile.has_pieces else 1)


def _copies(tile: DepthwiseTile, product: Product, images: int, strips: int, channel_bytes: int) -> int:
    """Pieces of a source row that a thread copies."""
    reach = window(product.problem)
    step = STRIP * reach.steps[2] // reach.periods[2]
    return ceil_div(images * ((strips - 1) * step + tile.pixels) * channel_bytes, BATCH_BYTES)
