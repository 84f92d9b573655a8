"""TMA itself copies for the tiles of depthwise that are for it."""

import pytest

from cases.exact import cases_of, exact_in, kernels_run_by
from cases.for_depthwise import CHANNELS
from cases.tiles import dtype_of
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("tile", [tile for tile in FAMILIES["cuda"]["depthwise"].tiles if tile.by_tma], ids=str)
def test_tma_itself_copies(tile):
    """Where it has no maps of the operands, warps copy in its place, and are as exact."""
    cases, dtype = cases_of("depthwise", tile, CHANNELS), dtype_of("depthwise", tile)
    operands, _ = exact_in(dtype, {name for name, *_ in cases})
    names = kernels_run_by(cases, dtype, operands)
    assert sum("DepthwiseByTma" in name for name in names) == len(cases) > 0
    assert not any("DepthwiseWarpSpecialized" in name for name in names)
