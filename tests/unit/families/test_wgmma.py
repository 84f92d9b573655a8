"""Plans of wgmma's convs: TMA reads what lax multiplies, by maps and halo tiles as large as it takes."""

import dataclasses
import functools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export, lax

from cases.for_wgmma import check_multiplications, check_shared_memory
from cases.plans import CUDA, TILES, as_it_is, device, plan_of, shared_bytes
from cases.problems import CONV_PASSES, EVERY_PASS, VECTORS, halves, of_layouts, passes_of, problem_of
from jaxconv.planner.choose import choose
from jaxconv.problem import row_major_strides
from jaxconv.problem.offsets import offset_tables
from jaxconv.problem.product import EpilogueKind

TILES_OF_WGMMA = [tile for tile in CUDA["wgmma"].tiles if tile.has_conv and not tile.bf16x6]
every_tile = pytest.mark.parametrize("tile", TILES_OF_WGMMA, ids=str)
WINDOWS = ("corner_d", "corner_h", "corner_w", "rank", "tap_stride", "reach_h", "reach_w", "empty_classes")


def windows(problem):
    """Where TMA finds the windows, as any tile's plan has it; None if it is refused."""
    plan = choose("cuda", "conv", problem, as_it_is("wgmma")).plan
    return plan and {name: plan.settings[name] for name in WINDOWS}


# The windows that TMA reads for wgmma.


def line_of_windows(rank, axis, size, taps=1, **per_axis):
    """All of it along one of the axes that a map of `rank` dimensions has of space."""
    axes = rank - 2
    at = lambda value, other: tuple(value if a == axis else other for a in range(axes))
    others = dict(window_strides=1, lhs_dilation=1, rhs_dilation=1, padding=(0, 0))
    params = {name: at(per_axis.get(name, other), other) for name, other in others.items()}
    return halves((2, *at(size, 2), 8), (*at(taps, 1), 8, 8), **params)


# Of maps' ranks: how far from an image's edges windows begin and end, and a window's last tap from its first.
TMA_REACH = {2: (1, 0), 3: (2**15, 2**16 - 1), 4: (2**7, 2**8 - 1), 5: (2**4, 2**5 - 1)}
# A problem and what is one too much of it, as it is refused.
BEYOND = {
    "begins_before": ("begin", lambda most, _, more: dict(size=5, padding=(most + more, 0))),
    "begins_within": ("begin", lambda most, _, more: dict(size=most + 9, padding=(1 - most - more, 0))),
    "ends_behind": ("begin", lambda most, _, more: dict(size=5, padding=(0, most - 1 + more))),
    "ends_within": ("begin", lambda most, _, more: dict(size=most + 9, taps=2, rhs_dilation=most + more)),
    "far_taps": ("taps", lambda most, far, more: dict(
        size=5, taps=2, rhs_dilation=far + more, padding=(most, most))),
    "far_windows": ("pixels apart", lambda most, _, more: dict(size=40, window_strides=8 + more)),
    "far_results": ("pixels apart", lambda most, _, more: dict(
        size=1, taps=3, lhs_dilation=8 + more, padding=(1, 2))),
    "many_classes": ("residue classes", lambda most, _, more: dict(size=5, taps=3, lhs_dilation=8 + more)),
}  # fmt: skip
AXES = [(rank, axis) for rank in TMA_REACH for axis in range(rank - 2)]


@pytest.mark.parametrize("why, sizes", BEYOND.values(), ids=BEYOND)
@pytest.mark.parametrize("rank, axis", AXES)
def test_how_far_windows_of_tma_reach(rank, axis, why, sizes):
    """Along each axis, in the data gradient of the data gradient too: that is the problem itself."""
    at_most, beyond = (line_of_windows(rank, axis, **sizes(*TMA_REACH[rank], more)) for more in (0, 1))
    assert windows(at_most)["rank"] == rank
    assert windows(at_most.dgrad().dgrad()) == windows(at_most)
    choice = choose("cuda", "conv", beyond, as_it_is("wgmma"))
    assert choice.plan is None
    assert all(why in r.reason for r in choice.rejected if r.what.startswith("wgmma"))


