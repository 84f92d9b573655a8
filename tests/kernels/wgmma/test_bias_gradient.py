"""A bias's gradient by the kernel of the filter's: sums of integers, bit-equal, and the filter's gradient as before."""

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxconv
from cases.tiles import dtypes_of, has_pass, splits_of
from jaxconv.fused import bias_gradient
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint, ConvPlan
from jaxconv.traced import trace

pytestmark = pytest.mark.gpu
SUMMING = [(tile, dtype) for tile in FAMILIES["cuda"]["wgmma"].tiles if has_pass(tile, "wgrad")
           for dtype in ("bfloat16", "float16") if dtype in dtypes_of("wgmma", tile)]  # fmt: skip

CASES = {
    "3x3": (jaxconv.conv2d, (3, 13, 17, 72), (3, 3, 72, 200), {}),
    "1x1": (jaxconv.conv2d, (2, 31, 9, 136), (1, 1, 136, 328), {}),
    "strided": (jaxconv.conv2d, (2, 19, 23, 64), (3, 3, 64, 136), {"window_strides": 2}),
    "line": (jaxconv.conv1d, (4, 300, 64), (5, 64, 72), {}),
    "many_tiles": (jaxconv.conv1d, (2, 304, 520), (15, 520, 1032), {}),
    "groups": (jaxconv.conv2d, (2, 16, 16, 256), (3, 3, 128, 512), {"feature_group_count": 2}),
    "groups_apart": (jaxconv.conv2d, (2, 16, 16, 128), (3, 3, 64, 144), {"feature_group_count": 2}),
    "volume": (jaxconv.conv3d, (2, 5, 9, 7, 64), (3, 3, 3, 64, 72), {}),
}


def operands_of(name, dtype):
    """x, w, the bias, and a cotangent of small integers."""
    conv, lhs, rhs, more = CASES[name]
    conv = functools.partial(conv, padding="SAME", **more)
    integers = lambda seed, shape: jax.random.randint(jax.random.key(seed), shape, -2, 3).astype(dtype)
    x, w, bias = integers(0, lhs), integers(1, rhs), jnp.zeros(rhs[-1], jnp.float32)
    return conv, x, w, bias, integers(2, jax.eval_shape(conv, x, w).shape)


def gradients(conv, asked, x, w, bias, g):
    """Of the filter and the bias."""
    return jax.vjp(lambda w, bias: conv(x, w, bias=bias, implementation=asked), w, bias)[1](g)


def is_one_kernel(conv, asked, x, w, bias, g):
    equations = trace(functools.partial(gradients, conv, asked), x, w, bias, g).equations
    (both,) = (equation.params for equation in equations if equation.primitive is bias_gradient.PRIMITIVE)
    return bias_gradient.planned("cuda", both["problem"], both["implementation"]) is not None


@pytest.mark.parametrize("tile, dtype", SUMMING, ids=str)
def test_exact(tile, dtype):
    taken = set()
    for name in CASES:
        operands = operands_of(name, dtype)
        conv, x, w, bias, g = operands
        for split in splits_of("wgmma", tile, "wgrad"):
            asked = Constraint("cuda", "wgmma", tile.name, split, transform=(), or_lax=True)
            if not is_one_kernel(conv, asked, *operands[1:]):
                continue
            taken.add(name)
            of_filter, of_bias = jax.jit(functools.partial(gradients, conv, asked))(*operands[1:])
            assert jnp.array_equal(of_bias, g.astype(jnp.float32).sum(range(g.ndim - 1))), (name, split)
            alone = jax.jit(jax.grad(lambda w: jnp.vdot(conv(x, w, implementation=asked), g)))(w)
            assert jnp.array_equal(of_filter, alone), (name, split)
    strided = set() if tile.halo else {"1x1", "strided"}
    assert taken >= {"3x3", "line", "many_tiles", "groups", "groups_apart", "volume"} | strided


def test_steps_that_are_left_out_are_summed_by_xla():
    """Rows that a far tap sees nothing from are still part of the sum."""
    conv = functools.partial(jaxconv.conv2d, padding="SAME", rhs_dilation=12)
    x, w = jnp.ones((2, 32, 32, 64), jnp.bfloat16), jnp.ones((3, 3, 64, 64), jnp.bfloat16)
    bias, g = jnp.zeros(64, jnp.float32), jnp.ones((2, 32, 32, 64), jnp.bfloat16)
    asked = Constraint("cuda", "wgmma", "128x64x64, two at once", transform=())
    assert not is_one_kernel(conv, asked, x, w, bias, g)
    assert jnp.array_equal(jax.jit(functools.partial(gradients, conv, asked))(x, w, bias, g)[1], jnp.full(64, 2048.0))


def test_operands_anywhere_in_memory(monkeypatch):
    """Another kernel answers then, and one of its own adds up the cotangent."""
    monkeypatch.setattr(ConvPlan, "needs_aligned", False)
    conv, x, w, bias, g = operands_of("groups_apart", "bfloat16")

    @jax.jit
    def of_slices(array):
        end = 1 + x.size
        of = functools.partial(gradients, conv, "wgmma")
        return of(array[1:end].reshape(x.shape), w, bias, array[end:].reshape(g.shape))

    of_filter, of_bias = of_slices(jnp.concatenate([jnp.zeros(1, x.dtype), x.ravel(), g.ravel()]))
    assert jnp.array_equal(of_bias, g.astype(jnp.float32).sum((0, 1, 2)))
    assert jnp.array_equal(of_filter, jax.jit(functools.partial(gradients, conv, "wgmma"))(x, w, bias, g)[0])


def test_the_same_bits_each_time():
    conv, x, w, bias, _ = operands_of("3x3", "bfloat16")
    g = jax.random.normal(jax.random.key(3), jax.eval_shape(conv, x, w).shape).astype("bfloat16")
    of = jax.jit(functools.partial(gradients, conv, "wgmma"))
    first, *others = (of(x, w, bias, g)[1] for _ in range(5))
    assert all(jnp.array_equal(first, other) for other in others)
    exact = g.astype(jnp.float32).sum((0, 1, 2))
    assert jnp.allclose(first, exact, rtol=1e-5, atol=1e-3)
