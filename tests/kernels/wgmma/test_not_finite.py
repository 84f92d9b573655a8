"""Infinities and NaNs reach what lax sums them into, by wgmma too."""

import functools
import itertools

import jax
import numpy as np
import pytest

from cases.convolution import channels_last_convolution
from cases.not_finite import check_not_finite
from cases.problems import CONV_PASSES, passes_of, problem_of
from cases.reference import run_on_host
from cases.tiles import PASSES, constraint, dtype_of, every_tile_of, is_for_tf32, transform_of
from jaxconv import ffi
from jaxconv.planner.choose import choose

pytestmark = pytest.mark.gpu
BY_WINDOWS = {
    "begun_k_block": channels_last_convolution((2, 9, 8, 72), (3, 3, 72, 40)),
    "less_than_a_k_block": channels_last_convolution((2, 9, 8, 8), (2, 3, 8, 136), padding="VALID"),
    "of_classes": channels_last_convolution((2, 9, 8, 40), (3, 3, 40, 72), window_strides=(2, 2)),
    "of_even_classes": channels_last_convolution(
        (2, 6, 7, 72), (4, 4, 72, 8), lhs_dilation=(2, 2), padding=((2, 2), (2, 2))),
}  # fmt: skip
# Convolutions, and a pixel and a position whose windows are within the image.
BY_POSITIONS = {
    "begun_blocks": (channels_last_convolution((2, 9, 8, 72), (3, 3, 72, 40)), (1, 1)),
    "first": (channels_last_convolution((2, 9, 8, 8), (2, 3, 8, 136), padding="VALID"), (0, 0)),
    "last": (channels_last_convolution(
        (2, 9, 7, 40), (3, 3, 40, 72), window_strides=(2, 2), padding="VALID"), (-1, -1)),
    "of_classes": (BY_WINDOWS["of_even_classes"], (1, 1)),
    "of_a_line": (channels_last_convolution((2, 72, 24), (3, 24, 16)), (40,)),
    "of_a_matrix": (channels_last_convolution((2, 9, 8, 136), (1, 1, 136, 24)), (8, 7)),
    "of_a_volume": (channels_last_convolution((2, 3, 4, 5, 8), (2, 2, 2, 8, 16), padding="VALID"), (1, 2, 3)),
}  # fmt: skip


def is_supported(convolution, asked, which, dtype):
    problem = problem_of(convolution.lax_for(asked), convolution.lhs, convolution.rhs, dtype)
    return choose("cuda", *passes_of(problem)[which], asked, ffi.device("cuda")).plan is not None


def weight_gradients(tile, **settings):
    """Asked for, and their dtype."""
    dtype = dtype_of("wgmma", tile)
    return constraint("wgmma", tile, transform_of("wgmma", tile, dtype, "wgrad"), **settings), dtype


def taken_by(asked, dtype):
    """Tiles with halo tiles take no residue classes: of each convolution the convs that are left, one at least."""
    for convolution in BY_WINDOWS.values():
        supported = [which for which in CONV_PASSES if is_supported(convolution, asked, which, dtype)]
        assert supported
        yield from ((convolution, which) for which in supported)


@pytest.mark.parametrize("split", [1, 17])
@every_tile_of("wgmma", "fprop")
def test_not_finite_numbers_reach_what_lax_sums_them_into(tile, split):
    """And nothing else: behind the last channel TMA fills zeros of pixels and of the filter, and slices have others."""
    asked, at = constraint("wgmma", tile, split=min(split, tile.cluster_split or split)), (2, 3)
    dtype = dtype_of("wgmma", tile)
    for convolution, which in taken_by(asked, dtype):
        check_not_finite(convolution, asked, which, dtype, at, lambda channel, seen: seen)


@every_tile_of("wgmma", "fprop")
def test_not_finite_filters_reach_their_channel(tile):
    """The filter meets padding in both convs, as lax's does, and channels that it is not of in none."""
    asked, dtype = constraint("wgmma", tile), dtype_of("wgmma", tile)
    for convolution, which in taken_by(asked, dtype):
        x, w, g = (np.ones(a.shape, dtype) for a in convolution.operands())
        ours, theirs = (PASSES[which](conv) for conv in (convolution.ours(asked), convolution.lax()))
        program = jax.jit(ours)
        clean = np.asarray(program(x, w, g))
        for tap, value in itertools.product((0, -1), (np.nan, np.inf)):
            place = (tap, tap, tap, tap)
            channel = np.arange(clean.shape[-1]) == tap % clean.shape[-1]
            one, bad = np.zeros(w.shape, np.float32), w.copy()
            one[place], bad[place] = 1, value
            seen = np.asarray(run_on_host(theirs, x.astype(np.float32), one, g.astype(np.float32))) > 0
            actual = np.asarray(program(x, bad, g))
            assert np.any(seen) and not np.any(seen[..., ~channel])
            np.testing.assert_array_equal(actual[..., ~channel], clean[..., ~channel], err_msg=which)
            assert not np.any(np.isfinite(actual.astype(np.float32)) & seen)


@pytest.mark.parametrize("split", [1, 8, 12, 17])
@every_tile_of("wgmma", "wgrad")
def test_not_finite_numbers_reach_their_weight_gradients(tile, split):
    """And nothing else: a number of x its channel by the taps that see it, and one of g its channel.

    Behind the last channel and the last position TMA fills zeros of both. Other slices and other taps of a tile have
    other sums. Halo tiles take windows side by side alone, and those of float32 lines of whole vectors.
    """
    asked, dtype = weight_gradients(tile, split=split)
    supported = [of for of in BY_POSITIONS.values() if is_supported(of[0], asked, "wgrad", dtype)]
    assert len(supported) == (3 if is_for_tf32(tile) else 4 if tile.halo else len(BY_POSITIONS))
    for convolution, at in supported:
        check_not_finite(convolution, asked, "wgrad", dtype, at, lambda channel, seen: seen)


@pytest.mark.parametrize("at", [(0, 0), (-1, -1)], ids=["first", "last"])
@every_tile_of("wgmma", "wgrad")
def test_not_finite_numbers_at_an_edge_reach_their_channel(tile, at):
    """Windows have padding there: numbers of g reach the taps that meet its zeros, too.

    Halo tiles have positions behind the last one. Their windows read pixels for gradients that are zeros: numbers of x
    reach other taps, too.
    """
    convolution, _ = BY_POSITIONS["begun_blocks"]
    asked, dtype = weight_gradients(tile)
    check = functools.partial(check_not_finite, convolution, asked, "wgrad", dtype, at)
    at_any_tap = lambda channel, seen: np.any(seen, axis=(0, 1), keepdims=True) & np.ones_like(seen)
    check(at_any_tap if tile.halo else lambda channel, seen: seen, operands=(0,))
    check(at_any_tap, operands=(2,))
