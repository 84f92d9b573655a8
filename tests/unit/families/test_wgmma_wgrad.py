"""Plans of wgmma's weight gradients: what is supported, the slices of split-K, and what these cost."""

import math

import pytest
from jax import export

from cases.for_wgmma import check_multiplications, check_shared_memory
from cases.plans import CUDA, as_it_is, device, shared_bytes, stored_slices
from cases.problems import VECTORS, halves, layer, of_layouts
from cases.tiles import constraint, is_for_tf32, transform_of
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint

TILES = [tile for tile in CUDA["wgmma"].tiles if tile.has_wgrad]
OF_HALO_TILES = [tile for tile in TILES if tile.halo]
OF_HALVES = [tile for tile in CUDA["wgmma"].tiles if not (tile.bf16x6 or is_for_tf32(tile))]
(OF_TF32,) = (tile for tile in CUDA["wgmma"].tiles if is_for_tf32(tile))
every_tile = pytest.mark.parametrize("tile", TILES, ids=str)


def choice_of(problem, tile=None, split=None, **of_device):
    return choose("cuda", "wgrad", problem, as_it_is("wgmma", tile and tile.name, split=split), device(**of_device))


def cost(problem, tile=None, split=None, **of_device):
    choice = choice_of(problem, tile, split, **of_device)
    assert choice.plan is not None
    return choice.cost


# What is supported.


@pytest.mark.parametrize("tile", OF_HALVES, ids=str)
def test_passes_of_a_tile(tile):
    """Convs, weight gradients or both."""
    for kind, is_supported, alone in (("wgrad", tile.has_wgrad, "convs"), ("conv", tile.has_conv, "weight gradients")):
        choice = choose("cuda", kind, VECTORS, as_it_is("wgmma", tile.name))
        assert (choice.plan is not None) == is_supported
        assert is_supported or f"a tile that is for {alone} alone" in choice.unsupported_reason()
    assert tile.has_wgrad or tile.has_conv


# Also the rows of a window's plane and the taps of a row; zeros where one residue class does not have them all.
SEEN = {
    "line": (halves((2, 50, 40), (3, 40, 72), rhs_dilation=5), (1, 3)),
    "strided": (halves((2, 9, 8, 16), (3, 2, 16, 24), window_strides=(2, 3)), (3, 2)),
    "cropped": (halves((2, 9, 15, 16), (3, 2, 16, 24), padding=((-2, 4), (1, -3))), (3, 2)),
    "of_classes": (halves((2, 6, 7, 16), (4, 4, 16, 24), lhs_dilation=2, padding=2), (0, 0)),
    "of_classes_by_two": (halves((2, 13, 12, 24), (3, 4, 24, 16), window_strides=(4, 2), lhs_dilation=(2, 4),
                                 padding=((2, 1), (3, 2))), (0, 0)),
    "volume": (halves((1, 4, 6, 9, 8), (2, 3, 4, 8, 16), window_strides=(1, 2, 3)), (3, 4)),
    "matrix": (halves((2, 7, 9, 8), (1, 1, 8, 8)), (1, 1)),
    "images_between_pixels": (of_layouts((9, 8, 3, 40), (3, 2, 40, 72), ("HWNC", "HWIO", "HWNC")), (3, 2)),
    "filters_of_input_channels": (of_layouts((2, 9, 8, 40), (40, 3, 2, 72), ("NHWC", "IHWO", "NHWC")), (3, 2)),
}  # fmt: skip


@pytest.mark.parametrize("problem, taps", SEEN.values(), ids=SEEN)
def test_tma_reads_the_pixels_of_the_conv(problem, taps):
    """The windows are the same, whatever is summed."""
    conv, wgrad = (choose("cuda", kind, problem, as_it_is("wgmma")).plan.settings for kind in ("conv", "wgrad"))
    windows = set(wgrad) - {"split", "taps_h", "taps_w", "gradient_sums"}
    assert len(windows) == 14
    assert {name: conv[name] for name in windows} == {name: wgrad[name] for name in windows}
    assert (wgrad["taps_h"], wgrad["taps_w"]) == taps


