"""The depthwise family: each channel on its own, as products with band matrices on tensor cores, or on CUDA cores."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from jaxconv.families.base import LAUNCH_SECONDS, CudaFamily, Device, Settings, TileRow, held_blocks
from jaxconv.offsets import INT32_MAX, SPATIAL, offset_tables
from jaxconv.problem import ConvProblem
from jaxconv.product import Product, ceil_div

STRIP = 8  # neighbouring output columns, which read one band of source pixels
MOST_PERIOD = 4  # of columns: a strip then begins at an even pixel
MOST_PIECES = 1024  # of the window
MULTIPLIED = 16  # strips, and source pixels
WARPS = 4
THREADS = 32 * WARPS
PIECE_BYTES = 16  # that are copied at once
BATCH_BYTES = THREADS * PIECE_BYTES
MOST_WAVES, MOST_RESIDENT = 4, 3  # of thread blocks, for whose sake columns are cut
FEW_ROWS = 8
MOST_WASTE = 1.125  # of channels that are not there, in favour of more neighbours in memory
# Costs, fitted to measurements on an H200. Clocks are of a step of a thread block.
MULTIPLICATION_CLOCKS = 6.5  # for one of each warp
PIXEL_CLOCKS = 128  # for reading 16 source pixels of each strip
FMA_CLOCKS = 1.4  # for one of each lane
STEP_CLOCKS = 120
LATENCY_CLOCKS = 780  # from a step to the next, whatever is done there
PIECE_CLOCKS = 6000  # from a piece of the window to the next
BEGIN_SECONDS = 5e-6
REDUCE_BANDWIDTH = 0.82  # of a gather's
BANDWIDTH = {128: 0.7, 64: 0.7, 32: 0.55, 16: 0.4}  # that copies reach, of so many bytes of neighbouring channels


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
    """

    first: tuple[int, int, int]
    steps: tuple[int, int, int]
    periods: tuple[int, int, int]
    depths: int
    rows: int
    cols: int
    pixels: int


