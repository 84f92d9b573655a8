"""Infinities and NaNs of the host's kernels end where lax has them, and empty sums are zeros."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases.for_host import conv2d
from cases.reference import assert_same, cotangent, integers, lax_channels_last, pullback, run_on_host


def group_by_group(x, w, groups, **params):
    """lax without feature groups: its own gradients of these let a NaN out of its group."""
    of_groups = zip(jnp.split(x, groups, -1), jnp.split(w, groups, -1), strict=True)
    return jnp.concatenate([lax_channels_last(*of_group, **params) for of_group in of_groups], -1)


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("where", ["x", "w", "g"])
def test_not_finite_numbers_propagate(special, groups, where):
    """What is not a finite number, in one place of one operand, ends where lax has it."""
    ours = functools.partial(conv2d, feature_group_count=groups, padding="VALID")
    theirs = functools.partial(group_by_group, groups=groups, padding="VALID")
    x, w = integers((2, 7, 6, 4)), integers((3, 3, 4 // groups, 8), seed=1)
    operands = dict(x=x, w=w, g=cotangent(theirs, x, w))
    operands[where][-1, 2, 0, 0] = special
    # In the data gradient, lax multiplies a filter with padding too, where infinities become NaN.
    passes = lambda conv: lambda x, w, g: pullback(conv)(x, w, g)[:: 2 if where == "w" else 1]
    assert_same(jax.jit(passes(ours))(*operands.values()), run_on_host(passes(theirs), *operands.values()))


def test_empty_reductions_are_zero():
    """Where no tap reaches the image, results are zeros and not what memory held."""
    x, w = np.full((2, 3, 3, 4), 7, np.float32), np.full((2, 2, 4, 5), 7, np.float32)
    conv = functools.partial(conv2d, padding=((9, 9), (9, 9)), rhs_dilation=3, window_strides=4)
    theirs = functools.partial(lax_channels_last, padding=((9, 9), (9, 9)), rhs_dilation=3, window_strides=4)
    g = cotangent(theirs, x, w)
    assert_same(jax.jit(pullback(conv))(x, w, g), run_on_host(pullback(theirs), x, w, g))
    for x_shape, w_shape in [((2, 3, 3, 0), (2, 2, 0, 5)), ((0, 3, 3, 4), (2, 2, 4, 5)), ((2, 3, 3, 4), (2, 2, 4, 0))]:
        operands = integers(x_shape), integers(w_shape)
        for result in jax.jit(pullback(conv2d))(*operands, cotangent(lax_channels_last, *operands)):
            np.testing.assert_array_equal(result, 0)
