"""The planner: every candidate is chosen, forced or rejected with a reason, on any device."""

import dataclasses
import functools
import math
import re

import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from jax import export

from cases.plans import (
    CUDA,
    PARTIAL,
    TILES,
    answers,
    as_it_is,
    candidates,
    channel_taps,
    constraints,
    device,
    factor,
    is_refused,
    may_take,
    plan_of,
    sum_bytes,
    sums_in_f32,
)
from cases.problems import LAYERS, PASSES, layer, passes_of, problem_of
from cases.random_problems import problems
from cases.reference import lax_channels_last
from cases.small import GENERAL
from cases.tiles import has_pass
from jaxconv import _planning
from jaxconv.planner.candidate import Asked
from jaxconv.planner.choose import choose
from jaxconv.planner.devices import COSTS, OWN_COSTS, TYPICAL_DEVICE
from jaxconv.planner.families import FAMILIES, TRANSFORMS
from jaxconv.planner.plan import Constraint
from jaxconv.problem.product import EpilogueKind, Product
from jaxconv.transforms import ChannelsLast, SwappedOperands

EVERY_TILE = [(name, tile) for name, family in CUDA.items() for tile in family.tiles]
every_pass = pytest.mark.parametrize("kind, problem", PASSES.values(), ids=PASSES)
every_tile = pytest.mark.parametrize(
    "family, tile", EVERY_TILE, ids=[f"{family}_{tile}".replace(" ", "_") for family, tile in EVERY_TILE]
)


def steps(kind, problem):
    """The length of the reduction."""
    return channel_taps(problem) if kind == "conv" else problem.batch * math.prod(problem.out_spatial)


def takes(kind, problem, family, tile):
    is_for_sums = family not in ("simt", "im2col") or not tile.only_f32 or sums_in_f32(problem)
    return (family, tile) in candidates(kind, problem) and is_for_sums


# The candidates.


@pytest.mark.parametrize("family", CUDA)
def test_names_of_tiles(family):
    """Costs are kept by them."""
    names = [tile.name for tile in CUDA[family].tiles]
    assert len(set(names)) == len(names)


@every_pass
def test_every_tile_can_be_named(kind, problem):
    for family, tile in EVERY_TILE:
        choice = choose("cuda", kind, problem, Constraint(family=family, tile=tile.name))
        if not takes(kind, problem, family, tile):
            assert choice.plan is None, tile.name
        elif plan := plan_of(choice, family):
            assert (plan.platform, plan.kind, plan.tile) == ("cuda", kind, tile.name)
            assert 0 < choice.cost < math.inf, tile.name


@every_pass
def test_every_candidate_is_chosen_or_rejected_with_a_reason(kind, problem):
    """Once each; and a reason that a tile has of several transforms, or a family, once."""
    choice = choose("cuda", kind, problem)
    expected, known = [], set()
    for name, constraint in constraints(kind, problem).items():
        named = choose("cuda", kind, problem, constraint)
        if named.plan is None:
            (reason,) = (r.reason for r in named.rejected if r.what == name)
            if (constraint.family, constraint.tile, reason) not in known:
                expected.append((name, reason))
            known.add((constraint.family, constraint.tile, reason))
        elif named.plan != choice.plan:
            expected.append((name, None))
    rejected = [(r.what, None if factor(r) else r.reason) for r in choice.rejected]
    assert all(r.reason for r in choice.rejected)
    assert sorted(rejected, key=str) == sorted(expected, key=str)


@every_pass
def test_the_cheapest_is_chosen(kind, problem):
    """And a reason by cost is the cost of the candidate, were it named, over that of the chosen."""
    choice = choose("cuda", kind, problem)
    times = {r.what: factor(r) for r in choice.rejected if factor(r)}
    taken = []
    for name, constraint in constraints(kind, problem).items():
        named = choose("cuda", kind, problem, constraint)
        if named.plan is not None:
            taken.append(named.cost)
        if named.plan not in (None, choice.plan):
            assert times[name] >= 1
            assert named.cost / choice.cost == pytest.approx(times[name], rel=0.01, abs=0.06)
    assert choice.cost == min(taken)
    assert len(times) == len(taken) - 1