@pytest.mark.parametrize("image, window, more, why", [
    ((56, 56), (3, 3), {}, None), ((9, 3), (2, 4), {}, None), ((9, 9), (1, 6), {}, None), ((200,), (39,), {}, None),
    ((5, 9, 9), (7, 3, 3), {}, None), ((9, 9), (2, 2), dict(rhs_dilation=(2, 2)), None),
    ((9, 9), (5, 5), {}, "144 pixels, of 104"), ((200,), (42,), {}, "105 pixels, of 104"),
    ((200,), (40,), {}, "too large"),  # by two taps that the last three do not have
    ((9, 9), (1, 1), {}, "has one tap"), ((9, 9), (3, 1), {}, "not rows of a window"),
    ((9, 9), (3, 3), dict(window_strides=(1, 2)), "pixels apart"),
    ((9, 9), (4, 4), dict(lhs_dilation=2, padding=2), "residue classes"),
])  # fmt: skip
def test_windows_that_halo_tiles_are_large_enough_for(image, window, more, why):
    """Of three neighbouring taps of a row at a time."""
    problem = halves((2, *image, 16), (*window, 16, 8), **more)
    for tile in OF_HALO_TILES:
        choice = choice_of(problem, tile)
        assert (choice.plan is None) == (why is not None)
        assert why is None or why in choice.unsupported_reason()


def choice_of_tf32(problem, split=None, **of_device):
    """Of halo tiles of float32, whose gradients have positions last."""
    asked = constraint("wgmma", OF_TF32, transform_of("wgmma", OF_TF32, "float32", "wgrad"), split=split)
    return choose("cuda", "wgrad", problem, asked, device(**of_device))


@pytest.mark.parametrize("image, window, more, why", [
    ((56, 56), (3, 3), {}, None), ((9, 4), (2, 4), {}, None), ((13, 12), (1, 6), {}, None), ((200,), (39,), {}, None),
    ((5, 9, 20), (7, 3, 3), {}, None), ((9, 12), (2, 2), dict(rhs_dilation=(2, 2)), None),
    ((5, 1, 8), (3, 1, 3), {}, None), ((9, 14), (3, 3), dict(padding="VALID"), None),
    ((9, 14), (3, 3), {}, "lines of 14 positions, which are no multiple of 4"),
    ((204,), (3,), {}, "lines of 204 positions, which are no multiple of 8"),
    ((6, 1, 4), (3, 1, 3), {}, "lines of 4 positions, which are no multiple of 8"),
    ((8, 8), (5, 5), {}, "144 pixels, of 104"), ((200,), (40,), {}, "too large"), ((8, 8), (1, 1), {}, "has one tap"),
    ((8, 8), (3, 1), {}, "not rows of a window"), ((8, 8), (3, 3), dict(window_strides=(1, 2)), "pixels apart"),
])  # fmt: skip
def test_lines_that_halo_tiles_of_float32_take(image, window, more, why):
    """TMA copies four or eight positions of a line at least, from multiples of 16 bytes."""
    choice = choice_of_tf32(layer((4, *image, 16), (*window, 16, 8), "float32", **more))
    assert (choice.plan is None) == (why is not None)
    assert why is None or why in choice.unsupported_reason()


def test_halo_tiles_of_float32_are_for_its_weight_gradients_alone():
    x, w = (2, 8, 8, 16), (3, 3, 16, 8)
    asked = constraint("wgmma", OF_TF32, transform_of("wgmma", OF_TF32, "float32", "wgrad"))
    plan = lambda kind, dtype, asked, **more: choose("cuda", kind, layer(x, w, dtype, **more), asked).plan
    assert plan("wgrad", "float32", asked) is not None
    assert plan("wgrad", "float32", asked, precision="highest") is None
    for kind, dtype in (("conv", "float32"), ("conv", "bfloat16"), ("wgrad", "bfloat16")):
        assert plan(kind, dtype, constraint("wgmma", OF_TF32)) is None


