"""Plans: every candidate is chosen, forced or rejected with a reason, on any device, in pure Python."""

import dataclasses
import functools
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from cases.reference import lax_channels_last
from cases.small import GENERAL
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from jax import export, lax

from jaxconv.families import FAMILIES, IM2COL_SCRATCH, TYPICAL_DEVICE, DepthwiseTile, DirectTile, Tile, WgmmaTile
from jaxconv.families.base import Settings
from jaxconv.families.depthwise_shape import stream_of, window
from jaxconv.families.direct_shape import Shape, Walk
from jaxconv.families.wgmma import MOST_BOX_EXTENT, MOST_BOX_PIXELS, MOST_BOX_TAPS, im2col
from jaxconv.offsets import offset_tables
from jaxconv.plan import ROUNDED, Candidate, Constraint, Question, Rejection, _candidate, _entrants, choose, refusal
from jaxconv.problem import ConvProblem, row_major_strides
from jaxconv.product import Product
from jaxconv.rewriting import ChannelsLast, SwappedOperands, rewrite, rewritings, rewritings_of_channels

SOURCES = Path(__file__).parents[1]
CUDA = FAMILIES["cuda"]
PARTIAL = ("direct", "depthwise", "wgmma")  # take some problems of their types; the other families take them all

DTYPES = [("float32", None), ("float64", None), ("bfloat16", None), ("float16", None), ("bfloat16", "float32"),
          ("float16", "float32"), ("float32", "float64"), ("int8", "int32")]  # fmt: skip
ROWS = [(name, row) for name, family in CUDA.items() for row in family.TILES]
IDS = [f"{family}_{row.tile}_{row.tile.stages}" for family, row in ROWS]


def problem_of(conv, lhs, rhs, dtype="float32", result=None) -> ConvProblem:
    """The problem of lax's equation in `conv`."""
    conv = functools.partial(conv, preferred_element_type=result)
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(conv)(jax.ShapeDtypeStruct(lhs, dtype), jax.ShapeDtypeStruct(rhs, dtype))
    (equation,) = jaxpr.eqns
    return ConvProblem.from_lax(*(v.aval for v in equation.invars), jaxpr.out_avals[0], equation.params)


def layer(lhs, rhs, dtype="float32", result=None, **params) -> ConvProblem:
    return problem_of(functools.partial(lax_channels_last, **params), lhs, rhs, dtype, result)


def passes_of(problem) -> dict:
    """The arguments `kind, problem` of each pass."""
    return {"fprop": ("gather", problem), "dgrad": ("gather", problem.dgrad()), "wgrad": ("reduce", problem)}


LAYERS = {
    "dense": layer((32, 28, 28, 128), (3, 3, 128, 128)),
    "stem": layer((32, 224, 224, 3), (7, 7, 3, 64), window_strides=2),
    "halves": layer((32, 28, 28, 128), (3, 3, 128, 128), "bfloat16"),
    "depthwise": layer((32, 56, 56, 128), (7, 7, 1, 128), feature_group_count=128),
    "transposed": layer((8, 32, 32, 64), (4, 4, 64, 32), lhs_dilation=2, padding=2),
    "dilated": layer((4, 4096, 64), (3, 64, 64), rhs_dilation=64),
    "latency": layer((1, 7, 7, 512), (1, 1, 512, 2048)),
    "volume": layer((1, 16, 64, 64, 32), (3, 3, 3, 32, 32)),
    "wide": layer((32, 28, 28, 128), (3, 3, 128, 128), "float64"),
    "tiny": layer((2, 3, 3, 1), (2, 2, 1, 1)),
    "int8": layer((32, 28, 28, 128), (3, 3, 128, 128), "int8", "int32"),
    "narrow": layer((32, 56, 56, 128), (3, 3, 4, 128), "bfloat16", feature_group_count=32),
    "stem_of_halves": layer((32, 224, 224, 3), (7, 7, 3, 64), "bfloat16", window_strides=2, padding=3),
}
PASSES = {f"{name}_{which}": kind for name, p in LAYERS.items() for which, kind in passes_of(p).items()
          if name != "int8" or which == "fprop"}  # fmt: skip
every_pass = pytest.mark.parametrize("kind, problem", PASSES.values(), ids=PASSES)
every_tile = pytest.mark.parametrize("family, row", ROWS, ids=IDS)


every_im2col_tile = pytest.mark.parametrize("row", CUDA["im2col"].TILES, ids=lambda row: str(row.tile))


def channel_taps(problem):
    return math.prod(problem.kernel) * problem.in_channels


def steps(kind, problem):
    """The length of the reduction."""
    return channel_taps(problem) if kind == "gather" else problem.batch * math.prod(problem.out_spatial)


def sum_bytes(problem):
    return 8 if "float64" in {problem.lhs_dtype.name, problem.rhs_dtype.name, problem.out_dtype.name} else 4


def sums_in_f32(problem):
    return sum_bytes(problem) == 4 and problem.rhs_dtype.kind != "i"


def may_take(kind, problem):
    """The families that are not ruled out."""
    return [name for name, family in CUDA.items() if family.why_never(Product(kind, problem)) is None]


def candidates(kind, problem):
    """What may be chosen: each tile, made for the problem's types or not, that is not ruled out with its family."""
    return [(name, row) for name in may_take(kind, problem) for row in CUDA[name].tiles(Product(kind, problem))]


def rewritings_of(family, kind, problem):
    """Those that the family may answer, besides none."""
    of = CUDA[family]
    if of.OF_CHANNELS:
        return rewritings_of_channels(Product(kind, problem))
    return rewritings(Product(kind, problem), of.PACKS_GROUPS, of.STORES_PARTS) if of.REWRITES else []


def constraints(kind, problem):
    """`{name: constraint}` of the candidates, for the problem as it is and rewritten: tiles, or a family of which none
    takes that."""
    named = {}
    for family, row in candidates(kind, problem):
        for rewriting in [(), *rewritings_of(family, kind, problem)]:
            product = Product(kind, rewrite(rewriting, problem).problem)
            tile = None if CUDA[family].why_not_so(product, TYPICAL_DEVICE) else row.tile
            name = family if tile is None else f"{family} {tile}"
            suffix = f" of {' and '.join(map(str, rewriting))}" if rewriting else ""
            named[f"{name}{suffix}"] = Constraint(family=family, tile=tile, rewriting=rewriting)
    return named


def takes(kind, problem, family, row):
    return (family, row) in candidates(kind, problem) and (sums_in_f32(problem) or not row.only_f32)


def plan_of(choice, family):
    """The family's plan; None if it is partial, with a reason for each tile."""
    if choice.plan is None:
        assert family in PARTIAL
        refused = [r for r in choice.rejected if r.what.startswith(family)]
        assert refused and all(r.reason for r in refused)
    else:
        assert choice.plan.family == family
    return choice.plan


