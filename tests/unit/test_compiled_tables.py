"""Tables of the planner are those of the C++ sources."""

import math
import re
from pathlib import Path

import pytest

from cases.plans import CUDA
from cases.problems import PIECES
from jaxconv.families import FAMILIES, TYPICAL_DEVICE, DepthwiseTile, Tile, WgmmaTile
from jaxconv.families.wgmma import MOST_BOX_EXTENT, MOST_BOX_PIXELS, MOST_BOX_TAPS
from jaxconv.product import Product

SOURCES = Path(__file__).parents[2]


def compiled_rows(table, pattern=r"{([^{}]*)}"):
    """The fields of each row of a table of a family's config."""
    configs = "".join(path.read_text() for path in (SOURCES / "src_cuda").glob("*/config.h"))
    (rows,) = re.findall(rf"\b{table}\[\] = {{\s*(.*?)\s*}};", configs, re.DOTALL)
    return [[field.strip() for field in row.split(",")] for row in re.findall(pattern, rows)]


@pytest.mark.parametrize("family, table", [("simt", "kSimtTiles"), ("im2col", "kIm2colTiles")])
def test_tiles_are_those_that_are_compiled(family, table):
    compiled = []
    for *numbers, only_f32 in compiled_rows(table):
        *tile, thread_rows, thread_cols = map(int, numbers)
        threads = tile[0] * tile[1] // (thread_rows * thread_cols)
        compiled.append((Tile(*tile), threads, only_f32 == "true"))
    assert compiled == [(row.tile, row.threads, row.only_f32) for row in CUDA[family].TILES]


def test_tensor_core_tiles_are_those_that_are_compiled():
    compiled = []
    for *numbers, wgmma, passes in compiled_rows("kMmaTiles"):
        *tile, warp_rows, warp_cols, blocks = map(int, numbers)
        wgmma = wgmma == "true"
        threads = (128 if wgmma else 32) * (tile[0] // warp_rows) * (tile[1] // warp_cols)
        compiled.append(((*tile, wgmma, int(passes)), threads, blocks))
    assert compiled == [(tuple(row.tile), row.threads, row.resident) for row in CUDA["mma"].TILES]


def test_direct_tiles_are_those_that_are_compiled():
    """There in blocks: of 8 columns, of 16 positions, of 16 rows of the filter."""
    tiles = [row.tile for row in CUDA["direct"].TILES]
    rest = r"{([^{}]*), {.*?}(?:, \d+)?(?:, true)?}"
    assert [tuple(map(int, row)) for row in compiled_rows("kDirectTiles", rest)] == [
        (t.columns / 8, t.sets, t.positions / 16, t.warps, t.pieces, t.filter_rows / 16) for t in tiles
    ]
    walks = compiled_rows("kDirectTiles", r"{[^{}]*, {(.*?)}(?:, \d+)?(?:, true)?}")
    assert [[int(field) for field in row if field] for row in walks] == [
        [t.walk.rows, t.walk.step, t.walk.depth / 16] if t.walk else [] for t in tiles
    ]
    runs = compiled_rows("kDirectTiles", r"{[^{}]*, {.*?}((?:, \d+)?)(?:, true)?}")
    assert [int(row[-1] or 0) for row in runs] == [t.run for t in tiles]
    taps_across = compiled_rows("kDirectTiles", r"{[^{}]*, {.*?}(?:, \d+)?((?:, true)?)}")
    assert [row[-1] == "true" for row in taps_across] == [t.taps_across for t in tiles]


def number_of(field):
    return int({"true": 1, "false": 0}.get(field, field))


def test_depthwise_tiles_are_those_that_are_compiled():
    compiled = [DepthwiseTile(*map(number_of, row)) for row in compiled_rows("kDepthwiseTiles")]
    assert compiled == [row.tile for row in CUDA["depthwise"].TILES]


def test_wgmma_tiles_are_those_that_are_compiled():
    """Warpgroups have equally many rows, or columns, by 64; the sums are in registers of their threads."""
    tiles = [row.tile for row in CUDA["wgmma"].TILES]
    assert [WgmmaTile(*map(number_of, row)) for row in compiled_rows("kWgmmaTiles")] == tiles
    for row in CUDA["wgmma"].TILES:
        rows, cols, stages, row_blocks, col_blocks, resident, boxed, slices, transposed = row.tile
        warpgroups = 1 if rows == 64 else 2
        assert (cols if transposed else rows) % (64 * warpgroups) == 0 and rows <= 256 and not (boxed and transposed)
        assert 64 <= cols <= 256 and cols % 32 == 0 and stages >= 2
        assert slices == 0 or (slices == 8 and row_blocks * col_blocks == 1 and rows == 64 * warpgroups)
        others = 128 if resident == 1 else 32 if slices else 64  # that copy, and tell what is next
        assert (row.threads, row.resident) == (warpgroups * 128 + others, resident) and min(row_blocks, col_blocks) == 1
        registers = {(2, 1): 232, (2, 2): 96, (1, 2): 204}[warpgroups, resident]
        assert rows // warpgroups * cols // 128 < registers - 20
        # Stages with two barriers each, columns copied by 64; buffers of 16 rows for each warp and one of zeros, if
        # there is a warp that stores them, an order, and works of eight numbers with two barriers each; or sums of all
        # slices, of a part of the tile, and a barrier. Boxes have stages of their own, one for each block of a
        # multiprocessor or three, and a table of taps.
        buffers = warpgroups * 4 * (3 - resident) + (resident == 1 and not boxed and not slices)
        results = rows * cols * 4 + 8 if slices else buffers * 16 * 128 + 8 * 4 + stages * 48
        pixels, box_stages = (104, 1) if resident == 2 else (248, 3)
        source = rows // 64 * pixels * 128 + box_stages * 16 + 128 * 16 if boxed else stages * rows * 128
        filters = stages * (math.ceil(cols / 64) * 64 * 128 + 16)
        shared = source + filters + results
        shared = math.ceil(shared / 1024) * 1024
        assert CUDA["wgmma"].shared_bytes(row, Product("gather", PIECES)) == shared <= TYPICAL_DEVICE.shared_bytes
        assert resident * (shared + 1024) <= 228 * 1024  # a multiprocessor's, of which each block takes one more KB


@pytest.mark.parametrize("platform, header, families", [
    ("cpu", "src_cpu/ffi_handlers.cc", r"enum Family : int32_t { (.*?) };"),
    ("cuda", "src_cuda/families.h", r"kFamilies\[\] = {(.*?)};"),
])  # fmt: skip
def test_families_are_numbered_as_in_the_sources(platform, header, families):
    (names,) = re.findall(families, (SOURCES / header).read_text())
    assert [name.strip().removeprefix("&").removeprefix("k").lower() for name in names.split(",")] == [
        *FAMILIES[platform]
    ]


def test_limits_of_boxes_are_those_that_are_compiled():
    params, tma = ((SOURCES / "src_cuda" / name).read_text() for name in ("wgmma/params.cuh", "common/tma.h"))
    limits = *re.search(r"kMostBoxPixels = (\d+), kMostBoxTaps = (\d+);", params).groups(), *re.search(
        r"kMostBoxExtent = (\d+);", tma).groups()  # fmt: skip
    assert tuple(map(int, limits)) == (MOST_BOX_PIXELS, MOST_BOX_TAPS, MOST_BOX_EXTENT)
