"""Infinities and NaNs reach the results of gather whose windows see them, and no others."""

import pytest

from cases.convolution import depthwise_convolution
from cases.not_finite import check_not_finite
from cases.problems import CONV_PASSES, passes_of, problem_of
from cases.tiles import constraint, every_tile_of
from jaxconv import ffi
from jaxconv.planner.choose import choose

pytestmark = pytest.mark.gpu
# Rows of taps that a tile has, and others: these are loaded four at a time, with pixels behind a row's last tap.
WINDOWS = [(3, 3), (2, 5), (3, 6), (2, 7)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("which", CONV_PASSES)
@every_tile_of("gather")
def test_not_finite_numbers_reach_what_sees_them(tile, which, dtype):
    asked, checked = constraint("gather", tile), 0
    for window in WINDOWS:
        convolution = depthwise_convolution((2, 7, 11, 16), window)
        problem = problem_of(convolution.lax(), convolution.lhs, convolution.rhs, dtype)
        if choose("cuda", *passes_of(problem)[which], asked, ffi.device("cuda")).plan is not None:
            checked += 1
            check_not_finite(convolution, asked, which, dtype, (2, 5), lambda channel, seen: seen)
    assert checked == (1 if tile.width else len(WINDOWS))