@pytest.mark.parametrize("results, dilation, why", [
    ((16,), (2,), None), ((15,), (2,), "not equally large"), ((24,), (3,), None), ((25,), (3,), "not equally large"),
    ((24,), (8,), None), ((27,), (9,), "9 residue classes"), ((2,), (4,), None), ((2,), (9,), "9 pixels apart"),
    ((12, 16), (2, 4), None), ((12, 15), (2, 4), "not equally large"), ((11, 16), (2, 4), "not equally large"),
    ((12, 15), (3, 3), "9 residue classes"), ((6, 8, 10), (2, 2, 2), None), ((6, 8, 9), (1, 2, 3), None),
    ((6, 8, 9), (2, 2, 2), "not equally large"),
])  # fmt: skip
def test_residue_classes_are_equally_large(results, dilation, why):
    """TMA reads the gradients of one class as it reads those of another. Few results are of as many classes."""
    padding = tuple((1, result - 2 * d - 1) for result, d in zip(results, dilation, strict=True))
    rank = len(results)
    problem = halves((2, *rank * [3], 16), (*rank * [2], 16, 24), lhs_dilation=dilation, padding=padding)
    assert problem.out_spatial == results
    choice = choice_of(problem)
    assert (choice.plan is None) == (why is not None)
    assert why is None or why in choice.unsupported_reason()


@pytest.mark.parametrize("taps", [1, 3])
def test_positions_are_of_30_bits(taps):
    """With those behind the last one that its step has."""
    for images, fits in ((2**15 - 1, True), (2**15, False)):
        choice = choice_of(halves((images, 2**15, 8), (taps, 8, 8)))
        assert (choice.plan is not None) == fits
        assert fits or "too many positions" in choice.unsupported_reason()


@pytest.mark.parametrize("outs, split, why", [
    (128, 2**15, None),
    (128, 2**15 + 1, "a split into more than 32768"),
    (2**12, 2**15, None),
    (2**13, 2**15, "thread blocks"),
])  # fmt: skip
def test_splits_of_large_filters(outs, split, why):
    """Of each slice, a thread block for each tile of the filter: four blocks of 64 channels by 64 columns."""
    tile = next(tile for tile in TILES if (tile.rows, tile.cols, tile.ctas_per_sm) == (256, 64, 1))
    choice = choice_of(halves((1, 8, 2**14), (8, 2**14, outs)), tile, split)
    assert (choice.plan is not None) == (why is None)
    assert why is None or why in choice.unsupported_reason()


def test_weight_gradients_are_of_devices_that_have_wgmma():
    choice = choice_of(VECTORS, wgmma=False)
    assert choice.plan is None and "9.0" in choice.unsupported_reason()
    assert choose("cuda", "wgrad", VECTORS, device=device(wgmma=False)).plan is not None


# Slices.


@pytest.mark.parametrize("split", [1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 40])
@every_tile
def test_clusters_add_slices(tile, split):
    """The workspace has those that they store, for any batch.

    A cluster has 8 blocks at most. They share operands or add slices.
    """
    (batch,) = export.symbolic_shape("b")
    symbolic, known = (halves((b, 14, 14, 256), (3, 3, 256, 128)) for b in (batch, 32))
    plans = [choice_of(problem, tile, split).plan for problem in (symbolic, known)]
    assert plans[0] == plans[1] and str(plans[0]) == f"wgmma {tile}, split {split}"
    assert plans[0].workspace_bytes(symbolic) == plans[1].workspace_bytes(known)
    stored = stored_slices("wgrad", known, as_it_is("wgmma", tile.name, split=split))
    assert max(stored, 1) == split // math.gcd(split, 8 // (tile.row_blocks * tile.col_blocks))


