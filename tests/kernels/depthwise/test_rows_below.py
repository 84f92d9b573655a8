"""Windows whose rows reach below an image and not above it: the last rows of an image see nothing of the next one.

Kernels may take the rows of all images as those of one, where windows begin with the image.
"""

import itertools

import jax
import numpy as np
import pytest

from cases.convolution import depthwise_convolution as each
from cases.problems import passes_of, problem_of
from cases.reference import assert_same, run_on_host
from cases.tiles import PASSES, constraint, dtype_of, kernels_of
from jaxconv import ffi
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu


BELOW = {
    "two_rows": each((2, 30, 154, 16), (2, 7)),
    "two_rows_above": each((2, 30, 154, 16), (2, 7), padding=((1, 0), (3, 3))),  # below in the data gradient
    "three_rows": each((3, 9, 150, 32), (3, 9), padding=((0, 2), (4, 4))),
    "dilated_rows": each((3, 12, 150, 16), (2, 5), padding=((0, 3), (2, 2)), rhs_dilation=(3, 1)),
    "images_of_one_row": each((5, 1, 154, 16), (2, 7)),
}
OUTPUT_TILES = [None, (4, 160), (2, 56)]
TILES = [tile for tile in FAMILIES["cuda"]["depthwise"].tiles if tile.in_parts and not tile.of_bytes]


@pytest.mark.parametrize("convolution", BELOW.values(), ids=BELOW)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_rows_below_an_image(tile, convolution):
    dtype = dtype_of("depthwise", tile)
    problems = passes_of(problem_of(convolution.lax(), convolution.lhs, convolution.rhs, dtype))
    operands = convolution.operands()
    supported = set()
    for which, output_tile in itertools.product(PASSES, OUTPUT_TILES):
        asked = constraint("depthwise", tile, output_tile=output_tile)
        if choose("cuda", *problems[which], asked, ffi.device("cuda")).plan is None:
            continue
        supported.add((which, output_tile))
        expected = run_on_host(PASSES[which](convolution.lax()), *operands)
        actual = jax.jit(PASSES[which](convolution.ours(asked)))(*(a.astype(dtype) for a in operands))
        assert_same(actual, np.asarray(expected).astype(dtype))
    by_default = {which for which, output_tile in supported if output_tile is None}
    assert by_default == {which for _, which in kernels_of("depthwise", tile)}
