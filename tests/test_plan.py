"""Plans: every candidate is chosen, forced or rejected with a reason, on any device, in pure Python."""
import dataclasses
import functools
import math
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from cases import GENERAL
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export
from reference import lax_channels_last

from jaxconv.families import FAMILIES, IM2COL_SCRATCH, TYPICAL_DEVICE, Tile
from jaxconv.plan import Constraint, choose
from jaxconv.problem import ConvProblem
from jaxconv.product import Product
from jaxconv.rewriting import rewritings

SOURCES = Path(__file__).parents[1]
CUDA = FAMILIES["cuda"]

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


def candidates(kind, problem):
    """What may be chosen: each tile, made for the problem's types or not, that is not ruled out with its family."""
    product = Product(kind, problem)
    return [(name, row) for name, family in CUDA.items() if family.why_never(product) is None
            for row in family.tiles(product)]  # fmt: skip


def constraints(kind, problem):
    """`{name: constraint}` of the candidates, for the problem as it is and rewritten."""
    named = {}
    for family, row in candidates(kind, problem):
        for rewriting in [(), *(rewritings(Product(kind, problem)) if CUDA[family].REWRITES else ())]:
            suffix = f" of {' and '.join(map(str, rewriting))}" if rewriting else ""
            named[f"{family} {row.tile}{suffix}"] = Constraint(family=family, tile=row.tile, rewriting=rewriting)
    return named


def takes(kind, problem, family, row):
    return (family, row) in candidates(kind, problem) and (sums_in_f32(problem) or not row.only_f32)


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
    else:
        assert (choice.plan.family, choice.plan.settings.tile) == (family, row.tile)
        assert (choice.plan.platform, choice.plan.kind) == ("cuda", kind)
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
    for family in dict(candidates(kind, problem)):
        assert choose("cuda", kind, problem, Constraint(family=family)).plan.family == family


@pytest.mark.parametrize("split", [1, 2, 3, 5])
@every_pass
def test_a_split_can_be_named(kind, problem, split):
    for family in dict(candidates(kind, problem)):
        assert choose("cuda", kind, problem, Constraint(family=family, split=split)).plan.settings.split == split


@pytest.mark.parametrize("kind, problem", [PASSES["dense_fprop"], PASSES["depthwise_wgrad"]], ids=str)
def test_host_families(kind, problem):
    choice = choose("cpu", kind, problem)
    assert choice.plan.family == ("depthwise" if problem.groups > 1 else "gemm")
    assert {choice.plan.family, *(r.what for r in choice.rejected)} == set(FAMILIES["cpu"])
    assert all(r.reason for r in choice.rejected)
    assert choose("cpu", kind, problem, Constraint(family="gemm")).plan.family == "gemm"
    assert choice.plan.scratch_bytes(problem) is None


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
    assert choose("cuda", kind, problem, device=device(wgmma=True)).plan.settings.tile.wgmma
    choice = choose("cuda", kind, problem, device=device(wgmma=False))
    assert choice.plan.family == "mma" and not choice.plan.settings.tile.wgmma
    reasons = [r.reason for r in choice.rejected if r.what.endswith("wgmma")]
    assert len(reasons) == 4 and all("9.0" in reason for reason in reasons)


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
        for constraint in (Constraint(), *(Constraint(family=family) for family in CUDA)):
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


@settings(max_examples=150, deadline=None, database=None)
@given(problems())
def test_every_problem_has_a_plan(problem):
    """On both platforms, also where nothing is left of the image, and of whichever family.

    Unless it has more tiles than a launch may have blocks.
    """
    for kind, problem in passes_of(problem).values():
        choice = choose("cuda", kind, problem)
        assert all(r.reason for r in choice.rejected)
        assert all(f is None or f >= 1 for f in map(factor, choice.rejected))
        assert choose("cpu", kind, problem).plan is not None
        for family in CUDA:
            choice = choose("cuda", kind, problem, Constraint(family=family))
            reasons = [r.reason for r in choice.rejected if r.what.startswith(family)]
            too_large = all("2^31 - 1 thread blocks" in reason for reason in reasons)
            ruled_out = CUDA[family].why_never(Product(kind, problem)) in reasons
            assert choice.plan.family == family if choice.plan else too_large or ruled_out


def test_plans_are_values():
    """Equal problems have the same plan, which says what the kernel is told."""
    again = layer((32, 28, 28, 128), (3, 3, 128, 128))
    choice = choose("cuda", "gather", again)
    assert choice is choose("cuda", "gather", LAYERS["dense"])
    attributes = choice.plan.attributes()
    assert all(isinstance(value, np.generic) for value in attributes.values())
    assert attributes["split"] == choice.plan.settings.split
    others = choose("cuda", "gather", again, Constraint(family="simt", split=choice.plan.settings.split + 1)).plan
    assert others.attributes() != attributes
    assert hash(Constraint(tile=FIRST)) == hash(Constraint(tile=Tile(*FIRST)))


# What is compiled.


@pytest.mark.parametrize("family, table", [("simt", "kSimtTiles"), ("im2col", "kIm2colTiles")])
def test_tiles_are_those_that_are_compiled(family, table):
    header = (SOURCES / "src_cuda" / "launch.h").read_text()
    (rows,) = re.findall(rf"\b{table}\[\] = {{\s*(.*?)\s*}};", header, re.DOTALL)
    compiled = []
    for row in re.findall(r"{([^{}]*)}", rows):
        *numbers, only_f32 = (field.strip() for field in row.split(","))
        *tile, thread_rows, thread_cols = map(int, numbers)
        threads = tile[0] * tile[1] // (thread_rows * thread_cols)
        compiled.append((Tile(*tile), threads, only_f32 == "true"))
    assert compiled == [(row.tile, row.threads, row.only_f32) for row in CUDA[family].TILES]


def test_tensor_core_tiles_are_those_that_are_compiled():
    header = (SOURCES / "src_cuda" / "launch.h").read_text()
    (rows,) = re.findall(r"\bkMmaTiles\[\] = {\s*(.*?)\s*};", header, re.DOTALL)
    compiled = []
    for row in re.findall(r"{([^{}]*)}", rows):
        *numbers, wgmma, passes = (field.strip() for field in row.split(","))
        *tile, warp_rows, warp_cols, blocks = map(int, numbers)
        wgmma = wgmma == "true"
        threads = (128 if wgmma else 32) * (tile[0] // warp_rows) * (tile[1] // warp_cols)
        compiled.append(((*tile, wgmma, int(passes)), threads, blocks))
    assert compiled == [(tuple(row.tile), row.threads, row.resident) for row in CUDA["mma"].TILES]


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


def test_a_tile_that_is_not_compiled_is_refused_once():
    """Not again for each rewriting of the problem."""
    kind, problem = PASSES["stem_wgrad"]
    choice = choose("cuda", kind, problem, Constraint(tile=Tile(3, 5, 7, 1)))
    assert choice.plan is None
    assert len({r.what for r in choice.rejected}) == len(choice.rejected) == len(CUDA)