@pytest.mark.parametrize("dilation, classes", [((2, 4), 8), ((8, 1), 8), ((2, 2, 2), 8), ((3, 3), 9), ((2, 2, 3), 12)])
def test_residue_classes_of_wgmma(dilation, classes):
    rank = len(dilation)
    strided = halves((2, *(rank * [13]), 8), (*(rank * [3]), 8, 8), window_strides=dilation)
    choice = choose("cuda", "conv", strided.dgrad(), as_it_is("wgmma"))
    assert (choice.plan is not None) == (classes <= 8)
    assert classes <= 8 or any(f"{classes} residue classes" in r.reason for r in choice.rejected)


WITHOUT_TAPS = {
    "points_by_2": (halves((2, 8, 8, 8), (1, 1, 8, 8), window_strides=(2, 2)), 3),
    "points_by_2_along_rows": (halves((2, 8, 8, 8), (1, 1, 8, 8), window_strides=(1, 2)), 1),
    "points_by_2_of_a_row": (halves((2, 1, 8, 8), (1, 1, 8, 8), window_strides=(2, 2)), 1),
    "volume_of_points_by_2": (halves((2, 4, 6, 8, 8), (1, 1, 1, 8, 8), window_strides=(2, 2, 2)), 7),
    "pairs_by_2": (halves((2, 8, 8, 8), (1, 2, 8, 8), window_strides=(2, 2)), 2),
    "windows_by_2": (halves((2, 8, 8, 8), (3, 3, 8, 8), window_strides=(2, 2)), 0),
    "points_by_2_beside_the_image": (halves((2, 2, 8), (1, 8, 8), window_strides=(2,), padding=((2, -2),)), 1),
}  # fmt: skip


@pytest.mark.parametrize("problem, empty", WITHOUT_TAPS.values(), ids=WITHOUT_TAPS)
def test_zeros_of_a_stride_are_no_tiles(problem, empty):
    """Of a data gradient; a warp stores those of residue classes without taps, by TMA. One class is left, whatever it
    has."""
    assert windows(problem)["empty_classes"] == 0
    assert windows(problem.dgrad())["empty_classes"] == empty


@pytest.mark.parametrize("which", EVERY_PASS)
def test_many_groups_are_columns_of_one_product(which):
    """Of tiles that end with a group. Other groups, and those of other tiles, are launches."""
    groups_of = lambda channels: passes_of(
        halves((2, 14, 14, 20 * channels), (3, 3, channels, 20 * channels), feature_group_count=20)
    )[which]
    assert choose("cuda", *groups_of(64), as_it_is("wgmma")).plan is not None
    for refused in (choose("cuda", *groups_of(72), as_it_is("wgmma")),
                    choose("cuda", *groups_of(64), as_it_is("wgmma", "128x128x64, two at once"))):  # fmt: skip
        assert refused.plan is None
        assert any("20 groups, each of which is a launch, of 16 at most" in r.reason for r in refused.rejected)


def seconds(problem, tile):
    """Without what memory takes."""
    return choose("cuda", "conv", problem, as_it_is("wgmma", tile.name, split=1), device(bandwidth=1e15)).cost


@every_tile
@pytest.mark.parametrize("size, dtype", [(511, "bfloat16"), (512, "float32")], ids=["odd", "float32"])
def test_zeros_that_tma_does_not_store_are_tiles(size, dtype, tile):
    """Residue classes that are not equally large, and results of another dtype, are stored from registers, which takes
    longer, and zeros are tiles, where TMA stores the zeros of three classes beside the tiles of one."""
    if tile.halo:
        return
    dgrad_of = lambda size: halves((8, size, size, 64), (1, 1, 64, 64), window_strides=(2, 2)).dgrad()
    by_tma, other = dgrad_of(512), dataclasses.replace(dgrad_of(size), out_dtype=np.dtype(dtype))
    assert windows(by_tma)["empty_classes"] == windows(other)["empty_classes"] == 3
    ratio = seconds(other, tile) / seconds(by_tma, tile)
    stores_zeros = tile.ctas_per_sm == 1 and tile.cluster_split == 0
    by_threads = dtype == "bfloat16" and tile.cluster_split == 0
    assert ratio > (1.5 if stores_zeros or by_threads else 0.99)


