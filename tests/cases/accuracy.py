"""Errors on Gaussian inputs, against float64.

The largest error of a result is at most twice that of lax in the same dtype on the same platform, plus c eps sqrt(n) r,
which rounding in the accumulator explains: n is the number of products in a sum, r the root mean square of the exact
results, and eps the accumulator's, which is float32 for halves. lax's precision is ours: HIGHEST, or for tensor cores
the default.
  c = 3: added one after the other, n independent terms have a rounding error of 0.15 eps sqrt(n) r, and the worst of
      10^5 results below 2 eps sqrt(n) r; no other order has larger ones. Operands rounded to tf32 are far outside.
Halves are besides rounded once: each result is within half a unit of its own last place, and that much.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import jaxconv
from cases.reference import OPTIMIZED, lax_channels_last, pullback, run, run_on_host

C = 3
# x, w, parameters.
LAYERS = {
    "dense": ((2, 17, 15, 40), (3, 3, 40, 24), {}),
    "strided": ((2, 33, 31, 24), (3, 3, 24, 40), dict(window_strides=2)),
    "transposed": ((2, 13, 15, 40), (4, 4, 40, 24), dict(lhs_dilation=2, padding=2)),
    "dilated_line": ((2, 700, 24), (3, 24, 40), dict(rhs_dilation=16)),
    "depthwise": ((4, 32, 30, 16), (7, 7, 1, 16), dict(feature_group_count=16)),
    "grouped": ((2, 16, 16, 24), (3, 3, 6, 24), dict(feature_group_count=4)),
    "volume": ((1, 7, 9, 8, 12), (3, 3, 3, 12, 16), {}),
    "many_channels": ((1, 9, 9, 512), (3, 3, 512, 8), {}),
    "many_positions": ((16, 64, 64, 4), (3, 3, 4, 8), {}),
}  # fmt: skip
# More, for the families that are for those.
MORE_DEPTHWISE = {
    "strided_depthwise": ((4, 33, 31, 16), (3, 3, 1, 16), dict(feature_group_count=16, window_strides=2)),
    "depthwise_31x31": ((2, 18, 20, 8), (31, 31, 1, 8), dict(feature_group_count=8)),
    "depthwise_line": ((2, 700, 24), (31, 1, 24), dict(feature_group_count=24)),
}


def ours(x, w, implementation, **params):
    return getattr(jaxconv, f"conv{x.ndim - 2}d")(x, w, implementation=implementation, **params)


def gaussian(shape, dtype, seed):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@functools.cache
def by_lax(layer, dtype, precision):
    """Operands, the passes in float64, and in the dtype on the default platform."""
    x_shape, w_shape, params = (LAYERS | MORE_DEPTHWISE)[layer]
    theirs = functools.partial(lax_channels_last, **params)
    x, w = gaussian(x_shape, dtype, 0), gaussian(w_shape, dtype, 1)
    operands = x, w, gaussian(jax.eval_shape(theirs, x, w).shape, dtype, 2)
    exact = run_on_host(pullback(theirs), *(a.astype("float64") for a in operands), **OPTIMIZED)
    return operands, exact, run(pullback(functools.partial(theirs, precision=precision)), *operands, **OPTIMIZED)


def error(actual, exact):
    actual = np.asarray(actual, np.float64)
    assert np.all(np.isfinite(actual))
    return np.abs(actual - exact)


def check(layer, dtype, implementation, precision="highest", operands_rounding=0.0, truncation=0.0):
    """Compares an implementation with lax.

    `operands_rounding`: how far off a product may be. `truncation`: what truncating adds to the error of a sum's terms,
    each in the same direction, in eps of the result.
    """
    _, w_shape, params = (LAYERS | MORE_DEPTHWISE)[layer]
    operands, exact, theirs = by_lax(layer, dtype, precision)
    conv = functools.partial(ours, implementation=implementation, precision=precision, **params)
    actual = run(pullback(conv), *operands)
    taps, groups = np.prod(w_shape[:-2]), params.get("feature_group_count", 1)
    terms = taps * w_shape[-2], taps * w_shape[-1] // groups, operands[2].size // w_shape[-1]
    eps, f32_eps = jnp.finfo(dtype).eps, jnp.finfo("float32").eps
    for name, a, their, e, n in zip(("y", "dx", "dw"), actual, theirs, map(np.asarray, exact), terms, strict=True):
        assert a.dtype == dtype
        in_sums = min(eps, f32_eps) * (C * np.sqrt(n) + truncation * n)
        rounding = (in_sums + 4 * operands_rounding) * np.sqrt(np.mean(e**2))
        assert np.max(error(a, e)) <= 2 * np.max(error(their, e)) + rounding, name
        if eps > f32_eps:
            assert np.all(error(a, e) <= eps / 2 * np.abs(e) + rounding), name
