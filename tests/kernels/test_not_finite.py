"""Infinities and NaNs reach the results that lax sums them into, and no others, in families that take everything."""

import jax
import numpy as np
import pytest

from cases.convolution import channels_last_convolution
from cases.reference import pullback, run_on_host
from cases.tiles import constraint, dtype_of, every_tile

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("operand, padding, reached", [
    ("x", "SAME", ("y", "dw")), ("w", "VALID", ("y",)), ("g", "VALID", ("dx", "dw"))
])  # fmt: skip
@pytest.mark.parametrize("groups", [1, 4])
@every_tile
def test_not_finite_numbers_reach_their_results_alone(family, tile, groups, operand, padding, reached):
    """Those results that lax sums them into: it counts them, as a one among zeros.

    Where they meet padding, lax multiplies them with its zeros, but for those of x: the others get none.
    """
    shapes = (2, 9, 8, 12), (3, 3, 12 // groups, 20)
    convolution = channels_last_convolution(*shapes, padding=padding, feature_group_count=groups)
    theirs, ours = (pullback(c) for c in (convolution.lax(), convolution.ours(constraint(family, tile))))
    program = jax.jit(ours)
    dtype = dtype_of(family, tile)
    ones = {name: np.ones(a.shape, dtype) for name, a in zip("xwg", convolution.operands(), strict=True)}
    for index in [(0, 0, 0, 0), (-1, -2, -3, -1)]:
        one = np.zeros_like(ones[operand])
        one[index] = 1
        counts = run_on_host(theirs, *(a.astype(np.float32) for a in (ones | {operand: one}).values()))
        for value in (np.nan, np.inf):
            actual = program(*(ones | {operand: np.where(one, one.dtype.type(value), ones[operand])}).values())
            for name, result, count in zip(("y", "dx", "dw"), actual, counts, strict=True):
                if name in reached:
                    assert np.any(count)
                    is_finite = np.isfinite(np.asarray(result, np.float32))
                    np.testing.assert_array_equal(~is_finite, np.asarray(count) > 0, err_msg=name)