RANKS = {
    "line": (halves((2, 9, 8), (3, 8, 8)), 3),
    "image_of_a_row": (halves((2, 1, 9, 8), (1, 3, 8, 8)), 3),
    "volume_of_a_row": (halves((2, 1, 1, 9, 8), (1, 1, 3, 8, 8)), 3),
    "volume_of_a_layer": (halves((2, 1, 7, 9, 8), (1, 3, 3, 8, 8)), 4),
    "image_of_a_column": (halves((2, 9, 1, 8), (3, 1, 8, 8)), 4),
    "window_beyond_a_row": (halves((2, 1, 9, 8), (3, 3, 8, 8)), 4),
    "row_that_is_padded": (halves((2, 1, 9, 8), (1, 3, 8, 8), padding=((1, 0), (1, 1))), 4),
    "volume": (halves((2, 5, 7, 9, 8), (3, 3, 3, 8, 8)), 5),
    "pixel": (halves((2, 1, 1, 1, 8), (1, 1, 1, 8, 8)), 2),
    "points": (halves((2, 7, 9, 8), (1, 1, 8, 8)), 2),
    "points_of_a_line": (halves((2, 9, 8), (1, 8, 8)), 2),
    "points_of_a_volume": (halves((2, 5, 7, 9, 8), (1, 1, 1, 8, 8)), 2),
    "padded_points": (halves((2, 7, 9, 8), (1, 1, 8, 8), padding=((0, 0), (1, 1))), 4),
    "points_further_along": (halves((2, 7, 9, 8), (1, 1, 8, 8), padding=((0, 0), (1, -1))), 4),
    "points_by_two": (halves((2, 7, 9, 8), (1, 1, 8, 8), window_strides=(1, 2)), 4),
}


@pytest.mark.parametrize("problem, rank", RANKS.values(), ids=RANKS)
def test_maps_are_of_the_smallest_rank(problem, rank):
    """Its limits are the widest: a dilation of more is refused by them."""
    for which in CONV_PASSES:
        assert windows(passes_of(problem)[which][1])["rank"] == rank


def test_pixels_that_are_no_matrix():
    """Images between pixels are no rows of a matrix that the result has, too: maps of images find them."""
    problem = of_layouts((7, 9, 2, 8), (1, 1, 8, 8), ("HWNC", "HWIO", "HWNC"))
    for which in CONV_PASSES:
        assert windows(passes_of(problem)[which][1])["rank"] == 4


FILTERS = {
    "HWIO": (3, 5, 16, 24), "OHWI": (24, 3, 5, 16), "IHWO": (16, 3, 5, 24), "HWOI": (3, 5, 24, 16),
    "WHIO": (5, 3, 16, 24), "HIWO": (1, 16, 5, 24), "HOWI": (3, 24, 1, 16), "WOHI": (1, 24, 1, 16),
    "OIHW": (24, 16, 1, 1),
}  # fmt: skip


