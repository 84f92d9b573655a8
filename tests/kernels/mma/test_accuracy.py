"""Errors of mma on Gaussian inputs: float32 as one tf32 number, and as two in three passes. And how it rounds."""

import jax
import numpy as np
import pytest

import jaxconv
from cases.accuracy import LAYERS, check, ours
from cases.convolution import channels_last_convolution
from cases.matrices import IMAGE, SIDE, check_rounding_to_tf32, operands_of, units
from cases.reference import run_on_host
from cases.tiles import PASSES, constraint
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu
TF32_TILES = [tile for tile in FAMILIES["cuda"]["mma"].tiles if tile.depth == 32 and tile.passes == 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("layer", LAYERS)
def test_accuracy_of_tensor_cores(layer, dtype, x64):
    """float32 by tf32, of 11 bits: lax at its default precision may have more.

    Each product is off by 0.6 * 2^-11 (root mean square), and so are sums of them, the worst of 10^5 by 2.6. Operands
    that are truncated, not rounded, are off in one direction, by twice as much.
    """
    check(layer, dtype, "mma", "default", operands_rounding=2**-11 if dtype == "float32" else 0)


@pytest.mark.parametrize("layer", LAYERS)
def test_accuracy_of_three_passes(layer, x64):
    """float32 as two tf32 numbers: to each product's error of at most 3 * 2^-22 three roundings contribute that are
    independent and of 2^-22 at most. So the bound is that of float32 whose operands are rounded to 22 bits.

    Tensor cores truncate when they add eight products to a sum: three times, and each time half an eps is lost in the
    mean. Where lax adds in float32 and rounds, its error is smaller.
    """
    check(layer, "float32", "mma", operands_rounding=2**-22, truncation=3 / 8 / 2)


def test_three_passes_are_not_one():
    """A number that tf32 alone gets wrong, and numbers without a small part."""
    values = np.float32([1 + 2**-20, 3, -(2.0**-120), 2.0**120, 0, np.nan])
    x = np.zeros((1, 6, 8), np.float32)
    x[0, :, 0] = values
    w = np.eye(8, dtype=np.float32)[None]
    y = np.asarray(ours(x, w, "mma", precision="highest", padding="VALID"))[0, :, 0]
    np.testing.assert_array_equal(y, values)
    assert np.asarray(ours(x, w, "mma", padding="VALID"))[0, 0, 0] == 1


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("tile", TF32_TILES, ids=lambda tile: tile.name.replace(" ", "_"))
def test_float32_becomes_the_nearest_tf32_number(tile, which):
    """Of each operand in turn."""
    for operand in (0, 1):
        check_rounding_to_tf32(constraint("mma", tile), which, operand)


@pytest.mark.parametrize("which", PASSES)
def test_products_of_three_passes(which):
    """Each is within 2^-20 of itself, whatever the sizes of its numbers, and near the largest ones."""
    rng = np.random.default_rng(0)
    of_sizes = lambda shape, least, most: rng.uniform(1, 2, shape) * 2.0 ** rng.integers(least, most, shape)
    numbers = of_sizes((SIDE, SIDE), -50, 50).astype("float32") * rng.choice([-1, 1], (SIDE, SIDE)).astype("float32")
    numbers[0] = 3.4019e38
    factors = units(SIDE) * of_sizes((SIDE, SIDE), -50, -1).astype("float32")
    operands = operands_of(which, numbers, factors)
    convolution = channels_last_convolution((*IMAGE, SIDE), (1, 1, SIDE, SIDE))
    by_mma = convolution.bound(jaxconv.conv_general_dilated, implementation="mma", precision="highest")
    actual = np.asarray(jax.jit(PASSES[which](by_mma))(*operands))
    with jax.enable_x64(True):
        wide = (a.astype("float64") for a in operands)
        exact = np.asarray(run_on_host(PASSES[which](convolution.lax()), *wide))
    assert np.all(np.abs(actual - exact) <= 2.0**-20 * np.abs(exact))
