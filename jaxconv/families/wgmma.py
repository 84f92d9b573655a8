"""The wgmma family: implicit GEMM on Hopper's tensor cores, of pixels that TMA reads in its im2col mode or as boxes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from jaxconv.families.base import LAUNCH_SECONDS, Device, Settings, TensorCores, TileRow
from jaxconv.offsets import INT32_MAX, SPATIAL, in_three, offset_tables
from jaxconv.problem import ConvProblem, Dim, dilate, row_major_strides
from jaxconv.product import Product, ceil_div

PIECE = 8  # channels of 16 bytes, of which TMA reads whole ones
CHUNK = 64  # channels of a tap that are multiplied at once
UNIT_ROWS = 64  # positions that see a box of pixels
MOST_BOX_PIXELS, MOST_BOX_TAPS = 104, 127
BOX_PIXELS, BOX_STAGES = 248, 3  # of a unit, in shared memory: where a multiprocessor has one block, as many as fit
MOST_BOX_EXTENT = 256  # pixels along an axis, those between copied ones included
MOST_CLASSES = 8
MOST_COL_TILES = (1 << 16) - 1  # where a cluster has a tile
MOST_STEP = 8  # pixels from a window of TMA's to the next
# Of TMA's maps, by their rank: how far from an image's edges windows may begin and end, and taps from a window's
# corner.
FARTHEST = {3: (1 << 15, 1 << 16), 4: (1 << 7, 1 << 8), 5: (1 << 4, 1 << 5)}
RESULT_BYTES = 64 * 64 * 2  # shared memory of a warpgroup's results on their way
ZEROS_BYTES = 16 * 64 * 2  # of those that are stored at once
WORK_BYTES = 48  # of a tile that a thread block is told of, and its barriers; and of a cluster's questions
RATE = 2048  # multiply-adds of a multiprocessor in a clock
# Costs, fitted to measurements on an H200.
BEGIN_SECONDS = 1.3e-6
TILE_SECONDS = 3.1e-7  # for a tile's results, and for each of them
RESULT_SECONDS = 3.8e-11
# Of a plane's boxes, unless its taps take longer to multiply: by the blocks of a multiprocessor, and for each pixel.
BOXES_SECONDS = {1: 7e-7, 2: 1e-6}
BOX_PIXEL_SECONDS = 1.9e-9
READS_APART = 1.3  # of pixels that several taps of windows several pixels apart see, unless as boxes
# Of tiles whose slices a cluster adds: for a turn, for a step, unless L2 takes longer for it, and for each block.
SLICES_SECONDS = 3.0e-6
SLICE_STEP_SECONDS = 2.0e-7
SLICE_COPY_SECONDS = 1.9e-9  # a block's step, of L2
SLICE_BLOCK_SECONDS = 9.5e-9
SLICES_HELD = 0.9  # of the blocks that multiprocessors have room for, as clusters do not fill all


class WgmmaTile(NamedTuple):
    """A thread block's rows and columns of results, of which one or two warpgroups have equally many.

    stages: copies of the operands' tiles in shared memory.
    row_blocks, col_blocks: thread blocks of a cluster: of neighbouring rows, which share what they read of the filter,
      or of neighbouring columns, which share what they read of the source.
    resident: thread blocks of a multiprocessor; of two, one multiplies while the other begins or ends a tile.
    boxed: pixels are copied once for all taps of a plane, as boxes that 8 x 8 positions see, or 64 of a line.
    slices: of a reduction, that the blocks of a cluster add: so many, or a part; 0: a second kernel adds them.
    transposed: a multiplication's 64 rows are channels, and its columns all of the tile's positions, which are read
      from shared memory once for each 64 channels.
    """

    rows: int
    cols: int
    stages: int
    row_blocks: int = 1
    col_blocks: int = 1
    resident: int = 1
    boxed: bool = False
    slices: int = 0
    transposed: bool = False

    depth = CHUNK
    wgmma = True
    passes = 1

    def __str__(self) -> str:
        cluster = f" by {self.row_blocks}x{self.col_blocks}" if self.cluster > 1 else ""
        boxes = " of boxes" if self.boxed else ""
        slices = " by slices" if self.slices else ""
        both = ", two at once" if self.resident == 2 else ""
        return f"{self.rows}x{self.cols}x{self.depth}{cluster}{boxes}{slices}{both}"

    @property
    def cluster(self) -> int:
        return self.row_blocks * self.col_blocks

    @property
    def warpgroups(self) -> int:
        return 1 if self.rows == 64 else 2

    @property
    def stores_zeros(self) -> bool:
        """Whether a block has a warp to spare, which stores those of residue classes without taps."""
        return self.resident == 1 and not self.boxed and not self.slices


class Im2col(NamedTuple):
    """Where TMA finds a problem's pixels and taps: `Im2col` of src_cuda/common/plan.h. Of rank 2 pixels are a matrix.

    reach: rows and columns from the corner to the last tap's pixel.
    empty_classes: residue classes whose positions see no tap; one is left at least.
    """

    corner: tuple[int, ...]
    rank: int
    tap_stride: int
    reach: tuple[int, ...]
    empty_classes: int


@lru_cache(maxsize=4096)
def im2col(problem: ConvProblem) -> Im2col | Any:
    """Or why TMA cannot."""
    tables = offset_tables(problem)
    live = tables.classes[(tables.classes[:, 5:] > 0).all(axis=1)]
    if len(live) > MOST_CLASSES:
        return f"{len(live)} residue classes, of {MOST_CLASSES} at most"
    seen = [tables.taps[first : first + count, 2:] for first, count in live[:, :2]]
    shifts = np.concatenate([*seen, np.zeros((0, SPATIAL), int)])
    corner, far = (shifts.min(axis=0), shifts.max(axis=0)) if len(shifts) else (np.zeros(SPATIAL, int),) * 2
    sizes = np.array([in_three(problem.in_spatial), in_three(problem.out_spatial)])
    if (apart := max([1, *problem.steps, *problem.periods])) > MOST_STEP:
        return f"windows, or the results of a residue class, {apart} pixels apart, of {MOST_STEP} at most"
    if (stride := tap_stride(problem)) is None:
        return "a filter whose windows are not one axis"
    # Leading dimensions of one pixel are left out.
    there = (sizes > 1).any(axis=0) | (corner != 0) | (far != 0)
    if len(shifts) == len(tables.taps) == 1 and not corner.any() and apart == 1 and (sizes[0] == sizes[1]).all():
        return Im2col((0,) * SPATIAL, 2, stride, (0, 0), 0)  # pixels as they lie: a matrix
    rank = 2 + max(1, SPATIAL - int(there.argmax()) if there.any() else 1)
    most, reach = FARTHEST[rank]
    end = corner + (live[:, 5:].max(axis=0, initial=1) - 1) * np.array(in_three(problem.steps)) - (sizes[0] - 1)
    if min(corner.min(), end.min()) < -most or max(corner.max(), end.max()) >= most:
        return f"windows that begin or end more than {most} pixels from the image's edges"
    if (far - corner).max() >= reach:
        return f"taps {(far - corner).max()} pixels apart, of less than {reach}"
    empty = max(0, min(int((live[:, 1] == 0).sum()), len(live) - 1))
    return Im2col(tuple(map(int, corner)), rank, stride, tuple(map(int, (far - corner)[1:])), empty)


def tap_stride(problem: ConvProblem) -> int | None:
    """Elements from a tap to the next, if the filter's spatial axes follow each other, rows of rows."""
    axes = [axis for axis in problem.rhs_spec.spatial if problem.rhs_shape[axis] > 1]
    strides = row_major_strides(problem.rhs_shape)
    if not axes:
        return PIECE  # or any other: there is no next one
    for axis, inner in zip(axes, axes[1:], strict=False):
        if strides[axis] != strides[inner] * problem.rhs_shape[inner]:
            return None
    return strides[axes[-1]]


