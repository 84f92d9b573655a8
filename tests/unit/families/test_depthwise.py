"""Plans of depthwise: bands hold all taps, streams and boxes the pixels of each strip."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cases.plans import CUDA, as_it_is, device, is_refused, plan_of
from cases.problems import each_channel, passes_of
from cases.random_problems import problems_of_channels
from jaxconv.families import TYPICAL_DEVICE
from jaxconv.families.depthwise_shape import stream_of, window
from jaxconv.offsets import offset_tables
from jaxconv.plan import choose
from jaxconv.product import Product


def check_bands(problem, plan):
    """Each tap has a place of its own, and all outputs of a strip read it from pixels that are there."""
    tile = plan.settings.tile
    shape = plan.attributes(problem)["shape"]
    origin, pieces, apart = shape[4:7], shape[7:10].tolist(), np.array([1, *shape[10:]])
    (_, _, step), periods, tables = *window(problem)[1:3], offset_tables(problem)
    piece_cols = tile.pixels - 7 // periods[2] * step
    places = []
    for first, count, *phases, _, _, _ in tables.classes[(tables.classes[:, 5:] > 0).all(axis=1)].tolist():
        shifts = tables.taps[first : first + count, 2:] - origin
        assert not np.any(shifts % apart)
        for depth, row, col in (shifts // apart).tolist():
            lag, row = divmod(row, tile.step)
            piece = min(col // piece_cols, pieces[2] - 1)
            places.append((depth, *phases, row, lag, col))
            assert 0 <= depth * periods[0] + phases[0] < tile.depths * pieces[0]
            assert 0 <= lag < tile.lags * pieces[1] and phases[1] < tile.period
            assert 0 <= col - piece * piece_cols < tile.pixels - (7 - phases[2]) // periods[2] * step
    assert len(set(places)) == len(places) > 0


def check_stream(kind, problem, plan):
    """A thread block's outputs are of its warps, and images are joined only if no tap leaves its row."""
    tile, split, *_, area = plan.settings
    rows, cols, channels, images, _, first_row, _, *of_window = plan.attributes(problem)["shape"][:10].tolist()
    pieces = channels * problem.lhs_dtype.itemsize // 16
    sets, rest = divmod(tile.most_channel_bytes, pieces * 16)
    assert pieces.bit_count() == 1 and channels <= max(2 * problem.groups, 8) and rest == 0
    assert 1 <= rows <= area[0] and cols == area[1]
    assert max(1, images) * cols // 8 <= sets * tile.set_strips
    assert math.prod(of_window) == 1 or tile.has_pieces
    assert split == 1 or kind == "reduce"
    if images == 0:
        heights = {(1, *spatial)[-2] for spatial in (problem.in_spatial, problem.out_spatial)}
        assert tile.slots == 1 and first_row == 0 and len(heights) == 1 and len(problem.kernel) < 3


@settings(max_examples=150, deadline=None, database=None)
@given(
    problems_of_channels(), st.sampled_from([None, None, (1, 8), (3, 16), (7, 24), (100, 64)]),
    st.sampled_from([48 * 2**10, 99 * 2**10, TYPICAL_DEVICE.shared_bytes]),
)  # fmt: skip
def test_what_depthwise_takes_fits(problem, area, shared_bytes):
    small = device(shared_bytes=shared_bytes)
    for kind, problem in passes_of(problem).values():
        for row in CUDA["depthwise"].TILES:
            choice = choose("cuda", kind, problem, as_it_is("depthwise", row.tile, area=area), small)
            plan = plan_of(choice, "depthwise")
            if plan is None:
                continue
            assert not is_refused(plan, problem, small)
            assert area in (None, plan.settings.area)
            check_bands(problem, plan)
            check_stream(kind, problem, plan)


def test_large_windows_leave_room_for_two_thread_blocks():
    """Of a multiprocessor: with one, RepLKNet's layers take half as long again."""
    problem = each_channel((64, 28, 28, 512), (31, 31))
    for kind, of_pass in passes_of(problem).values():
        settings = choose("cuda", kind, of_pass, as_it_is("depthwise")).plan.settings
        assert stream_of(settings.tile, Product(kind, of_pass), settings.area).resident(TYPICAL_DEVICE) >= 2


BY_TMA, IN_PAIRS = (row.tile for row in CUDA["depthwise"].TILES if row.tile.by_tma)