def test_a_cluster_has_eight_thread_blocks():
    """Some share operands, the others have slices."""
    of_24 = lambda tile: stored_slices("wgrad", VECTORS, as_it_is("wgmma", tile.name, split=24))
    added = {tile.name: 24 // of_24(tile) for tile in TILES}
    assert added["128x256x64"] == added["384x128x64"] == added["256x64x64"] == added["256x96x64"] == 8
    assert added["256x160x64 by 2x1"] == added["128x128x64 by 1x2"] == 4


# And their steps at most, of 64 positions of a residue class or 8 x 8 of an image.
LARGE = {
    "many_positions": (halves((64, 56, 56, 64), (3, 3, 64, 64)), 3136),
    "few_positions": (halves((2, 14, 14, 64), (3, 3, 64, 64)), 8),
    "points": (halves((128, 56, 56, 64), (1, 1, 64, 256)), 6272),
    "many_channels": (halves((32, 14, 14, 1024), (3, 3, 1024, 1024)), 128),
    "of_classes": (halves((8, 64, 64, 128), (4, 4, 128, 64), lhs_dilation=2, padding=2), 512),
}


@pytest.mark.parametrize("multiprocessors", [1, 3, 16, 132, 1000])
@pytest.mark.parametrize("name", LARGE)
def test_slices_keep_several_steps(name, multiprocessors):
    problem, steps = LARGE[name]
    plans = {tile: choice_of(problem, tile, multiprocessors=multiprocessors).plan for tile in TILES}
    assert all(plan is not None or tile.halo for tile, plan in plans.items())
    splits = [plan.settings["split"] for plan in plans.values() if plan is not None]
    assert all(1 <= split <= steps // 4 for split in splits)
    if name == "many_positions" and multiprocessors >= 132:
        assert min(splits) > 1


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 16, 131])
@every_tile
def test_clusters_of_any_device(tile, multiprocessors):
    """Also one that holds no whole cluster at a time is planned for."""
    for split in (None, 1, 8):
        fewer, more = (cost(VECTORS, tile, split, multiprocessors=n) for n in (multiprocessors, 132))
        assert fewer >= more > 0


# Costs, without what memory takes.


@every_tile
def test_one_slice_takes_as_long_as_its_positions(tile):
    """A filter of one tile or two is multiplied by as many clusters, unless K is split."""
    at = lambda images, split: cost(halves((images, 56, 56, 64), (1, 3, 64, 64)), tile, split, bandwidth=1e15)
    assert at(128, 1) / at(64, 1) == pytest.approx(2, rel=0.05)
    assert at(128, None) < at(128, 1) / 10


def test_halo_tiles_of_float32_take_as_long_as_their_units():
    """Of 8 x 8 positions, of whole images."""
    at = lambda images, side, split: (
        choice_of_tf32(layer((images, side, side, 64), (3, 3, 64, 64), "float32"), split, bandwidth=1e15).cost
    )
    assert at(128, 56, 1) / at(64, 56, 1) == pytest.approx(2, rel=0.05)
    assert at(64, 52, 1) == pytest.approx(at(64, 56, 1), rel=1e-4)
    assert at(128, 56, None) < at(128, 56, 1) / 10


@pytest.mark.parametrize("window, axis", [((3, 1), 0), ((1, 3), 1)])
def test_positions_that_far_taps_do_not_see_take_no_time(window, axis):
    """Along rows, which steps leave out whole. Each outer tap sees a quarter of the image."""

    def of(apart, split):
        dilation = tuple(apart if place == axis else 1 for place in range(2))
        problem = halves((64, 64, 64, 4096), (*window, 4096, 256), rhs_dilation=dilation)
        return cost(problem, tile, split, bandwidth=1e15)

    tile = next(tile for tile in TILES if (tile.rows, tile.cols, tile.row_blocks, tile.bf16x6) == (128, 256, 2, False))
    near, far = (of(apart, 4) for apart in (1, 48))
    assert (1 + 2 / 4) / 3 < far / near < 0.7 if axis == 0 else far == near  # a cluster's last tile may be a long one
    assert of(48, 128) == of(1, 128)  # slices of half an image: some see all


@every_tile
def test_all_taps_of_a_cluster_see_more_than_each(tile):
    """So a tile that has all of them has all steps."""
    of = lambda apart, channels: cost(
        halves((8, 64, 64, channels), (2, 1, channels, 256), rhs_dilation=(apart, 1)), tile, 1, bandwidth=1e15
    )
    units = tile.rows // 64 * tile.row_blocks  # of a cluster
    assert tile.halo or of(48, 32 * units) == of(1, 32 * units)
    assert tile.halo or of(48, 64 * units * 16) < 0.9 * of(1, 64 * units * 16)