def factor(rejection):
    """How many times the chosen candidate's cost, or None for another reason."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)x the cost", rejection.reason)
    return match and float(match[1])


# The candidates.


@every_tile
@every_pass
def test_every_tile_can_be_named(kind, problem, family, row):
    choice = choose("cuda", kind, problem, Constraint(family=family, tile=row.tile))
    if not takes(kind, problem, family, row):
        assert choice.plan is None
    elif plan := plan_of(choice, family):
        assert (plan.platform, plan.kind, plan.settings.tile) == ("cuda", kind, row.tile)
        assert 0 < choice.cost < math.inf


@every_pass
def test_every_candidate_is_chosen_or_rejected_with_a_reason(kind, problem):
    choice = choose("cuda", kind, problem)
    chosen = str(choice.plan).split(", stages")[0]
    ruled_out = {name for name, family in CUDA.items() if family.why_never(Product(kind, problem))}
    every = {*constraints(kind, problem), *ruled_out}
    assert sorted([chosen, *(r.what for r in choice.rejected)]) == sorted(every)
    assert all(r.reason for r in choice.rejected)


@every_pass
def test_the_cheapest_is_chosen(kind, problem):
    """And a reason by cost is the cost of the candidate, were it named, over that of the chosen."""
    choice = choose("cuda", kind, problem)
    reasons = {r.what: factor(r) for r in choice.rejected}
    for name, constraint in constraints(kind, problem).items():
        named = choose("cuda", kind, problem, constraint)
        if named.plan is None:
            assert reasons[name] is None
        elif named.plan != choice.plan:
            ratio = reasons[name]
            assert ratio >= 1
            assert named.cost / choice.cost == pytest.approx(ratio, rel=0.01, abs=0.06)


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
        assert plan is None or plan.settings.split == split


@pytest.mark.parametrize("kind, problem", [PASSES["dense_fprop"], PASSES["depthwise_wgrad"]], ids=str)
def test_host_families(kind, problem):
    choice = choose("cpu", kind, problem)
    assert choice.plan.family == ("depthwise" if problem.groups > 1 else "gemm")
    assert {choice.plan.family, *(r.what.partition(" of ")[0] for r in choice.rejected)} == set(FAMILIES["cpu"])
    assert all(r.reason for r in choice.rejected)
    assert choose("cpu", kind, problem, Constraint(family="gemm")).plan.family == "gemm"
    assert choice.plan.scratch_bytes(problem) is None


@pytest.mark.parametrize("x_shape, w_shape, stride, swapped", [
    ((4, 32, 32, 64), (3, 3, 64, 3), 1, True), ((4, 32, 32, 64), (3, 3, 64, 3), 2, True),
    ((4, 32, 32, 64), (3, 3, 64, 64), 1, False), ((4, 32, 32, 3), (3, 3, 3, 64), 1, False),
    ((4, 32, 32, 128), (1, 1, 128, 4), 1, False),
])  # fmt: skip
def test_the_host_swaps_operands_for_few_outputs(x_shape, w_shape, stride, swapped):
    """Rows of (tap, channel)s are packed of the activation with fewer channels."""
    problem = layer(x_shape, w_shape, window_strides=stride)
    assert choose("cpu", "reduce", problem).plan.rewriting == ((SwappedOperands(),) if swapped else ())
    assert choose("cpu", "gather", problem).plan.rewriting == ()
    with_steps = Constraint("cpu", rewriting=(ChannelsLast(), SwappedOperands()))
    assert choose("cpu", "reduce", problem, with_steps).plan is None


# Constraints that cannot be met.

FIRST = CUDA["im2col"].TILES[0].tile
IMPOSSIBLE = {
    "unknown_tile": ("cuda", "dense", Constraint(family="simt", tile=Tile(3, 5, 7, 1)), "3x5x7"),
    "unknown_tile_of_any_family": ("cuda", "dense", Constraint(tile=Tile(3, 5, 7, 1)), "3x5x7"),
    "chunk_of_part_of_a_tile": ("cuda", "dense", Constraint(family="im2col", tile=FIRST, chunk=FIRST.rows + 1),
                                f"{FIRST.rows + 1}.*whole tiles"),
    "chunk_of_nothing": ("cuda", "dense", Constraint(family="im2col", tile=FIRST, chunk=0), "chunk"),
    "chunk_of_another_family": ("cuda", "dense", Constraint(family="simt", chunk=FIRST.rows), "chunk"),
    "no_split": ("cuda", "dense", Constraint(split=0), "split"),
    "negative_split": ("cuda", "dense", Constraint(split=-1), "split"),
    "host_family": ("cuda", "dense", Constraint(family="gemm"), "gemm"),
    "cuda_family": ("cpu", "dense", Constraint(family="simt"), "simt"),
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
def test_tiles_for_float32_sums_say_so(name, family, row):
    choice = choose("cuda", "gather", LAYERS[name], Constraint(family=family, tile=row.tile))
    assert (choice.plan is None) == (not takes("gather", LAYERS[name], family, row))
    if row.only_f32:
        assert any("float32" in r.reason for r in choice.rejected)


# Devices.


def device(**changes):
    return dataclasses.replace(TYPICAL_DEVICE, **changes)


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


def test_multiprocessors_matter():
    """A large product takes longer on fewer, and a product of few tiles is split over many."""
    few, many = device(multiprocessors=8), device(multiprocessors=128)
    kind, problem = PASSES["dense_fprop"]
    assert choose("cuda", kind, problem, device=few).cost > 4 * choose("cuda", kind, problem, device=many).cost
    kind, problem = PASSES["stem_wgrad"]
    splits = [choose("cuda", kind, problem, device=d).plan.settings.split for d in (device(multiprocessors=1), many)]
    assert splits[0] < splits[1]


def test_an_instruction_of_hopper_is_for_hopper():
    """Elsewhere its tiles are refused, with the reason, and another takes the problem."""
    kind, problem = PASSES["dense_fprop"]
    halves = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), np.dtype("bfloat16"))
    problem = dataclasses.replace(problem, **halves)
    of_mma = Constraint(family="mma")
    assert choose("cuda", kind, problem, of_mma, device(wgmma=True)).plan.settings.tile.wgmma
    choice = choose("cuda", kind, problem, device=device(wgmma=False))
    assert choice.plan.family == "mma" and not choice.plan.settings.tile.wgmma
    reasons = [r.reason for r in choice.rejected if r.what.endswith("wgmma")]  # tiles of mma, and a family
    assert len(reasons) == 4 + 1 and all("9.0" in reason for reason in reasons)


def test_shared_memory_limits_tiles():
    """The more a block may have, the more tiles there are; each one that does not fit says so."""
    kind, problem = PASSES["dense_fprop"]
    too_large = []
    for shared_bytes in (0, 2**13, 2**14, 2**15, 2**16, TYPICAL_DEVICE.shared_bytes):
        choice = choose("cuda", kind, problem, device=device(shared_bytes=shared_bytes))
        too_large.append({r.what for r in choice.rejected if "shared memory" in r.reason})
        assert (choice.plan is None) == (too_large[-1] == too_large[0])
    assert too_large[0] == {f"{family} {row.tile}" for family, row in candidates(kind, problem)}
    assert too_large[-1] == set()
    assert all(more >= fewer for more, fewer in zip(too_large, too_large[1:], strict=False))


# Splits, chunks and their scratch.


@every_tile
@every_pass
def test_a_split_has_steps_for_every_slice(kind, problem, family, row):
    plan = choose("cuda", kind, problem, Constraint(family=family, tile=row.tile)).plan
    if plan is not None:
        assert 1 <= plan.settings.split <= steps(kind, problem)


@pytest.mark.parametrize("split", [1, 2, 7])
@every_pass
def test_scratch_of_a_split(kind, problem, split):
    """One result of sums for each slice."""
    plan = choose("cuda", kind, problem, Constraint(family="simt", split=split)).plan
    results = math.prod(problem.out_shape if kind == "gather" else problem.rhs_shape)
    assert plan.settings.chunk is None
    assert plan.scratch_bytes(problem) == (0 if split == 1 else split * results * sum_bytes(problem))


HUGE = {
    "many_positions": layer((256, 224, 224, 64), (3, 3, 64, 64)),
    "many_taps": layer((64, 64, 64, 512), (31, 31, 512, 512), "bfloat16"),
    "long_line": layer((4, 2**22, 16), (9, 16, 16)),
    "volume": layer((2, 128, 256, 256, 32), (3, 3, 3, 32, 32), "float64"),
    "many_groups": layer((64, 112, 112, 1024), (7, 7, 1, 1024), feature_group_count=1024),
    "many_channels": layer((8, 64, 64, 16384), (3, 3, 16384, 64)),
}


@every_im2col_tile
@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("problem", [*HUGE.values(), *LAYERS.values()], ids=[*HUGE, *LAYERS])
def test_the_column_matrix_stays_small(problem, which, row):
    """Chunks are of whole tiles, and they fit, or are of one tile."""
    kind, problem = passes_of(problem)[which]
    plan = choose("cuda", kind, problem, Constraint(family="im2col", tile=row.tile, split=1)).plan
    if plan is None:
        assert row.only_f32 and not sums_in_f32(problem)
        return
    columns = plan.settings.chunk * problem.groups * channel_taps(problem) * problem.lhs_dtype.itemsize
    assert plan.settings.chunk > 0 and plan.settings.chunk % row.tile.rows == 0
    assert plan.settings.chunk == row.tile.rows or columns <= IM2COL_SCRATCH
    results = math.prod(problem.out_shape if kind == "gather" else problem.rhs_shape)
    assert columns <= plan.scratch_bytes(problem) < columns + results * sum_bytes(problem) + 16


@every_im2col_tile
def test_a_small_column_matrix_is_one_chunk(row):
    """It has a row for each output position, and the rows of a residue class begin at a tile's boundary."""
    strided = layer((2, 9, 9, 16), (3, 3, 16, 16), window_strides=(2, 3))
    for kind, problem in passes_of(strided).values():
        classes = 6 if problem.reverse else 1
        rows = problem.batch * math.prod(problem.out_spatial)
        plan = choose("cuda", kind, problem, Constraint(family="im2col", tile=row.tile)).plan
        assert rows <= plan.settings.chunk < rows + classes * row.tile.rows


@every_im2col_tile
def test_a_smaller_chunk_takes_less(row):
    for kind, problem in passes_of(LAYERS["dense"]).values():
        named = [Constraint(family="im2col", tile=row.tile, split=1, chunk=n * row.tile.rows) for n in (1, 2, 4)]
        plans = [choose("cuda", kind, problem, c).plan for c in named]
        assert [p.settings.chunk for p in plans] == [c.chunk for c in named]
        scratch = [p.scratch_bytes(problem) for p in plans]
        assert scratch == sorted(scratch)
        assert scratch[0] < scratch[-1]


# Any problem.


@pytest.mark.parametrize("case", [case for case in GENERAL if case.name != "batch_groups"], ids=str)
def test_a_symbolic_batch_has_plans(case):
    (batch,) = export.symbolic_shape("b")
    problem = problem_of(case.lax(), (batch, *case.lhs[1:]), case.rhs)
    for kind, problem in passes_of(problem).values():
        for constraint in (Constraint(), *(Constraint(family=family) for family in CUDA if family not in PARTIAL)):
            choice = choose("cuda", kind, problem, constraint)
            assert choice.plan is not None
            assert 0 < choice.cost < math.inf
            choice.plan.scratch_bytes(problem)  # may depend on the batch
        assert choose("cpu", kind, problem).plan is not None


def test_a_symbolic_scratch_is_that_of_the_batch():
    (batch,) = export.symbolic_shape("b")
    symbolic, five = (layer((b, 9, 9, 16), (3, 3, 16, 16)) for b in (batch, 5))
    for kind in ("gather", "reduce"):
        plan = choose("cuda", kind, symbolic, Constraint(family="simt", split=3)).plan
        scratch = plan.scratch_bytes(symbolic)
        assert (scratch if isinstance(scratch, int) else eval(str(scratch), {"b": 5})) == plan.scratch_bytes(five)


SIZES = st.sampled_from([1, 2, 3, 5, 8, 17, 33, 64, 129, 512, 4096])


