"""The depthwise family: each channel on its own, as products with band matrices on tensor cores, or on CUDA cores."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from jaxconv.families.base import LAUNCH_SECONDS, CudaFamily, Device, Settings, TileRow
from jaxconv.families.depthwise_shape import (
    BOX_PIXEL_BYTES,
    MOST_APART,
    PIECE_BYTES,
    STRIP,
    TAP_COLS,
    DepthwiseTile,
    Stream,
    depths_seen,
    out_depth,
    out_size,
    piece_cols,
    planes_of,
    stream_of,
    window,
)
from jaxconv.offsets import INT32_MAX
from jaxconv.product import Product, ceil_div

MOST_PERIOD = 4  # of columns: a strip then begins at an even pixel
MOST_PIECES = 1024  # of the window
MOST_WAVES, MOST_RESIDENT = 4, 3  # of thread blocks, for whose sake columns are cut
FEW_ROWS = 8
LATENCY_CLOCKS = 780  # from a step to the next, whatever is done there, fitted to measurements on an H200


class Copying(NamedTuple):
    """Costs of how rows are copied, fitted to measurements on an H200.

    bandwidth: part of the memory's that a gather's copies reach, of so many bytes of neighbouring channels.
    of_reduces: the same of reduces, as part of a gather's.
    begin: seconds of a thread block's beginning and end, by the kind of product.
    cut_clocks: of a thread block, from a tile to the next. Lines of a single row are all tiles of a row.
    """

    bandwidth: dict[int, float]
    of_reduces: float
    begin: dict[str, float]
    cut_clocks: int = 0


BY_ALL = Copying({128: 0.7, 64: 0.7, 32: 0.55, 16: 0.4}, 0.82, {"gather": 5e-6, "reduce": 5e-6})
# Steps do not wait for each other, nor reduces for their gradient.
BY_COPIERS = Copying({64: 0.88, 32: 0.65, 16: 0.45}, 1, {"gather": 2.3e-6, "reduce": 3.5e-6}, 600)
BY_TMA = Copying({64: 0.84}, 1, {"gather": 1.2e-6, "reduce": 1.8e-6})


class Depthwise(CudaFamily):
    """Convolution of each channel on its own: src_cuda/depthwise/.

    What a row of the filter takes from a source row is a product with a band matrix: of 16 source pixels, or a few
    times as many, by eight neighbouring outputs. 16 such strips are multiplied at a time, for each row of the filter.
    """

    REWRITES = True
    OF_CHANNELS = True
    ALIGNED = True

    TILES = tuple(
        TileRow(DepthwiseTile(*tile))  # pyright: ignore[reportArgumentType] (fields are of several types)
        for tile in (
            (1, 1, 1, 1, 8), (1, 1, 1, 3, 8), (1, 1, 1, 3, 4), (1, 1, 3, 1, 8), (1, 1, 3, 1, 4),
            (1, 1, 5, 1, 4), (1, 1, 7, 1, 4), (1, 1, 8, 3, 2, 0, 1, True), (1, 1, 5, 3, 2, 0, 1, True),
            (2, 1, 2, 2, 4), (2, 1, 4, 2, 4), (1, 2, 2, 1, 4), (1, 2, 4, 1, 4),
            (1, 1, 1, 0, 0, 4), (1, 1, 1, 0, 0, 32), (1, 1, 3, 0, 0, 3), (1, 1, 5, 0, 0, 5), (1, 1, 7, 0, 0, 7),
            (2, 1, 2, 0, 0, 3), (2, 1, 3, 0, 0, 5), (1, 2, 2, 0, 0, 2), (1, 2, 3, 0, 0, 3),
            (1, 1, 3, 1, 4, 0, 3), (1, 1, 7, 1, 4, 0, 1, True), (1, 1, 1, 3, 8, 0, 1, True),
            (1, 1, 3, 0, 0, 3, 3), (1, 1, 5, 0, 0, 5, 1, True), (1, 1, 7, 0, 0, 7, 1, True),
            (1, 1, 4, 0, 0, 16, 1, True), (1, 1, 1, 0, 0, 32, 1, True),
            (1, 1, 3, 1, 4, 0, 1, False, True), (1, 1, 5, 1, 4, 0, 1, False, True),
            (1, 1, 7, 1, 4, 0, 1, False, True), (2, 1, 2, 2, 4, 0, 1, False, True),
            (1, 2, 2, 1, 4, 0, 1, False, True), (1, 1, 7, 1, 4, 0, 1, False, True, True),
            (1, 1, 7, 1, 4, 0, 1, False, True, True, True),
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
        name = product.problem.lhs_dtype.name
        return [row for row in self.TILES if name in row.tile.dtypes]

    def settings(self, row: TileRow, product: Product, device: Device, asked: Settings) -> list[Settings]:
        tile = row.tile
        no_area = asked.area is not None and _why_not_area(asked.area) is not None
        if no_area or _why_not_window(tile, product) is not None:
            return [asked._replace(tile=tile, split=1)]
        areas = [asked.area] if asked.area else self._areas(tile, product, device)
        splits = self._splits if asked.split is None else lambda *_: [asked.split]
        settings = [asked._replace(tile=tile, area=a, split=s) for a in areas for s in splits(tile, a, product, device)]
        return [s for s in settings if self.why_not(s, product, device) is None] or settings[:1]

    def why_not(self, settings: Settings, product: Product, device: Device) -> str | None:
        tile, split, chunk, units, area = settings
        if chunk is not None or units is not None:
            return "it has neither chunks nor units"
        if tile.has_copiers and not device.wgmma:
            return "warps that copy are in kernels for compute capability 9.0"
        if (reason := _why_not_window(tile, product)) is not None:
            return reason
        if area is None:
            return "no tile of strips fits into shared memory"
        if (reason := _why_not_area(area)) is not None:
            return reason
        stream = stream_of(tile, product, area)
        if stream is None:
            return "its warps do not cover the area"
        if stream.all_pieces > MOST_PIECES:
            return f"{stream.all_pieces} pieces of the window"
        if product.kind == "gather" and split != 1:
            return f"a split of {split}: its gather has none"
        if split < 1:
            return f"a split of {split}"
        if tile.by_tma and (reason := _why_no_boxes(stream)) is not None:
            return reason
        if max(window(product.problem).apart) > 1 and stream.tiles >= MOST_APART:
            return f"{stream.tiles} tiles of an image"
        rows = planes_of(product) * max(out_size(product.problem)[0], (1, *product.problem.in_spatial)[-2])
        depth = out_depth(product.problem)
        volumes = (max(1, stream.images) + 2 * depth - 2) // depth
        if max(product.image_elements * volumes, rows, stream.height) >= INT32_MAX:
            return "rows, or elements of a tile's images, do not fit 32 bits"
        need = stream.shared_bytes
        return None if need <= device.shared_bytes else f"{need} bytes of shared memory, of {device.shared_bytes}"

    def shape(self, settings: Settings, product: Product) -> tuple[int, ...]:
        stream = stream_of(settings.tile, product, settings.area)
        first, apart = window(product.problem).first, window(product.problem).apart
        return (stream.rows, stream.strips * STRIP, stream.channels, stream.images, *first, *stream.pieces, *apart)

    def least_cost(self, product: Product, device: Device) -> float:
        """Memory's, of the most neighbouring channels."""
        on_hopper = device.wgmma and product.problem.lhs_dtype.itemsize == 2
        ways = (BY_ALL, BY_COPIERS, BY_TMA) if on_hopper else (BY_ALL,)
        return min(self._seconds(0, max(way.bandwidth), way, product, device) for way in ways)

    def least_cost_of(self, row: TileRow, product: Product, device: Device) -> float:
        if _why_not_window(row.tile, product) is not None:
            return math.inf
        stream = stream_of(row.tile, product)
        clocks = stream.least_clocks() / device.multiprocessors
        if stream.channel_bytes not in _copying(row.tile).bandwidth:
            return math.inf
        return self._seconds(clocks, stream.channel_bytes, _copying(row.tile), product, device)

    def cost(self, settings: Settings, product: Product, device: Device) -> float:
        """Steps, as long as those of a multiprocessor's blocks or one's latency take, or memory; and the beginning."""
        tile, split, _, _, area = settings
        stream, copying = stream_of(tile, product, area), _copying(tile)
        resident, is_gather = stream.resident(device), product.kind == "gather"
        places = max(1, resident * device.multiprocessors // stream.channel_tiles)
        workers = min(places, stream.most_workers) if is_gather else split
        blocks = stream.channel_tiles * workers * (1 if is_gather else stream.all_pieces)
        at_once = min(resident, ceil_div(blocks, device.multiprocessors))
        step = max(at_once * stream.clocks, stream.clocks + (0 if tile.has_copiers else LATENCY_CLOCKS))
        in_turn = is_gather and tile.has_pieces
        clocks = stream.clocks_of_pieces(workers, step) if in_turn else stream.steps(workers) * step
        clocks += stream.cuts(workers) * copying.cut_clocks
        if tile.has_pieces and stream.images == 1:  # others are left out
            clocks *= depths_seen(product.problem) / stream.pieces[0]
        rounds = ceil_div(blocks, resident * device.multiprocessors)
        seconds = self._seconds(rounds * clocks, stream.channel_bytes, copying, product, device)
        if split > 1:
            seconds += 2 * split * product.planned_sums_bytes / device.bandwidth + LAUNCH_SECONDS
        return seconds

    def _seconds(self, clocks: float, channel_bytes: int, copying: Copying, product: Product, device: Device) -> float:
        """Of a multiprocessor's, or memory's; and the beginning."""
        bandwidth = copying.bandwidth[channel_bytes] * (1 if product.kind == "gather" else copying.of_reduces)
        memory = product.activation_bytes / device.bandwidth / bandwidth
        return max(clocks / device.clock_hz, memory) + copying.begin[product.kind] + LAUNCH_SECONDS

    def _areas(self, tile: DepthwiseTile, product: Product, device: Device) -> list[tuple[int, int] | None]:
        """Of each number of strips the most rows, and fewer, until there are tiles for all thread blocks.

        Of a gather in pieces of the window until few rows are left, as a tile's sums are in shared memory.
        """
        common, areas = stream_of(tile, product), []
        strips, most = common.all_strips, common.most_strips
        rows = common.all_rows * (product.images if common.joins_images else 1)
        least_rows = tile.lags if tile.has_pieces else 2 * tile.lags
        in_turn = tile.has_pieces and product.kind == "gather"
        for parts in (1, 2, 4) if tile.on_cuda_cores else (1, 2):
            wide = ceil_div(strips, ceil_div(strips, most) * parts) * STRIP
            for segments in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64):
                area = ceil_div(rows, segments), wide
                if area in areas or (segments > 1 and area[0] < least_rows):
                    break
                if (stream := stream_of(tile, product, area)) is None:
                    break
                if in_turn and stream.shared_bytes > device.shared_bytes:
                    continue
                areas.append(area)
                tiles, places = stream.most_workers * stream.channel_tiles, MOST_RESIDENT * device.multiprocessors
                if area[0] <= max(FEW_ROWS, 2 * tile.lags) if in_turn else tiles > MOST_WAVES * places:
                    break
        return areas or [None]

    def _splits(self, tile: DepthwiseTile, area: tuple[int, int] | None, product: Product, device: Device) -> list[int]:
        """As many thread blocks as there are places for at once; of pieces of the window, or of each of them."""
        stream = area and stream_of(tile, product, area)
        if product.kind == "gather" or not stream:
            return [1]
        places = stream.resident(device) * device.multiprocessors
        tiles = {stream.channel_tiles, stream.channel_tiles * stream.all_pieces}
        return sorted({max(1, min(places // n, stream.most_workers)) for n in tiles})


def _copying(tile: DepthwiseTile) -> Copying:
    return BY_TMA if tile.by_tma else BY_COPIERS if tile.has_copiers else BY_ALL


@lru_cache(maxsize=4096)
def _why_not_window(tile: DepthwiseTile, product: Product) -> str | None:
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
    if reach.pixels > tile.pixels and not (tile.has_pieces and piece_cols(tile, product) > 0):
        return f"{reach.pixels} source pixels of {STRIP} outputs"
    if product.kind == "reduce" and not tile.reduces:
        return "its warps do not hold the sums of all taps"
    if product.kind == "gather" and not tile.gathers:
        return "it has no gather"
    if product.kind == "reduce" and tile.by_tma and reach.cols > TAP_COLS:
        return f"taps in {reach.cols} columns"
    columns = max(product.problem.in_spatial[-1], product.problem.out_spatial[-1])
    if tile.in_pairs and columns > STRIP:
        return f"rows of {columns} columns"
    return None


def _why_no_boxes(stream: Stream) -> str | None:
    """TMA copies rows of whole images, and fills places of all strips."""
    if stream.channel_bytes != BOX_PIXEL_BYTES:
        return f"boxes of {stream.channel_bytes} bytes of each pixel"
    if stream.images < 2 or stream.images * stream.strips != stream.most_strips:
        return f"boxes of {stream.images} images of {stream.strips} strips, of {stream.most_strips}"
    if stream.tile.in_pairs and stream.strips > 1:
        return f"pairs of rows of {stream.strips} strips"
    if stream.tiles != 1 or max(stream.window.apart) > 1:
        return "boxes of parts of rows"
    if (stream.window.steps[2], stream.window.periods[2]) != (1, 1):
        return "boxes of columns that are apart"
    return None


def _why_not_area(area: tuple[int, int]) -> str | None:
    rows, cols = area
    return f"an area of {area}" if rows < 1 or cols < STRIP or cols % STRIP else None