@settings(max_examples=300, deadline=None, database=None)
@given(
    st.tuples(st.integers(1, 17), st.integers(1, 9), st.integers(1, 64), st.just(64)),
    st.tuples(st.integers(1, 7), st.integers(1, 9)),
    st.tuples(st.tuples(st.just(3), st.just(3)), st.tuples(st.integers(-8, 12), st.integers(-8, 12))),
    st.sampled_from([None, (8, 8), (8, 16), (3, 32), (8, 64)]),
)
def test_strips_of_boxes_read_pixels_of_their_image_alone(lhs, kernel, padding, area):
    """Images' rows share the zeros between them. A reduce may read others' pixels where that goes nowhere."""
    assume(lhs[2] + sum(padding[1]) >= kernel[1])
    problem = each_channel(lhs, kernel, padding=padding)
    for kind, of_pass in passes_of(problem).values():
        plan = choose("cuda", kind, of_pass, as_it_is("depthwise", BY_TMA, area=area)).plan
        if plan is None:
            continue
        stream = stream_of(BY_TMA, Product(kind, of_pass), plan.settings.area)
        (*_, first), (*_, width), (*_, outputs) = window(of_pass).first, of_pass.in_spatial, of_pass.out_spatial
        output, pixel = np.arange(8 * stream.strips)[:, None], np.arange(BY_TMA.pixels)
        at = output // 8 * 8 + pixel  # from the image's row
        tap = pixel - output % 8
        is_taken = (output < outputs) & (tap >= 0) & (tap < window(of_pass).cols) | (kind == "gather")
        other, col = at // stream.source_pitch, at % stream.source_pitch + first
        is_pixel, is_own = (col >= 0) & (col < width), (at + first >= 0) & (at + first < width)
        assert np.array_equal(is_taken & is_pixel & (other == 0), is_taken & is_own)
        assert not np.any(is_taken & is_pixel & (other > 0))
        assert at.max() < stream.source_pitch + stream.source_behind
        assert stream.shared_bytes <= TYPICAL_DEVICE.shared_bytes


@pytest.mark.parametrize("problem, reason", [
    (each_channel((128, 7, 7, 1024), (7, 7)), None),
    (each_channel((3, 14, 14, 120), (5, 7)), None),
    (each_channel((32, 9, 30, 64), (3, 3), "float16", padding=((0, 3), (-1, 4))), None),
    (each_channel((32, 56, 64, 64), (7, 7)), None),
    (each_channel((32, 56, 56, 64), (7, 7)), "boxes of 2 images of 7 strips, of 16"),
    (each_channel((32, 7, 7, 24), (7, 7)), "boxes of 16 bytes of each pixel"),
    (each_channel((32, 14, 14, 64), (3, 3), rhs_dilation=2), "boxes of parts of rows"),
    (each_channel((32, 14, 14, 64), (3, 2), window_strides=(1, 2)), "boxes of columns that are apart"),
    (each_channel((32, 14, 14, 64), (3, 3), window_strides=(2, 1)), "rows move by 2:1"),
], ids=str)  # fmt: skip
def test_tma_copies_whole_rows_of_images(problem, reason):
    """For every pass; what it does not copy is asked for forward."""
    passes = passes_of(problem)
    for kind, of_pass in passes.values() if reason is None else [passes["fprop"]]:
        choice = choose("cuda", kind, of_pass, as_it_is("depthwise", BY_TMA))
        if reason is None:
            assert choice.plan.settings.tile == BY_TMA
        else:
            assert choice.plan is None and reason in str(choice.rejected)


@pytest.mark.parametrize("problem, reason", [
    (each_channel((128, 7, 7, 1024), (7, 7)), None),
    (each_channel((3, 40, 8, 120), (5, 8)), None),
    (each_channel((5, 9, 6, 64), (3, 3), "float16", padding=((0, 3), (-1, 4))), None),
    (each_channel((5, 9, 64), (3,), padding=((-2, 1),)), "rows of 9 columns"),
    (each_channel((5, 9, 7, 64), (3, 3), padding=((1, 1), (2, 2))), "rows of 9 columns"),
    (each_channel((128, 7, 7, 64), (7, 9)), "taps in 9 columns"),
    (each_channel((128, 7, 7, 24), (7, 7)), "boxes of 16 bytes of each pixel"),
    (each_channel((128, 8, 8, 64), (3, 3), rhs_dilation=2), "boxes of parts of rows"),
], ids=str)  # fmt: skip
def test_pairs_of_rows_are_of_narrow_images(problem, reason):
    """And of reduces: zeros around images are not copied."""
    passes = passes_of(problem)
    for which in ("fprop", "dgrad"):
        assert "no gather" in str(choose("cuda", *passes[which], as_it_is("depthwise", IN_PAIRS)).rejected)
    kind, of_pass = passes["wgrad"]
    choice = choose("cuda", kind, of_pass, as_it_is("depthwise", IN_PAIRS))
    if reason is not None:
        assert choice.plan is None and reason in str(choice.rejected)
        return
    stream = stream_of(IN_PAIRS, Product(kind, of_pass), choice.plan.settings.area)
    pitch = stream.source_pitch
    assert choice.plan.settings.tile == IN_PAIRS and stream.strips_pitch == pitch and stream.source_behind == 0
    assert pitch % 2 == 1 and max(of_pass.in_spatial[-1], of_pass.out_spatial[-1]) <= pitch <= 9
    assert stream.shared_bytes <= TYPICAL_DEVICE.shared_bytes


@pytest.mark.parametrize("images, image, channels, tile, split", [
    (128, 7, 1024, IN_PAIRS, 4), (128, 14, 512, BY_TMA, 8), (128, 28, 256, BY_TMA, 16),
])  # fmt: skip
def test_convnexts_last_weight_gradients_are_by_tma(images, image, channels, tile, split):
    """As many thread blocks as multiprocessors."""
    kind, of_pass = passes_of(each_channel((images, image, image, channels), (7, 7)))["wgrad"]
    settings = choose("cuda", kind, of_pass).plan.settings
    assert (settings.tile, settings.split) == (tile, split)
