"""Plans of depthwise: Toeplitz matrices hold all taps, and stages the pixels of each strip."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cases.for_depthwise import pixels_of
from cases.plans import CUDA, as_it_is, device, is_refused, plan_of, shared_bytes, tile_of
from cases.problems import each_channel, passes_of, steps_of
from cases.random_problems import problems_of_channels
from jaxconv.planner.choose import choose
from jaxconv.planner.devices import MODELS, TYPICAL_DEVICE
from jaxconv.problem.offsets import in_three, offset_tables
from jaxconv.problem.product import EpilogueKind


def strips_of(tile, pixel_bytes):
    """Of a thread block, with so many bytes of channels: each has a set of warps, or of lanes, of its own."""
    warps = 8 if tile.has_producers else 4
    strips, most_bytes = (4, 32 * 4) if tile.on_cuda_cores else (16, warps * tile.channels * 2)
    sets, rest = divmod(most_bytes, pixel_bytes)
    assert rest == 0
    return sets * strips


def check_toeplitz(problem, plan):
    """Each tap has coordinates of its own, and all outputs of a strip read it from pixels that are there."""
    tile, of = tile_of(plan), plan.settings
    origin = np.array([of[f"first_{name}"] for name in ("depth", "row", "col")])
    parts = [of[f"{name}_parts"] for name in ("depth", "row", "col")]
    apart = np.array([1, of["rows_apart"], of["cols_apart"]])
    (_, _, step), periods = in_three(steps_of(problem)), in_three(problem.periods)
    tables, pixels = offset_tables(problem), pixels_of(tile)
    part_cols = pixels - 7 // periods[2] * step
    coords = []
    for first, count, *phases, _, _, _ in tables.classes[(tables.classes[:, 5:] > 0).all(axis=1)].tolist():
        shifts = tables.taps[first : first + count, 2:] - origin
        assert not np.any(shifts % apart)
        for depth, row, col in (shifts // apart).tolist():
            lag, row = divmod(row, tile.step)
            part = min(col // part_cols, parts[2] - 1)
            coords.append((depth, *phases, row, lag, col))
            assert 0 <= depth * periods[0] + phases[0] < tile.depths * parts[0]
            assert 0 <= lag < tile.lags * parts[1] and phases[1] < tile.period
            assert 0 <= col - part * part_cols < pixels - (7 - phases[2]) // periods[2] * step
    assert len(set(coords)) == len(coords) > 0


def check_stream(kind, problem, plan):
    """A thread block's outputs are of its warps, and images are joined only if no tap leaves its row."""
    tile, of = tile_of(plan), plan.settings
    pixel_bytes = of["channels"] * problem.lhs_dtype.itemsize
    assert of["channels"].bit_count() == 1 and of["channels"] <= max(2 * problem.groups, 8) and pixel_bytes % 16 == 0
    assert (of["rows"], of["cols"]) == plan.output_tile and of["rows"] >= 1 and of["cols"] % 8 == 0
    assert max(1, of["images"]) * of["cols"] // 8 <= strips_of(tile, pixel_bytes)
    assert of["depth_parts"] * of["row_parts"] * of["col_parts"] == 1 or tile.in_parts
    assert of["split"] == 1 or kind == "wgrad"
    if of["images"] == 0:
        heights = {(1, *spatial)[-2] for spatial in (problem.in_spatial, problem.out_spatial)}
        assert tile.step == tile.period == tile.lags == tile.depths == 1
        assert of["first_row"] == 0 and of["row_parts"] == len(heights) == 1 and len(problem.kernel) < 3


