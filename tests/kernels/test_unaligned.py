"""Operands that begin anywhere in memory: families that need them aligned let another kernel answer."""

import functools
import itertools
import math

import jax
import numpy as np
import pytest

import jaxconv
from cases.exact import each_pass, of_family
from cases.reference import assert_same, channels_last, integers, run_on_host
from cases.spread import OPERANDS, passes
from cases.tiles import FAMILY_TYPES, constraint, passes_of_family
from jaxconv.planner.plan import ConvPlan

pytestmark = pytest.mark.gpu
LAYERS = {
    "direct": ((2, 9, 9, 32), (3, 3, 4, 32)),
    "depthwise": ((2, 9, 9, 32), (3, 3, 1, 32)),
    "gather": ((2, 9, 9, 32), (3, 3, 1, 32)),
    "wgmma": ((2, 9, 9, 32), (3, 3, 32, 32)),
}
DTYPES = {"direct": ["bfloat16"], "depthwise": ["bfloat16", "float32"], "gather": ["bfloat16", "float32"],
          "wgmma": ["bfloat16", "float8_e4m3fn"]}  # fmt: skip
TAKEN = [(family, dtype, which) for family in LAYERS for dtype in DTYPES[family] for which in OPERANDS
         if which in passes_of_family(family)]  # fmt: skip


def flat(*arrays):
    """One behind the other, from the second element on."""
    return np.concatenate([np.zeros(1, arrays[0].dtype), *(a.ravel() for a in arrays)])


@pytest.mark.parametrize("family, dtype, which", TAKEN)
def test_slices_of_a_larger_array(monkeypatch, family, dtype, which):
    """Without the barrier that makes XLA copy them it hands over parts of the array, wherever these begin."""
    monkeypatch.setattr(ConvPlan, "needs_aligned", False)
    lhs, rhs = LAYERS[family]
    params = dict(window_strides=(1, 1), padding="SAME", dimension_numbers=channels_last(2),
                  feature_group_count=lhs[-1] // rhs[-2])  # fmt: skip
    x, w, g = integers(lhs, dtype, 0), integers(rhs, dtype, 1), integers((*lhs[:-1], rhs[-1]), dtype, 2)
    first, second = ({"x": x, "w": w, "g": g}[name] for name in OPERANDS[which])
    ours = passes(functools.partial(jaxconv.conv_general_dilated, implementation=family, **params), x, w)[which]
    wide = [a.astype(np.float32) for a in (x, w)]
    theirs = passes(functools.partial(jax.lax.conv_general_dilated, **params), *wide)[which]

    @jax.jit
    def of_slices(array):
        end = 1 + first.size
        return ours(array[1:end].reshape(first.shape), array[end:].reshape(second.shape))

    expected = run_on_host(theirs, *(a.astype(np.float32) for a in (first, second)))
    assert_same(of_slices(flat(first, second)), np.asarray(expected).astype(dtype))


@pytest.mark.parametrize("family, dtype", [
    ("simt", "float32"), ("simt", "float64"), ("mma", "bfloat16"), ("wgmma", "bfloat16"), ("direct", "bfloat16"),
    ("depthwise", "bfloat16"), ("depthwise", "float32"), ("gather", "bfloat16"), ("gather", "float32"),
])  # fmt: skip
def test_residuals_within_larger_arrays(family, dtype):
    """They begin at their second element."""
    lhs, rhs = LAYERS.get(family, LAYERS["wgmma"])
    params = dict(window_strides=(1, 1), padding="SAME", dimension_numbers=channels_last(2),
                  feature_group_count=lhs[-1] // rhs[-2])  # fmt: skip
    with jax.enable_x64(dtype == "float64"):
        x, w, residual = (integers(shape, dtype, i) for i, shape in enumerate((lhs, rhs, (*lhs[:-1], rhs[-1]))))

        @jax.jit
        def of_slice(x, w, array):
            more = dict(residual=array[1:].reshape(residual.shape), implementation=family)
            return jaxconv.fused_conv_general_dilated(x, w, **params, **more)

        wide = [a.astype(np.float32) for a in (x, w, residual)]
        sums = lambda x, w, r: jax.lax.conv_general_dilated(x, w, **params) + r
        assert_same(of_slice(x, w, flat(residual)), run_on_host(sums, *wide).astype(dtype))


@pytest.mark.parametrize("family, dtype", FAMILY_TYPES)
def test_operands_within_larger_arrays(family, dtype):
    """Those begin anywhere in a program's memory."""
    convolution = of_family(family, (2, 9, 8, 16), (3, 3), 24)
    operands = convolution.operands()

    def apart(flat):
        shapes = [(math.prod(a.shape), a.shape) for a in operands]
        begins = [3, *(3 + end for end in itertools.accumulate(size for size, _ in shapes))]
        return [flat[b : b + size].reshape(shape) for b, (size, shape) in zip(begins, shapes, strict=False)]

    flat = np.concatenate([np.zeros(3, dtype), *(a.ravel().astype(dtype) for a in operands)])
    ours, theirs = (each_pass(conv) for conv in (convolution.ours(constraint(family)), convolution.lax()))
    actual = jax.jit(lambda flat: ours(*apart(flat)))(flat)
    assert_same(actual, [a.astype(dtype) for a in run_on_host(theirs, *operands)])