@pytest.mark.parametrize("name", ["dense", "halves", "stem", "volume"])
@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_im2col_is_never_chosen_for_large_dense_layers(name, which):
    assert choose("cuda", *passes_of(LAYERS[name])[which]).plan.family != "im2col"


@every_pass
def test_a_family_can_be_named_alone(kind, problem):
    for family in may_take(kind, problem):
        plan_of(choose("cuda", kind, problem, Constraint(family=family)), family)


@pytest.mark.parametrize("split", [1, 2, 3, 5])
@every_pass
def test_a_split_can_be_named(kind, problem, split):
    for family in may_take(kind, problem):
        plan = plan_of(choose("cuda", kind, problem, Constraint(family=family, split=split)), family)
        assert plan is None or plan.settings["split"] == split


@pytest.mark.parametrize("dtype, result", [("float32", None), ("int8", "int32")])
@pytest.mark.parametrize("groups, outputs, family", [
    (16, 1, "depthwise"), (8, 1, "depthwise"), (2, 1, "gemm"), (16, 8, "depthwise"), (8, 8, "gemm"), (4, 32, "gemm"),
])  # fmt: skip
def test_vectors_of_groups_are_full(groups, outputs, family, dtype, result):
    """On the host, where else a vector of output channels is better."""
    problem = layer((2, 112, 112, groups), (3, 3, 1, groups * outputs), dtype, result, feature_group_count=groups)
    assert choose("cpu", "conv", problem).plan.family == family


@pytest.mark.parametrize("kind, problem", [PASSES["dense_fprop"], PASSES["depthwise_wgrad"]], ids=str)
def test_host_families(kind, problem):
    choice = choose("cpu", kind, problem)
    assert choice.plan.family == ("depthwise" if problem.groups > 1 else "gemm")
    assert {choice.plan.family, *(r.what.partition(" of ")[0] for r in choice.rejected)} == set(FAMILIES["cpu"])
    assert all(r.reason for r in choice.rejected)
    assert choose("cpu", kind, problem, Constraint(family="gemm")).plan.family == "gemm"
    assert choice.plan.workspace_bytes(problem) is None


@pytest.mark.parametrize("x_shape, w_shape, stride, swapped", [
    ((4, 32, 32, 64), (3, 3, 64, 3), 1, True), ((4, 32, 32, 64), (3, 3, 64, 3), 2, True),
    ((4, 32, 32, 64), (3, 3, 64, 64), 1, False), ((4, 32, 32, 3), (3, 3, 3, 64), 1, False),
    ((4, 32, 32, 128), (1, 1, 128, 4), 1, False),
])  # fmt: skip
def test_the_host_swaps_operands_for_few_outputs(x_shape, w_shape, stride, swapped):
    """Rows of (tap, channel)s are packed of the activation with fewer channels."""
    problem = layer(x_shape, w_shape, window_strides=stride)
    assert choose("cpu", "wgrad", problem).plan.transform == ((SwappedOperands(),) if swapped else ())
    assert choose("cpu", "conv", problem).plan.transform == ()
    with_steps = Constraint("cpu", transform=(ChannelsLast(), SwappedOperands()))
    assert choose("cpu", "wgrad", problem, with_steps).plan is None


# Constraints that cannot be met.

