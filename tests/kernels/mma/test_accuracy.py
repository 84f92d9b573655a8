"""Errors of mma on Gaussian inputs: float32 as one tf32 number, and as two in three passes."""

import numpy as np
import pytest

from cases.accuracy import LAYERS, check, ours

pytestmark = pytest.mark.gpu


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
