"""Infinities and NaNs reach no further than what direct reads."""

import functools
import math

import numpy as np
import pytest

from cases.convolution import channels_last_convolution
from cases.convolutions import convolutions, problem
from cases.exact import are_supported
from cases.not_finite import check_not_finite
from cases.problems import passes_of, problem_of
from cases.tiles import PASSES, constraint
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu
TILES = [tile for tile in FAMILIES["cuda"]["direct"].tiles if not tile.of_bytes]


@pytest.mark.parametrize("tile, of_group", [(tile, n) for tile in TILES for n in (1, 4) if n > tile.of_floats], ids=str)
def test_not_finite_numbers_reach_no_further_than_their_window(tile, of_group):
    """In a conv, and there no further than the channels that a set of output channels is multiplied with.

    In a weight gradient, no further than their own vector of eight channels.
    """
    taps_in_n = tile.taps_in_n  # of one group
    rhs = (3, 3, 128, 3) if taps_in_n else (3, 3, of_group, 128)
    convolution = channels_last_convolution((2, 13, 21, 128), rhs, feature_group_count=128 // rhs[-2])
    dtype = "float32" if tile.of_floats else "bfloat16"
    problems = passes_of(problem_of(convolution.lax(), convolution.lhs, convolution.rhs, dtype))
    set_channels = 2 ** math.ceil(math.log2(tile.columns))
    asked = constraint("direct", tile)
    plan = lambda which: choose("cuda", *problems[which], asked, ffi.device("cuda")).plan
    supported = [which for which in PASSES if plan(which) is not None]
    assert {"fprop", "dgrad"} & set(supported) or tile.packed or tile.stream_rows not in (0, 3)

    def reached(which, channel, seen):
        many = 8 if which == "wgrad" else set_channels
        near = bool(taps_in_n) | (np.arange(seen.shape[-1]) // many == channel // many)
        return near & (np.full_like(seen, True) if which == "wgrad" else np.any(seen, axis=-1, keepdims=True))

    for which in supported:
        check_not_finite(convolution, asked, which, dtype, (5, 16), functools.partial(reached, which))


OF_PACKED_K = {
    f"{tile}-{name}".replace(" ", "_"): (tile, name) for tile in FAMILIES["cuda"]["direct"].tiles if tile.packed
    for name in (["image_stem"] if tile.stream_rows else ["image_stem", "latents", "odd_image"])
}  # fmt: skip


@pytest.mark.parametrize("tile, name", OF_PACKED_K.values(), ids=OF_PACKED_K)
def test_not_finite_numbers_reach_no_further_than_packed_k(tile, name):
    """Packed K is read in whole vectors, and behind the end of a row of taps: up to 32 elements."""
    asked, convolution, at = constraint("direct", tile), convolutions()[name], (5, 7)
    assert are_supported(name, asked, passes=("fprop",))
    stride, channels = convolution.params["window_strides"][-1], convolution.lhs[-1]

    def reached(channel, seen):
        cols = np.arange(seen.shape[2]) * stride * channels
        first = cols - problem(name).pad_low[-1] * channels - 1
        element = at[1] * channels + channel
        near = (first <= element) & (element < first + 33)
        return np.any(seen, axis=(2, 3), keepdims=True) & near[:, None] & np.ones_like(seen)

    check_not_finite(convolution, asked, "fprop", "bfloat16", at, reached)