@every_tile
def test_slices_take_the_time_of_their_bytes(tile):
    """Where memory is slow, and those that a cluster adds are not in it."""
    problem = halves((1, 8, 8, 512), (3, 3, 512, 512))
    at = lambda split: choice_of(problem, tile, split, bandwidth=1e9)
    for split in (2, 3, 4, 8, 24):
        written_and_read = 2 * at(split).plan.workspace_bytes(problem) / 1e9
        assert at(split).cost - at(1).cost == pytest.approx(written_and_read, rel=0.01, abs=1e-4)


SUMMED = halves((2, 13, 15, 72), (3, 3, 72, 200))


@every_tile
@pytest.mark.parametrize("split", [1, 12])
def test_sums_of_the_gradient_are_in_the_workspace(tile, split):
    """A row for each slice and row tile."""
    plans = [choose("cuda", "wgrad", SUMMED, as_it_is("wgmma", tile.name, split=split, gradient_sums=asked)).plan
             for asked in (None, 1)]  # fmt: skip
    without, summed = (plan.workspace_bytes(SUMMED) for plan in plans)
    rows = split * math.ceil(9 * 2 / (tile.rows // 64 * tile.row_blocks)) * tile.row_blocks
    if tile.halo:  # a unit is three taps of 64 channels
        rows = split * math.ceil(3 * 2 / (tile.rows // 192))
    assert tuple(plan.gradient_sum_rows(SUMMED) for plan in plans) == (0, rows)
    assert summed - without == rows * 200 * 4
    again = choose("cuda", "wgrad", SUMMED, plans[1].constraint).plan
    assert again == plans[1]


@pytest.mark.parametrize("family, kind, problem, why", [
    (None, "conv", SUMMED, "which convs do not have"),
    (None, "wgrad", halves((2, 6, 7, 16), (4, 4, 16, 24), lhs_dilation=2, padding=2), "in residue classes"),
    ("wgmma", "wgrad", halves((64, 64, 64, 64), (3, 1, 64, 256), rhs_dilation=(48, 1)), "whose steps are left out"),
    (None, "wgrad", layer((2, 8, 8, 64), (3, 3, 64, 64)), "of float32"),
])  # fmt: skip
def test_sums_of_the_gradient_that_no_kernel_has(family, kind, problem, why):
    """By any tile: halo tiles, too, where windows are not whole."""
    choice = choose("cuda", kind, problem, Constraint("cuda", family, gradient_sums=1, transform=()))
    assert choice.plan is None and why in choice.unsupported_reason()


# The compiled tiles.


@pytest.mark.parametrize("tile", [*TILES, OF_TF32], ids=str)
def test_tiles_are_of_multiplications(tile):
    check_multiplications(tile)


# KiB: stages of both operands, of whole blocks of 64 channels, and barriers.
KIB = {
    "128x128x64, two at once": 3 * (16 + 16) + 3,
    "256x160x64 by 2x1": 3 * (32 + 24) + 3,
    "256x96x64": 4 * (32 + 16) + 3,
    "576x64x64 of halo tiles": 4 * (3 * 13 + 8) + 4,  # the pixels of three times three taps; three warpgroups
}


@every_tile
def test_shared_memory_of_weight_gradients(tile):
    """In the end the sums are in the operands' place."""
    shared = shared_bytes(choice_of(VECTORS, tile).plan, VECTORS)
    check_shared_memory(tile, shared)
    assert shared >= tile.rows * tile.cols * 4
    assert KIB.keys() <= {tile.name for tile in TILES}
    if tile.name in KIB:
        assert shared == 1024 * KIB[tile.name]


def test_shared_memory_of_halo_tiles_of_float32():
    """Two boxes of 32 channels for each plane, and the gradients of as many positions as of other types."""
    problem = layer((2, 8, 8, 64), (3, 3, 64, 64), "float32")
    shared = shared_bytes(choice_of_tf32(problem).plan, problem)
    check_shared_memory(OF_TF32, shared)
    assert shared == 1024 * (2 * (3 * 2 * 13 + 16) + 1)