@st.composite
def problems(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    groups = draw(st.sampled_from([1, 1, 2, 3, 64]))
    by_batch = groups > 1 and draw(st.booleans())
    in_channels, out_channels = draw(SIZES), draw(SIZES)
    lhs = (
        draw(SIZES) * (groups if by_batch else 1), *each(st.sampled_from([1, 2, 7, 14, 56, 224])),
        in_channels * (1 if by_batch else groups),
    )  # fmt: skip
    params = dict(
        window_strides=each(st.integers(1, 4)), lhs_dilation=each(st.integers(1, 3)),
        rhs_dilation=each(st.integers(1, 3)), padding=each(st.tuples(st.integers(-1, 8), st.integers(0, 8))),
        batch_group_count=groups if by_batch else 1, feature_group_count=1 if by_batch else groups,
    )  # fmt: skip
    rhs = (*each(st.sampled_from([1, 2, 3, 7, 31])), in_channels, out_channels * groups)
    return layer(lhs, rhs, *draw(st.sampled_from(DTYPES)), **params)


def is_refused(plan, problem, device=TYPICAL_DEVICE):
    """Whether the family itself says that it cannot run a plan."""
    product = Product(plan.kind, rewrite(plan.rewriting, problem).problem)
    return CUDA[plan.family].why_not(plan.settings, product, device) is not None


@settings(max_examples=150, deadline=None, database=None)
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
                assert reasons == [CUDA[family].why_never(Product(kind, problem))]
            else:
                too_large = any("2^31 - 1 thread blocks" in reason for reason in reasons)
                assert reasons and all(reasons) and (too_large or family in PARTIAL)


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
    """By a gather of mma's wide tiles, which then has the columns of all in one matrix."""
    for row in CUDA["mma"].tiles(Product("gather", problem)):
        for kind, expected in (("gather", merged if row.tile.cols == 128 else 1), ("reduce", 1)):
            plan = choose("cuda", kind, problem, as_it_is("mma", row.tile)).plan
            assert plan.attributes(problem)["shape"].tolist() == [expected]


def test_plans_are_values():
    """Equal problems have the same plan, which says what the kernel is told."""
    again = layer((32, 28, 28, 128), (3, 3, 128, 128))
    choice = choose("cuda", "gather", again)
    assert choice is choose("cuda", "gather", LAYERS["dense"])
    attributes = choice.plan.attributes(again)
    assert all(isinstance(value, np.generic | np.ndarray) for value in attributes.values())
    assert attributes["split"] == choice.plan.settings.split
    assert attributes["shape"].tolist() == [1]
    others = choose("cuda", "gather", again, Constraint(family="simt", split=choice.plan.settings.split + 1)).plan
    assert others.attributes(again)["split"] != attributes["split"]
    assert hash(Constraint(tile=FIRST)) == hash(Constraint(tile=Tile(*FIRST)))


# The partial families.

halves = functools.partial(layer, dtype="bfloat16")


def as_it_is(family, tile=None, **settings):
    return Constraint("cuda", family, tile, rewriting=(), **settings)


def each_channel(lhs, kernel, dtype="bfloat16", **params):
    """Convolved on its own."""
    return layer(lhs, (*kernel, 1, lhs[-1]), dtype, feature_group_count=lhs[-1], **params)


# (groups, input and output channels of each), of whole pieces.
CHANNELS = [
    (groups, ins, outs) for groups in (1, 2, 3, 4, 8, 16, 40) for ins in (1, 3, 4, 8, 12, 16, 24, 32, 48, 64)
    for outs in (1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 64) if groups * ins % 8 == groups * outs % 8 == 0
]  # fmt: skip


@st.composite
def problems_of_pieces(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    groups, ins, outs = draw(st.sampled_from(CHANNELS))
    if groups == 1 and draw(st.booleans()):  # rows whose few channels are read in runs
        ins = draw(st.integers(1, 13))
    elif groups == 1 and draw(st.booleans()):  # outputs of few channels
        outs = draw(st.integers(1, 5) | st.just(40))
    elif groups == 1:
        ins, outs = draw(st.sampled_from([ins, 3 * ins])), draw(st.sampled_from([outs, 9 * outs]))
    params = dict(
        window_strides=each(st.integers(1, 4)), lhs_dilation=each(st.sampled_from([1, 1, 2, 3])),
        rhs_dilation=each(st.integers(1, 3)), padding=each(st.tuples(st.integers(-1, 8), st.integers(0, 8))),
    )  # fmt: skip
    lhs = (draw(st.integers(1, 3)), *each(st.integers(1, 60) | st.just(8)), groups * ins)
    return halves(lhs, (*each(st.integers(1, 5)), ins, groups * outs), feature_group_count=groups, **params)


def check_box(kind, problem, shape):
    """Each tap of a residue class, seen from each position of an area, is in the box; of runs, its row is."""
    if shape.run:
        check_runs(problem, shape)
    dims = list(zip(problem.window_strides, problem.lhs_dilation, strict=True))
    _, down, right = [1] * (3 - len(dims)) + [stride // math.gcd(stride, dilation) for stride, dilation in dims]
    positions = np.array([(0, down * r, right * c) for r in range(shape.area[0]) for c in range(shape.area[1])])
    tables = offset_tables(problem)
    for first, count, *_ in tables.classes:
        if count:
            seen = tables.taps[first : first + count, None, 2:] + positions
            there = 2 if shape.run else 3
            assert np.all(np.ptp(seen, axis=(0, 1))[:there] < shape.box[:there])
        assert count <= shape.window.taps


def check_runs(problem, shape):
    """A box's rows have all elements that are read: whole multiplications of their pieces."""
    step, (taps,) = problem.window_strides[-1] * problem.in_channels, problem.kernel[-1:]
    pieces = shape.tile.run if shape.walking else shape.entry_pieces
    assert (taps * problem.in_channels + problem.in_channels % 2) <= shape.entry_pieces * 8 <= pieces * 8
    assert 6 + step % 2 * 2 + (shape.area[1] - 1) * step + pieces * 8 <= shape.box[2] * 8 <= 256
    assert shape.area[1] % 16 == 0 and shape.run == taps


def first_corner(problem):
    """With which the boxes of the first class begin, of which a reduce has areas."""
    (first, count, *_), *_ = offset_tables(problem).classes
    shifts = offset_tables(problem).taps[first : first + count, 2:]
    return tuple(shifts.min(axis=0)) if count else (0, 0, 0)


def check_pieces(kind, problem, shape):
    """A set's output channels depend on no pieces of source channels but those of its entries."""
    if shape.run:
        return
    ins, outs, groups = problem.in_channels, problem.out_channels, shape.block_groups or 1
    assert shape.entry_pieces == shape.src_pieces or shape.entry_pieces.bit_count() == 1
    if groups == problem.groups == 1:
        assert shape.entry_pieces * shape.chunks * 8 >= ins
        return
    assert groups * ins == shape.src_pieces * 8
    assert groups * shape.channel_blocks >= problem.groups
    for col in range(0, groups * outs, shape.tile.columns):
        of_groups = {c // outs for c in range(col, min(col + shape.tile.columns, groups * outs))}
        pieces = {(group * ins + channel) // 8 for group in of_groups for channel in range(ins)}
        first = 0 if shape.entry_pieces == shape.src_pieces else min(pieces) // shape.entry_pieces * shape.entry_pieces
        assert pieces <= set(range(first, first + shape.entry_pieces))
        assert first + shape.entry_pieces <= shape.src_pieces


@settings(max_examples=100, deadline=None, database=None)
@given(
    problems_of_pieces(), st.sampled_from([None, None, (1, 8), (3, 16), (2, 32)]),
    st.sampled_from([48 * 2**10, 99 * 2**10, TYPICAL_DEVICE.shared_bytes]),
)  # fmt: skip
def test_what_direct_takes_fits(problem, area, shared_bytes):
    small = device(shared_bytes=shared_bytes)
    for kind, problem in passes_of(problem).values():
        for tile in (row.tile for row in CUDA["direct"].TILES):
            choice = choose("cuda", kind, problem, as_it_is("direct", tile, area=area), small)
            plan = plan_of(choice, "direct")
            if plan is None:
                continue
            assert not is_refused(plan, problem, small)
            assert area in (None, plan.settings.area)
            shape = Shape(Product(kind, problem), tile, plan.settings.area)
            check_box(kind, problem, shape)
            check_pieces(kind, problem, shape)
            assert shape.shared_bytes <= shared_bytes
            assert plan.settings.area[1] % 8 == 0 and (shape.run or shape.taps_across or shape.box[2] % 8 == 0)
            assert max(*shape.box, shape.rows, plan.settings.area[1]) <= 256
            assert shape.rows // shape.walk * plan.settings.area[1] <= shape.positions
            if shape.taps_across:
                assert math.prod(shape.box) <= tile.warps * tile.positions * 16
                assert shape.window.taps * problem.out_channels <= tile.sets * tile.columns
            told = plan.attributes(problem)["shape"]
            taps, corner = shape.window.taps, first_corner(problem)
            assert tuple(told) == (shape.rows, plan.settings.area[1], *shape.box, taps, shape.walk, shape.run, *corner)


@st.composite
def problems_of_channels(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    strides = st.sampled_from([1, 1, 2, 3, 4])
    params = dict(
        window_strides=each(strides), lhs_dilation=each(strides), rhs_dilation=each(st.integers(1, 3)),
        padding=each(st.tuples(st.integers(-1, 8), st.integers(0, 8))),
    )  # fmt: skip
    channels = st.sampled_from([8, 16, 24, 40, 64, 144])
    lhs = (draw(st.integers(1, 20)), *each(st.integers(1, 200)), draw(channels))
    kernel = each(st.sampled_from([1, 2, 3, 4, 5, 7, 13, 31, *([51] if rank < 3 else [])]))
    return each_channel(lhs, kernel, draw(st.sampled_from(["bfloat16", "float32"])), **params)


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


@pytest.mark.parametrize("which", ["fprop", "dgrad", "wgrad"])
def test_mambas_lines_are_directs(which):
    """As tiles of a single row, in each of which `depthwise` would begin anew."""
    kind, of_pass = passes_of(each_channel((8, 4096, 4096), (4,), padding=[(3, 0)]))[which]
    assert choose("cuda", kind, of_pass).plan.family == "direct"


def of_layouts(lhs, rhs, dimension_numbers, **params):
    defaults = dict(dimension_numbers=dimension_numbers, window_strides=(1,) * (len(lhs) - 2), padding="SAME")
    return problem_of(functools.partial(lax.conv_general_dilated, **defaults | params), lhs, rhs, "bfloat16")


def channels_first(lhs, rhs, **params):
    return of_layouts(lhs, rhs, ("NCHW", "OIHW", "NCHW"), **params)


GROUPED = halves((2, 20, 20, 32), (2, 2, 8, 32), feature_group_count=4)
EACH = each_channel((2, 20, 20, 32), (3, 3))
LINE = each_channel((2, 100, 8), (4,))
PIECES = halves((2, 20, 20, 16), (3, 3, 16, 24))
TURNED = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 1, 0), (0, 3, 1, 2))  # NHWC, WHIO
GATHERS, FROM_FEW, EVERY_PASS = ("fprop", "dgrad"), ("fprop", "wgrad"), ("fprop", "dgrad", "wgrad")
REFUSED = {
    "direct": {
        "float32": (layer((2, 20, 20, 16), (3, 3, 16, 16)), {}, EVERY_PASS, "float32"),
        "two_types": (
            layer((2, 20, 20, 16), (3, 3, 16, 16), "bfloat16", "float32"), {}, EVERY_PASS[1:], "two types"
        ),
        "channels_first": (channels_first((2, 16, 20, 20), (16, 16, 3, 3)), {}, EVERY_PASS, "last"),
        "too_many_columns": (
            halves((2, 20, 20, 64), (3, 3, 64, 5)), {}, EVERY_PASS[:1], "pieces of eight|45 columns of all taps"
        ),
        "large_box": (
            halves((2, 20, 20, 64), (3, 3, 64, 3)), dict(area=(20, 24)), EVERY_PASS[:1], "pieces of eight|hold the box"
        ),
        "part_of_a_piece": (halves((2, 20, 20, 12), (3, 3, 12, 12)), {}, EVERY_PASS, "pieces of eight"),
        "rows_of_parts": (halves((2, 20, 21, 4), (3, 3, 4, 24)), {}, FROM_FEW, "whole pieces|pieces of eight"),
        "dilated_runs": (
            halves((2, 20, 24, 4), (3, 3, 4, 16), rhs_dilation=(1, 2)), {}, FROM_FEW, "neighbours|pieces of eight",
        ),
        "wide_groups": (
            halves((2, 20, 20, 192), (3, 3, 96, 192), feature_group_count=2), {}, EVERY_PASS, "96 channels"
        ),
        "groups_of_images": (
            halves((4, 20, 20, 16), (3, 3, 16, 16), batch_group_count=2), {}, EVERY_PASS, "images"
        ),
        "dilated_input": (
            halves((2, 20, 20, 16), (2, 2, 16, 16), lhs_dilation=2, padding=1), {}, EVERY_PASS[2:], "dilated"
        ),
        "split_gather": (GROUPED, dict(split=2), GATHERS, "split of 2"),
        "no_split": (GROUPED, dict(split=0), EVERY_PASS, "split of 0"),
        "large_area": (GROUPED, dict(area=(64, 64)), GATHERS, "cover the area"),
        "long_area": (GROUPED, dict(area=(1, 264)), EVERY_PASS[2:], "too large"),
        "part_of_a_run": (GROUPED, dict(area=(4, 12)), EVERY_PASS, r"area of \(4, 12\)"),
        "no_area": (GROUPED, dict(area=(0, 8)), EVERY_PASS, r"area of \(0, 8\)"),
        "chunks": (GROUPED, dict(chunk=128), EVERY_PASS, "chunks"),
        "units": (GROUPED, dict(units=2), EVERY_PASS, "units"),
        "nothing": (halves((0, 20, 20, 16), (3, 3, 16, 16)), {}, EVERY_PASS, "nothing"),
    },
    "depthwise": {
        "float64": (each_channel((2, 20, 20, 16), (3, 3), "float64"), {}, EVERY_PASS, "float64"),
        "two_types": (
            each_channel((2, 20, 20, 16), (3, 3), result="float32"), {}, EVERY_PASS, "bfloat16 and float32"
        ),
        "dense": (halves((2, 20, 20, 16), (3, 3, 16, 16)), {}, EVERY_PASS, "one channel"),
        "groups_of_8": (GROUPED, {}, EVERY_PASS, "one channel"),
        "one_group": (each_channel((2, 20, 20, 1), (3, 3)), {}, EVERY_PASS, "one channel"),
        "twice_as_many": (
            halves((2, 20, 20, 16), (3, 3, 1, 32), feature_group_count=16), {}, EVERY_PASS, "one channel"
        ),
        "groups_of_images": (
            halves((16, 20, 20, 1), (3, 3, 1, 16), batch_group_count=16), {}, EVERY_PASS, "images"
        ),
        "strided_volume": (
            each_channel((2, 5, 6, 7, 16), (3, 3, 3), window_strides=2), {}, EVERY_PASS, "three spatial dimensions"
        ),
        "channels_first": (
            channels_first((2, 16, 20, 20), (16, 1, 3, 3), feature_group_count=16), {}, EVERY_PASS, "last"
        ),
        "part_of_a_piece": (each_channel((2, 20, 20, 12), (3, 3)), {}, EVERY_PASS, "pieces"),
        "part_of_a_piece_of_float32": (
            each_channel((2, 20, 20, 10), (3, 3), "float32"), {}, EVERY_PASS, "pieces"
        ),
        "nothing": (each_channel((0, 20, 20, 16), (3, 3)), {}, EVERY_PASS, "nothing"),
        "nothing_but_holes": (
            each_channel((2, 40, 16), (1,), lhs_dilation=2, window_strides=2, padding=((1, 0),)), {},
            EVERY_PASS, "nothing"
        ),
        "dilated_input": (
            each_channel((2, 20, 20, 16), (4, 4), lhs_dilation=2, padding=2), {}, EVERY_PASS[2:], "dilated"
        ),
        "columns_thrice_as_wide": (
            each_channel((2, 20, 20, 16), (3, 3), lhs_dilation=(1, 3), padding=1), {}, EVERY_PASS[:1],
            "columns' period"
        ),
        "columns_eight_times_as_wide": (
            each_channel((5, 112, 8), (3,), lhs_dilation=8, padding=((1, 1),)), {}, EVERY_PASS[:1], "columns' period"
        ),
        "too_many_pieces": (
            each_channel((2, 16384, 1, 16), (8400, 1), padding=0), {}, EVERY_PASS[2:], "[0-9]+ pieces of the window"
        ),
        "rows_by_three": (
            each_channel((2, 20, 20, 16), (3, 3), window_strides=(3, 1)), {}, EVERY_PASS,
            "rows move by (3:1|1:3)"
        ),
        "tall_window": (
            each_channel((2, 40, 20, 16), (31, 3), window_strides=2), {}, EVERY_PASS, "taps in"
        ),
        "wide_window": (
            each_channel((2, 20, 90, 16), (3, 71), window_strides=2), {}, EVERY_PASS, "source pixels"
        ),
        "too_many_sums": (
            each_channel((2, 20, 20, 16), (7, 7), window_strides=2), {}, EVERY_PASS[2:], "sums of all taps"
        ),
        "split_gather": (EACH, dict(split=2), GATHERS, "split of 2"),
        "no_split": (EACH, dict(split=0), EVERY_PASS, "split of 0"),
        "negative_split": (EACH, dict(split=-4), EVERY_PASS, "split of -4"),
        "large_area": (EACH, dict(area=(1, 256)), EVERY_PASS, "cover the area"),
        "long_area": (EACH, dict(area=(1, 1024)), EVERY_PASS, "cover the area"),
        "part_of_a_strip": (EACH, dict(area=(4, 12)), EVERY_PASS, r"area of \(4, 12\)"),
        "no_area": (EACH, dict(area=(0, 8)), EVERY_PASS, r"area of \(0, 8\)"),
        "no_columns": (EACH, dict(area=(4, 0)), EVERY_PASS, r"area of \(4, 0\)"),
        "chunks": (EACH, dict(chunk=128), EVERY_PASS, "chunks"),
        "units": (EACH, dict(units=2), EVERY_PASS, "units"),
    },
    "wgmma": {
        "float32": (layer((2, 20, 20, 16), (3, 3, 16, 16)), {}, GATHERS, "float32"),
        "float64": (layer((2, 20, 20, 16), (3, 3, 16, 16), "float64"), {}, GATHERS, "float64"),
        "int8": (layer((2, 20, 20, 16), (3, 3, 16, 16), "int8", "int32"), {}, EVERY_PASS[:1], "int8"),
        "two_types": (
            layer((2, 20, 20, 16), (3, 3, 16, 16), "bfloat16", "float32"), {}, EVERY_PASS[1:], "two types"
        ),
        "weight_gradients": (PIECES, {}, EVERY_PASS[2:], "weight gradients"),
        "groups": (GROUPED, {}, GATHERS, "groups"),
        "groups_of_images": (halves((4, 20, 20, 16), (3, 3, 16, 16), batch_group_count=2), {}, GATHERS, "groups"),
        "channels_first": (channels_first((2, 16, 20, 20), (16, 16, 3, 3)), {}, GATHERS, "pieces of eight"),
        "parts_of_pieces": (halves((2, 20, 20, 12), (3, 3, 12, 12)), {}, GATHERS, "pieces of eight"),
        "from_parts_of_pieces": (halves((2, 20, 20, 12), (3, 3, 12, 16)), {}, GATHERS, "pieces of eight"),
        "to_parts_of_pieces": (halves((2, 20, 20, 16), (3, 3, 16, 12)), {}, GATHERS, "pieces of eight"),
        "filter_of_windows": (
            of_layouts((2, 20, 20, 16), (24, 16, 3, 3), ("NHWC", "OIHW", "NHWC")), {}, GATHERS, "last axis"
        ),
        "window_around_channels": (
            of_layouts((2, 20, 20, 16), (3, 16, 3, 24), ("NHWC", "HIWO", "NHWC")), {}, GATHERS, "one axis"
        ),
        "window_turned": (
            of_layouts((2, 20, 20, 16), (3, 3, 16, 24), TURNED), {}, GATHERS, "one axis"
        ),
        "no_channels": (halves((2, 20, 20, 0), (3, 3, 0, 16)), {}, GATHERS[:1], "nothing"),
        "no_cotangents": (halves((2, 20, 20, 16), (3, 3, 16, 0)), {}, GATHERS[1:], "nothing"),
        "no_pixels": (halves((2, 0, 20, 16), (3, 3, 16, 16), padding=3), {}, GATHERS[:1], "nothing"),
        "too_many_positions": (halves((2**15, 2**15, 8), (3, 8, 8)), {}, GATHERS, "positions"),
        "too_many_slices": (
            halves((2**8, 2**15, 8), (3, 8, 8)), dict(split=2**20), GATHERS, "positions|thread blocks|8 slices"
        ),
        "no_split": (PIECES, dict(split=0), GATHERS, "split of 0"),
        "areas": (PIECES, dict(area=(4, 8)), GATHERS, "areas"),
        "chunks": (PIECES, dict(chunk=128), GATHERS, "chunks"),
        "units": (PIECES, dict(units=2), GATHERS, "unit"),
    },
}  # fmt: skip
# Than a tile is for.
OTHER_WINDOWS = (
    "rows move by|columns move by|taps in|source pixels|sums of all taps|few channels|whole pieces|there are groups|"
    "columns of all taps|rows of [0-9]+ columns|no gather"
)


EVERY_REFUSED = {f"{family}_{name}": (family, *case)
                 for family, cases in REFUSED.items() for name, case in cases.items()}  # fmt: skip


@pytest.mark.parametrize("family, problem, asked, passes, why", EVERY_REFUSED.values(), ids=EVERY_REFUSED)
def test_what_is_not_taken_says_why(family, problem, asked, passes, why):
    """Of each tile, or of the family."""
    for which in passes:
        choice = choose("cuda", *passes_of(problem)[which], as_it_is(family, **asked))
        assert choice.plan is None
        reasons = [r.reason for r in choice.rejected if r.what.startswith(family)]
        assert any(re.search(why, reason) for reason in reasons), reasons
        assert all(re.search(f"{why}|{OTHER_WINDOWS}", reason) for reason in reasons), reasons


@pytest.mark.parametrize("family", ["simt", "im2col", "mma"])
def test_an_area_is_of_partial_families(family):
    kind, problem = PASSES["narrow_fprop"]
    choice = choose("cuda", kind, problem, Constraint(family=family, area=(4, 8)))
    assert choice.plan is None
    assert any("area" in r.reason for r in choice.rejected if r.what.startswith(family))


@pytest.mark.parametrize("family", PARTIAL)
def test_without_spatial_dimensions(family):
    """A matrix product, which is a pixel for each image: planned, or refused with a reason."""
    conv = functools.partial(lax.conv_general_dilated, window_strides=(), padding=(), dimension_numbers=None)
    for groups in (1, 8):
        grouped = functools.partial(conv, feature_group_count=groups)
        problem = problem_of(grouped, (16, 8), (8, 8 // groups), "bfloat16")
        for kind, problem in passes_of(problem).values():
            assert choose("cuda", kind, problem).plan is not None
            plan_of(choose("cuda", kind, problem, as_it_is(family)), family)


@pytest.mark.parametrize("family, problem", [("direct", LAYERS["narrow"]), ("depthwise", LINE)])
def test_plans_print_their_area(family, problem):
    tile = CUDA[family].TILES[0].tile
    plan = choose("cuda", "gather", problem, as_it_is(family, tile, area=(3, 16))).plan
    assert re.fullmatch(rf"{family} {tile}, stages \d, split 1, area 3x16", str(plan))


# The windows that TMA reads for wgmma.


def line_of_windows(rank, axis, size, taps=1, **per_axis):
    """All of it along one of the axes that a map of `rank` dimensions has of space."""
    axes = rank - 2
    at = lambda value, other: tuple(value if a == axis else other for a in range(axes))
    others = dict(window_strides=1, lhs_dilation=1, rhs_dilation=1, padding=(0, 0))
    params = {name: at(per_axis.get(name, other), other) for name, other in others.items()}
    return halves((2, *at(size, 2), 8), (*at(taps, 1), 8, 8), **params)


# Of maps' ranks: how far from an image's edges windows begin and end, and a window's last tap from its first.
TMA_REACH = {2: (1, 0), 3: (2**15, 2**16 - 1), 4: (2**7, 2**8 - 1), 5: (2**4, 2**5 - 1)}
# A problem and what is one too much of it, as it is refused.
BEYOND = {
    "begins_before": ("begin", lambda most, _, more: dict(size=5, padding=(most + more, 0))),
    "begins_within": ("begin", lambda most, _, more: dict(size=most + 9, padding=(1 - most - more, 0))),
    "ends_behind": ("begin", lambda most, _, more: dict(size=5, padding=(0, most - 1 + more))),
    "ends_within": ("begin", lambda most, _, more: dict(size=most + 9, taps=2, rhs_dilation=most + more)),
    "far_taps": ("taps", lambda most, far, more: dict(
        size=5, taps=2, rhs_dilation=far + more, padding=(most, most))),
    "far_windows": ("pixels apart", lambda most, _, more: dict(size=40, window_strides=8 + more)),
    "far_results": ("pixels apart", lambda most, _, more: dict(
        size=1, taps=3, lhs_dilation=8 + more, padding=(1, 2))),
    "many_classes": ("residue classes", lambda most, _, more: dict(size=5, taps=3, lhs_dilation=8 + more)),
}  # fmt: skip
AXES = [(rank, axis) for rank in TMA_REACH for axis in range(rank - 2)]


@pytest.mark.parametrize("why, sizes", BEYOND.values(), ids=BEYOND)
@pytest.mark.parametrize("rank, axis", AXES)
def test_how_far_windows_of_tma_reach(rank, axis, why, sizes):
    """Along each axis, in the data gradient of the data gradient too: that is the problem itself."""
    at_most, beyond = (line_of_windows(rank, axis, **sizes(*TMA_REACH[rank], more)) for more in (0, 1))
    assert im2col(at_most).rank == rank
    assert choose("cuda", "gather", at_most, as_it_is("wgmma")).plan is not None
    assert im2col(at_most.dgrad().dgrad()) == im2col(at_most)
    assert why in im2col(beyond)
    choice = choose("cuda", "gather", beyond, as_it_is("wgmma"))
    assert choice.plan is None
    assert all(why in r.reason for r in choice.rejected if r.what.startswith("wgmma"))


@pytest.mark.parametrize("dilation, classes", [((2, 4), 8), ((8, 1), 8), ((2, 2, 2), 8), ((3, 3), 9), ((2, 2, 3), 12)])
def test_residue_classes_of_wgmma(dilation, classes):
    rank = len(dilation)
    strided = halves((2, *(rank * [13]), 8), (*(rank * [3]), 8, 8), window_strides=dilation)
    choice = choose("cuda", "gather", strided.dgrad(), as_it_is("wgmma"))
    assert (choice.plan is not None) == (classes <= 8)
    assert classes <= 8 or any(f"{classes} residue classes" in r.reason for r in choice.rejected)


WITHOUT_TAPS = {
    "points_by_2": (halves((2, 8, 8, 8), (1, 1, 8, 8), window_strides=(2, 2)), 3),
    "points_by_2_along_rows": (halves((2, 8, 8, 8), (1, 1, 8, 8), window_strides=(1, 2)), 1),
    "points_by_2_of_a_row": (halves((2, 1, 8, 8), (1, 1, 8, 8), window_strides=(2, 2)), 1),
    "volume_of_points_by_2": (halves((2, 4, 6, 8, 8), (1, 1, 1, 8, 8), window_strides=(2, 2, 2)), 7),
    "pairs_by_2": (halves((2, 8, 8, 8), (1, 2, 8, 8), window_strides=(2, 2)), 2),
    "windows_by_2": (halves((2, 8, 8, 8), (3, 3, 8, 8), window_strides=(2, 2)), 0),
    "points_by_2_beside_the_image": (halves((2, 2, 8), (1, 8, 8), window_strides=(2,), padding=((2, -2),)), 1),
}  # fmt: skip


@pytest.mark.parametrize("problem, empty", WITHOUT_TAPS.values(), ids=WITHOUT_TAPS)
def test_zeros_of_a_stride_are_no_works(problem, empty):
    """Of a data gradient; a warp stores those of residue classes without taps, by TMA. One class is left, whatever it
    has."""
    dgrad = problem.dgrad()
    assert im2col(problem).empty_classes == 0
    assert im2col(dgrad).empty_classes == empty
    classes = Product("gather", dgrad).classes
    for row in CUDA["wgmma"].TILES:
        if row.tile.boxed:
            continue
        works = CUDA["wgmma"].works(Settings(row.tile, 1), Product("gather", dgrad))
        assert works == (classes - empty if row.tile.stores_zeros else classes)
        if not row.tile.slices:
            assert CUDA["wgmma"].works(Settings(row.tile, 2), Product("gather", dgrad)) == 2 * classes


@pytest.mark.parametrize("size, dtype", [(9, np.dtype("bfloat16")), (8, np.dtype("float32"))], ids=["odd", "float32"])
def test_zeros_that_tma_does_not_store_are_works(size, dtype):
    """Residue classes that are not equally large, and results of another dtype, are stored from registers."""
    problem = halves((2, size, size, 8), (1, 1, 8, 8), window_strides=(2, 2)).dgrad()
    product = Product("gather", dataclasses.replace(problem, out_dtype=dtype))
    for row in CUDA["wgmma"].TILES:
        if not row.tile.boxed:
            assert CUDA["wgmma"].works(Settings(row.tile, 1), product) == product.classes == 4


RANKS = {
    "line": (halves((2, 9, 8), (3, 8, 8)), 3),
    "image_of_a_row": (halves((2, 1, 9, 8), (1, 3, 8, 8)), 3),
    "volume_of_a_row": (halves((2, 1, 1, 9, 8), (1, 1, 3, 8, 8)), 3),
    "volume_of_a_layer": (halves((2, 1, 7, 9, 8), (1, 3, 3, 8, 8)), 4),
    "image_of_a_column": (halves((2, 9, 1, 8), (3, 1, 8, 8)), 4),
    "window_beyond_a_row": (halves((2, 1, 9, 8), (3, 3, 8, 8)), 4),
    "row_that_is_padded": (halves((2, 1, 9, 8), (1, 3, 8, 8), padding=((1, 0), (1, 1))), 4),
    "volume": (halves((2, 5, 7, 9, 8), (3, 3, 3, 8, 8)), 5),
    "pixel": (halves((2, 1, 1, 1, 8), (1, 1, 1, 8, 8)), 2),
    "points": (halves((2, 7, 9, 8), (1, 1, 8, 8)), 2),
    "points_of_a_line": (halves((2, 9, 8), (1, 8, 8)), 2),
    "points_of_a_volume": (halves((2, 5, 7, 9, 8), (1, 1, 1, 8, 8)), 2),
    "padded_points": (halves((2, 7, 9, 8), (1, 1, 8, 8), padding=((0, 0), (1, 1))), 4),
    "points_further_along": (halves((2, 7, 9, 8), (1, 1, 8, 8), padding=((0, 0), (1, -1))), 4),
    "points_by_two": (halves((2, 7, 9, 8), (1, 1, 8, 8), window_strides=(1, 2)), 4),
}


@pytest.mark.parametrize("problem, rank", RANKS.values(), ids=RANKS)
def test_maps_are_of_the_smallest_rank(problem, rank):
    """Its limits are the widest: a dilation of more is refused by them."""
    for which in GATHERS:
        assert im2col(passes_of(problem)[which][1]).rank == rank


FILTERS = {
    "HWIO": (3, 5, 16, 24), "OHWI": (24, 3, 5, 16), "IHWO": (16, 3, 5, 24), "HWOI": (3, 5, 24, 16),
    "WHIO": (5, 3, 16, 24), "HIWO": (1, 16, 5, 24), "HOWI": (3, 24, 1, 16), "WOHI": (1, 24, 1, 16),
}  # fmt: skip


def test_a_tap_that_no_position_sees():
    """Pixels are no matrix then: the filter's map has two taps."""
    conv = functools.partial(
        lax.conv_general_dilated, window_strides=(2,), padding=((0, 1),), lhs_dilation=(2,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )  # fmt: skip
    problem = problem_of(conv, (1, 1, 8), (2, 8, 8), "bfloat16")
    assert (problem.out_spatial, im2col(problem).rank) == ((1,), 3)
    check_windows(problem)


@pytest.mark.parametrize("spec", FILTERS)
def test_filters_are_read_as_they_lie(spec):
    """The last three have a window of one axis, or of none."""
    problem = of_layouts((2, 20, 20, 16), FILTERS[spec], ("NHWC", spec, "NHWC"))
    for which in GATHERS:
        check_windows(passes_of(problem)[which][1])
        assert choose("cuda", *passes_of(problem)[which], as_it_is("wgmma")).plan is not None


def unit_led(values, unit=1):
    return np.array([unit] * (3 - len(values)) + list(values))


def check_windows(problem):
    """What TMA reads for a tap and a position of a residue class is the pixel that lax multiplies with the tap.

    Each tap of the filter that a position sees is read once, and positions see no others.
    """
    where, tables = im2col(problem), offset_tables(problem)
    stride, dilation, spread, taps, ins, outs = map(unit_led, (
        problem.window_strides, problem.lhs_dilation, problem.rhs_dilation, problem.kernel, problem.in_spatial,
        problem.out_spatial))  # fmt: skip
    pad, corner = unit_led(problem.pad_low, 0), np.array(where.corner)
    period, step = dilation // np.gcd(stride, dilation), stride // np.gcd(stride, dilation)
    most, far = TMA_REACH[where.rank]
    behind = corner + (-(-outs // period) - 1) * step - (ins - 1)
    assert -most <= min(*corner, *behind) and max(*corner, *behind) < most
    left_out = slice(0, 5 - where.rank)
    if where.rank == 2:  # a matrix of pixels: a position is one of them
        assert np.all(ins == outs) and not np.any(corner) and math.prod(taps) == 1
    else:
        assert np.all(ins[left_out] == 1) and np.all(outs[left_out] == 1) and not np.any(corner[left_out])
    # The filter's map, of its taps by its channels, holds no more than the filter.
    size, strides = problem.rhs_shape, row_major_strides(problem.rhs_shape)
    channels = sum((size[axis] - 1) * strides[axis] for axis in (problem.rhs_spec.first, problem.rhs_spec.second))
    assert where.tap_stride % 8 == 0 and (math.prod(taps) - 1) * where.tap_stride + channels < math.prod(size)
    seen, reach = 0, np.zeros(3, int)
    for first, count, *numbers in tables.classes.tolist():
        phase, positions = np.array(numbers[:3]), numbers[3:]
        if not all(positions):
            continue
        for _, delta, *shift in tables.taps[first : first + count].tolist():
            tap, rest = divmod(delta, where.tap_stride)
            assert rest == 0
            place = np.array(np.unravel_index(tap, taps))
            place = taps - 1 - place if problem.reverse else place
            offset = np.array(shift) - corner
            assert np.all((offset >= 0) & (offset <= far)) and not np.any(offset[left_out])
            reach = np.maximum(reach, offset)
            for d in range(3):
                index = np.arange(positions[d])
                dilated = (phase[d] + index * period[d]) * stride[d] + place[d] * spread[d] - pad[d]
                np.testing.assert_array_equal((corner[d] + index * step[d] + offset[d]) * dilation[d], dilated)
        seen += count * math.prod(positions)
    assert where.reach == tuple(reach[1:])
    assert seen == math.prod(
        sum((o * s + k * r - p) % d == 0 for o in range(out) for k in range(n))
        for out, n, s, d, r, p in zip(outs, taps, stride, dilation, spread, pad, strict=True)
    )  # fmt: skip


@st.composite
def problems_of_windows(draw):
    rank = draw(st.integers(1, 3))
    each = lambda strategy: tuple(draw(strategy) for _ in range(rank))
    channels = st.sampled_from([8, 40, 64, 72])
    sizes = {"N": draw(st.integers(1, 3)), "C": draw(channels), "I": None, "O": draw(channels)}
    spatial = "DHW"[3 - rank :]
    pixels = each(st.integers(1, 20))
    params = dict(
        window_strides=each(st.sampled_from([1, 1, 2, 3, 8])), lhs_dilation=each(st.sampled_from([1, 1, 1, 2, 3, 4])),
        rhs_dilation=each(st.sampled_from([1, 1, 2, 5])),
        padding=tuple((draw(st.integers(-(n // 2), 9)), draw(st.integers(-((n - 1) // 2), 9))) for n in pixels),
    )  # fmt: skip
    lhs = dict(zip(spatial, pixels, strict=True)) | sizes
    rhs = dict(zip(spatial, each(st.integers(1, 5)), strict=True)) | sizes | {"I": sizes["C"]}
    layouts = [f"N{spatial}C", f"{spatial}NC"], [f"{spatial}IO", f"O{spatial}I", f"I{spatial}O", f"{spatial}OI"]
    numbers = tuple(draw(st.sampled_from(layout)) for layout in (*layouts, layouts[0]))
    lhs, rhs = (tuple(of[d] for d in spec) for of, spec in zip((lhs, rhs), numbers, strict=False))
    return of_layouts(lhs, rhs, numbers, **params)


@settings(max_examples=200, deadline=None, database=None)
@given(problems_of_windows())
def test_tma_reads_what_lax_multiplies(problem):
    for which in GATHERS:
        kind, of_pass = passes_of(problem)[which]
        choice = choose("cuda", kind, of_pass, as_it_is("wgmma"))
        assert (choice.plan is None) == (isinstance(im2col(of_pass), str) or 0 in of_pass.in_spatial)
        if choice.plan is None:
            plan_of(choice, "wgmma")
            continue
        if 0 not in of_pass.out_spatial:
            check_windows(of_pass)
        where = im2col(of_pass)
        expected = [*where.corner, where.rank, where.tap_stride, *where.reach, where.empty_classes]
        assert choice.plan.attributes(of_pass)["shape"].tolist() == expected


def test_filters_of_one_tap_of_any_size():
    """Also of more elements than 32 bits count."""
    layout = dict(dimension_numbers=("NHWC", "OHWI", "NHWC"), window_strides=(1, 1), padding="VALID")
    conv = functools.partial(lax.conv_general_dilated, **layout)
    problem = problem_of(conv, (1, 16, 16, 2**13), (2**18, 1, 1, 2**13), "bfloat16")
    for which in GATHERS:
        kind, of_pass = passes_of(problem)[which]
        plan = choose("cuda", kind, of_pass, as_it_is("wgmma")).plan
        assert 0 < plan.attributes(of_pass)["shape"][4] < 2**31


@pytest.mark.parametrize("which", GATHERS)
def test_wgmma_is_of_devices_that_have_it(which):
    kind, problem = passes_of(PIECES)[which]
    choice = choose("cuda", kind, problem, as_it_is("wgmma"), device(wgmma=False))
    assert choice.plan is None
    (refused,) = (r.reason for r in choice.rejected if r.what.startswith("wgmma"))
    assert "9.0" in refused
    assert choose("cuda", kind, problem, device=device(wgmma=False)).plan is not None


BOXED = [row.tile for row in CUDA["wgmma"].TILES if row.tile.boxed]


@pytest.mark.parametrize("image, window, more, why", [
    ((56, 56), (3, 3), {}, None), ((9, 3), (3, 3), {}, None), ((1, 200), (1, 41), {}, None), ((200,), (41,), {}, None),
    ((5, 9, 9), (7, 3, 3), {}, None), ((9, 9), (2, 2), dict(rhs_dilation=(2, 2)), None),
    ((9, 9), (5, 5), {}, "144 pixels, of 104"), ((200,), (42,), {}, "105 pixels, of 104"),
    ((9, 9), (3, 3), dict(rhs_dilation=(2, 2)), "144 pixels, of 104"), ((9, 9, 9), (15, 3, 3), {}, "135 taps, of 127"),
    ((9, 9, 9), (3, 1, 1), {}, "has one tap"), ((9, 9), (1, 1), {}, "has one tap"),
])  # fmt: skip
@pytest.mark.parametrize("which", GATHERS)
def test_windows_that_boxes_are_large_enough_for(image, window, more, why, which):
    kind, problem = passes_of(halves((2, *image, 16), (*window, 16, 8), **more))[which]
    for tile in BOXED:
        choice = choose("cuda", kind, problem, as_it_is("wgmma", tile))
        assert (choice.plan is None) == (why is not None)
        assert why is None or any(why in r.reason for r in choice.rejected)


@pytest.mark.parametrize("image, window, strides, why", [
    ((56, 56), (3, 3), (2, 2), None), ((56, 56), (3, 3), (1, 2), None), ((72, 72), (9, 9), (8, 8), None),
    ((500,), (9,), (3,), None), ((9, 18, 18), (4, 4, 4), (2, 2, 2), None), ((40, 40), (6, 6), (2, 2), None),
    ((40, 40), (7, 7), (2, 2), "121 pixels, of 104"), ((40, 40), (2, 2), (2, 2), "has one tap"),
    ((500,), (5,), (4,), "257 pixels, with those between them, of 256"),
])  # fmt: skip
def test_windows_that_boxes_are_large_enough_for_by_steps(image, window, strides, why):
    """Gradients are of several residue classes."""
    passes = passes_of(halves((2, *image, 16), (*window, 16, 8), window_strides=strides))
    for (kind, problem), reason in zip((passes[which] for which in GATHERS), (why, "residue classes"), strict=True):
        for tile in BOXED:
            choice = choose("cuda", kind, problem, as_it_is("wgmma", tile))
            assert (choice.plan is None) == (reason is not None)
            assert reason is None or any(reason in r.reason for r in choice.rejected)


def test_limits_of_boxes_are_those_that_are_compiled():
    params, tma = ((SOURCES / "src_cuda" / name).read_text() for name in ("device/wgmma_params.cuh", "host/tma.h"))
    limits = *re.search(r"kMostBoxPixels = (\d+), kMostBoxTaps = (\d+);", params).groups(), *re.search(
        r"kMostBoxExtent = (\d+);", tma).groups()  # fmt: skip
    assert tuple(map(int, limits)) == (MOST_BOX_PIXELS, MOST_BOX_TAPS, MOST_BOX_EXTENT)


def test_positions_of_wgmma_are_of_31_bits():
    """With as many again, which the last tiles have behind them."""
    for images, fits in ((2**15 - 1, True), (2**15, False)):
        choice = choose("cuda", "gather", halves((images, 2**15, 8), (3, 8, 8)), as_it_is("wgmma"))
        assert (choice.plan is not None) == fits
    for images, fits in ((2**24 - 1, True), (2**24, False)):  # of a unit of 64 each
        choices = [choose("cuda", "gather", halves((images, 7, 7, 8), (3, 3, 8, 8)), as_it_is("wgmma", tile))
                   for tile in BOXED]  # fmt: skip
        assert all((choice.plan is not None) == fits for choice in choices)


@pytest.mark.parametrize("kernel, step, dilation, share", [
    (1, 1, 1, 1), (1, 2, 1, 1 / 2), (1, 7, 3, 1 / 7), (3, 2, 1, 1), (3, 2, 2, 1 / 2), (2, 4, 1, 1 / 2),
    (3, 4, 2, 1 / 2), (2, 6, 4, 1 / 3), (5, 3, 1, 1),
])  # fmt: skip
def test_pixels_that_no_window_sees_take_no_time(kernel, step, dilation, share):
    """Of windows that leave rows, or columns, out."""
    conv = functools.partial(lax_channels_last, window_strides=(step, 1), rhs_dilation=(dilation, 1))
    problem = problem_of(conv, (2, 840, 10, 64), (kernel, 3, 64, 32), "bfloat16")
    out = math.prod(problem.out_shape) * 2
    assert Product("gather", problem).activation_bytes == 2 * 840 * share * 10 * 64 * 2 + out


@pytest.mark.parametrize("multiprocessors", [1, 2, 3, 16, 131])
def test_clusters_of_any_device(multiprocessors):
    """Also one that holds no whole cluster at a time is planned for."""
    for row in CUDA["wgmma"].TILES:
        asked = as_it_is("wgmma", row.tile)
        choices = [choose("cuda", "gather", PIECES, asked, device(multiprocessors=n)) for n in (multiprocessors, 132)]
        assert choices[0].plan is not None
        assert choices[0].cost >= choices[1].cost


@pytest.mark.parametrize("split", [None, 1, 3, 17])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("which", GATHERS)
def test_wgmma_with_any_batch(which, stride, split):
    """The plan is that of a typical batch; its slices are of the batch that there will be."""
    (batch,) = export.symbolic_shape("b")
    at_batch = lambda b: passes_of(halves((b, 14, 14, 256), (3, 3, 256, 128), window_strides=stride))[which]
    (kind, symbolic), (_, known) = (at_batch(b) for b in (batch, 32))
    takes_boxes = (stride, which) != (2, "dgrad")
    for tile in (None, *(row.tile for row in CUDA["wgmma"].TILES if takes_boxes or not row.tile.boxed)):
        adds = tile is not None and tile.slices > 0
        asked = as_it_is("wgmma", tile, split=split and (8 if adds else split))
        plans = [choose("cuda", kind, problem, asked).plan for problem in (symbolic, known)]
        assert plans[0] == plans[1]
        np.testing.assert_array_equal(*(plans[0].attributes(problem)["shape"] for problem in (symbolic, known)))
        scratch = plans[0].scratch_bytes(symbolic)
        slices = plans[0].settings.split
        has_scratch = slices > 1 and plans[0].settings.tile.slices == 0
        expected = slices * math.prod(known.out_shape) * 4 if has_scratch else 0
        assert (scratch if isinstance(scratch, int) else eval(str(scratch), {"b": 32})) == expected
        assert plans[1].scratch_bytes(known) == expected


def test_slices_that_clusters_add():
    """As many as a tile has, or a part: thread blocks add equally many columns."""
    (adding,) = (row.tile for row in CUDA["wgmma"].TILES if row.tile.slices)
    for split in range(1, 18):
        choice = choose("cuda", "gather", PIECES, as_it_is("wgmma", adding, split=split))
        assert (choice.plan is not None) == (split in (1, 2, 4, 8))
        assert choice.plan is not None or f"a split of {split}, which 8 slices are no" in choice.why_nothing()
    wide = choose("cuda", "gather", halves((1, 8, 8), (1, 8, 2**22)), as_it_is("wgmma", adding))
    assert wide.plan is None and "tiles of columns" in wide.why_nothing()


@pytest.mark.parametrize("row", CUDA["wgmma"].TILES, ids=lambda row: str(row.tile))
def test_plans_of_wgmma_print(row):
    split = row.tile.slices or 3
    plan = choose("cuda", "gather", PIECES, as_it_is("wgmma", row.tile, split=split)).plan
    assert str(plan) == f"wgmma {row.tile}, stages {row.tile.stages}, split {split}"


AT_BATCH = {
    "narrow_groups": ("direct", lambda b: halves((b, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32)),
    "depthwise": ("depthwise", lambda b: each_channel((b, 56, 56, 128), (7, 7))),
    "depthwise_float32": ("depthwise", lambda b: each_channel((b, 56, 56, 128), (3, 3), "float32")),
    "small_images": ("depthwise", lambda b: each_channel((b, 7, 7, 1024), (7, 7))),
    "lines": ("depthwise", lambda b: each_channel((b, 2048, 1024), (4,), padding=((3, 0),))),
    "large_window": ("depthwise", lambda b: each_channel((b, 56, 56, 128), (31, 31))),
    "volume": ("depthwise", lambda b: each_channel((b, 16, 56, 56, 128), (5, 5, 5))),
}


@pytest.mark.parametrize("which", EVERY_PASS)
@pytest.mark.parametrize("family, at_batch", AT_BATCH.values(), ids=AT_BATCH)
def test_partial_families_with_any_batch(family, at_batch, which):
    """The plan is that of a typical batch, and its scratch, of weights' gradients, has no batch."""
    (batch,) = export.symbolic_shape("b")
    (kind, symbolic), (_, known) = (passes_of(at_batch(b))[which] for b in (batch, 32))
    plans = [choose("cuda", kind, problem, as_it_is(family)).plan for problem in (symbolic, known)]
    assert plans[0] == plans[1]
    attributes = [plans[0].attributes(problem)["shape"] for problem in (symbolic, known)]
    np.testing.assert_array_equal(*attributes)
    split = plans[0].settings.split
    scratch = 0 if split == 1 else split * math.prod(known.rhs_shape) * 4
    assert plans[0].scratch_bytes(symbolic) == plans[1].scratch_bytes(known) == scratch


CHOSEN_FOR = {
    "narrow_groups": (
        "direct", halves((128, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32), EVERY_PASS
    ),
    "stem": (
        "direct", halves((128, 224, 224, 3), (7, 7, 3, 64), window_strides=2, padding=3), ("fprop", "wgrad")
    ),
    "to_an_image": ("direct", halves((2, 512, 512, 128), (3, 3, 128, 3)), EVERY_PASS),
    "latents": ("direct", halves((8, 64, 64, 4), (3, 3, 4, 320)), EVERY_PASS),
    "convnext": ("depthwise", each_channel((128, 56, 56, 128), (7, 7)), EVERY_PASS),
    "convnext_of_small_images": ("depthwise", each_channel((128, 7, 7, 1024), (7, 7)), EVERY_PASS),
    "depthwise_5x5": ("depthwise", each_channel((128, 28, 28, 240), (5, 5), "float16"), EVERY_PASS),
    "replknet": ("depthwise", each_channel((32, 56, 56, 128), (31, 31)), EVERY_PASS),
    "replknet_of_small_images": ("depthwise", each_channel((32, 14, 14, 512), (27, 27)), EVERY_PASS),
    "conformer": ("depthwise", each_channel((32, 1000, 512), (31,)), EVERY_PASS),
    "wide_windows": ("depthwise", each_channel((32, 56, 56, 128), (5, 51)), EVERY_PASS),
    "volume": ("depthwise", each_channel((8, 16, 56, 56, 128), (3, 3, 3)), EVERY_PASS),
    "volume_of_float32": ("depthwise", each_channel((4, 32, 32, 32, 64), (5, 5, 5), "float32"), EVERY_PASS),
    "replknet_of_float32": ("depthwise", each_channel((32, 56, 56, 128), (31, 31), "float32"), EVERY_PASS),
    "long_lines_of_float32": ("depthwise", each_channel((32, 1000, 512), (63,), "float32"), EVERY_PASS),
    "convnext_of_float32": ("depthwise", each_channel((128, 56, 56, 128), (7, 7), "float32"), EVERY_PASS),
    "transposed": (
        "depthwise", each_channel((32, 56, 56, 128), (4, 4), lhs_dilation=2, padding=2), EVERY_PASS[2:]
    ),
    "dilated_7x7": ("depthwise", each_channel((64, 56, 56, 64), (7, 7), rhs_dilation=3), EVERY_PASS),
    "dilated_lines": ("depthwise", each_channel((8, 3200, 512), (3,), "float32", rhs_dilation=128), EVERY_PASS),
    "strided_31x31": ("depthwise", each_channel((64, 56, 56, 128), (31, 31), window_strides=2), EVERY_PASS),
    "strided_7x7_of_float32": (
        "depthwise", each_channel((64, 56, 56, 128), (7, 7), "float32", window_strides=2), EVERY_PASS
    ),
    "dense": ("wgmma", halves((128, 28, 28, 256), (3, 3, 256, 256)), GATHERS),
    "dense_of_float16": ("wgmma", layer((128, 28, 28, 256), (3, 3, 256, 256), "float16"), GATHERS),
    "dense_to_float32": ("wgmma", layer((128, 28, 28, 256), (3, 3, 256, 256), "bfloat16", "float32"), GATHERS[:1]),
    "strided": ("wgmma", halves((128, 56, 56, 256), (3, 3, 256, 512), window_strides=2), GATHERS),
    "dilated": ("wgmma", halves((16, 64, 64, 512), (3, 3, 512, 512), rhs_dilation=12), GATHERS),
    "large_volume": ("wgmma", halves((4, 32, 56, 56, 128), (3, 3, 3, 128, 128)), GATHERS),
}  # fmt: skip
NOT_CHOSEN_FOR = {
    "many_channels": ("direct", halves((32, 28, 28, 512), (3, 3, 512, 512)), EVERY_PASS),
    "float32": ("direct", layer((128, 56, 56, 128), (3, 3, 4, 128), feature_group_count=32), EVERY_PASS),
    "dense_of_float32": ("wgmma", layer((128, 28, 28, 256), (3, 3, 256, 256)), EVERY_PASS),
    "dense_weights": ("wgmma", halves((128, 28, 28, 256), (3, 3, 256, 256)), EVERY_PASS[2:]),
    "twice_as_many": (
        "depthwise", halves((128, 56, 56, 64), (3, 3, 1, 128), feature_group_count=64), EVERY_PASS
    ),
}  # fmt: skip
EITHER = [(*case, cases is CHOSEN_FOR) for cases in (CHOSEN_FOR, NOT_CHOSEN_FOR) for case in cases.values()]


@pytest.mark.parametrize("family, problem, passes, is_chosen", EITHER, ids=[*CHOSEN_FOR, *NOT_CHOSEN_FOR])
def test_what_partial_families_are_chosen_for(family, problem, passes, is_chosen):
    for which in passes:
        choice = choose("cuda", *passes_of(problem)[which])
        assert (choice.plan.family == family) == is_chosen
        others = [factor(r) for r in choice.rejected if r.what.startswith(family) != is_chosen]
        assert all(times is None or times >= 1 for times in others)


# What choosing looks at.


@settings(max_examples=150, deadline=None, database=None)
@given(
    problems() | problems_of_pieces() | problems_of_channels(), st.sampled_from([1, 132, 1000]),
    st.sampled_from([1e10, 4.9e12, 1e15]),
)  # fmt: skip
def test_no_cost_is_below_its_bounds(problem, multiprocessors, bandwidth):
    asked = device(multiprocessors=multiprocessors, bandwidth=bandwidth)
    for kind, problem in passes_of(problem).values():
        product = Product(kind, problem)
        for family, row in candidates(kind, problem):
            choice = choose("cuda", kind, problem, as_it_is(family, row.tile), asked)
            if choice.plan is not None:
                assert CUDA[family].least_cost(product, asked) <= choice.cost * ROUNDED
                assert CUDA[family].least_cost_of(row, product, asked) <= choice.cost * ROUNDED


@settings(max_examples=60, deadline=None, database=None)
@given(problems() | problems_of_pieces() | problems_of_channels(), st.sampled_from([1, 3, 132]))
def test_the_choice_is_that_of_an_exhaustive_search(problem, multiprocessors):
    asked = device(multiprocessors=multiprocessors)
    for kind, problem in passes_of(problem).values():
        if refusal(problem, kind) is not None:
            continue
        question = Question("cuda", kind, problem, Constraint(), asked)
        entrants = [entrant for entrant in _entrants(question) if not isinstance(entrant, Rejection)]
        best = Candidate(math.inf, (len(entrants), 0), None)
        for at, entrant in enumerate(entrants):
            if entrant.why_not(asked) is not None:
                continue
            for i, least in enumerate(entrant.least_costs(asked)):
                candidate = _candidate(entrant, (at, i), question)
                if not isinstance(candidate, str):
                    assert max(entrant.least_cost(asked), least) <= candidate.cost * ROUNDED
                    best = min(best, candidate)
        choice = choose("cuda", kind, problem, device=asked)
        assert (choice.plan, choice.cost) == (best.plan, best.cost)


@pytest.mark.parametrize("kind, problem, most", [
    (*PASSES["dense_dgrad"], 3), (*PASSES["halves_fprop"], 6), (*PASSES["halves_wgrad"], 8),
    (*PASSES["depthwise_fprop"], 3), (*PASSES["narrow_dgrad"], 9), (*PASSES["stem_of_halves_wgrad"], 3),
], ids=str)  # fmt: skip
def test_costs_are_worked_out_of_few_tiles(kind, problem, most, monkeypatch):
    """The others' bounds are above the best one's cost; only who asks for the reasons has theirs worked out."""
    looked_at = []
    monkeypatch.setattr("jaxconv.plan._candidate", lambda *which: looked_at.append(which) or _candidate(*which))
    choice = choose.__wrapped__("cuda", kind, problem)
    assert 0 < len(looked_at) <= most
    looked_at.clear()
    assert len(choice.rejected) >= len(looked_at) - 1 > most


# What is compiled.


def compiled_rows(table, pattern=r"{([^{}]*)}"):
    """The fields of each row of a table of src_cuda/launch.h."""
    header = (SOURCES / "src_cuda" / "launch.h").read_text()
    (rows,) = re.findall(rf"\b{table}\[\] = {{\s*(.*?)\s*}};", header, re.DOTALL)
    return [[field.strip() for field in row.split(",")] for row in re.findall(pattern, rows)]


@pytest.mark.parametrize("family, table", [("simt", "kSimtTiles"), ("im2col", "kIm2colTiles")])
def test_tiles_are_those_that_are_compiled(family, table):
    compiled = []
    for *numbers, only_f32 in compiled_rows(table):
        *tile, thread_rows, thread_cols = map(int, numbers)
        threads = tile[0] * tile[1] // (thread_rows * thread_cols)
        compiled.append((Tile(*tile), threads, only_f32 == "true"))
    assert compiled == [(row.tile, row.threads, row.only_f32) for row in CUDA[family].TILES]


def test_tensor_core_tiles_are_those_that_are_compiled():
    compiled = []
    for *numbers, wgmma, passes in compiled_rows("kMmaTiles"):
        *tile, warp_rows, warp_cols, blocks = map(int, numbers)
        wgmma = wgmma == "true"
        threads = (128 if wgmma else 32) * (tile[0] // warp_rows) * (tile[1] // warp_cols)
        compiled.append(((*tile, wgmma, int(passes)), threads, blocks))
    assert compiled == [(tuple(row.tile), row.threads, row.resident) for row in CUDA["mma"].TILES]


def test_direct_tiles_are_those_that_are_compiled():
    """There in blocks: of 8 columns, of 16 positions, of 16 rows of the filter."""
    tiles = [row.tile for row in CUDA["direct"].TILES]
    rest = r"{([^{}]*), {.*?}(?:, \d+)?(?:, true)?}"
    assert [tuple(map(int, row)) for row in compiled_rows("kDirectTiles", rest)] == [
        (t.columns / 8, t.sets, t.positions / 16, t.warps, t.pieces, t.filter_rows / 16) for t in tiles
    ]
    walks = compiled_rows("kDirectTiles", r"{[^{}]*, {(.*?)}(?:, \d+)?(?:, true)?}")
    assert [[int(field) for field in row if field] for row in walks] == [
        [t.walk.rows, t.walk.step, t.walk.depth / 16] if t.walk else [] for t in tiles
    ]
    runs = compiled_rows("kDirectTiles", r"{[^{}]*, {.*?}((?:, \d+)?)(?:, true)?}")
    assert [int(row[-1] or 0) for row in runs] == [t.run for t in tiles]
    taps_across = compiled_rows("kDirectTiles", r"{[^{}]*, {.*?}(?:, \d+)?((?:, true)?)}")
    assert [row[-1] == "true" for row in taps_across] == [t.taps_across for t in tiles]


def number_of(field):
    return int({"true": 1, "false": 0}.get(field, field))


def test_depthwise_tiles_are_those_that_are_compiled():
    compiled = [DepthwiseTile(*map(number_of, row)) for row in compiled_rows("kDepthwiseTiles")]
    assert compiled == [row.tile for row in CUDA["depthwise"].TILES]


def test_wgmma_tiles_are_those_that_are_compiled():
    """Warpgroups have equally many rows, or columns, by 64; the sums are in registers of their threads."""
    tiles = [row.tile for row in CUDA["wgmma"].TILES]
    assert [WgmmaTile(*map(number_of, row)) for row in compiled_rows("kWgmmaTiles")] == tiles
    for row in CUDA["wgmma"].TILES:
        rows, cols, stages, row_blocks, col_blocks, resident, boxed, slices, transposed = row.tile
        warpgroups = 1 if rows == 64 else 2
        assert (cols if transposed else rows) % (64 * warpgroups) == 0 and rows <= 256 and not (boxed and transposed)
        assert 64 <= cols <= 256 and cols % 32 == 0 and stages >= 2
        assert slices == 0 or (slices == 8 and row_blocks * col_blocks == 1 and rows == 64 * warpgroups)
        others = 128 if resident == 1 else 32 if slices else 64  # that copy, and tell what is next
        assert (row.threads, row.resident) == (warpgroups * 128 + others, resident) and min(row_blocks, col_blocks) == 1
        registers = {(2, 1): 232, (2, 2): 96, (1, 2): 204}[warpgroups, resident]
        assert rows // warpgroups * cols // 128 < registers - 20
        # Stages with two barriers each, columns copied by 64; buffers of 16 rows for each warp and one of zeros, if
        # there is a warp that stores them, an order, and works of eight numbers with two barriers each; or sums of all
        # slices, of a part of the tile, and a barrier. Boxes have stages of their own, one for each block of a
        # multiprocessor or three, and a table of taps.
        buffers = warpgroups * 4 * (3 - resident) + (resident == 1 and not boxed and not slices)
        results = rows * cols * 4 + 8 if slices else buffers * 16 * 128 + 8 * 4 + stages * 48
        pixels, box_stages = (104, 1) if resident == 2 else (248, 3)
        source = rows // 64 * pixels * 128 + box_stages * 16 + 128 * 16 if boxed else stages * rows * 128
        filters = stages * (math.ceil(cols / 64) * 64 * 128 + 16)
        shared = source + filters + results
        shared = math.ceil(shared / 1024) * 1024
        assert CUDA["wgmma"].shared_bytes(row, Product("gather", PIECES)) == shared <= TYPICAL_DEVICE.shared_bytes
        assert resident * (shared + 1024) <= 228 * 1024  # a multiprocessor's, of which each block takes one more KB


@pytest.mark.parametrize("platform, header, families", [
    ("cpu", "src_cpu/ffi_handlers.cc", r"enum Family : int32_t { (.*?) };"),
    ("cuda", "src_cuda/launch.h", r"kFamilies\[\] = {(.*?)};"),
])  # fmt: skip
def test_families_are_numbered_as_in_the_sources(platform, header, families):
    (names,) = re.findall(families, (SOURCES / header).read_text())
    assert [name.strip().removeprefix("&").removeprefix("k").lower() for name in names.split(",")] == [
        *FAMILIES[platform]
    ]


def test_tiles_print_as_sizes():
    assert str(Tile(128, 64, 8, 2)) == "128x64x8"
    assert str(Tile(256, 128, 64, 4, wgmma=True)) == "256x128x64 wgmma"
    assert str(DirectTile(16, 2, 64, 8, 4, 144)) == "2x16 of 32 by 64 or 144"
    assert str(DirectTile(16, 1, 16, 8, 8, 144, Walk(3, 1, 48))) == "1x16 of 64 by 16 along 3 rows of 48 or 144"
    assert str(DirectTile(32, 1, 64, 4, 4, 80, None, 1)) == "1x32 of 32 by 64 in runs or 80"
    assert str(DirectTile(8, 4, 48, 8, 8, 144, None, 0, True)) == "4x8 of taps of 64 by 48 or 144"
    assert str(Walk(7, 2, 32)) == "7:2 rows of 32"
    assert str(DepthwiseTile(1, 1, 7, 1, 4)) == "7x16 by 4"
    assert str(DepthwiseTile(2, 1, 4, 2, 4)) == "2:1 4x32 by 4"
    assert str(DepthwiseTile(1, 1, 3, 0, 0, 3, 3)) == "3x3x3"
    assert str(DepthwiseTile(1, 1, 8, 3, 2, 0, 1, True)) == "8x48 by 2 in pieces"
    assert str(WgmmaTile(128, 64, 8)) == "128x64x64"
    assert str(WgmmaTile(256, 160, 3, row_blocks=2)) == "256x160x64 by 2x1"
    assert str(WgmmaTile(128, 128, 6, col_blocks=2)) == "128x128x64 by 1x2"
    assert str(WgmmaTile(64, 64, 5, resident=2, slices=8)) == "64x64x64 by slices, two at once"
    for family in CUDA.values():
        assert len({str(row.tile) for row in family.TILES}) == len({row.tile for row in family.TILES})


def test_a_tile_that_is_not_compiled_is_refused_once():
    """Not again for each rewriting of the problem."""
    kind, problem = PASSES["stem_wgrad"]
    choice = choose("cuda", kind, problem, Constraint(tile=Tile(3, 5, 7, 1)))
    assert choice.plan is None
    assert len({r.what for r in choice.rejected}) == len(choice.rejected) == len(CUDA)
