"""Plans of im2col: the column matrix is cut into chunks that fit."""

import math

import pytest

from cases.plans import CUDA, channel_taps, sum_bytes, sums_in_f32
from cases.problems import LAYERS, layer, passes_of
from jaxconv.planner.choose import choose
from jaxconv.planner.plan import Constraint

MOST_COLUMN_BYTES = 2**28  # of a chunk, if that is a tile's rows
every_im2col_tile = pytest.mark.parametrize("tile", CUDA["im2col"].tiles, ids=str)

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
def test_the_column_matrix_stays_small(problem, which, tile):
    """Chunks are of whole tiles, and they fit, or are of one tile."""
    kind, problem = passes_of(problem)[which]
    plan = choose("cuda", kind, problem, Constraint(family="im2col", tile=tile.name, split=1)).plan
    if plan is None:
        assert tile.only_f32 and not sums_in_f32(problem)
        return
    columns = plan.settings["chunk"] * problem.groups * channel_taps(problem) * problem.lhs_dtype.itemsize
    assert plan.settings["chunk"] > 0 and plan.settings["chunk"] % tile.rows == 0
    assert plan.settings["chunk"] == tile.rows or columns <= MOST_COLUMN_BYTES
    results = math.prod(problem.out_shape if kind == "conv" else problem.rhs_shape)
    assert columns <= plan.workspace_bytes(problem) < columns + results * sum_bytes(problem) + 16


@every_im2col_tile
def test_a_small_column_matrix_is_one_chunk(tile):
    """It has a row for each output position, and the rows of a residue class begin at a tile's boundary."""
    strided = layer((2, 9, 9, 16), (3, 3, 16, 16), window_strides=(2, 3))
    for kind, problem in passes_of(strided).values():
        classes = 6 if problem.reverse else 1
        rows = problem.batch * math.prod(problem.out_spatial)
        plan = choose("cuda", kind, problem, Constraint(family="im2col", tile=tile.name)).plan
        assert rows <= plan.settings["chunk"] < rows + classes * tile.rows


@every_im2col_tile
def test_a_smaller_chunk_takes_less(tile):
    for kind, problem in passes_of(LAYERS["dense"]).values():
        named = [Constraint(family="im2col", tile=tile.name, split=1, chunk=n * tile.rows) for n in (1, 2, 4)]
        plans = [choose("cuda", kind, problem, c).plan for c in named]
        assert [p.settings["chunk"] for p in plans] == [c.chunk for c in named]
        workspace = [p.workspace_bytes(problem) for p in plans]
        assert workspace == sorted(workspace)
        assert workspace[0] < workspace[-1]