@settings(max_examples=150, database=None)
@given(
    problems_of_channels(), st.sampled_from([None, None, (1, 8), (3, 16), (7, 24), (100, 64)]),
    st.sampled_from([48 * 2**10, 99 * 2**10, TYPICAL_DEVICE.shared_bytes]),
)  # fmt: skip
def test_what_depthwise_takes_fits(problem, output_tile, shared):
    small = device(shared_bytes=shared)
    for kind, problem in passes_of(problem).values():
        for tile in CUDA["depthwise"].tiles:
            choice = choose("cuda", kind, problem, as_it_is("depthwise", tile.name, output_tile=output_tile), small)
            plan = plan_of(choice, "depthwise")
            if plan is None:
                continue
            assert not is_refused(plan, problem, small)
            (rows, cols), (most_rows, asked_cols) = plan.output_tile, output_tile or plan.output_tile
            assert rows <= most_rows and cols == asked_cols
            assert shared_bytes(plan, problem) <= shared
            check_toeplitz(problem, plan)
            check_stream(kind, problem, plan)


def test_large_windows_leave_room_for_two_thread_blocks():
    """Of a multiprocessor: with one, RepLKNet's layers take half as long again."""
    problem = each_channel((64, 28, 28, 512), (31, 31))
    for kind, of_pass in passes_of(problem).values():
        plan = choose("cuda", kind, of_pass, as_it_is("depthwise")).plan
        assert not tile_of(plan).has_producers  # which is one of a multiprocessor
        assert 2 * (shared_bytes(plan, of_pass) + 1024) <= TYPICAL_DEVICE.shared_bytes + 1024


BY_TMA, IN_PAIRS = (tile for tile in CUDA["depthwise"].tiles if tile.by_tma)


@settings(max_examples=100, database=None)
@given(
    st.tuples(st.integers(1, 17), st.integers(1, 9), st.integers(1, 64), st.just(64)),
    st.tuples(st.integers(1, 7), st.integers(1, 9)),
    st.tuples(st.tuples(st.just(3), st.just(3)), st.tuples(st.integers(-8, 12), st.integers(-8, 12))),
    st.sampled_from([None, (8, 8), (8, 16), (3, 32), (8, 64)]),
)
def test_tma_copies_rows_of_two_images_or_more(lhs, kernel, padding, output_tile):
    """That fill the strips of a thread block; shared memory holds them with the zeros between and behind them."""
    assume(lhs[2] + sum(padding[1]) >= kernel[1])
    problem = each_channel(lhs, kernel, padding=padding)
    for kind, of_pass in passes_of(problem).values():
        plan = choose("cuda", kind, of_pass, as_it_is("depthwise", BY_TMA.name, output_tile=output_tile)).plan
        if plan is None:
            continue
        of, bytes_ = plan.settings, shared_bytes(plan, of_pass)
        assert of["channels"] == 32 and of["images"] * of["cols"] == 16 * 8
        assert of["cols"] >= of_pass.out_spatial[-1] and of["images"] >= 2
        # Six stages at least of each image's row of pixels that outputs see, and zeros for its last strip.
        (*_, width), (*_, outputs) = of_pass.in_spatial, of_pass.out_spatial
        seen = min(width, outputs) if kind == "conv" else 0
        assert 6 * of["images"] * seen * 64 < bytes_ <= TYPICAL_DEVICE.shared_bytes


@pytest.mark.parametrize("problem, reason", [
    (each_channel((128, 7, 7, 1024), (7, 7)), None),
    (each_channel((3, 14, 14, 120), (5, 7)), None),
    (each_channel((32, 9, 30, 64), (3, 3), "float16", padding=((0, 3), (-1, 4))), None),
    (each_channel((32, 56, 64, 64), (7, 7)), None),
    (each_channel((32, 56, 56, 64), (7, 7)), "2 images of 7 strips do not fill the tile, which has 16"),
    (each_channel((32, 7, 7, 24), (7, 7)), "16 bytes of each pixel, TMA copies 64"),
    (each_channel((32, 14, 14, 64), (3, 3), rhs_dilation=2), "parts of rows, TMA copies whole ones"),
    (each_channel((32, 14, 14, 64), (3, 2), window_strides=(1, 2)), "columns are apart, TMA copies neighbours"),
    (each_channel((32, 14, 14, 64), (3, 3), window_strides=(2, 1)), "rows move by 2:1, the tile's by 1:1"),
], ids=str)  # fmt: skip
def test_tma_copies_whole_rows_of_images(problem, reason):
    """For every pass; what it does not copy is asked for forward."""
    passes = passes_of(problem)
    for kind, of_pass in passes.values() if reason is None else [passes["fprop"]]:
        choice = choose("cuda", kind, of_pass, as_it_is("depthwise", BY_TMA.name))
        if reason is None:
            assert choice.plan.tile == BY_TMA.name
        else:
            assert choice.plan is None and reason in str(choice.rejected)


