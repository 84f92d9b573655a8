"""Errors of the host's kernels on Gaussian inputs, which are the same bits each time."""

import functools

import jax
import numpy as np
import pytest

from cases.accuracy import gaussian
from cases.for_host import conv2d
from cases.parts import in_turns
from cases.reference import FLOATS, OPTIMIZED, assert_same, lax_channels_last, pullback, run_on_host

# (x, w, groups)
ACCURACY = {
    "dense": ((2, 17, 15, 40), (3, 3, 40, 24), 1),
    "long_sum": ((1, 9, 9, 512), (3, 3, 512, 8), 1),
    "many_positions": ((8, 32, 32, 4), (3, 3, 4, 8), 1),
    "few_outputs": ((1, 70, 60, 24), (5, 5, 24, 3), 1),
    "depthwise": ((4, 32, 30, 16), (7, 7, 1, 16), 16),
    "grouped": ((2, 16, 16, 24), (3, 3, 6, 24), 4),
}


@pytest.mark.parametrize("x_shape, w_shape, groups, dtype", in_turns(ACCURACY, FLOATS))
def test_accuracy(x_shape, w_shape, groups, dtype):
    """Against float64: at most twice lax's error, and what rounding in the accumulator explains."""
    eps = 2**-52 if dtype == "float64" else 2**-23
    with jax.enable_x64(True):
        x, w = gaussian(x_shape, dtype, 0), gaussian(w_shape, dtype, 1)
        ours, theirs = (functools.partial(f, feature_group_count=groups) for f in (conv2d, lax_channels_last))
        g = gaussian(jax.eval_shape(theirs, x, w).shape, dtype, 2)
        exactly = run_on_host(pullback(theirs), *(a.astype("float64") for a in (x, w, g)), **OPTIMIZED)
        actual, by_lax = jax.jit(pullback(ours))(x, w, g), run_on_host(pullback(theirs), x, w, g, **OPTIMIZED)
    taps = w_shape[0] * w_shape[1]
    lengths = taps * w_shape[2], taps * w_shape[3] // groups, g.size // g.shape[-1]
    for a, their, e, length in zip(actual, by_lax, exactly, lengths, strict=True):
        a, their, e = (np.asarray(array, np.float64) for array in (a, their, e))
        assert np.all(np.isfinite(a))
        scale = np.sqrt(np.mean(np.square(e)))
        assert np.max(np.abs(a - e)) <= 2 * np.max(np.abs(their - e)) + 4 * eps * scale * np.sqrt(length)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("x_shape, w_shape, groups", ACCURACY.values(), ids=ACCURACY)
def test_the_same_twice(x_shape, w_shape, groups, dtype):
    """Sums are in a fixed order, whichever thread does them."""
    with jax.enable_x64(dtype == "float64"):
        x, w = gaussian(x_shape, dtype, 0), gaussian(w_shape, dtype, 1)
        conv = functools.partial(conv2d, feature_group_count=groups)
        passes = jax.jit(pullback(conv))
        g = gaussian(jax.eval_shape(conv, x, w).shape, dtype, 2)
        first = passes(x, w, g)
        for _ in range(3):
            assert_same(passes(x, w, g), first)
