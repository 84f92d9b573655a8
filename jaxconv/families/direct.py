"""The direct family: a box of source pixels in shared memory serves all taps, on tensor cores."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from jaxconv.families.base import LAUNCH_SECONDS, Device, Settings, TensorCores, TileRow
from jaxconv.families.direct_shape import (
    MULTIPLICATION,
    MULTIPLICATION_CLOCKS,
    PIECE,
    REDUCE_WARPS,
    RUN,
    DirectTile,
    Shape,
    Walk,
    block_groups,
    out_unit,
    whole,
)
from jaxconv.offsets import INT32_MAX
from jaxconv.problem import ConvProblem
from jaxconv.product import Product, ceil_div

MOST_COL_BLOCKS = 8  # of a gradient's pixel in shared memory
MOST_EXTENT = 256  # of a box of TMA
# Costs, fitted to measurements on an H200.
BEGIN_SECONDS = 4e-6
FILTER_BYTES_A_SECOND = 5e8  # of a warp


@lru_cache(maxsize=4096)
def shape_of(product: Product, tile: DirectTile, device: Device) -> Shape | Any:
    """Without an area, or why there is none with any."""
    if (reason := _why_not_channels(product, tile)) is not None:
        return reason
    shape = Shape(product, tile, None)
    reason = _why_not_warps(shape, device)
    return shape if reason is None else reason


def _why_not_channels(product: Product, tile: DirectTile) -> str | None:
    problem = product.problem
    if problem.lhs_batch_grouped or problem.out_batch_grouped:
        return "groups of images"
    if not product.has_pixels_of(1 if tile.run else PIECE, out_unit(product, tile)):
        return "channels are not last, in pieces of eight"
    if tile.run and (reason := _why_not_runs(problem)) is not None:
        return reason
    if problem.is_empty or not math.prod(problem.kernel):
        return "nothing is to be computed"
    if product.groups > 1 and block_groups(product, tile) == 0:
        return f"groups of {max(problem.in_channels, problem.out_channels)} channels"
    return None


def _why_not_runs(problem: ConvProblem) -> str | None:
    """Why a row's (tap, channel)s are not read as they lie, or need not be."""
    lhs, ins, rank = problem.lhs_spec, problem.in_channels, len(problem.lhs_shape)
    if problem.groups > 1 or ins % PIECE == 0 or lhs.spatial[-1:] != (rank - 2,):
        return "no rows of few channels"
    if max(*problem.lhs_dilation, problem.rhs_dilation[-1]) > 1:
        return "taps that are not neighbours"
    return "rows that are no whole pieces" if problem.in_spatial[-1] * ins % PIECE else None


def _why_not_warps(shape: Shape, device: Device) -> str | None:
    """What does not depend on the area."""
    if (reason := _why_members_meet(shape)) is not None:
        return reason
    if not shape.is_gather:
        too_many = shape.items > REDUCE_WARPS or shape.col_blocks > MOST_COL_BLOCKS
        return "its warps do not hold the sums of all taps" if too_many else None
    if shape.walking and (reason := _why_not_walk(shape)) is not None:
        return reason
    if shape.tile.warps % shape.warps_across:
        return "its warps do not share out the channels"
    if shape.taps_across and (reason := _why_not_taps_across(shape)) is not None:
        return reason
    return _why_not_bytes(shape.filter_bytes, device)


def _why_members_meet(shape: Shape) -> str | None:
    """A set of output channels reads whole pieces of source channels, which may be of several groups.

    So a member of a vmap must have whole sets, of pieces of its own. In weight gradients what is between two groups is
    thrown away.
    """
    problem, columns = shape.product.problem, shape.tile.columns
    groups = problem.member.groups
    if not shape.is_gather or groups == problem.groups:
        return None
    has_sets = groups * problem.out_channels % columns == 0
    has_pieces = groups * problem.in_channels % (shape.entry_pieces * PIECE) == 0
    blocks_have_sets = shape.channel_blocks == 1 or (
        shape.block_groups * problem.out_channels % columns == 0 and shape.src_pieces % shape.entry_pieces == 0
    )
    if has_sets and has_pieces and blocks_have_sets:
        return None
    return f"sets of {columns} channels would be of several members of a vmap, which have {groups} groups each"