FIRST = CUDA["im2col"].tiles[0]
IMPOSSIBLE = {
    "unknown_tile": ("cuda", "dense", Constraint(family="simt", tile="3x5x7"), "simt: no such tile"),
    "unknown_tile_of_any_family": ("cuda", "dense", Constraint(tile="3x5x7"), "mma: no such tile"),
    "tile_of_another_family": ("cuda", "dense", Constraint(family="im2col", tile="128x32x8"), "im2col: no such tile"),
    "chunk_of_part_of_a_tile": (
        "cuda", "dense", Constraint(family="im2col", tile=FIRST.name, chunk=FIRST.rows + 1),
        f"{FIRST.rows + 1}.*whole tiles"
    ),
    "chunk_of_nothing": ("cuda", "dense", Constraint(family="im2col", tile=FIRST.name, chunk=0), "chunk"),
    "chunk_of_another_family": ("cuda", "dense", Constraint(family="simt", chunk=FIRST.rows), "no setting chunk"),
    "no_split": ("cuda", "dense", Constraint(split=0), "split"),
    "negative_split": ("cuda", "dense", Constraint(split=-1), "split"),
    "host_family": ("cuda", "dense", Constraint(family="gemm"), "gemm"),
    "cuda_family": ("cpu", "dense", Constraint(family="simt"), "simt"),
    "tile_of_a_host_family": ("cpu", "dense", Constraint(family="gemm", tile=FIRST.name), "no settings"),
    "split_of_a_host_family": ("cpu", "dense", Constraint(split=2), "no settings"),
    "dense_as_depthwise": ("cpu", "dense", Constraint(family="depthwise"), "channel"),
}  # fmt: skip