def test_a_tap_that_no_position_sees():
    """Pixels are no matrix then: the filter's map has two taps."""
    conv = functools.partial(
        lax.conv_general_dilated, window_strides=(2,), padding=((0, 1),), lhs_dilation=(2,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )  # fmt: skip
    problem = problem_of(conv, (1, 1, 8), (2, 8, 8), "bfloat16")
    assert (problem.out_spatial, windows(problem)["rank"]) == ((1,), 3)
    check_windows(problem)


@pytest.mark.parametrize("spec", FILTERS)
def test_filters_are_read_as_they_lie(spec):
    """Some have a window of one axis, or of none."""
    problem = of_layouts((2, 20, 20, 16), FILTERS[spec], ("NHWC", spec, "NHWC"))
    for which in CONV_PASSES:
        check_windows(passes_of(problem)[which][1])
        assert choose("cuda", *passes_of(problem)[which], as_it_is("wgmma")).plan is not None


def led_by(values, unit=1):
    return np.array([unit] * (3 - len(values)) + list(values))


def check_windows(problem):
    """What TMA reads for a tap and a position of a residue class is the pixel that lax multiplies with the tap.

    Each tap of the filter that a position sees is read once, and positions see no others.
    """
    where, tables = windows(problem), offset_tables(problem)
    rank, tap_stride = where["rank"], where["tap_stride"]
    stride, dilation, spread, taps, ins, outs = map(led_by, (
        problem.window_strides, problem.lhs_dilation, problem.rhs_dilation, problem.kernel, problem.in_spatial,
        problem.out_spatial))  # fmt: skip
    pad, corner = led_by(problem.pad_low, 0), np.array([where[f"corner_{d}"] for d in "dhw"])
    period, step = dilation // np.gcd(stride, dilation), stride // np.gcd(stride, dilation)
    most, far = TMA_REACH[rank]
    behind = corner + (-(-outs // period) - 1) * step - (ins - 1)
    assert -most <= min(*corner, *behind) and max(*corner, *behind) < most
    left_out = slice(0, 5 - rank)
    if rank == 2:  # a matrix of pixels: a position is one of them
        assert np.all(ins == outs) and not np.any(corner) and math.prod(taps) == 1
    else:
        assert np.all(ins[left_out] == 1) and np.all(outs[left_out] == 1) and not np.any(corner[left_out])
    # The filter's map, of its taps by its channels, holds no more than the filter.
    size, strides = problem.rhs_shape, row_major_strides(problem.rhs_shape)
    channels = sum((size[axis] - 1) * strides[axis] for axis in (problem.rhs_spec.first, problem.rhs_spec.second))
    assert tap_stride % 8 == 0 and (math.prod(taps) - 1) * tap_stride + channels < math.prod(size)
    seen, reach = 0, np.zeros(3, int)
    for first, count, *numbers in tables.classes.tolist():
        phase, positions = np.array(numbers[:3]), numbers[3:]
        if not all(positions):
            continue
        for _, delta, *shift in tables.taps[first : first + count].tolist():
            tap, rest = divmod(delta, tap_stride)
            assert rest == 0
            coord = np.array(np.unravel_index(tap, taps))
            coord = taps - 1 - coord if problem.reverse else coord
            offset = np.array(shift) - corner
            assert np.all((offset >= 0) & (offset <= far)) and not np.any(offset[left_out])
            reach = np.maximum(reach, offset)
            for d in range(3):
                index = np.arange(positions[d])
                dilated = (phase[d] + index * period[d]) * stride[d] + coord[d] * spread[d] - pad[d]
                np.testing.assert_array_equal((corner[d] + index * step[d] + offset[d]) * dilation[d], dilated)
        seen += count * math.prod(positions)
    assert [where["reach_h"], where["reach_w"]] == reach[1:].tolist()
    assert seen == math.prod(
        sum((o * s + k * r - p) % d == 0 for o in range(out) for k in range(n))
        for out, n, s, d, r, p in zip(outs, taps, stride, dilation, spread, pad, strict=True)
    )  # fmt: skip


@st.composite
def problems_of_windows(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    channels = st.sampled_from([8, 40, 64, 72])
    sizes = {"N": draw(st.integers(1, 3)), "C": draw(channels), "I": None, "O": draw(channels)}
    spatial = "DHW"[3 - rank :]
    pixels = each(st.integers(1, 20))
    params = dict(
        window_strides=each(st.sampled_from([1, 1, 2, 3, 8])), lhs_dilation=each(st.sampled_from([1, 1, 1, 2, 3, 4])),
        rhs_dilation=each(st.sampled_from([1, 1, 2, 5])),
        padding=tuple((draw(st.integers(-(n // 2), 9)), draw(st.integers(-((n - 1) // 2), 9))) for n in pixels),
    )  # fmt: skip
    lhs = dict(zip(spatial, pixels, strict=True)) | sizes
    rhs = dict(zip(spatial, each(st.integers(1, 5)), strict=True)) | sizes | {"I": sizes["C"]}
    layouts = [f"N{spatial}C", f"{spatial}NC"], [f"{spatial}IO", f"O{spatial}I", f"I{spatial}O", f"{spatial}OI"]
    numbers = tuple(draw(st.sampled_from(layout)) for layout in (*layouts, layouts[0]))
    lhs, rhs = (tuple(of[d] for d in spec) for of, spec in zip((lhs, rhs), numbers, strict=False))
    return of_layouts(lhs, rhs, numbers, **params)


FAR = "windows that begin or end|pixels apart|residue classes|windows are not one axis|nothing to multiply"


@settings(max_examples=200, database=None)
@given(problems_of_windows())
def test_tma_reads_what_lax_multiplies(problem):
    for which in CONV_PASSES:
        kind, of_pass = passes_of(problem)[which]
        choice = choose("cuda", kind, of_pass, as_it_is("wgmma"))
        if choice.plan is None:
            plan_of(choice, "wgmma")
            reasons = [r.reason for r in choice.rejected if r.what.startswith("wgmma")]
            assert 0 in of_pass.out_spatial or all(re.search(FAR, reason) for reason in reasons), reasons
            continue
        if 0 not in of_pass.out_spatial:
            check_windows(of_pass)
        assert set(WINDOWS) < set(choice.plan.settings)


@pytest.mark.parametrize("rhs, of_two_ctas", [("HWIO", False), ("OHWI", True)])
@pytest.mark.parametrize("epilogue_kind", [EpilogueKind.PLAIN, EpilogueKind.RESIDUAL])
def test_epilogues_behind_k_major_filters_of_16_bits(rhs, of_two_ctas, epilogue_kind):
    """Few tiles are compiled for these; all are without an epilogue, and where another kernel adds slices."""
    shape = {"HWIO": (3, 3, 256, 256), "OHWI": (256, 3, 3, 256)}[rhs]
    layout = dict(dimension_numbers=("NHWC", rhs, "NHWC"), window_strides=(1, 1), padding="SAME")
    conv = functools.partial(lax.conv_general_dilated, **layout)
    problem = problem_of(conv, (64, 28, 28, 256), shape, "bfloat16")
    asked = lambda tile, split: as_it_is("wgmma", tile.name, split=split)
    plan = lambda tile, split, kind: choose("cuda", "conv", problem, asked(tile, split), epilogue_kind=kind).plan
    for tile in TILES_OF_WGMMA:
        assert plan(tile, 1, EpilogueKind.NONE) is not None
        assert (plan(tile, 1, epilogue_kind) is not None) == (tile.ctas_per_sm == 2 or not of_two_ctas)
        assert plan(tile, 2, epilogue_kind) is not None
    chosen = choose("cuda", "conv", problem, as_it_is("wgmma"), epilogue_kind=epilogue_kind).plan
    assert (TILES["wgmma"][chosen.tile].ctas_per_sm == 2) == of_two_ctas


def test_filters_of_one_tap_of_any_size():
    """Also of more elements than 32 bits count."""
    layout = dict(dimension_numbers=("NHWC", "OHWI", "NHWC"), window_strides=(1, 1), padding="VALID")
    conv = functools.partial(lax.conv_general_dilated, **layout)
    problem = problem_of(conv, (1, 16, 16, 2**13), (2**18, 1, 1, 2**13), "bfloat16")
    for which in CONV_PASSES:
        kind, of_pass = passes_of(problem)[which]
        plan = choose("cuda", kind, of_pass, as_it_is("wgmma")).plan
        assert 0 < plan.settings["tap_stride"] < 2**31


@pytest.mark.parametrize("which", CONV_PASSES)
def test_wgmma_is_of_devices_that_have_it(which):
    kind, problem = passes_of(VECTORS)[which]
    choice = choose("cuda", kind, problem, as_it_is("wgmma"), device(wgmma=False))
    assert choice.plan is None
    (refused,) = (r.reason for r in choice.rejected if r.what.startswith("wgmma"))
    assert "9.0" in refused
    assert choose("cuda", kind, problem, device=device(wgmma=False)).plan is not None


OF_HALO_TILES = [tile for tile in TILES_OF_WGMMA if tile.halo]


@pytest.mark.parametrize("image, window, more, why", [
    ((56, 56), (3, 3), {}, None), ((9, 3), (3, 3), {}, None), ((1, 200), (1, 41), {}, None), ((200,), (41,), {}, None),
    ((5, 9, 9), (7, 3, 3), {}, None), ((9, 9), (2, 2), dict(rhs_dilation=(2, 2)), None),
    ((9, 9), (5, 5), {}, "144 pixels, of 104"), ((200,), (42,), {}, "105 pixels, of 104"),
    ((9, 9), (3, 3), dict(rhs_dilation=(2, 2)), "144 pixels, of 104"), ((9, 9, 9), (15, 3, 3), {}, "135 taps, of 127"),
    ((9, 9, 9), (3, 1, 1), {}, "has one tap"), ((9, 9), (1, 1), {}, "has one tap"),
])  # fmt: skip
@pytest.mark.parametrize("which", CONV_PASSES)
def test_windows_that_halo_tiles_are_large_enough_for(image, window, more, why, which):
    kind, problem = passes_of(halves((2, *image, 16), (*window, 16, 8), **more))[which]
    for tile in OF_HALO_TILES:
        choice = choose("cuda", kind, problem, as_it_is("wgmma", tile.name))
        assert (choice.plan is None) == (why is not None)
        assert why is None or any(why in r.reason for r in choice.rejected)


@pytest.mark.parametrize("image, window, strides, why", [
    ((56, 56), (3, 3), (2, 2), None), ((56, 56), (3, 3), (1, 2), None), ((72, 72), (9, 9), (8, 8), None),
    ((500,), (9,), (3,), None), ((9, 18, 18), (4, 4, 4), (2, 2, 2), None), ((40, 40), (6, 6), (2, 2), None),
    ((40, 40), (7, 7), (2, 2), "121 pixels, of 104"), ((40, 40), (2, 2), (2, 2), "has one tap"),
    ((500,), (5,), (4,), "257 pixels, with those between them, of 256"),
])  # fmt: skip
def test_windows_that_halo_tiles_are_large_enough_for_by_steps(image, window, strides, why):
    """Gradients are of several residue classes."""
    passes = passes_of(halves((2, *image, 16), (*window, 16, 8), window_strides=strides))
    for (kind, problem), reason in zip((passes[which] for which in CONV_PASSES), (why, "residue classes"), strict=True):
        for tile in OF_HALO_TILES:
            choice = choose("cuda", kind, problem, as_it_is("wgmma", tile.name))
            assert (choice.plan is None) == (reason is not None)
            assert reason is None or any(reason in r.reason for r in choice.rejected)


def test_halo_tiles_of_windows_with_taps_that_no_position_sees():
    """Such taps are a residue class, without positions. The others see a plane of 10 x 10 pixels."""
    dilated = dict(window_strides=(2, 2), lhs_dilation=(2, 2), padding=((2, 2), (2, 2)))
    problem = halves((2, 20, 20, 16), (5, 5, 16, 8), **dilated)
    assert len(offset_tables(problem).classes) == 2 and problem.periods == (1, 1)
    for tile in OF_HALO_TILES:
        assert choose("cuda", "conv", problem, as_it_is("wgmma", tile.name)).plan is not None


def test_positions_of_wgmma_are_of_31_bits():
    """With as many again, which the last tiles have behind them."""
    for images, fits in ((2**15 - 1, True), (2**15, False)):
        choice = choose("cuda", "conv", halves((images, 2**15, 8), (3, 8, 8)), as_it_is("wgmma"))
        assert (choice.plan is not None) == fits
    for images, fits in ((2**24 - 1, True), (2**24, False)):  # of a halo tile each
        choices = [choose("cuda", "conv", halves((images, 7, 7, 8), (3, 3, 8, 8)), as_it_is("wgmma", tile.name))
                   for tile in OF_HALO_TILES]  # fmt: skip
        assert all((choice.plan is not None) == fits for choice in choices)


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 16, 131])
def test_clusters_of_any_device(multiprocessors):
    """Also one that holds no whole cluster at a time is planned for."""
    for tile in TILES_OF_WGMMA:
        asked = as_it_is("wgmma", tile.name)
        choices = [choose("cuda", "conv", VECTORS, asked, device(multiprocessors=n)) for n in (multiprocessors, 132)]
        assert choices[0].plan is not None
        assert choices[0].cost >= choices[1].cost


@pytest.mark.parametrize("split", [None, 1, 3, 17])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("which", CONV_PASSES)
def test_wgmma_with_any_batch(which, stride, split):
    """The plan is that of a typical batch; its slices are of the batch that there will be."""
    (batch,) = export.symbolic_shape("b")
    at_batch = lambda b: passes_of(halves((b, 14, 14, 256), (3, 3, 256, 128), window_strides=stride))[which]
    (kind, symbolic), (_, known) = (at_batch(b) for b in (batch, 32))
    takes_halo_tiles = (stride, which) != (2, "dgrad")
    for tile in (None, *(tile for tile in TILES_OF_WGMMA if takes_halo_tiles or not tile.halo)):
        adds = tile is not None and tile.cluster_split > 0
        asked = as_it_is("wgmma", tile and tile.name, split=split and (8 if adds else split))
        plans = [choose("cuda", kind, problem, asked).plan for problem in (symbolic, known)]
        assert plans[0] == plans[1]
        workspace = plans[0].workspace_bytes(symbolic)
        slices = plans[0].settings["split"]
        has_workspace = slices > 1 and TILES["wgmma"][plans[0].tile].cluster_split == 0
        expected = slices * math.prod(known.out_shape) * 4 if has_workspace else 0
        assert (workspace if isinstance(workspace, int) else eval(str(workspace), {"b": 32})) == expected
        assert plans[1].workspace_bytes(known) == expected


def test_slices_that_clusters_add():
    """As many as a tile has, or a part: thread blocks add equally many columns."""
    (adding,) = (tile.name for tile in TILES_OF_WGMMA if tile.cluster_split)
    for split in range(1, 18):
        choice = choose("cuda", "conv", VECTORS, as_it_is("wgmma", adding, split=split))
        assert (choice.plan is not None) == (split in (1, 2, 4, 8))
        assert choice.plan is not None or f"a split of {split}, which 8 slices are no" in choice.unsupported_reason()
    wide = choose("cuda", "conv", halves((1, 8, 8), (1, 8, 2**22)), as_it_is("wgmma", adding))
    assert wide.plan is None and "tiles of columns" in wide.unsupported_reason()


@every_tile
def test_plans_of_wgmma_print(tile):
    split = tile.cluster_split or 3
    plan = choose("cuda", "conv", VECTORS, as_it_is("wgmma", tile.name, split=split)).plan
    assert str(plan) == f"wgmma {tile}, split {split}"


# The compiled tiles.


@every_tile
def test_tiles_are_of_multiplications(tile):
    check_multiplications(tile)
    assert tile.stages >= 2
    shares_both = min(tile.row_blocks, tile.col_blocks) > 1
    assert not (shares_both and (tile.has_wgrad or tile.has_float32_wgrad))


@functools.cache
def shared_of(tile):
    return shared_bytes(choose("cuda", "conv", VECTORS, as_it_is("wgmma", tile.name)).plan, VECTORS)


# KiB: stages of both operands, two result buffers of a warp or one, zeros, and barriers.
KIB = {
    "256x128x64 by 2x1": 4 * (32 + 16) + 8 * 2 * 2 + 2 + 1,
    "128x128x64, two at once": 3 * (16 + 16) + 8 * 2 + 1,
    "256x64x64 of halo tiles, two at once": 4 * 13 + 5 * 8 + 8 * 2 + 3,  # the pixels of four halo tiles; taps
    "64x64x64 by slices, two at once": 5 * (8 + 8) + 16 + 1,  # the sums of slices are beside the operands
}


@every_tile
def test_shared_memory_of_wgmma(tile):
    shared = shared_of(tile)
    check_shared_memory(tile, shared)
    assert KIB.keys() <= TILES["wgmma"].keys()
    if tile.name in KIB:
        assert shared == 1024 * KIB[tile.name]
    kind = lambda of: (of.halo, of.cluster_split, of.ctas_per_sm)
    size = lambda of: np.array([of.rows, of.cols, of.stages])
    smaller = [of for of in TILES_OF_WGMMA if kind(of) == kind(tile) and np.all(size(of) <= size(tile))]
    assert all(shared_of(of) <= shared for of in smaller)