class Wgmma(TensorCores):
    """Implicit GEMM on Hopper: src_cuda/wgmma/. Gathers of 16-bit operands, of which channels are pieces."""

    PACKS_GROUPS = False
    ALIGNED = True
    BANDWIDTH = 0.86

    # The efficiency is that of the main loop alone: it is L2, which gives narrow tiles less than they take.
    TILES = (
        TileRow(WgmmaTile(256, 128, 4, row_blocks=2, transposed=True), 384, 1, {"gather": 0.737}),
        TileRow(WgmmaTile(128, 256, 4, row_blocks=2), 384, 1, {"gather": 0.827}),
        TileRow(WgmmaTile(256, 160, 3, row_blocks=2), 384, 1, {"gather": 0.723}),
        TileRow(WgmmaTile(192, 256, 3, transposed=True), 384, 1, {"gather": 0.745}),
        TileRow(WgmmaTile(192, 128, 4, col_blocks=2, transposed=True), 384, 1, {"gather": 0.735}),
        TileRow(WgmmaTile(128, 192, 4, row_blocks=2), 384, 1, {"gather": 0.775}),
        TileRow(WgmmaTile(128, 128, 6, col_blocks=2), 384, 1, {"gather": 0.742}),
        TileRow(WgmmaTile(128, 128, 3, resident=2), 320, 2, {"gather": 0.61}),
        TileRow(WgmmaTile(256, 96, 4), 384, 1, {"gather": 0.597}),
        TileRow(WgmmaTile(256, 64, 4), 384, 1, {"gather": 0.425}),
        TileRow(WgmmaTile(256, 64, 2, resident=2), 320, 2, {"gather": 0.392}),
        TileRow(WgmmaTile(128, 64, 4, resident=2), 320, 2, {"gather": 0.389}),
        TileRow(WgmmaTile(256, 64, 5, resident=2, boxed=True), 320, 2, {"gather": 0.655}),
        TileRow(WgmmaTile(256, 96, 4, boxed=True), 384, 1, {"gather": 0.675}),
        TileRow(WgmmaTile(256, 128, 4, boxed=True), 384, 1, {"gather": 0.815}),
        TileRow(WgmmaTile(128, 256, 4, boxed=True), 384, 1, {"gather": 0.831}),
        TileRow(WgmmaTile(64, 64, 5, resident=2, slices=8), 160, 2),
        TileRow(WgmmaTile(128, 256, 4), 384, 1, {"gather": 0.81}),
    )

    def why_never(self, product: Product) -> str | None:
        if (reason := super().why_never(product)) is not None:
            return reason
        if product.kind == "reduce":
            return "it has no weight gradients"
        problem = product.problem
        if problem.rhs_dtype.itemsize != 2 or problem.rhs_dtype.kind == "i":
            return f"operands of {problem.rhs_dtype.name}"
        if product.sum_dtype != np.float32:
            return f"sums in {product.sum_dtype.name}"
        return None

    def why_not_so(self, product: Product, device: Device) -> str | None:
        if not device.wgmma:
            return "wgmma is of compute capability 9.0, and in kernels that are built for it"
        return _why_not_windows(product)

    def splits(self, row: TileRow, product: Product, device: Device) -> Iterable[int]:
        """Where a cluster adds the slices, parts of as many as it may have."""
        slices = row.tile.slices
        return [n for n in range(1, slices + 1) if slices % n == 0] or super().splits(row, product, device)

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if settings.split > 0 and settings.tile.slices % settings.split:
            return f"a split of {settings.split}, which {settings.tile.slices} slices are no multiple of"
        if settings.tile.slices and ceil_div(product.cols, settings.tile.cols) > MOST_COL_TILES:
            return f"more than {MOST_COL_TILES} tiles of columns"
        if 2 * _class_rows(product, settings.tile) > INT32_MAX:
            return "too many positions"
        why = super().why_not(settings, product, device)
        return _why_not_boxes(product.problem) if why is None and settings.tile.boxed else why

    def scratch_bytes(self, settings: Settings, product: Product) -> Dim:
        return 0 if settings.tile.slices else super().scratch_bytes(settings, product)

    def blocks(self, settings: Settings, product: Product) -> int:
        return self.works(settings, product) * settings.tile.cluster

    def works(self, settings: Settings, product: Product) -> int:
        """Of clusters."""
        tile = settings.tile
        rows = ceil_div(_class_rows(product, tile), tile.rows * tile.row_blocks)
        cols = ceil_div(product.cols, tile.cols * tile.col_blocks)
        return _dealt_classes(settings, product) * rows * cols * settings.split

    def least_cost(self, product: Product, device: Device) -> float:
        """As if nothing but multiplications and copies took time."""
        multiprocessors = max(2, device.multiprocessors)  # a cluster's
        seconds = product.seen_multiply_adds / (RATE * device.clock_hz * multiprocessors)
        copies = self.bytes_seconds(product, device)
        slices = product.seen_multiply_adds / (64 * 64 * CHUNK) * SLICE_COPY_SECONDS
        return min(BEGIN_SECONDS + math.cbrt(seconds**3 + copies**3), SLICES_SECONDS + slices)

    def least_cost_of(self, row: TileRow, product: Product, device: Device) -> float:
        """As if multiprocessors had equally many tiles."""
        tile, settings = row.tile, Settings(row.tile, 1)
        works, steps = self.works(settings, product), self.steps(settings, product)
        if tile.slices:
            return SLICES_SECONDS + works * steps * SLICE_COPY_SECONDS
        turns = works / max(1, device.multiprocessors // tile.cluster)
        step = _step_seconds(row, device)
        end = (TILE_SECONDS + tile.rows * tile.cols * RESULT_SECONDS) / tile.resident
        copies = self.bytes_seconds(product, device) + end
        return BEGIN_SECONDS + math.cbrt((turns * (steps * step + end)) ** 3 + copies**3)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """The works of a cluster, one after the other; then the slices' sum."""
        tile, row = settings.tile, self.row_of(settings.tile)
        if tile.slices:
            return self._cost_of_slices(settings, product, device)
        step = _step_seconds(row, device)
        steps = max(step, self._steps_seconds(settings, product, step) / settings.split)
        sums = tile.rows * tile.cols * (1 if settings.split == 1 else 2)  # slices are of twice as many bytes
        end = TILE_SECONDS + sums * RESULT_SECONDS
        turns = ceil_div(self.works(settings, product), max(1, device.multiprocessors // tile.cluster))
        ends = ceil_div(turns, tile.resident)  # those while nothing is multiplied
        reads = 1 if tile.boxed or not _are_apart(product.problem) else READS_APART
        copies = reads * self.bytes_seconds(product, device)
        # Neither hides all of the other.
        seconds = BEGIN_SECONDS + math.cbrt((turns * steps + ends * end) ** 3 + (copies + end / tile.resident) ** 3)
        if settings.split > 1:  # slices are written, and read by one more kernel
            slices = settings.split * product.planned_sums_bytes
            seconds += 2 * slices / device.bandwidth + settings.split * self.SLICE_SECONDS + LAUNCH_SECONDS
        return seconds

    def _steps_seconds(self, settings: Settings, product: Product, step: float) -> float:
        """Of a tile. A plane of few taps is multiplied before the next one's pixels are there."""
        tile, steps = settings.tile, self.steps(settings, product) * step
        if not tile.boxed:
            return steps
        problem = product.problem
        planes, chunks = _taps_of_planes(problem), ceil_div(problem.in_channels, CHUNK)
        pixels = tile.rows // UNIT_ROWS * math.prod(_box(problem))
        boxes = BOXES_SECONDS[tile.resident] + pixels * BOX_PIXEL_SECONDS
        return chunks * sum(max(taps / sum(planes) * steps / chunks, boxes) for taps in planes)

    def _cost_of_slices(self, settings: Settings, product: Product, device: Device) -> float:
        """Thread blocks begin and end with their works."""
        blocks = self.works(settings, product)
        held = int(SLICES_HELD * settings.tile.resident * device.multiprocessors)
        steps = math.ceil(self.steps(settings, product) / settings.split)
        turns = max(1, ceil_div(blocks, max(1, held)))
        step = max(SLICE_STEP_SECONDS, blocks / turns * SLICE_COPY_SECONDS)
        return turns * (SLICES_SECONDS + steps * step) + blocks * SLICE_BLOCK_SECONDS

    def steps(self, settings: Settings, product: Product) -> float:
        """Chunks of all taps that a position of a work's class sees, on average.

        Of a chunk of few channels less is multiplied, but as many pixels are copied, and as much of the filter, which
        boxes of 256 columns wait for.
        """
        tile, problem = settings.tile, product.problem
        last = problem.in_channels % CHUNK
        are_few = 0 < last <= CHUNK // 2 and tile.cols < 256 if tile.boxed else problem.in_channels <= 48
        chunks = ceil_div(problem.in_channels, CHUNK) - are_few / 4
        return math.prod(problem.kernel) / _dealt_classes(settings, product) * chunks

    def shape(self, settings: Settings, product: Product) -> tuple[int, ...]:
        where = im2col(product.problem)
        return (*where.corner, where.rank, where.tap_stride, *where.reach, where.empty_classes)

    def shared_bytes(self, row: TileRow, product: Product) -> int:
        tile = row.tile
        cols = ceil_div(tile.cols, CHUNK) * CHUNK  # that are copied, where they are neighbours in memory
        results = tile.warpgroups * (1 if tile.resident == 2 else 2) * RESULT_BYTES
        if tile.slices:
            results = tile.rows * tile.cols * 4
        if tile.boxed:
            pixels, stages = (MOST_BOX_PIXELS, 1) if tile.resident == 2 else (BOX_PIXELS, BOX_STAGES)
            boxes = tile.rows // UNIT_ROWS * pixels * CHUNK * 2 + stages * 16
            source = boxes + (MOST_BOX_TAPS + 1) * 16
        else:
            source = tile.stages * tile.rows * CHUNK * 2
        filters = tile.stages * (cols * CHUNK * 2 + 16)
        zeros = ZEROS_BYTES if tile.stores_zeros else 0
        works = 0 if tile.slices else tile.stages * WORK_BYTES + WORK_BYTES
        return ceil_div(source + filters + results + zeros + works + 32, 1024) * 1024


def _step_seconds(row: TileRow, device: Device) -> float:
    """Of a tile's multiplications of one chunk."""
    return row.tile.rows * row.tile.cols * CHUNK / (RATE * row.efficiency["gather"] * device.clock_hz)


def _why_not_windows(product: Product) -> str | None:
    problem = product.problem
    if problem.groups > 1:
        return "there are groups"
    if not product.has_pixels_of(PIECE, PIECE):
        return "pixels are no whole pieces of eight channels"
    if len(problem.rhs_shape) - 1 not in (problem.rhs_spec.first, problem.rhs_spec.second):
        return "the filter's channels are not its last axis"
    if 0 in (problem.in_channels, *problem.in_spatial, *problem.kernel):
        return "there is nothing to multiply"
    where = im2col(problem)
    return where if isinstance(where, str) else None


def _why_not_boxes(problem: ConvProblem) -> str | None:
    """Of the pixels of a plane that a unit of 64 positions sees: those a step apart, as windows are."""
    if {*problem.periods} != {1}:
        return "neighbouring results are of several residue classes"
    box, steps = _box(problem), _steps(problem)
    if box == _unit(problem):
        return "a plane has one tap"
    if (pixels := math.prod(box)) > MOST_BOX_PIXELS:
        return f"boxes of {pixels} pixels, of {MOST_BOX_PIXELS} at most"
    if (extent := max(map(dilate, box, steps))) > MOST_BOX_EXTENT:
        return f"boxes of {extent} pixels, with those between them, of {MOST_BOX_EXTENT} at most"
    if (taps := math.prod(problem.kernel)) > MOST_BOX_TAPS:
        return f"{taps} taps, of {MOST_BOX_TAPS} at most"
    return None


def _unit(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of the positions that see a box."""
    return (1, UNIT_ROWS) if in_three(problem.out_spatial)[1] == 1 else (8, 8)


def _are_apart(problem: ConvProblem) -> bool:
    """Whether windows are several pixels apart that have several taps along planes of pixels."""
    return _steps(problem) != (1, 1) and _box(problem) != _unit(problem)


def _box(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of the pixels that they see, of the largest plane."""
    dims = zip(_unit(problem), im2col(problem).reach, _steps(problem), strict=True)
    rows, cols = (unit + far // step for unit, far, step in dims)
    return rows, cols


@lru_cache(maxsize=4096)
def _taps_of_planes(problem: ConvProblem) -> tuple[int, ...]:
    """How many taps see each plane of pixels: a depth's, of rows and columns a step apart."""
    tables = offset_tables(problem)
    first, count = tables.classes[0, :2]
    depths, rows, cols = tables.taps[first : first + count, 2:].T
    row_step, col_step = _steps(problem)
    _, taps = np.unique([depths, rows % row_step, cols % col_step], axis=1, return_counts=True)
    return tuple(taps.tolist())


def _steps(problem: ConvProblem) -> tuple[int, int]:
    """Rows and columns of pixels from a window to the next."""
    _, rows, cols = in_three(problem.steps)
    return rows, cols


def _dealt_classes(settings: Settings, product: Product) -> int:
    """Residue classes of whose tiles clusters' works are: those without taps are not, where TMA stores the results."""
    problem = product.problem
    are_equal = not any(size % min(size, period) for size, period in zip(problem.out_spatial, problem.periods) if size)
    is_stored_by_tma = settings.split == 1 and problem.out_dtype == problem.lhs_dtype and are_equal
    empty = im2col(problem).empty_classes if settings.tile.stores_zeros and is_stored_by_tma else 0
    return product.classes - empty


@lru_cache(maxsize=4096)
def _class_rows(product: Product, tile: WgmmaTile) -> int:
    """Positions of the residue class that has most, which the others are computed with; of boxes, in whole units."""
    p = product.problem
    unit = (1, *_unit(p))[SPATIAL - len(p.kernel) :] if tile.boxed else (1,) * len(p.kernel)
    dims = zip(p.periods, p.out_spatial, unit, strict=True)
    return product.images * math.prod(ceil_div(size, period * u) * u for period, size, u in dims)
