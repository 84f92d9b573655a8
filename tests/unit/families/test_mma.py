"""Plans of mma: its tiles of Hopper's instruction, and the residue classes that it merges."""

import dataclasses

import numpy as np
import pytest

from cases.plans import as_it_is, candidates, device, tile_of
from cases.problems import PASSES, layer
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint


def test_an_instruction_of_hopper_is_for_hopper():
    """Elsewhere its tiles are refused, with the reason, and another takes the problem."""
    kind, problem = PASSES["dense_fprop"]
    halves = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), np.dtype("bfloat16"))
    problem = dataclasses.replace(problem, **halves)
    of_mma = Constraint(family="mma")
    assert tile_of(choose("cuda", kind, problem, of_mma, device(wgmma=True)).plan).wgmma
    choice = choose("cuda", kind, problem, device=device(wgmma=False))
    assert choice.plan.family == "mma" and not tile_of(choice.plan).wgmma
    reasons = [r.reason for r in choice.rejected if r.what.endswith("wgmma")]  # tiles of mma, and a family
    assert len(reasons) == 4 + 1 and all("9.0" in reason for reason in reasons)


def side_by_side(lhs, rhs, stride, **more):
    """A convolution whose windows do not overlap."""
    return layer(lhs, rhs, "bfloat16", window_strides=stride, padding="VALID", **more)


MERGED = {
    "patch": (side_by_side((2, 32, 32, 48), (16, 16, 48, 24), (16, 16)).dgrad(), 256),
    "rows": (side_by_side((2, 32, 2, 48), (16, 1, 48, 24), (16, 1)).dgrad(), 16),
    "a_column": (side_by_side((2, 32, 1, 48), (16, 1, 48, 24), (16, 2)).dgrad(), 16),
    "pairs": (side_by_side((2, 8, 6, 16), (2, 2, 16, 32), (2, 2)).dgrad(), 4),
    "groups": (side_by_side((2, 8, 6, 16), (2, 2, 8, 32), (2, 2), feature_group_count=2).dgrad(), 4),
    "few_columns": (side_by_side((2, 8, 6, 4), (2, 2, 4, 32), (2, 2)).dgrad(), 1),
    "a_row_without_window": (side_by_side((2, 9, 6, 16), (2, 2, 16, 32), (2, 2)).dgrad(), 1),
    "holes": (side_by_side((2, 8, 6, 16), (1, 2, 16, 32), (2, 2)).dgrad(), 1),
    "overlap": (side_by_side((2, 9, 7, 16), (3, 3, 16, 32), (2, 2)).dgrad(), 1),
    "not_dilated": (side_by_side((2, 8, 6, 16), (2, 2, 16, 32), (2, 2)), 1),
}


@pytest.mark.parametrize("problem, merged", MERGED.values(), ids=MERGED)
def test_classes_that_read_the_same_pixels_are_merged(problem, merged):
    """By a conv of mma's wide tiles, which then has the columns of all in one matrix."""
    for family, tile in candidates("conv", problem):
        if family != "mma":
            continue
        for kind, expected in (("conv", merged if tile.cols == 128 else 1), ("wgrad", 1)):
            plan = choose("cuda", kind, problem, as_it_is("mma", tile.name)).plan
            assert plan.settings["merged"] == expected
