"""Plans of direct: halo tiles hold what output tiles read, and warps hold their sums."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from cases.plans import CUDA, as_it_is, device, is_refused, plan_of, shared_bytes, tile_of
from cases.problems import each_channel, layer, passes_of
from cases.random_problems import problems_of_vectors
from jaxconv.planner.choose import choose
from jaxconv.planner.devices import TYPICAL_DEVICE
from jaxconv.problem.offsets import offset_tables
from jaxconv.problem.product import EpilogueKind


def halo_of(plan):
    return [plan.settings[f"halo_{name}"] for name in ("depth", "height", "width")]


def check_halo(problem, plan):
    """The halo tile has each tap of a residue class for each position of the output tile; with packed K, its row."""
    of, rows = plan.settings, plan.settings["streams"] * plan.settings["stream_rows"]
    dims = list(zip(problem.window_strides, problem.lhs_dilation, strict=True))
    _, down, right = [1] * (3 - len(dims)) + [stride // math.gcd(stride, dilation) for stride, dilation in dims]
    positions = np.array([(0, down * r, right * c) for r in range(of["rows"]) for c in range(of["cols"])])
    tables, there = offset_tables(problem), 2 if of["packed_taps"] else 3
    assert rows >= of["rows"]
    assert of["taps"] == tables.classes[:, 1].max()
    for first, count, *_ in tables.classes:
        if count:
            seen = tables.taps[first : first + count, None, 2:] + positions
            assert np.all(np.ptp(seen, axis=(0, 1))[:there] < halo_of(plan)[:there])


def check_packed(kind, problem, plan):
    """The halo tile's rows have all elements that are read: whole multiplications of vectors."""
    of, tile = plan.settings, tile_of(plan)
    step, (taps,) = problem.window_strides[-1] * problem.in_channels, problem.kernel[-1:]
    vectors = -(-(taps * problem.in_channels + problem.in_channels % 2) // 8)
    streaming = kind == "conv" and tile.stream_rows > 0
    if streaming:
        assert vectors <= tile.packed
        vectors = tile.packed
    elif kind == "conv":
        vectors += vectors % 2
    assert 6 + step % 2 * 2 + (of["cols"] - 1) * step + vectors * 8 <= of["halo_width"] * 8 <= 256
    assert of["cols"] % 16 == 0 and of["packed_taps"] == taps


def first_corner(problem):
    """Where the halo tiles of the first class begin, which is the class of a wgrad's output tiles."""
    (first, count, *_), *_ = offset_tables(problem).classes
    shifts = offset_tables(problem).taps[first : first + count, 2:]
    return shifts.min(axis=0).tolist() if count else [0, 0, 0]


def check_warps(kind, problem, plan):
    """A conv's warps have the sums of the output tile's positions or, with taps in N, of the halo tile's pixels."""
    of, tile = plan.settings, tile_of(plan)
    if kind == "wgrad":
        assert of["stream_rows"] == 1
        return
    assert of["stream_rows"] == 1 or tile.stream_rows > 0
    held = tile.warps * tile.positions
    if tile.taps_in_n:
        assert math.prod(halo_of(plan)) <= held
        assert of["taps"] * problem.out_channels <= tile.sets * tile.columns
    else:
        assert of["streams"] * of["cols"] <= held


@settings(max_examples=100, database=None)
@given(
    problems_of_vectors(), st.sampled_from([None, None, (1, 8), (3, 16), (2, 32)]),
    st.sampled_from([48 * 2**10, 99 * 2**10, TYPICAL_DEVICE.shared_bytes]),
)  # fmt: skip
def test_what_direct_takes_fits(problem, output_tile, shared):
    small = device(shared_bytes=shared)
    for kind, problem in passes_of(problem).values():
        for tile in CUDA["direct"].tiles:
            choice = choose("cuda", kind, problem, as_it_is("direct", tile.name, output_tile=output_tile), small)
            plan = plan_of(choice, "direct")
            if plan is None:
                continue
            assert not is_refused(plan, problem, small)
            assert output_tile in (None, plan.output_tile)
            of, halo = plan.settings, halo_of(plan)
            rows, across = of["streams"] * of["stream_rows"], kind == "conv" and tile.taps_in_n
            assert shared_bytes(plan, problem) <= shared
            assert (of["packed_taps"] > 0) == (tile.packed > 0)
            assert of["cols"] % 8 == 0 and (of["packed_taps"] or across or of["halo_width"] % 8 == 0)
            assert max(*halo, rows, of["cols"]) <= 256
            check_halo(problem, plan)
            check_warps(kind, problem, plan)
            if of["packed_taps"]:
                check_packed(kind, problem, plan)
            assert [of[f"corner_{axis}"] for axis in ("depth", "row", "col")] == first_corner(problem)


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_mambas_lines_are_directs(which):
    """As tiles of a single row: `depthwise` would begin anew in each."""
    kind, of_pass = passes_of(each_channel((8, 4096, 4096), (4,), padding=[(3, 0)]))[which]
    assert choose("cuda", kind, of_pass).plan.family == "direct"


GROUPED = {
    "rnx_56_g32_128": ((128, 56, 56, 128), 32, 1),
    "rnx_28_g32_256_s2": ((128, 56, 56, 256), 32, 2),
    "rnx_14_g32_512": ((128, 14, 14, 512), 32, 1),
    "rnx_14_g32_1024": ((128, 14, 14, 1024), 32, 1),
    "regnet_28_g8_384": ((128, 28, 28, 384), 8, 1),
}


def grouped(name, dtype, result=None):
    lhs, groups, stride = GROUPED[name]
    return layer(lhs, (3, 3, lhs[-1] // groups, lhs[-1]), dtype, result, window_strides=(stride, stride),
                 padding=((1, 1), (1, 1)), feature_group_count=groups)  # fmt: skip


@pytest.mark.parametrize("name", GROUPED)
def test_narrow_groups_of_bytes_are_directs(name):
    """And by the planner's costs faster than in bfloat16, where all is summed alike."""
    by_bytes = choose("cuda", "conv", grouped(name, "int8", "int8"), epilogue_kind=EpilogueKind.PLAIN)
    assert by_bytes.plan.family == "direct" and tile_of(by_bytes.plan).of_bytes
    assert by_bytes.cost < choose("cuda", "conv", grouped(name, "bfloat16"), epilogue_kind=EpilogueKind.PLAIN).cost


@pytest.mark.parametrize("result", ["int8", "int32", "bfloat16", "float16", "float32"])
def test_bytes_have_results_in_every_type(result):
    problem = grouped("rnx_14_g32_512", "int8", result)
    for tile in CUDA["direct"].tiles:
        choice = choose("cuda", "conv", problem, as_it_is("direct", tile.name))
        assert tile.of_bytes == (plan_of(choice, "direct") is not None)


def test_what_direct_does_not_take_of_bytes():
    reason = lambda kind, problem: choose("cuda", kind, problem, as_it_is("direct")).unsupported_reason()
    line = lambda channels: layer((2, 40, channels), (3, channels, 16), "int8", "int32", padding=((1, 1),))
    assert "channels are not last, in vectors of 16" in reason("conv", line(24))
    assert "weight gradients of int8" in reason("wgrad", line(16))
    assert "the tile is compiled for other types" not in reason("conv", line(24))


def few_channels(lhs, rhs, **params):
    return layer(lhs, rhs, "float32", window_strides=(params.pop("stride", 1),) * 2, **params)


FLOATS = {
    "stem": few_channels((64, 224, 224, 3), (7, 7, 3, 64), stride=2, padding=3),
    "small_window_stem": few_channels((32, 232, 232, 3), (3, 3, 3, 64), padding=1),
    "latents": few_channels((8, 64, 64, 4), (3, 3, 4, 320), padding=1),
    "groups_of_4": few_channels((64, 56, 56, 128), (3, 3, 4, 128), padding=1, feature_group_count=32),
    "groups_of_16": few_channels((64, 14, 14, 512), (3, 3, 16, 512), padding=1, feature_group_count=32),
}


@pytest.mark.parametrize("name", FLOATS)
def test_few_channels_of_floats_are_directs(name):
    plan = choose("cuda", "conv", FLOATS[name]).plan
    assert plan.family == "direct" and tile_of(plan).of_floats


def test_what_direct_does_not_take_of_floats():
    problem = layer((8, 28, 28, 64), (3, 3, 64, 64), "float32", padding=1)
    reason = lambda kind, problem: choose("cuda", kind, problem, as_it_is("direct")).unsupported_reason()
    assert "more than 32 channels" in reason("conv", problem)
    assert "operands of float32" in reason("wgrad", FLOATS["latents"])
    highest = dataclasses.replace(FLOATS["latents"], precision=lax.Precision.HIGHEST)
    assert "float32 is to be multiplied as it is" in reason("conv", highest)
    assert "channels are not last, in vectors of 4" in reason("conv", FLOATS["stem"])