@pytest.mark.parametrize("problem, reason", [
    (each_channel((128, 7, 7, 1024), (7, 7)), None),
    (each_channel((3, 40, 8, 120), (5, 8)), None),
    (each_channel((5, 9, 6, 64), (3, 3), "float16", padding=((0, 3), (-1, 4))), None),
    (each_channel((5, 9, 64), (3,), padding=((-2, 1),)), "rows of 9 columns"),
    (each_channel((5, 9, 7, 64), (3, 3), padding=((1, 1), (2, 2))), "rows of 9 columns"),
    (each_channel((128, 7, 7, 64), (7, 9)), "taps in 9 columns"),
    (each_channel((128, 7, 7, 24), (7, 7)), "16 bytes of each pixel, TMA copies 64"),
    (each_channel((128, 8, 8, 64), (3, 3), rhs_dilation=2), "parts of rows, TMA copies whole ones"),
], ids=str)  # fmt: skip
def test_pairs_of_rows_are_of_narrow_images(problem, reason):
    """And of wgrads: zeros around images are not copied."""
    passes = passes_of(problem)
    for which in ("fprop", "dgrad"):
        assert "no conv" in str(choose("cuda", *passes[which], as_it_is("depthwise", IN_PAIRS.name)).rejected)
    kind, of_pass = passes["wgrad"]
    choice = choose("cuda", kind, of_pass, as_it_is("depthwise", IN_PAIRS.name))
    if reason is not None:
        assert choice.plan is None and reason in str(choice.rejected)
        return
    assert (
        choice.plan.tile == IN_PAIRS.name and choice.plan.output_tile[1] == 8 and choice.plan.settings["images"] == 16
    )
    assert shared_bytes(choice.plan, of_pass) <= TYPICAL_DEVICE.shared_bytes


@pytest.mark.parametrize("images, image, channels, tile, split", [
    (128, 7, 1024, IN_PAIRS, 4), (128, 14, 512, BY_TMA, 8), (128, 28, 256, BY_TMA, 16),
])  # fmt: skip
def test_convnexts_last_weight_gradients_are_by_tma(images, image, channels, tile, split):
    """As many thread blocks as multiprocessors."""
    kind, of_pass = passes_of(each_channel((images, image, image, channels), (7, 7)))["wgrad"]
    plan = choose("cuda", kind, of_pass).plan
    assert (plan.tile, plan.settings["split"]) == (tile.name, split)


