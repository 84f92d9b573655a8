"""How far one number that is not finite reaches."""

import itertools

import jax
import numpy as np

from cases.reference import run_on_host
from cases.tiles import PASSES


def check_not_finite(convolution, asked, which, dtype, at, reached):
    """Among ones, a number of an image that is not finite: no results are but those `reached(channel, seen)`.

    The others are the same, bit for bit. Those that lax sums it into, which are `seen`, are not finite.
    """
    ones = [np.ones(a.shape, dtype) for a in convolution.operands()]
    ours, theirs = (PASSES[which](conv) for conv in (convolution.ours(asked), convolution.lax()))
    program = jax.jit(ours)
    clean = np.asarray(program(*ones))
    for operand, channel in itertools.product({"fprop": [0], "dgrad": [2], "wgrad": [0, 2]}[which], (0, -1)):
        place = (1, *at, channel)
        one = [a.astype(np.float32) for a in ones]
        one[operand] = np.zeros_like(one[operand])
        one[operand][place] = 1
        seen = np.asarray(run_on_host(theirs, *one)) > 0
        assert np.any(seen)
        may_be = reached(channel % convolution.lhs[-1], seen)
        for value in (np.nan, np.inf):
            operands = [a.copy() for a in ones]
            operands[operand][place] = value
            actual = np.asarray(program(*operands))
            np.testing.assert_array_equal(actual[~may_be], clean[~may_be], err_msg=which)
            assert not np.any(np.isfinite(actual.astype(np.float32)) & seen)
