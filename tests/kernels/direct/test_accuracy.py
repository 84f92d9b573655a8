"""How direct rounds float32 to tf32."""

import pytest

from cases.matrices import check_rounding_to_tf32
from cases.tiles import constraint
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu
TILES = [tile for tile in FAMILIES["cuda"]["direct"].tiles if tile.of_floats]


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name.replace(" ", "_"))
def test_float32_becomes_the_nearest_tf32_number(tile, which):
    """Of each operand in turn: a filter's numbers are rounded when they are stored, an image's when they are read.

    Groups of eight channels are for all tiles."""
    for operand in (0, 1):
        check_rounding_to_tf32(constraint("direct", tile), which, operand, groups=16)
