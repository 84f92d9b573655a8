"""Infinities and NaNs reach no further than the strips of depthwise that read them."""

import numpy as np
import pytest

from cases.convolutions import convolutions, problem
from cases.exact import cases_of
from cases.not_finite import check_not_finite
from cases.problems import passes_of
from cases.tiles import dtype_of, every_tile_of, kernels_of
from jaxconv import ffi
from jaxconv.families.depthwise_shape import window
from jaxconv.plan import choose

pytestmark = pytest.mark.gpu


def strips_that_read(problem, plan, at):
    """bool[output positions] of a gather by depthwise: the strips whose bands have a source pixel."""
    reach, tile = window(problem), plan.settings.tile
    row_pieces, col_pieces = plan.attributes(problem)["shape"][8:10]
    depths, rows, cols = map(np.arange, (1, 1, *problem.out_spatial)[-3:])
    depth, row, col = (0, 0, *at)[-3:]
    depth = depth - reach.first[0] - depths // reach.periods[0] * reach.steps[0]
    row = row - reach.first[1] - rows // reach.periods[1] * reach.steps[1]
    col = col - reach.first[2] - cols // 8 * 8 // reach.periods[2] * reach.steps[2]
    within_depths = (depth >= 0) & (depth < reach.depths)
    within_rows = (row >= 0) & (row < tile.step * tile.lags * row_pieces)
    within_cols = (col >= 0) & (col < tile.pixels * col_pieces)
    return (within_depths[:, None, None] & within_rows[:, None] & within_cols).reshape(problem.out_spatial)


@every_tile_of("depthwise")
def test_not_finite_numbers_reach_no_further_than_their_strips(row):
    """In a gather, and there no further than their channel and image.

    In a reduction, no further than their channel.
    """
    names = ["joined_rows", "short_lines", "window_31", "cropped", "depthwise_5x5", "depthwise_7x7", "boxes_of_7",
             "boxes_of_14", "boxes_of_60", "window_31x31", "strided_depthwise", "strided_7x7", "doubled_3x3",
             "doubled_7x7", "volume_3x3x3"]  # fmt: skip
    dtype, cases = dtype_of("depthwise", row), cases_of("depthwise", row, names)
    assert {which for _, which, _ in cases} == {which for _, which in kernels_of("depthwise", row)}
    for name, which, asked in cases:
        kind, of_pass = passes_of(problem(name, dtype))[which]
        at = (1, 3, 5)[-len(of_pass.kernel) :]
        plan = choose("cuda", kind, of_pass, asked, ffi.device("cuda")).plan

        def reached(channel, seen, kind=kind, of_pass=of_pass, plan=plan, at=at):
            may_be = np.zeros(seen.shape, bool)
            if kind == "reduce":
                may_be[..., channel] = True
            else:
                may_be[1, ..., channel] = strips_that_read(of_pass, plan, at)
            return may_be

        check_not_finite(convolutions()[name], asked, which, dtype, at, reached)