def _why_not_walk(shape: Shape) -> str | None:
    problem = shape.product.problem
    if problem.out_dtype not in (problem.lhs_dtype, np.float32):
        return f"results of {problem.out_dtype.name}"
    walk, rows, step = shape.walking, shape.window.rows, shape.window.steps[1]
    if rows is None or rows.count != walk.rows or rows.least < walk.least_rows:
        return f"taps in other than {walk.rows} rows"
    if step != walk.step or ((step > 1 or walk.streams) and rows.dilation > 1):
        return f"rows that move by {step}, {rows.dilation} apart"
    pieces = shape.entry_pieces if shape.run else shape.row_steps * 2
    too_many = shape.chunks > 1 or pieces > (shape.tile.run or walk.depth // PIECE)
    return "its warps do not hold the filter" if too_many else None


def _why_not_taps_across(shape: Shape) -> str | None:
    problem = shape.product.problem
    if problem.groups > 1:
        return "there are groups"
    cols = max(1, shape.window.taps) * problem.out_channels
    return f"{cols} columns of all taps" if cols > shape.tile.sets * shape.tile.columns else None


def _why_not_bytes(need: int, device: Device) -> str | None:
    fits = need <= device.shared_bytes
    return None if fits else f"{need} bytes of shared memory, the device has {device.shared_bytes}"


def _why_not_area(area: tuple[int, int]) -> str | None:
    rows, cols = area
    return f"an area of {area}" if rows < 1 or cols < 1 or cols % RUN else None


def _extents(shape: Shape, most: int, widest: int) -> list[tuple[int, int]]:
    """Columns of areas that are worth a look, with rows: the most that warps hold; of walks several."""
    height = shape.window.counts[1]
    wides = {*(w for w in (8, 16, 32, 64, 128) if w < widest), widest}
    if shape.run:
        wides = {whole(wide, 2 * RUN) for wide in wides}
    if shape.taps_across:
        (deep, high, reach), (_, down, right) = shape.window.reach, shape.window.steps
        rows = [((most // (deep * ((wide - 1) * right + reach)) - high) // down + 1, wide) for wide in sorted(wides)]
        return [(wide, max(1, min(high, height))) for high, wide in rows]
    if not shape.walking:
        return [(wide, max(1, min(most // wide, height))) for wide in wides]
    wides = {wide for wide in wides if wide * shape.dilation <= most}
    return [(wide, ceil_div(height, parts)) for wide in wides for parts in (1, 2, 4, 7)]


class Direct(TensorCores):
    """Convolution from a box of source pixels in shared memory: src_cuda/direct/."""

    PACKS_GROUPS = False
    STORES_PARTS = True
    ALIGNED = True
    BANDWIDTH = 0.8

    TILES = tuple(
        TileRow(DirectTile(*tile))  # pyright: ignore[reportArgumentType] (fields are of several types)
        for tile in (
            (8, 2, 64, 8, 4, 80), (8, 2, 64, 8, 4, 208), (16, 1, 64, 8, 4, 144), (32, 1, 64, 4, 4, 80),
            (48, 1, 32, 4, 8, 64), (64, 1, 32, 8, 8, 64), (8, 1, 64, 8, 4, 144),
            (8, 2, 16, 16, 8, 80, Walk(3, 1, 32)), (16, 1, 16, 8, 8, 144, Walk(3, 1, 48)),
            (16, 1, 16, 4, 4, 80, Walk(3, 1, 96)), (16, 1, 16, 12, 8, 64, Walk(3, 1, 144)),
            (16, 1, 16, 12, 8, 144, Walk(7, 2, 32)), (8, 1, 16, 7, 8, 144, Walk(4, 1, 256)),
            (64, 1, 32, 8, 8, 32),
            (16, 1, 16, 12, 8, 144, Walk(7, 2, 32), 3), (64, 1, 32, 8, 8, 48, None, 1), (32, 1, 64, 4, 4, 80, None, 1),
            (8, 4, 48, 8, 8, 144, None, 0, True), (8, 5, 48, 8, 8, 144, None, 0, True),
        )
    )  # fmt: skip

    def why_never(self, product: Product) -> str | None:
        if (reason := super().why_never(product)) is not None:
            return reason
        name = product.operand_dtypes[0].name
        return None if name in ("bfloat16", "float16") else f"it has no kernels of {name}"

    def settings(self, row: TileRow, product: Product, device: Device, asked: Settings) -> list[Settings]:
        is_whole = asked.split is None and product.kind == "gather"
        asked = asked._replace(tile=row.tile, split=1 if is_whole else asked.split)
        shape = shape_of(product, row.tile, device)
        if isinstance(shape, str):
            return [asked]
        area = asked.area or self._area(shape, device)
        if asked.split is not None or _why_not_area(area):
            return [asked._replace(area=area)]
        shape = shape.at(area)
        places = shape.resident(device) * device.multiprocessors
        blocks = shape.channel_blocks * shape.window.classes * shape.chunks
        return [asked._replace(split=max(1, min(places // blocks, self.MAX_SPLIT, shape.areas)), area=area)]

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        if settings.chunk is not None or settings.units is not None:
            return "it has neither chunks nor units"
        shape = shape_of(product, settings.tile, device)
        if isinstance(shape, str):
            return shape
        if (reason := _why_not_area(settings.area)) is not None:
            return reason
        shape = shape.at(settings.area)
        if settings.split != 1 if shape.is_gather else settings.split < 1:
            return f"a split of {settings.split}" + (": its gather has none" if shape.is_gather else "")
        if shape.rows // shape.walk * settings.area[1] > shape.positions:
            return "its warps do not cover the area"
        if shape.taps_across and math.prod(shape.box) > shape.box_held:
            return "its warps do not hold the box"
        if shape.extent > MOST_EXTENT:
            return "the window's reach is too large"
        if shape.run and settings.area[1] % (2 * RUN):
            return "an area whose rows are not whole multiplications"
        if not shape.is_gather and max(product.problem.lhs_dilation, default=1) > 1:
            return "an input that is dilated"
        sums = 0 if shape.is_gather else product.rows * product.cols * product.groups
        if max(product.positions, sums, product.image_elements) > INT32_MAX:
            return "positions, a gradient's sums, or the elements of an image do not fit 32 bits"
        return _why_not_bytes(shape.shared_bytes, device)

    def shape(self, settings: Settings, product: Product) -> tuple[int, ...]:
        shape = Shape(product, settings.tile, settings.area)
        window = shape.window
        return (shape.rows, settings.area[1], *shape.box, window.taps, shape.walk, shape.run, *window.corner)

    def least_cost(self, product: Product, device: Device) -> float:
        """As if tensor cores were never idle."""
        clocks = product.seen_multiply_adds / MULTIPLICATION * MULTIPLICATION_CLOCKS
        return self._seconds(clocks / device.multiprocessors, product, device)

    def least_cost_of(self, row: TileRow, product: Product, device: Device) -> float:
        shape = shape_of(product, row.tile, device)
        if isinstance(shape, str):
            return math.inf
        return self._seconds(shape.least_clocks() / device.multiprocessors, product, device)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Shared memory's bandwidth, or the tensor cores' rate, and part of the other; or memory. And the beginning."""
        shape = shape_of(product, settings.tile, device).at(settings.area)
        seconds = self._seconds(shape.turns(device) * shape.area_clocks(), product, device)
        seconds += shape.filter_bytes / settings.tile.warps / FILTER_BYTES_A_SECOND
        if settings.split > 1:
            seconds += 2 * settings.split * product.planned_sums_bytes / device.bandwidth + LAUNCH_SECONDS
        return seconds

    def _seconds(self, clocks: float, product: Product, device: Device) -> float:
        """Of a multiprocessor's, or memory's; and the beginning."""
        return max(clocks / device.clock_hz, self.bytes_seconds(product, device)) + BEGIN_SECONDS + LAUNCH_SECONDS

    def _area(self, shape: Shape, device: Device) -> tuple[int, int]:
        """The one whose boxes and multiplications are least, if two thread blocks' shared memory holds it."""
        most = shape.box_held if shape.taps_across else shape.most_positions if shape.is_gather else 256
        (*_, reach), (*_, step), (_, height, width) = shape.window.reach, shape.window.steps, shape.window.counts
        widest = min(most, ceil_div(width, RUN) * RUN, max(RUN, ((MOST_EXTENT - reach) // step + 1) // RUN * RUN))
        best, least = (1, 2 * RUN if shape.run else RUN), math.inf
        for wide, rows in _extents(shape, most, widest):
            candidate = shape.at((ceil_div(height, ceil_div(height, rows)), wide))
            if candidate.extent > MOST_EXTENT:
                continue
            if shape.taps_across and math.prod(candidate.box) > shape.box_held:
                continue
            if shape.streams:  # areas are large
                cost = candidate.turns(device) * candidate.area_clocks()
            elif shape.walking or shape.taps_across:
                cost = candidate.areas * candidate.area_clocks()
            else:
                cost = candidate.areas * (candidate.positions * shape.window.taps + 6 * math.prod(candidate.box))
            if cost >= least:
                continue
            resident = candidate.resident(device)
            cost *= 1 if resident > 1 else 1.3 if resident == 1 else 100
            if cost < least:
                best, least = candidate.area, cost
        return best
