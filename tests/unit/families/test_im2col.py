"""Plans of im2col: the column matrix is cut into chunks that fit."""

import math

import pytest

from cases.plans import CUDA, channel_taps, sum_bytes, sums_in_f32
from cases.problems import LAYERS, layer, passes_of
from jaxconv.families import IM2COL_SCRATCH
from jaxconv.plan import Constraint, choose

every_im2col_tile = pytest.mark.parametrize("row", CUDA["im2col"].TILES, ids=lambda row: str(row.tile))

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
