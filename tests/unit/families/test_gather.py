"""Plans of gather: small layers of groups of one channel, with the window in the settings."""

import math

import numpy as np
import pytest
from hypothesis import given, settings

from cases.plans import CUDA, as_it_is, plan_of, tile_of
from cases.problems import CONV_PASSES, each_channel, passes_of
from cases.random_problems import problems_of_channels
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint
from jaxconv.problem.offsets import offset_tables


def taps_of(plan):
    """Those that a kernel sees: where each reads in the source, and in the filter."""
    of, names = plan.settings, ("depth", "row", "col")
    first = [of[f"first_{name}"] for name in names]
    apart = [of[f"{name}s_apart"] for name in names]
    in_filter = [of[f"filter_{name}"] for name in names]
    places = np.indices([of[f"tap_{name}s"] for name in names]).reshape(3, -1).T
    return {
        (*np.add(first, place * apart).tolist(), of["filter_first"] + int(place @ np.array(in_filter)))
        for place in places
    }


def seen_taps(problem):
    tables = offset_tables(problem)
    seen = tables.classes[(tables.classes[:, 5:] > 0).all(axis=1)]
    rows = [tables.taps[first : first + count] for first, count in seen[:, :2].tolist()]
    return {(*shift, delta) for _, delta, *shift in np.concatenate(rows).tolist()}


@settings(max_examples=150, database=None)
@given(problems_of_channels())
def test_kernels_see_the_taps_of_the_tables(problem):
    for kind, of_pass in passes_of(problem).values():
        for tile in CUDA["gather"].tiles:
            plan = plan_of(choose("cuda", kind, of_pass, as_it_is("gather", tile.name)), "gather")
            if plan is None:
                continue
            of = plan.settings
            assert kind == "conv" and taps_of(plan) == seen_taps(of_pass)
            assert tile.width in (0, of["tap_cols"])
            assert tile.height in (0, of["tap_depths"] * of["tap_rows"])
            assert plan.workspace_bytes(of_pass) == 0


# Of the census: a few images, whose depthwise layers lax computes in 3.3 to 3.7 us.
SMALL = {
    "one_image_3x3": ((1, 20, 20, 672), (3, 3)),
    "few_pixels": ((1, 8, 8, 960), (3, 3)),
    "few_channels": ((1, 32, 32, 240), (3, 3)),
    "four_images": ((4, 14, 14, 480), (3, 3)),
    "window_of_5": ((1, 14, 14, 672), (5, 5)),
}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("which", CONV_PASSES)
@pytest.mark.parametrize("name", SMALL)
def test_small_layers(name, which, dtype):
    kind, problem = passes_of(each_channel(*SMALL[name], dtype))[which]
    choice = choose("cuda", kind, problem)
    assert choice.plan.family == "gather"
    assert 1.5e-6 < choice.cost < choose("cuda", kind, problem, Constraint("cuda", "depthwise")).cost


@pytest.mark.parametrize("kernel, dtype", [((3, 3), "bfloat16"), ((5, 5), "bfloat16"), ((3, 3), "float32")])
@pytest.mark.parametrize("which", CONV_PASSES)
def test_large_layers_are_not_gathered(which, kernel, dtype):
    kind, problem = passes_of(each_channel((128, 56, 56, 128), kernel, dtype))[which]
    assert choose("cuda", kind, problem).plan.family == "depthwise"


def test_a_strided_layer_has_a_thread_for_each_result():
    """Neighbours share no whole columns of pixels."""
    kind, problem = passes_of(each_channel((1, 28, 28, 240), (3, 3), window_strides=2))["fprop"]
    plan = choose("cuda", kind, problem, Constraint("cuda", "gather")).plan
    assert tile_of(plan).cols == 1


def test_a_stride_that_is_the_dilation_leaves_a_thread_several_results():
    dilated = passes_of(each_channel((1, 28, 28, 240), (3, 3), window_strides=2, rhs_dilation=2))["fprop"]
    assert choose("cuda", *dilated, as_it_is("gather", "3x3 by 4")).plan is not None


def test_a_data_gradient_turns_the_filter():
    convs = {which: passes_of(each_channel((1, 20, 20, 64), (3, 3)))[which] for which in CONV_PASSES}
    plans = {which: choose("cuda", *convs[which], as_it_is("gather")).plan for which in CONV_PASSES}
    strides = lambda which: [plans[which].settings[name] for name in ("filter_first", "filter_row", "filter_col")]
    assert strides("fprop") == [0, 3 * 64, 64] and strides("dgrad") == [8 * 64, -3 * 64, -64]


def test_a_padded_vector_of_channels():
    kind, problem = passes_of(each_channel((1, 20, 20, 100), (3, 3)))["fprop"]
    plan = choose("cuda", kind, problem, Constraint("cuda", "gather")).plan
    assert plan.transform and math.prod(plan.settings[f"tap_{name}"] for name in ("depths", "rows", "cols")) == 9