@lru_cache(maxsize=4096)
def window(problem: ConvProblem) -> Window | None:
    """None if no position sees a tap."""
    tables = offset_tables(problem)
    pairs = [(1, 1)] * (SPATIAL - len(problem.kernel))
    for stride, dilation in zip(problem.window_strides, problem.lhs_dilation, strict=True):
        common = math.gcd(stride, dilation)
        pairs.append((stride // common, dilation // common))
    steps, periods = zip(*pairs, strict=True)
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
    return Window(first, steps, periods, depths * periods[0], rows, cols, int(max(ends)) - first[2] + 1)


@lru_cache(maxsize=4096)
def _depths_seen(problem: ConvProblem) -> float:
    """Of the window's, those in which a plane of the output has a source, on average."""
    reach = window(problem)
    plane, depth = np.arange(_out_depth(problem))[:, None], np.arange(reach.depths)
    step, period = reach.steps[0], reach.periods[0]
    at = plane // period * step + depth // period + reach.first[0]
    seen = (plane % period == depth % period) & (at >= 0) & (at < (1, 1, *problem.in_spatial)[-3])
    return float(seen.sum(axis=1).mean())


class Stream(NamedTuple):
    """How thread blocks share out a product: what src_cuda/kernels/depthwise.cu works out likewise.

    channels: of a thread block. images: of a tile, or planes of volumes; 0 if all images' rows follow each other as
      one's.
    rows, strips: of a tile, at most: of each image.
    height: of all images' tiles, one below the other: those of one channel tile, of channel_tiles, which thread blocks
      share out by rows.
    pieces: of the window, along each dimension. slices: of a reduce, that a thread block sums.
    """

    channels: int
    images: int
    rows: int
    strips: int
    height: int
    channel_tiles: int
    pieces: tuple[int, int, int]
    slices: int

    @property
    def all_pieces(self) -> int:
        return math.prod(self.pieces)

    @property
    def most_workers(self) -> int:
        """Thread blocks that may share a channel tile out."""
        return ceil_div(self.height, self.rows)

    def cuts(self, workers: int) -> int:
        """Of columns: tiles of a thread block."""
        rows = ceil_div(self.height, workers)
        return ceil_div(rows, self.rows) + (rows % self.rows > 0)

    def steps(self, workers: int, lags: int) -> int:
        """Of a thread block: its rows, and at each cut of a column those of the window. Where that is an image's edge,
        half of them, as steps without a source row are left out."""
        return ceil_div(self.height, workers) + (self.cuts(workers) + 1) * (lags - 1) // 2

    def clocks_of_pieces(self, workers: int, lags: int, step: float) -> float:
        """Of a gather's thread block that takes the window's pieces in turn: they leave no steps out."""
        cuts = self.cuts(workers)
        steps = ceil_div(self.height, workers) + cuts * (lags - 1)
        return self.all_pieces * (steps * step + cuts * PIECE_CLOCKS)


class Depthwise(CudaFamily):
    """Convolution of each channel on its own: src_cuda/kernels/depthwise.cu.

    What a row of the filter takes from a source row is a product with a band matrix: of 16 source pixels, or a few
    times as many, by eight neighbouring outputs. 16 such strips are multiplied at a time, for each row of the filter.
    """

    REWRITES = True
    OF_CHANNELS = True
    ALIGNED = True

    TILES = tuple(
        TileRow(DepthwiseTile(*tile))
        for tile in (
            (1, 1, 1, 1, 8), (1, 1, 1, 3, 8), (1, 1, 1, 3, 4), (1, 1, 3, 1, 8), (1, 1, 3, 1, 4),
            (1, 1, 5, 1, 4), (1, 1, 7, 1, 4), (1, 1, 8, 3, 2, 0, 1, True), (1, 1, 5, 3, 2, 0, 1, True),
            (2, 1, 2, 2, 4), (2, 1, 4, 2, 4), (1, 2, 2, 1, 4), (1, 2, 4, 1, 4),
            (1, 1, 1, 0, 0, 4), (1, 1, 1, 0, 0, 32), (1, 1, 3, 0, 0, 3), (1, 1, 5, 0, 0, 5), (1, 1, 7, 0, 0, 7),
            (2, 1, 2, 0, 0, 3), (2, 1, 3, 0, 0, 5), (1, 2, 2, 0, 0, 2), (1, 2, 3, 0, 0, 3),
            (1, 1, 3, 1, 4, 0, 3), (1, 1, 7, 1, 4, 0, 1, True), (1, 1, 1, 3, 8, 0, 1, True),
            (1, 1, 3, 0, 0, 3, 3), (1, 1, 5, 0, 0, 5, 1, True), (1, 1, 7, 0, 0, 7, 1, True),
            (1, 1, 4, 0, 0, 16, 1, True), (1, 1, 1, 0, 0, 32, 1, True),
        )
    )  # fmt: skip

    def why_never(self, product: Product) -> str | None:
        problem = product.problem
        dtypes = {problem.lhs_dtype, problem.rhs_dtype, problem.out_dtype}
        if len(dtypes) > 1 or problem.lhs_dtype.name not in ("bfloat16", "float16", "float32"):
            return f"it has no kernels of {' and '.join(sorted(dtype.name for dtype in dtypes))}"
        if 1 not in (problem.in_channels, problem.out_channels) or product.groups == 1:
            return "it is for groups of one channel"
        if problem.lhs_batch_grouped or problem.out_batch_grouped:
            return "groups of images"
        if not 1 <= len(problem.kernel) <= 3:
            return f"{len(problem.kernel)} spatial dimensions"
        return None

    def why_not_so(self, product: Product, device: Device) -> str | None:
        problem = product.problem
        if (problem.in_channels, problem.out_channels) != (1, 1):
            return "it is for groups of one channel"
        piece = PIECE_BYTES // problem.lhs_dtype.itemsize
        if not product.has_pixels_of(piece, piece):
            return "channels are not last, in pieces of 16 bytes"
        if problem.is_empty or window(problem) is None:
            return "nothing is to be computed"
        if MOST_PERIOD % window(problem).periods[2]:
            return "columns' period is not 1, 2 or 4"
        if product.kind == "reduce" and max(problem.lhs_dilation) > 1:
            return "an input that is dilated"
        return None

    def tiles(self, product: Product) -> list[TileRow]:
        return [row for row in self.TILES if product.problem.lhs_dtype.name in row.tile.dtypes]

    def settings(self, row: TileRow, product: Product, device: Device, asked: Settings) -> list[Settings]:
        tile = row.tile
        no_area = asked.area is not None and _why_not_area(asked.area) is not None
        if no_area or self._why_not_window(tile, product) is not None:
            return [asked._replace(tile=tile, split=1)]
        areas = [asked.area] if asked.area else self._areas(tile, product, device)
        splits = self._splits if asked.split is None else lambda *_: [asked.split]
        settings = [
            asked._replace(tile=tile, area=a, split=s) for a in areas for s in splits(tile, a, product, device)
        ]
        return [s for s in settings if self.why_not(s, product, device) is None] or settings[:1]

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        tile, split, chunk, units, area = settings
        if chunk is not None or units is not None:
            return "it has neither chunks nor units"
        if (reason := self._why_not_window(tile, product)) is not None:
            return reason
        if area is None:
            return "no tile of strips fits into shared memory"
        if (reason := _why_not_area(area)) is not None:
            return reason
        stream = _stream(tile, area, product)
        if stream is None:
            return "its warps do not cover the area"
        if stream.all_pieces > MOST_PIECES:
            return f"{stream.all_pieces} pieces of the window"
        if product.kind == "gather" and split != 1:
            return f"a split of {split}: its gather has none"
        if split < 1 or (product.kind == "reduce" and split % stream.slices):
            return f"a split of {split}, not of whole thread blocks with {stream.slices} slices each"
        rows = _planes(product) * max(_out_size(product.problem)[0], (1, *product.problem.in_spatial)[-2])
        depth = _out_depth(product.problem)
        volumes = (max(1, stream.images) + 2 * depth - 2) // depth
        if max(product.image_elements * volumes, rows, stream.height) >= INT32_MAX:
            return "rows, or elements of a tile's images, do not fit 32 bits"
        need = _shared_bytes(tile, product, stream)
        return None if need <= device.shared_bytes else f"{need} bytes of shared memory, of {device.shared_bytes}"

    def shape(self, settings: Settings, product: Product) -> tuple[int, ...]:
        stream = _stream(settings.tile, settings.area, product)
        first = window(product.problem).first
        return (stream.rows, stream.strips * STRIP, stream.channels, stream.images, *first, *stream.pieces)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Steps, as long as those of a multiprocessor's blocks or one's latency take, or memory; and the beginning."""
        tile, split, _, _, area = settings
        stream = _stream(tile, area, product)
        resident, is_gather = _resident(tile, product, stream, device), product.kind == "gather"
        places = max(1, resident * device.multiprocessors // stream.channel_tiles)
        workers = min(places, stream.most_workers) if is_gather else split // stream.slices
        blocks = stream.channel_tiles * workers * (1 if is_gather else stream.all_pieces)
        at_once = min(resident, ceil_div(blocks, device.multiprocessors))
        step = max(at_once * tile.clocks, tile.clocks + LATENCY_CLOCKS)
        in_turn = is_gather and tile.has_pieces
        clocks = (
            stream.clocks_of_pieces(workers, tile.lags, step) if in_turn else stream.steps(workers, tile.lags) * step
        )
        if tile.has_pieces and stream.images == 1:  # others are left out
            clocks *= _depths_seen(product.problem) / stream.pieces[0]
        rounds = ceil_div(blocks, resident * device.multiprocessors)
        compute, memory = rounds * clocks / device.clock_hz, product.activation_bytes / device.bandwidth
        bandwidth = BANDWIDTH[stream.channels * product.problem.lhs_dtype.itemsize]
        bandwidth *= 1 if is_gather else REDUCE_BANDWIDTH
        seconds = max(compute, memory / bandwidth) + BEGIN_SECONDS + LAUNCH_SECONDS
        if split > 1:
            seconds += 2 * split * product.planned_sums_bytes / device.bandwidth + LAUNCH_SECONDS
        return seconds

    def _why_not_window(self, tile: DepthwiseTile, product: Product) -> str | None:
        reach = window(product.problem)
        if len(product.problem.kernel) == 3 and not tile.has_planes:
            return "three spatial dimensions"
        if len(product.problem.kernel) < 3 and tile.depths > 1:
            return "taps in one plane"
        if (reach.steps[1], reach.periods[1]) != (tile.step, tile.period):
            return f"rows move by {reach.steps[1]}:{reach.periods[1]}"
        if tile.on_cuda_cores and (reach.steps[2], reach.periods[2]) != (tile.step, tile.period):
            return f"columns move by {reach.steps[2]}:{reach.periods[2]}"
        if not tile.has_pieces and reach.depths > tile.depths:
            return f"taps in {reach.depths} planes"
        if not tile.has_pieces and ceil_div(reach.rows, tile.step) > tile.lags:
            return f"taps in {reach.rows} rows"
        if reach.pixels > tile.pixels and not (tile.has_pieces and _piece_cols(tile, product) > 0):
            return f"{reach.pixels} source pixels of {STRIP} outputs"
        if product.kind == "reduce" and not tile.reduces:
            return "its warps do not hold the sums of all taps"
        return None

    def _areas(self, tile: DepthwiseTile, product: Product, device: Device) -> list[tuple[int, int] | None]:
        """Of each number of strips the most rows, and fewer, until there are tiles for all thread blocks.

        Of a gather in pieces of the window until few rows are left, as a tile's sums are in shared memory.
        """
        (height, width), areas = _out_size(product.problem), []
        strips, rows = ceil_div(width, STRIP), ceil_div(height, tile.period)
        if _joins_images(tile, product):
            rows *= product.images
        most = tile.set_strips * tile.most_channel_bytes // _channel_bytes(tile, product)
        least_rows = tile.lags if tile.has_pieces else 2 * tile.lags
        in_turn = tile.has_pieces and product.kind == "gather"
        for parts in (1, 2, 4) if tile.on_cuda_cores else (1, 2):
            wide = ceil_div(strips, ceil_div(strips, most) * parts) * STRIP
            for segments in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64):
                area = ceil_div(rows, segments), wide
                if area in areas or (segments > 1 and area[0] < least_rows):
                    break
                if (stream := _stream(tile, area, product)) is None:
                    break
                if in_turn and _shared_bytes(tile, product, stream) > device.shared_bytes:
                    continue
                areas.append(area)
                tiles, places = stream.most_workers * stream.channel_tiles, MOST_RESIDENT * device.multiprocessors
                if area[0] <= max(FEW_ROWS, 2 * tile.lags) if in_turn else tiles > MOST_WAVES * places:
                    break
        return areas or [None]

    def _splits(
        self, tile: DepthwiseTile, area: tuple[int, int] | None, product: Product, device: Device
    ) -> list[int]:
        """As many thread blocks as there are places for at once; of pieces of the window, or of each of them."""
        stream = area and _stream(tile, area, product)
        if product.kind == "gather" or not stream:
            return [1]
        places = _resident(tile, product, stream, device) * device.multiprocessors
        tiles = {stream.channel_tiles, stream.channel_tiles * stream.all_pieces}
        return sorted({stream.slices * max(1, min(places // n, stream.most_workers)) for n in tiles})


def _why_not_area(area: tuple[int, int]) -> str | None:
    rows, cols = area
    return f"an area of {area}" if rows < 1 or cols < STRIP or cols % STRIP else None


def _channel_bytes(tile: DepthwiseTile, product: Product) -> int:
    """Of a thread block's channels: the most, if few of them are missing."""
    size, there = tile.most_channel_bytes, product.groups * product.problem.lhs_dtype.itemsize
    while size > PIECE_BYTES and ceil_div(there, size) * size > MOST_WASTE * there:
        size //= 2
    return size


def _out_size(problem: ConvProblem) -> tuple[int, int]:
    return (1, *problem.out_spatial)[-2:]


def _out_depth(problem: ConvProblem) -> int:
    return (1, 1, *problem.out_spatial)[-3]


def _planes(product: Product) -> int:
    """Of all images."""
    return product.images * _out_depth(product.problem)


def _piece_cols(tile: DepthwiseTile, product: Product) -> int:
    """Source pixels of a piece of the window: its taps then reach no further than a strip's."""
    reach = window(product.problem)
    return tile.pixels - (STRIP - 1) // reach.periods[2] * reach.steps[2]


def _pieces(tile: DepthwiseTile, product: Product) -> tuple[int, int, int]:
    """Of the window, along each dimension."""
    if not tile.has_pieces:
        return (1, 1, 1)
    reach = window(product.problem)
    cols = 1 if reach.pixels <= tile.pixels else ceil_div(reach.cols, _piece_cols(tile, product))
    return (reach.depths, ceil_div(reach.rows, tile.step * tile.lags), cols)


def _joins_images(tile: DepthwiseTile, product: Product) -> bool:
    """Whether all images' rows may follow each other as one's: no tap leaves its row."""
    problem = product.problem
    same = (1, *problem.in_spatial)[-2] == _out_size(problem)[0]
    batch_first = problem.lhs_spec.first == problem.out_spec.first == 0
    in_order = problem.lhs_spec.spatial == tuple(sorted(problem.lhs_spec.spatial)) and (
        problem.out_spec.spatial == tuple(sorted(problem.out_spec.spatial))
    )
    is_flat = len(problem.kernel) < 3 and window(problem).first[1] == 0
    return tile.slots == 1 and is_flat and same and batch_first and in_order


@lru_cache(maxsize=4096)
def _stream(tile: DepthwiseTile, area: tuple[int, int], product: Product) -> Stream | None:
    """None if the tile does not have the area's strips, or its threads do not copy them."""
    problem, channel_bytes = product.problem, _channel_bytes(tile, product)
    sets = tile.most_channel_bytes // channel_bytes
    strips, most = area[1] // STRIP, tile.set_strips * sets
    height, width = _out_size(problem)
    images, rows = _planes(product), ceil_div(height, tile.period)
    if strips > most:
        return None
    if _joins_images(tile, product) and 2 * strips > most:
        images, rows, of_tile = 1, rows * images, 0
    else:
        of_tile = most // strips
        while of_tile > 1 and _copies(tile, product, of_tile, strips, channel_bytes) > tile.most_copies:
            of_tile -= 1
    if _copies(tile, product, max(1, of_tile), strips, channel_bytes) > tile.most_copies:
        return None
    high = min(area[0], rows)
    stream_rows = ceil_div(images, max(1, of_tile)) * ceil_div(ceil_div(width, STRIP), strips) * rows
    channels = channel_bytes // problem.lhs_dtype.itemsize
    slices = 1 if tile.on_cuda_cores else sets
    channel_tiles, pieces = ceil_div(product.groups, channels), _pieces(tile, product)
    return Stream(channels, of_tile, high, strips, stream_rows, channel_tiles, pieces, slices)


def _copies(tile: DepthwiseTile, product: Product, images: int, strips: int, channel_bytes: int) -> int:
    """Pieces of a source row that a thread copies."""
    reach = window(product.problem)
    step = STRIP * reach.steps[2] // reach.periods[2]
    return ceil_div(images * ((strips - 1) * step + tile.pixels) * channel_bytes, BATCH_BYTES)


def _shared_bytes(tile: DepthwiseTile, product: Product, stream: Stream) -> int:
    """Of a thread block: MakePlaces of src_cuda/kernels/depthwise.cu."""
    gathers, channel_bytes = product.kind == "gather", stream.channels * product.problem.lhs_dtype.itemsize
    log_pieces = (channel_bytes // PIECE_BYTES).bit_length() - 1
    log_gap = 1 if gathers and tile.channels == 8 else 3
    has_gaps = not tile.on_cuda_cores and tile.channels != 4
    batch = BATCH_BYTES + (THREADS >> log_pieces >> log_gap) * PIECE_BYTES * has_gaps
    row = _copies(tile, product, max(1, stream.images), stream.strips, channel_bytes) * batch
    result_row = tile.strip_pieces * batch
    if tile.on_cuda_cores:
        other = tile.slots * tile.width * 4 * (stream.all_pieces * tile.period if gathers else THREADS)
    else:
        where = window(product.problem)
        band_pixels = tile.pixels + STRIP * where.steps[2] // where.periods[2] - where.steps[2]
        table = stream.all_pieces * tile.slots * where.periods[2] * band_pixels * channel_bytes
        other = table if gathers else tile.slots * tile.pixels * STRIP * 4 * WARPS
    other = ceil_div(other, 128) * 128
    stages = tile.stages * (tile.sources * row + (0 if gathers else result_row))
    if not gathers:
        return max(stages, other)
    sums = stream.rows * tile.row_sums * 4 * THREADS if tile.has_pieces else 0
    return stages + 2 * tile.period * result_row + other + sums


def _resident(tile: DepthwiseTile, product: Product, stream: Stream, device: Device) -> int:
    """Thread blocks that a multiprocessor holds."""
    return max(1, held_blocks(_shared_bytes(tile, product, stream), tile.resident(product.kind), device))