@pytest.mark.parametrize("platform, name, constraint, why", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_what_cannot_be_met_says_why(platform, name, constraint, why, which):
    choice = choose(platform, *passes_of(LAYERS[name])[which], constraint)
    assert choice.plan is None
    assert any(re.search(why, f"{r.what}: {r.reason}") for r in choice.rejected), choice.rejected


@every_tile
@pytest.mark.parametrize("name", ["wide", "int8"])
def test_tiles_for_float32_sums_say_so(name, family, tile):
    choice = choose("cuda", "conv", LAYERS[name], Constraint(family=family, tile=tile.name))
    if not takes("conv", LAYERS[name], family, tile):
        assert choice.plan is None
    else:  # direct's warps may not hold such a filter
        reasons = [r.reason for r in choice.rejected if r.what == f"{family} {tile}"]
        assert choice.plan is not None or reasons == ["the filter does not fit into registers"]
    if family in ("simt", "im2col") and tile.only_f32:
        assert any("float32" in r.reason for r in choice.rejected)


@pytest.mark.parametrize("result", ["int8", "bfloat16", "float16", "float32", "int32"])
@pytest.mark.parametrize("family", ["simt", "im2col", "mma", "wgmma"])
def test_cuda_kernels_round_sums_of_int8(family, result):
    problem = dataclasses.replace(LAYERS["int8"], out_dtype=jnp.dtype(result))
    assert choose("cuda", "conv", problem, Constraint("cuda", family)).plan


# Devices.


@every_pass
def test_a_smaller_device_is_no_faster(kind, problem):
    usual = choose("cuda", kind, problem)
    assert choose("cuda", kind, problem, device=TYPICAL_DEVICE) == usual
    for smaller in (
        device(multiprocessors=TYPICAL_DEVICE.multiprocessors // 4),
        device(clock_hz=TYPICAL_DEVICE.clock_hz / 4),
        device(bandwidth=TYPICAL_DEVICE.bandwidth / 4),
    ):
        assert choose("cuda", kind, problem, device=smaller).cost >= usual.cost


@pytest.mark.parametrize("family, dtype, rate_of_it", [
    ("simt", "float32", "float32_fmas_per_clock"), ("im2col", "int8", "other_fmas_per_clock"),
    ("direct", "bfloat16", "shared_bytes_per_clock"), ("mma", "int8", "tensor_core_bytes_per_clock"),
    ("wgmma", "bfloat16", "tensor_core_bytes_per_clock"),
])  # fmt: skip
def test_rates_in_a_clock_are_those_of_the_costs(family, dtype, rate_of_it, monkeypatch):
    """A lower one makes those kernels slower that work at it, and no others."""
    problem = layer((128, 56, 56, 32), (7, 7, 32, 64), dtype, "int32" if dtype == "int8" else None)
    usual, own = choose("cuda", "conv", problem, Constraint("cuda", family)).cost, TYPICAL_DEVICE.own_costs
    slower = set()
    for rate in (name for name in own if name.endswith("_per_clock")):
        costs = f"a fourth of {rate}"
        monkeypatch.setitem(COSTS, costs, {**COSTS[TYPICAL_DEVICE.costs], OWN_COSTS: {**own, rate: own[rate] / 4}})
        if choose("cuda", "conv", problem, Constraint("cuda", family), device(costs=costs)).cost > usual:
            slower.add(rate)
    assert slower == {rate_of_it}


def test_an_epilogue_takes_time():
    """The more so with a residual, which is also read."""
    problem = layer((32, 28, 28, 128), (3, 3, 128, 128), "bfloat16")
    for family in ("mma", "direct", "wgmma"):
        costs = [choose("cuda", "conv", problem, Constraint(family=family), epilogue_kind=e).cost for e in EpilogueKind]
        assert costs == sorted(set(costs))


def test_short_reductions_with_an_epilogue_have_tiles_that_hide_it():
    """Two blocks of a multiprocessor: one multiplies while the other ends its tile."""
    problem = layer((128, 14, 14, 256), (1, 1, 256, 1024), "bfloat16")
    plans = {e: choose("cuda", "conv", problem, epilogue_kind=e).plan for e in EpilogueKind}
    ctas = {e: _tile_of(plan).ctas_per_sm for e, plan in plans.items()}
    assert ctas == {EpilogueKind.NONE: 1, EpilogueKind.PLAIN: 2, EpilogueKind.RESIDUAL: 2}


def _tile_of(plan):
    return next(tile for tile in CUDA[plan.family].tiles if tile.name == plan.tile)


def test_multiprocessors_matter():
    """A large product takes longer on fewer, and a product of few tiles is split over many."""
    few, many = device(multiprocessors=8), device(multiprocessors=128)
    kind, problem = PASSES["dense_fprop"]
    assert choose("cuda", kind, problem, device=few).cost > 4 * choose("cuda", kind, problem, device=many).cost
    kind, problem = PASSES["stem_wgrad"]
    splits = [choose("cuda", kind, problem, device=d).plan.settings["split"] for d in (device(multiprocessors=1), many)]
    assert splits[0] < splits[1]


def test_shared_memory_limits_tiles():
    """The more a block may have, the more tiles there are; each one that does not fit says so."""
    kind, problem = PASSES["dense_fprop"]
    too_large = []
    for shared_bytes in (0, 2**13, 2**14, 2**15, 2**16, TYPICAL_DEVICE.shared_bytes):
        choice = choose("cuda", kind, problem, device=device(shared_bytes=shared_bytes))
        reasons = [r for r in choice.rejected if "shared memory" in r.reason]
        too_large.append({r.what.removesuffix(" of K-major filter") for r in reasons})
        assert (choice.plan is None) == (too_large[-1] == too_large[0])
    convs = [of for of in candidates(kind, problem) if has_pass(of[1], "fprop") and of[0] != "direct"]
    assert too_large[0] == {f"{family} {tile}" for family, tile in convs}
    assert too_large[-1] == set()
    assert all(more >= fewer for more, fewer in zip(too_large, too_large[1:], strict=False))


# Split-K and its workspace.


@every_pass
def test_a_split_has_steps_for_every_slice(kind, problem):
    for family, tile in EVERY_TILE:
        plan = choose("cuda", kind, problem, Constraint(family=family, tile=tile.name)).plan
        assert plan is None or 1 <= plan.settings["split"] <= steps(kind, problem), tile.name


@pytest.mark.parametrize("split", [1, 2, 7])
@every_pass
def test_workspace_of_a_split(kind, problem, split):
    """One result of sums for each slice."""
    plan = choose("cuda", kind, problem, Constraint(family="simt", split=split)).plan
    results = math.prod(problem.out_shape if kind == "conv" else problem.rhs_shape)
    assert "chunk" not in plan.settings
    assert plan.workspace_bytes(problem) == (0 if split == 1 else split * results * sum_bytes(problem))


# Any problem.


def test_the_digest_of_a_problem_and_its_settings():
    """The batch may be another one. Nothing else may."""
    (batch,) = export.symbolic_shape("b")
    of = lambda batch, **params: layer((batch, 9, 8, 16), (3, 3, 16, 16), **params)
    plan = choose("cuda", "conv", of(2), Constraint(family="simt", transform=())).plan
    digest = plan.fit_digest(of(2))
    assert digest == plan.fit_digest(of(5)) == plan.fit_digest(of(batch))
    tile = next(name for name in TILES["simt"] if name != plan.tile)
    others = [
        *(plan.fit_digest(of(2, padding=padding)) for padding in ("VALID", ((1, 1), (0, 0)), ((0, 0), (1, 1)))),
        plan.fit_digest(layer((2, 8, 9, 16), (3, 3, 16, 16))), plan.fit_digest(of(2, rhs_dilation=2)),
        dataclasses.replace(plan, settings={"split": 2}).fit_digest(of(2)),
        dataclasses.replace(plan, tile=tile).fit_digest(of(2)),
    ]  # fmt: skip
    assert len({digest, *others}) == 1 + len(others)


def test_the_digest_is_that_of_compiled_programs():
    """With another one they are refused as those of another problem, unless kFormat is raised, too."""
    problem = layer((2, 9, 8, 16), (3, 3, 16, 16))
    plan = choose("cuda", "conv", problem, Constraint(family="simt", tile="64x64x8", split=4, transform=())).plan
    assert plan.settings == {"split": 4}
    assert plan.fit_digest(problem) == 4535490456481716322


@pytest.mark.parametrize("case", [case for case in GENERAL if case.name != "batch_groups"], ids=str)
def test_a_symbolic_batch_has_plans(case):
    (batch,) = export.symbolic_shape("b")
    problem = problem_of(case.lax(), (batch, *case.lhs[1:]), case.rhs)
    for kind, problem in passes_of(problem).values():
        for constraint in (Constraint(), *(Constraint(family=family) for family in CUDA if family not in PARTIAL)):
            choice = choose("cuda", kind, problem, constraint)
            assert choice.plan is not None
            assert 0 < choice.cost < math.inf
            choice.plan.workspace_bytes(problem)  # may depend on the batch
        assert choose("cpu", kind, problem).plan is not None


def test_a_symbolic_workspace_is_that_of_the_batch():
    (batch,) = export.symbolic_shape("b")
    symbolic, five = (layer((b, 9, 9, 16), (3, 3, 16, 16)) for b in (batch, 5))
    for kind in ("conv", "wgrad"):
        plan = choose("cuda", kind, symbolic, Constraint(family="simt", split=3)).plan
        workspace = plan.workspace_bytes(symbolic)
        assert (workspace if isinstance(workspace, int) else eval(str(workspace), {"b": 5})) == plan.workspace_bytes(
            five
        )


def test_a_symbolic_workspace_has_the_sums_of_large_batches():
    """Of a wgrad by im2col, which adds what several launches find."""
    (batch,) = export.symbolic_shape("b")
    case = lambda batch: layer((batch, 4, 4, 64), (1, 1, 64, 64))
    plan = choose("cuda", "wgrad", case(batch), Constraint(family="im2col", split=1)).plan
    symbolic = plan.workspace_bytes(case(batch))
    at = lambda batch: symbolic if isinstance(symbolic, int) else eval(str(symbolic), {"b": batch})
    assert plan.workspace_bytes(case(1)) < plan.workspace_bytes(case(1000))
    for images in (1, 2, 16, 17, 33, 100, 1000, 100_000):
        assert at(images) >= plan.workspace_bytes(case(images))


@settings(max_examples=150, database=None)
@given(problems())
def test_every_problem_has_a_plan(problem):
    """On both platforms, also where nothing is left of the image, and of whichever family.

    Unless it has more tiles than a launch may have blocks, or the family takes only some problems.
    """
    for kind, problem in passes_of(problem).values():
        choice = choose("cuda", kind, problem)
        assert not is_refused(choice.plan, problem)
        assert all(r.reason for r in choice.rejected)
        assert all(f is None or f >= 1 for f in map(factor, choice.rejected))
        assert choose("cpu", kind, problem).plan is not None
        for family in CUDA:
            choice = choose("cuda", kind, problem, Constraint(family=family))
            reasons = [r.reason for r in choice.rejected if r.what.startswith(family)]
            if choice.plan is not None:
                assert choice.plan.family == family and not is_refused(choice.plan, problem)
            elif family not in may_take(kind, problem):
                assert reasons[0] == answers(kind, problem, family)[0].reason
            else:
                too_large = any("2^31 - 1 thread blocks" in reason for reason in reasons)
                assert reasons and all(reasons) and (too_large or family in PARTIAL)


def test_plans_are_values():
    """Equal problems have the same plan, which says how the kernel runs."""
    again = layer((32, 28, 28, 128), (3, 3, 128, 128))
    choice = choose("cuda", "conv", again)
    assert choice is choose("cuda", "conv", LAYERS["dense"])
    others = choose("cuda", "conv", again, Constraint(family="simt", split=choice.plan.settings["split"] + 1)).plan
    assert others.settings["split"] == choice.plan.settings["split"] + 1
    assert hash(Constraint(tile="64x64x8", output_tile=(4, 8))) == hash(Constraint(tile="64x64x8", output_tile=(4, 8)))


@pytest.mark.parametrize("kernel, step, dilation, share", [
    (1, 1, 1, 1), (1, 2, 1, 1 / 2), (1, 7, 3, 1 / 7), (3, 2, 1, 1), (3, 2, 2, 1 / 2), (2, 4, 1, 1 / 2),
    (3, 4, 2, 1 / 2), (2, 6, 4, 1 / 3), (5, 3, 1, 1),
])  # fmt: skip
def test_pixels_that_no_window_sees_take_no_time(kernel, step, dilation, share):
    """Of windows that leave rows, or columns, out: of a slow memory, the time is that of the activations."""
    conv = functools.partial(lax_channels_last, window_strides=(step, 1), rhs_dilation=(dilation, 1))
    problem = problem_of(conv, (2, 840, 10, 64), (kernel, 3, 64, 32), "bfloat16")
    slow = device(bandwidth=1e6)
    choice = choose("cuda", "conv", problem, as_it_is("mma", split=1), slow)
    activations = 2 * 840 * share * 10 * 64 * 2 + math.prod(problem.out_shape) * 2
    assert choice.cost == pytest.approx(
        activations / (COSTS[slow.costs]["mma"]["bandwidth"] * slow.bandwidth), rel=1e-4
    )


# The compiled tiles.

NAMES = {
    "simt": ["128x128x8", "128x32x8"],
    "im2col": ["64x64x8"],
    "mma": ["128x64x64", "256x128x64 wgmma", "128x128x32 in 3 passes"],
    "direct": [
        "1x16 of 32 by 64 or 144", "1x16 of 64 by 16 along 3 rows of 48 or 144",
        "1x32 of 32 by 64 of packed taps or 80",
        "1x16 of 64 by 16 along 7:2 rows of 32 of packed taps or 144", "4x8 of taps of 64 by 48 or 144",
    ],
    "depthwise": [
        "7x16 by 4", "2:1 4x32 by 4", "3x3x3", "8x48 by 2 in parts", "3x16 by 4 copied by others",
        "7x16 by 4 by TMA in pairs",
    ],
    "gather": ["3x3 by 1", "rows of 7 by 4", "any window by 2"],
    "wgmma": [
        "128x256x64", "256x160x64 by 2x1", "128x128x64 by 1x2", "256x96x64 of halo tiles",
        "64x64x64 by slices, two at once",
    ],
}  # fmt: skip


@pytest.mark.parametrize("family", CUDA)
def test_tiles_have_names_of_their_own(family):
    """That say their sizes."""
    assert len(TILES[family]) == len(CUDA[family].tiles)
    assert set(NAMES[family]) <= set(TILES[family])
    fields = [tuple(tile.fields.items()) for tile in CUDA[family].tiles]
    assert len(set(fields)) == len(fields)
    for tile in CUDA[family].tiles:
        assert str(tile) == tile.name
        assert all(getattr(tile, name) == value for name, value in tile.fields.items())
        with pytest.raises(AttributeError, match=f"{re.escape(tile.name)} has no threads"):
            tile.threads  # noqa: B018


def test_tiles_of_matrix_products_are_of_their_sizes():
    """Each has its rows, columns and steps in its name."""
    for family in ("simt", "im2col", "mma"):
        for tile in CUDA[family].tiles:
            assert tile.name.split()[0] == f"{tile.rows}x{tile.cols}x{tile.depth}"
            assert 1 <= tile.stages <= 4 and 1 <= tile.ctas_per_sm <= 8


def test_tiles_of_direct_are_of_whole_multiplications():
    """Of 8 columns, of 16 positions, of 16 rows of the filter, and of 32 bytes of a row with row streaming."""
    for tile in CUDA["direct"].tiles:
        depth = 32 if tile.of_bytes else 8 if tile.of_floats else 16
        assert tile.columns % 8 == tile.positions % 16 == tile.filter_rows % 16 == tile.stream_depth % depth == 0
        assert (tile.stream_rows > 0) == (tile.stream_step > 0) == (tile.stream_depth > 0)
        assert tile.stream_rows > 0 or not tile.stages_rows


def test_families_are_those_of_the_native_planning():
    modules = [name for name, value in vars(_planning).items() if hasattr(value, "candidates")]
    assert modules == list(CUDA)


def test_a_tile_that_is_not_compiled_is_refused_once():
    """Not again for each transform of the problem, but by wgmma, which takes float32 under some alone."""
    kind, problem = PASSES["stem_wgrad"]
    choice = choose("cuda", kind, problem, Constraint(tile="3x5x7"))
    assert choice.plan is None
    families = [r.what.split()[0] for r in choice.rejected]
    assert {*families} == {*CUDA} and all(families.count(family) == 1 for family in CUDA if family != "wgmma")


@pytest.mark.parametrize("family", CUDA)
def test_an_unknown_setting_is_a_reason(family):
    """Of every tile, whatever else is asked for."""
    kind, problem = PASSES["depthwise_fprop"]
    known = answers(kind, problem, family)
    asked = Asked({"split": 1, "speed": 3}, None, True)
    for candidate, before in zip(
        CUDA[family].candidates(Product(kind, problem), TYPICAL_DEVICE, asked), known, strict=True
    ):
        assert candidate.tile == before.tile
        assert candidate.reason == ("it has no setting speed" if before.tile else before.reason)


@pytest.mark.parametrize("family", CUDA)
def test_an_unknown_tile_is_a_reason(family):
    kind, problem = PASSES["depthwise_fprop"]
    asked = Asked({}, "3x5x7", True)
    (candidate,) = CUDA[family].candidates(Product(kind, problem), TYPICAL_DEVICE, asked)
    assert candidate.tile is None and candidate.reason
    assert "no such tile" in candidate.reason or candidate.reason == answers(kind, problem, family)[0].reason


def test_transforms_are_those_of_families():
    assert TRANSFORMS.keys() <= FAMILIES["cuda"].keys()
