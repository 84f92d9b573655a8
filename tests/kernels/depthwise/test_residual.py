"""A residual waits in shared memory where its results will be: here in thread blocks of many rows, of several tiles."""

import functools

import jax
import pytest

from cases.convolution import BY_TWO, DOUBLED
from cases.convolution import depthwise_convolution as each
from cases.epilogue import ended, operands_of, plan_with, with_epilogue
from cases.problems import problem_of
from cases.reference import assert_same, run_on_host
from cases.tiles import constraint, dtypes_of, has_pass, result_of, skip_without_hopper
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu
TILES = {f"{tile}-{dtype}": (tile, dtype) for tile in FAMILIES["cuda"]["depthwise"].tiles if has_pass(tile, "fprop")
         for dtype in dtypes_of("depthwise", tile)}  # fmt: skip


# A GPU runs some hundred thread blocks at once: these have more tiles.
LAYERS = {
    "line": each((1500, 40, 64), (4,)),
    "line_of_31": each((1500, 40, 64), (31,)),
    "line_of_70": each((700, 90, 16), (70,)),
    "3x3": each((900, 9, 14, 64), (3, 3)),
    "5x5": each((900, 9, 14, 64), (5, 5)),
    "7x7": each((1500, 7, 7, 64), (7, 7)),
    "7x7_of_larger_images": each((200, 17, 40, 32), (7, 7)),
    "9x30": each((200, 12, 33, 16), (9, 30)),
    "strided_3x3": each((700, 13, 19, 64), (3, 3), **BY_TWO),
    "strided_7x7": each((700, 13, 19, 32), (7, 7), **BY_TWO),
    "dilated": each((300, 11, 20, 32), (3, 3), rhs_dilation=(2, 3)),
    "doubled_3x3": each((700, 7, 9, 64), (3, 3), **DOUBLED, padding=((1, 2), (1, 2))),
    "doubled_5x5": each((700, 7, 9, 64), (5, 5), **DOUBLED, padding=((2, 3), (2, 3))),
    "volume": each((300, 3, 5, 9, 32), (3, 3, 3)),
    "volume_of_large_windows": each((60, 6, 7, 20, 16), (5, 6, 4)),
}  # fmt: skip
NAMES = ("bias", "residual", "residual_scale")


@functools.cache
def operands_and_sums(name):
    x, w, _ = LAYERS[name].operands()
    return x, w, run_on_host(LAYERS[name].lax(), x, w)


@pytest.mark.parametrize("tile, dtype", TILES.values(), ids=TILES)
def test_residual_of_many_rows(tile, dtype):
    skip_without_hopper("depthwise", tile)
    asked, of, tried = constraint("depthwise", tile), dtype.partition("_to_")[0], False
    for name, layer in LAYERS.items():
        problem = problem_of(layer.lax(), layer.lhs, layer.rhs, of, result_of(dtype))
        if plan_with("cuda", problem, asked) is None:
            continue
        tried = True
        x, w, sums = operands_and_sums(name)
        operands = operands_of(problem, "float32", NAMES)
        conv = jax.jit(lambda x, w, operands: with_epilogue("cuda", problem, asked, x, w, operands, "relu"))
        assert_same(conv(x.astype(of), w.astype(of), operands), ended(problem, sums, operands, "relu"))
    assert tried
