"""Infinities and NaNs reach no further than the strips of depthwise that read them."""

import numpy as np
import pytest

from cases.convolutions import convolutions, problem
from cases.exact import cases_of
from cases.for_depthwise import pixels_of
from cases.not_finite import check_not_finite
from cases.problems import passes_of, steps_of
from cases.tiles import dtype_of, kernels_of
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES
from jaxconv.problem.offsets import in_three

pytestmark = pytest.mark.gpu
TILES = [tile for tile in FAMILIES["cuda"]["depthwise"].tiles if not tile.of_bytes]


def strips_that_read(problem, tile, settings, at):
    """bool[output positions] of a conv by depthwise: the strips whose Toeplitz matrices have a source pixel."""
    steps, periods = in_three(steps_of(problem)), in_three(problem.periods)
    depths, rows, cols = map(np.arange, (1, 1, *problem.out_spatial)[-3:])
    depth, row, col = (0, 0, *at)[-3:]
    depth = depth - settings["first_depth"] - depths // periods[0] * steps[0]
    row = row - settings["first_row"] - rows // periods[1] * steps[1]
    col = col - settings["first_col"] - cols // 8 * 8 // periods[2] * steps[2]
    within_depths = (depth >= 0) & (depth < tile.depths * settings["depth_parts"])
    within_rows = (row >= 0) & (row < tile.step * tile.lags * settings["row_parts"])
    within_cols = (col >= 0) & (col < pixels_of(tile) * settings["col_parts"])
    return (within_depths[:, None, None] & within_rows[:, None] & within_cols).reshape(problem.out_spatial)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_not_finite_numbers_reach_no_further_than_their_strips(tile):
    """In a conv, and there no further than their channel and image.

    In a weight gradient, no further than their channel.
    """
    names = ["joined_rows", "short_lines", "window_31", "cropped", "depthwise_5x5", "depthwise_7x7", "tma_tiles_of_7",
             "tma_tiles_of_14", "tma_tiles_of_60", "window_31x31", "strided_depthwise", "strided_7x7", "doubled_3x3",
             "doubled_7x7", "volume_3x3x3"]  # fmt: skip
    dtype, cases = dtype_of("depthwise", tile), cases_of("depthwise", tile, names)
    assert {which for _, which, _ in cases} == {which for _, which in kernels_of("depthwise", tile)}
    for name, which, asked in cases:
        kind, of_pass = passes_of(problem(name, dtype))[which]
        at = (1, 3, 5)[-len(of_pass.kernel) :]
        plan = choose("cuda", kind, of_pass, asked, ffi.device("cuda")).plan

        def reached(channel, seen, kind=kind, of_pass=of_pass, plan=plan, at=at):
            may_be = np.zeros(seen.shape, bool)
            if kind == "wgrad":
                may_be[..., channel] = True
            else:
                may_be[1, ..., channel] = strips_that_read(of_pass, tile, plan.settings, at)
            return may_be

        check_not_finite(convolutions()[name], asked, which, dtype, at, reached)
