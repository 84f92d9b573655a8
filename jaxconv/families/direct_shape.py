"""How thread blocks of the direct family share out a product: tiles, windows, boxes and areas."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from jaxconv.families.base import Device, held_blocks
from jaxconv.offsets import SPATIAL, OffsetTables, in_three, offset_tables
from jaxconv.problem import ConvProblem
from jaxconv.product import Product, ceil_div

PIECE = 8  # channels of 16 bytes: a row of the 8 x 8 matrices that tensor cores are fed with
RUN = 8  # neighbouring positions that are read at once
REDUCE_WARPS = 8
STAGES, ROW_STAGES = 2, 8  # of shared memory: of boxes, and where the source passes by of rows
TURN_BYTES = 1024  # of shared memory, after which TMA exchanges pieces in the same way
# Costs, of which the last three are fitted to measurements on an H200.
SHARED_BYTES_A_CLOCK = 128
MULTIPLICATION = 16 * 8 * 16
MULTIPLICATION_CLOCKS = 1.5  # of a multiprocessor
BOX_BYTES_A_CLOCK = 64
AREA_CLOCKS = 500
WALK_CLOCKS = 5  # of a source row of each warp that walks


class Walk(NamedTuple):
    """Filters that a warp keeps: rows of taps, at most, which move by `step` source rows; a row's (tap, channel)s."""

    rows: int
    step: int
    depth: int

    def __str__(self) -> str:
        return f"{self.rows}{f':{self.step}' if self.step > 1 else ''} rows of {self.depth}"

    @property
    def lags(self) -> int:
        """Rows of the destination that are under way."""
        return ceil_div(self.rows, self.step)

    @property
    def streams(self) -> bool:
        """Whether the source passes by in shared memory, a row of each walk at a time, instead of in boxes.

        All warps have the same output channels then.
        """
        return self.step == 1 and self.rows > 3

    @property
    def least_rows(self) -> int:
        """Tiles of many rows are for residue classes of a dilated input, of which some have one row less."""
        return self.rows - 1 if self.streams else self.rows


class DirectTile(NamedTuple):
    """What a warp has: blocks of eight output channels, and of 16 positions or (tap, source channel)s.

    columns: of a set: output channels that read the same source channels. sets, positions: in a gather.
    warps: of a gather's thread block, that multiply.
    pieces: of eight source or output channels that a thread block has at most.
    filter_rows: (tap, source channel)s in a reduce.
    walk: if a gather's warps keep the filter in registers and walk along the rows of the source.
    run: if it reads a row's (tap, channel)s as they lie in the source, for channels that are no whole pieces: of a
      gather that walks so many pieces at most; else 1. 0: it reads whole pieces.
    taps_across: if a gather's columns are (tap, output channel)s, and what a warp has are blocks of source pixels.
    """

    columns: int
    sets: int
    positions: int
    warps: int
    pieces: int
    filter_rows: int
    walk: Walk | None = None
    run: int = 0
    taps_across: bool = False

    wgmma = False
    passes = 1

    def __str__(self) -> str:
        walk = f" along {self.walk}" if self.walk else ""
        source = " in runs" if self.run else ""
        taps = " of taps" if self.taps_across else ""
        columns = f"{self.sets}x{self.columns}{taps} of {self.pieces * PIECE}"
        return f"{columns} by {self.positions}{walk}{source} or {self.filter_rows}"

    @property
    def stages(self) -> int:
        """Of a gather."""
        return ROW_STAGES if self.walk and self.walk.streams else STAGES


class Rows(NamedTuple):
    """A window's rows of taps: equal ones, `dilation` source rows apart. A class has `least` to `count` of them."""

    count: int
    least: int
    dilation: int


class Window(NamedTuple):
    """What a problem's residue classes need at most: the reach of taps in source pixels, how many, and positions.

    corner: the first class's taps' least shifts.
    """

    corner: tuple[int, ...]
    reach: tuple[int, ...]
    taps: int
    counts: tuple[int, ...]
    classes: int
    steps: tuple[int, ...]  # source pixels between neighbouring positions
    rows: Rows | None  # of taps, if all classes' are such