@pytest.mark.parametrize("padding", [(0, 1), (1, 0)])
@pytest.mark.parametrize("kernel", [(2, 7), (3, 9)])
def test_images_are_not_one_where_windows_have_rows_below(kernel, padding):
    """The last rows of an image would read the next one's."""
    rows = tuple(n * (kernel[0] - 1) for n in padding)
    problem = each_channel((2, 30, 154, 16), kernel, padding=(rows, (kernel[1] // 2, kernel[1] // 2)))
    choices = [choose("cuda", *kind, as_it_is("depthwise", tile.name))
               for kind in passes_of(problem).values() for tile in CUDA["depthwise"].tiles]  # fmt: skip
    plans = [choice.plan for choice in choices if choice.plan is not None]
    assert plans and all(plan.settings["images"] > 0 for plan in plans)


BYTES = {
    "convnext": each_channel((64, 28, 28, 256), (7, 7), "int8", "int8"),
    "mobilenet": each_channel((64, 112, 112, 32), (3, 3), "int8", "int8", padding=1),
    "strided": each_channel((64, 56, 56, 144), (3, 3), "int8", "int8", window_strides=(2, 2)),
    "doubled": each_channel((8, 28, 28, 64), (4, 4), "int8", "int8", lhs_dilation=(2, 2), padding=2),
    "line": each_channel((32, 1000, 512), (31,), "int8", "int8"),
    "large": each_channel((8, 56, 56, 64), (31, 31), "int8", "int8"),
    "volume": each_channel((2, 8, 28, 28, 64), (3, 3, 3), "int8", "int8"),
}


@pytest.mark.parametrize("name", BYTES)
def test_int8_has_tiles_of_its_own(name):
    """That move pairs of channels as elements of 16 bits. Each tile that fits holds all taps."""
    problem = BYTES[name]
    plan = choose("cuda", "conv", problem, epilogue_kind=EpilogueKind.PLAIN).plan
    assert plan.family == ("direct" if name == "doubled" else "depthwise")
    assert choose("cuda", "conv", problem, epilogue_kind=EpilogueKind.RESIDUAL).plan.family == "depthwise"
    for tile in CUDA["depthwise"].tiles:
        plan = choose("cuda", "conv", problem, as_it_is("depthwise", tile.name), epilogue_kind=EpilogueKind.PLAIN).plan
        if plan is not None:
            assert tile.of_bytes and not is_refused(plan, problem)
            check_toeplitz(problem, plan)
            assert plan.settings["channels"] * 2 % 16 == 0 and plan.settings["channels"] <= problem.groups
            assert shared_bytes(plan, problem) <= TYPICAL_DEVICE.shared_bytes


@pytest.mark.parametrize("problem, reason", [
    (each_channel((8, 28, 28, 40), (3, 3), "int8", "int8"), "channels are not last, in vectors of 16 bytes"),
    (each_channel((8, 28, 28, 64), (3, 3), "int8", "int32"), "it has no kernels of int32 and int8"),
    (each_channel((8, 28, 28, 64), (3, 3), "int8", "bfloat16"), "it has no kernels of bfloat16 and int8"),
], ids=["channels", "int32", "bfloat16"])  # fmt: skip
def test_what_tiles_of_int8_do_not_take(problem, reason):
    choice = choose("cuda", "conv", problem, as_it_is("depthwise"), epilogue_kind=EpilogueKind.PLAIN)
    assert choice.plan is None and reason in str(choice.rejected)


@pytest.mark.parametrize("lhs, window, rows", [((1, 58, 58, 128), (7, 7), 2), ((64, 58, 58, 128), (7, 7), 58)])
def test_small_layers_have_tiles_of_few_rows(lhs, window, rows):
    """A thread block computes its rows one after the other, so those of one image are for more of them."""
    plan = choose("cuda", "conv", each_channel(lhs, window), as_it_is("depthwise")).plan
    assert plan.output_tile[0] == rows


def test_activations_that_l2_holds_take_less_time():
    """By the size of the device's L2: an H100's costs say how much less."""
    _, problem = passes_of(each_channel((16, 64, 64, 96), (3, 3)))["fprop"]
    bytes_moved = 2 * 2 * 16 * 64 * 64 * 96

    def seconds(l2_bytes):
        on = replace(MODELS["NVIDIA H100 80GB HBM3"], l2_bytes=l2_bytes)
        return choose("cuda", "conv", problem, as_it_is("depthwise"), on).cost

    assert seconds(2 * bytes_moved) < seconds(bytes_moved) == seconds(bytes_moved // 2)
