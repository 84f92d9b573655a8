"""How far one number that is not finite reaches."""

import itertools

import jax
import numpy as np

from cases.reference import run_on_host
from cases.tiles import PASSES

IMAGES = {"fprop": (0,), "dgrad": (2,), "wgrad": (0, 2)}  # of x, w and g, the operands of a pass that are images


def check_not_finite(convolution, asked, which, dtype, at, reached, operands=None):
    """Among ones, a number of an image that is not finite: no results are but those `reached(channel, seen)`.

    The others are the same, bit for bit. Those that lax sums it into, which are `seen`, are not finite. `operands`:
    those of the pass that have such a number in turn, or all of its images.
    """
    ones = [np.ones(a.shape, dtype) for a in convolution.operands()]
    ours, theirs = (PASSES[which](conv) for conv in (convolution.ours(asked), convolution.lax()))
    program = jax.jit(ours)
    clean = np.asarray(program(*ones))
    for operand, channel in itertools.product(operands or IMAGES[which], (0, -1)):
        place = (1, *at, channel)
        one = [a.astype(np.float32) for a in ones]
        one[operand] = np.zeros_like(one[operand])
        one[operand][place] = 1
        seen = np.asarray(run_on_host(theirs, *one)) > 0
        assert np.any(seen)
        may_be = reached(channel % convolution.lhs[-1], seen)
        for value in (np.nan, np.inf):
            spoilt = [a.copy() for a in ones]
            spoilt[operand][place] = value
            actual = np.asarray(program(*spoilt))
            np.testing.assert_array_equal(actual[~may_be], clean[~may_be], err_msg=which)
            assert not np.any(np.isfinite(actual.astype(np.float32)) & seen)