@lru_cache(maxsize=4096)
def window(problem: ConvProblem) -> Window:
    tables = offset_tables(problem)
    reach, most = np.ones(SPATIAL, np.int64), int(tables.classes[:, 1].max(initial=0))
    if most:
        firsts, shifts = tables.classes[tables.classes[:, 1] > 0, 0], tables.taps[:, 2:]
        spans = np.maximum.reduceat(shifts, firsts) - np.minimum.reduceat(shifts, firsts)
        reach = spans.max(axis=0) + 1
    counts = tables.classes[:, 5:].max(axis=0, initial=0)
    first = tables.taps[: tables.classes[0, 1], 2:]
    corner = first.min(axis=0) if len(first) else (0,) * SPATIAL
    corner, reach, counts = (tuple(map(int, sizes)) for sizes in (corner, reach, counts))
    return Window(corner, reach, most, counts, len(tables.classes), in_three(problem.steps), _rows(tables))


def _rows(tables: OffsetTables) -> Rows | None:
    """Of several rows each."""
    found = []
    for first, count, *_ in tables.classes:
        depth, row, col = tables.taps[first : first + count, 2:].T
        if count == 0 or np.ptp(depth):
            return None
        taps = int(np.count_nonzero(row == row[0]))
        if count == taps or count % taps:
            return None
        if np.any(col.reshape(-1, taps) != col[:taps]) or np.any(np.ptp(row.reshape(-1, taps), axis=1)):
            return None
        apart = {abs(int(n)) for n in np.diff(row[::taps])}
        found.append((int(count) // taps, taps, apart))
    counts, taps, apart = zip(*found, strict=True)
    apart = set().union(*apart)
    return Rows(max(counts), min(counts), apart.pop()) if len(apart) == 1 and len({*taps}) == 1 else None


class Shape:
    """How thread blocks share out a product: what src_cuda/direct/ works out likewise.

    area: rows and columns of output positions that a thread block computes at a time. Without one, there is
      nothing that depends on it: rows and what follows.

    block_groups: groups of a channel block, as many as the tile holds in whole pieces; 0 of a single group's channels.
    chunks: parts of the source channels of a single group. src_pieces: of a pixel in shared memory.
    walking: the tile's walk, if warps do in this pass. taps_across: whether columns are (tap, output channel)s.
    entry_pieces: pieces of source channels that a set of output channels reads of each tap: a power of two, at whose
      multiples each set's begin, if that is less than all. entries: (tap, piece)s of a chunk, or with taps across
      pieces alone. row_steps: twos of them, of a row of taps if warps walk. steps: of all rows.
    col_blocks: blocks of eight output channels of a channel block.
    warps_across: of a gather, those that share out the output channels.
    items: of a reduce, what a warp has, of which there are a thread block's sums.
    filter_bytes: of a gather, which a thread block begins with.

    rows: of an area, in whole walks. walk: of these, that a warp takes one after the other; 1: it takes all at once.
    run: taps of a row, if the source is read in runs; else 0.
    box: source pixels of an area; its rows are whole runs of RUN, but with taps across. Or pieces of its rows, if these
      are read in runs.
    positions: of an area, with those behind its end that make whole multiplications, but with taps across. areas: of
      all classes and images.
    shared_bytes: of a thread block.
    """

    def __init__(self, product: Product, tile: DirectTile, area: tuple[int, int] | None) -> None:
        self.product, self.tile, self.is_gather = product, tile, product.kind == "gather"
        self.window = window(product.problem)
        self.walking: Walk | Any = tile.walk if self.is_gather else None
        self.taps_across = tile.taps_across and self.is_gather
        self.run = product.problem.kernel[-1] if tile.run else 0
        self._set_channels(product.problem.in_channels, product.problem.out_channels)
        if area is not None:
            self._set_area(area)

    def at(self, area: tuple[int, int]) -> Shape:
        """The same with an area."""
        other = Shape.__new__(Shape)
        other.__dict__.update(self.__dict__)
        other._set_area(area)
        return other

    def _set_channels(self, ins: int, outs: int) -> None:
        product, tile = self.product, self.tile
        of_warp = tile.columns * (tile.sets if self.is_gather else 1)
        self.block_groups = block_groups(product, tile) if product.groups > 1 else 0
        if self.run:
            self.chunks, self.src_pieces, self.entry_pieces = 1, 1, self._run_pieces(ins)
        elif self.block_groups:
            self.chunks, self.src_pieces = 1, self.block_groups * ins // PIECE
            self.entry_pieces = _entry_pieces(ins, outs, self.block_groups, tile.columns)
            self.col_blocks = ceil_div(self.block_groups * outs, of_warp) * of_warp // 8
            self.channel_blocks = ceil_div(product.groups, self.block_groups)
        else:
            self.chunks = ceil_div(ins // PIECE, tile.pieces)
            self.src_pieces = self.entry_pieces = ceil_div(ins // PIECE, self.chunks)
        if not self.block_groups:
            most = 1 if self.streams else max(1, tile.pieces * PIECE // of_warp)
            self.col_blocks = min(ceil_div(outs, of_warp), most) * of_warp // 8
            self.channel_blocks = ceil_div(outs, self.col_blocks * 8)
        taps = 1 if self.taps_across else self.window.taps // max(1, self.run)  # that have entries
        self.entries = taps * self.entry_pieces
        sets = self.col_blocks * 8 // tile.columns
        rows = self.window.rows.count if self.walking and self.window.rows else 1
        self.row_steps = ceil_div(taps // rows * self.entry_pieces, 2)
        self.steps = rows * self.row_steps
        self.warps_across = max(1, self.col_blocks * 8 // (tile.columns * tile.sets))
        self.items = max(1, ceil_div(ceil_div(self.entries, 2) * 16, tile.filter_rows)) * sets
        self.filter_bytes = self.chunks * self.steps * self.col_blocks * 256 if self.is_gather else 0

    def _run_pieces(self, ins: int) -> int:
        """A run may begin with an element that is none of it: two are read at a time.

        By twos in a gather where no warp walks.
        """
        pieces = ceil_div(self.run * ins + ins % 2, PIECE)
        return whole(pieces, 2) if self.is_gather and not self.walking else pieces

    def _set_area(self, area: tuple[int, int]) -> None:
        (rows, cols), (d, h, w), steps = area, self.window.reach, self.window.steps
        self.area = area
        if self.taps_across:
            self.positions = rows * cols
        elif self.is_gather:
            self.positions = self.most_positions
        else:
            self.positions = ceil_div(rows * cols, 32) * 32
        self.rows, self.walk = self._walks(rows, cols) if self.walking else (rows, 1)
        if self.run:
            read = (self.tile.run if self.walking else self.entry_pieces) * PIECE
            apart = steps[2] * self.product.problem.in_channels
            # Elements in front of the first one that is read, at most, as boxes begin with a piece; and those behind,
            # as two are read at a time.
            around = PIECE - 2 + apart % 2 * 2
            wide = ceil_div(around + (cols - 1) * apart + read, PIECE)
        else:
            wide = whole((cols - 1) * steps[2] + w, 1 if self.taps_across else RUN)
        self.box = d, (self.rows - 1) * steps[1] + h, wide
        depth, height, width = self.window.counts
        of_class = depth * ceil_div(height, self.rows) * ceil_div(width, cols)
        self.areas = self.images * self.window.classes * of_class

    def _walks(self, rows: int, cols: int) -> tuple[int, int]:
        """Rows of whole walks, and those of each: as many walks as warps hold, and as a dilation's rows lie abreast."""
        least = self.walking.lags - 1
        walks = max(1, min(self.positions // cols, rows // least) // self.dilation) * self.dilation
        walk = max(least, ceil_div(rows, walks))
        return walks * walk, walk

    @property
    def extent(self) -> int:
        """The longest that TMA is told of."""
        deep, high, wide = self.box
        return max(deep, high, wide * PIECE if self.run else wide, self.rows, self.area[1])

    @property
    def streams(self) -> bool:
        return self.walking is not None and self.walking.streams

    @property
    def stages(self) -> int:
        return self.tile.stages if self.is_gather else STAGES

    @property
    def dilation(self) -> int:
        return self.window.rows.dilation if self.window.rows else 1

    @property
    def images(self) -> int:
        return self.product.images if self.product.positions else 0

    @property
    def most_positions(self) -> int:
        """Of a gather's area; of one that walks, of each step."""
        return self.tile.warps // self.warps_across * self.tile.positions

    @property
    def box_held(self) -> int:
        """Source pixels that the warps hold the products of, where taps are across."""
        return self.tile.warps * self.tile.positions

    def product_bytes(self) -> int:
        """Of a box's pixels with all taps, which take its place: columns are in different banks."""
        pitch = whole(math.prod(self.box) - 4, 16) + 4
        return pitch * self.col_blocks * 32 if self.taps_across else 0

    @property
    def shared_bytes(self) -> int:
        return self._stages_bytes() + self._fixed_bytes()

    def _stages_bytes(self) -> int:
        walks = self.rows // self.walk
        copied = walks * self.box[2] if self.streams else math.prod(self.box)
        pixels = (copied << _pitch(self.src_pieces)) * 16
        stage = whole(max(pixels, self.product_bytes()), TURN_BYTES)
        if self.walking and not self.streams:
            return max(self.stages * stage, stage + whole(self.filter_bytes))
        if self.is_gather:
            return self.stages * stage
        stage += whole((self.positions << _pitch(self.col_blocks)) * 16, TURN_BYTES)
        # In the end, in their place: the warps' sums.
        exchanged = self.tile.filter_rows * self.tile.columns * 4 * self.items * max(1, REDUCE_WARPS // self.items)
        return max(self.stages * stage, exchanged)

    def _fixed_bytes(self) -> int:
        entries = self.col_blocks * 8 if self.taps_across else (self.entries + 1) * RUN
        sizes = entries * 4, self.positions * 8, 16, self.stages * 16
        tables = sum(map(whole, sizes))
        if not self.is_gather:
            places = 8 * self.items * (self.tile.filter_rows + self.tile.columns)  # of sums
            return tables + whole(self.positions * 4) + whole(places)
        result = self.product.problem.out_dtype.itemsize * self.tile.columns * self.tile.sets + 16
        results = 0 if self.walking or self.taps_across else self.tile.warps * 16 * result
        filter_bytes = 0 if self.walking and not self.streams else whole(self.filter_bytes)  # in a stage's place
        return filter_bytes + tables + whole(results)

    def resident(self, device: Device) -> int:
        """Thread blocks that a multiprocessor holds."""
        # As registers allow: src_cuda/common/plan.h.
        if self.is_gather:
            is_large = self.tile.walk is not None and self.tile.walk.rows > 3
            most = 3 if self.tile.warps <= 4 else 2 if self.tile.warps <= 8 and not is_large else 1
        else:
            most = 2 if self.tile.filter_rows * self.tile.columns <= 20 * 16 * 8 else 1
        return held_blocks(self.shared_bytes, most, device)

    def turns(self, device: Device) -> int:
        """Areas that a multiprocessor computes, one after the other."""
        return ceil_div(self.areas * self.channel_blocks * self.chunks, device.multiprocessors)

    # What an area costs, of a chunk of the source channels.

    def area_bytes(self) -> int:
        """That multiplications read of shared memory, or take as long: 512 bytes are a source's operand, 256 the other.

        One of runs is read by four instructions, not by one, and by eight if positions are an odd number of elements
        apart.
        """
        source = self._row_blocks() * self._block_bytes()
        if self.walking:  # the filter is in registers
            return self.source_rows() * source
        if self.is_gather:
            filters = self.tile.warps * (self.tile.columns * self.tile.sets // 8) * 256
            products = (self.product_bytes() + self._summed_bytes()) // self.chunks
            return source + self.steps * filters + products
        return source

    def _block_bytes(self) -> int:
        """Those of a multiplication's 16 rows: of a gather the source's; where warps walk, of a row."""
        tile = self.tile
        sets = 1 if self.taps_across else self.col_blocks * 8 // tile.columns
        is_odd = self.window.steps[2] * self.product.problem.in_channels % 2
        source = 512 if not self.run else 1536 if is_odd else 768
        if self.walking:
            return self._row_depth() // PIECE * sets * source // 2
        if self.is_gather:
            return self.steps * sets * source
        return self.items * (tile.filter_rows // 16 * source + tile.columns // 8 * 256)

    def _row_blocks(self) -> int:
        """Of a multiplication's 16 rows."""
        return (self.box_held if self.taps_across else self.positions) // 16

    def _summed_bytes(self) -> int:
        """Where taps are across: of products and their places."""
        return self.positions * self.product.problem.out_channels * self.window.taps * 8 if self.taps_across else 0

    def source_rows(self) -> int:
        """Of a walk."""
        return (self.walk + self.walking.lags - 1) * self.walking.step

    def _row_depth(self) -> int:
        """(tap, channel)s of a row of taps that a warp which walks multiplies."""
        return self.tile.run * PIECE or self.walking.depth

    def area_multiplications(self) -> float:
        """Each of MULTIPLICATION products."""
        return self._row_blocks() * self.walk * self._block_multiplications()

    def _block_multiplications(self) -> float:
        if self.is_gather:
            steps = self.walking.rows * self._row_depth() / 16 if self.walking else self.steps
            return steps * self.col_blocks
        return self.items * self.tile.filter_rows // 16 * self.tile.columns // 8

    def least_clocks(self) -> float:
        """Of all areas, if none had positions behind its end, and boxes did not overlap."""
        positions = self.images * math.prod(self.window.counts) * self.window.classes
        positions *= self.channel_blocks * self.chunks
        source = positions / 16 * self._block_bytes() * (self.walking.step if self.walking else 1)
        multiplications = positions / 16 * self._block_multiplications()
        clocks = source / SHARED_BYTES_A_CLOCK, multiplications * MULTIPLICATION_CLOCKS
        pixels = 0 if self.run else positions * math.prod(map(min, self.window.steps, self.window.reach))
        boxes = pixels * self.src_pieces * 16 / BOX_BYTES_A_CLOCK
        return max(clocks) + 0.5 * min(clocks) + boxes

    def area_clocks(self) -> float:
        clocks = self.area_bytes() / SHARED_BYTES_A_CLOCK, self.area_multiplications() * MULTIPLICATION_CLOCKS
        walks = self.source_rows() * self.tile.warps * WALK_CLOCKS if self.walking else 0
        return max(clocks) + 0.5 * min(clocks) + self.box_bytes() / BOX_BYTES_A_CLOCK + AREA_CLOCKS + walks

    def box_bytes(self) -> int:
        gradient = 0 if self.is_gather else self.positions * self.col_blocks
        pixels = self.source_rows() * self.rows // self.walk * self.box[2] if self.streams else math.prod(self.box)
        return (pixels * self.src_pieces + gradient) * 16


def _entry_pieces(ins: int, outs: int, groups: int, columns: int) -> int:
    pieces, all_pieces = 1, groups * ins // PIECE
    for col in range(0, groups * outs, columns):
        last = min(col + columns, groups * outs) - 1
        first_piece = col // outs * ins // PIECE
        last_piece = ((last // outs + 1) * ins - 1) // PIECE
        while first_piece // pieces != last_piece // pieces:
            pieces *= 2
    return pieces if all_pieces % pieces == 0 else all_pieces


def whole(size: int, unit: int = 128) -> int:
    return ceil_div(size, unit) * unit


def _pitch(pieces: int) -> int:
    return (pieces - 1).bit_length()


def block_groups(product: Product, tile: DirectTile) -> int:
    """0 where the tile holds no whole pieces of whole groups."""
    channels = product.problem.in_channels, product.problem.out_channels
    least = math.lcm(*(PIECE // math.gcd(c, PIECE) for c in channels))
    most = tile.pieces * PIECE // max(channels) // least * least
    if most == 0:
        return 0
    blocks = ceil_div(product.groups, most)
    return ceil_div(ceil_div(product.groups, blocks), least) * least


def out_unit(product: Product, tile: DirectTile) -> int:
    """Output channels that are stored at once: pairs by warps that walk with a block of eight, else pieces.

    One where taps are across.
    """
    if product.kind == "gather" and tile.taps_across:
        return 1
    return 2 if product.kind == "gather" and tile.walk and tile.columns * tile.sets == 8 else PIECE
