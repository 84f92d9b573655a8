"""A bias's gradient by the kernel of the filter's: sums of integers, bit-equal, and the filter's gradient as before."""

import functools

import jax
import jax.numpy as jnp
import pytest

from cases.bias import CASES, SUMMING, TRANSFORMED, WithBias
from cases.tiles import name_of, skip_without_hopper, splits_of
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint, ConvPlan

pytestmark = pytest.mark.gpu
ONE_OF_EACH = [
    ("wgmma", "3x3", "128x64x64, two at once"), ("wgmma", "groups_apart", "128x128x64"),
    ("depthwise", "3x3", "3x16 by 4"), ("depthwise", "3x3", "3x16 by 4 copied by others"),
    ("depthwise", "7x7_of_14", "7x16 by 4 by TMA"), ("depthwise", "7x7_of_7", "7x16 by 4 by TMA in pairs"),
    ("direct", "stem", "1x64 of 64 by 32 of packed taps or 48"), ("direct", "3x3_of_16", "1x16 of 32 by 64 or 144"),
    ("mma", "3x3", "128x128x64 wgmma"), ("mma", "odd_channels", "64x64x64"),
]  # fmt: skip
one_of_each = pytest.mark.parametrize("family, name, tile", ONE_OF_EACH)


def one_kernel(family, name, tile):
    """The case, its operands, and its gradients by one kernel of a tile."""
    (found,) = (each for each in FAMILIES["cuda"][family].tiles if each.name == tile)
    skip_without_hopper(family, found)
    case, asked = CASES[family][name], Constraint("cuda", family, tile, transform=())
    assert case.is_one_kernel(asked, "bfloat16")
    return case.operands("bfloat16"), functools.partial(case.gradients, asked)


def sums_of(g):
    return g.astype(jnp.float32).sum(range(g.ndim - 1))


@pytest.mark.parametrize(
    "family, tile, dtype", SUMMING, ids=[f"{name_of(family, tile)}-{dtype}" for family, tile, dtype in SUMMING]
)
def test_exact(family, tile, dtype):
    skip_without_hopper(family, tile)
    taken = set()
    for name, case in CASES[family].items():
        operands = x, w, _, g = case.operands(dtype)
        for split in splits_of(family, tile, "wgrad"):
            asked = Constraint("cuda", family, tile.name, split, transform=(), or_lax=True)
            if not case.is_one_kernel(asked, dtype):
                continue
            taken.add(name)
            of_filter, of_bias = jax.jit(functools.partial(case.gradients, asked))(*operands)
            assert jnp.array_equal(of_bias, sums_of(g)), (name, split)
            alone = jax.jit(jax.grad(lambda w: jnp.vdot(case.conv(x, w, implementation=asked), g)))(w)
            assert jnp.array_equal(of_filter, alone), (name, split)
    if family == "wgmma":
        strided = set() if tile.halo else {"1x1", "strided"}
        assert taken >= {"3x3", "line", "many_tiles", "groups", "groups_apart", "volume"} | strided
    assert taken == set(CASES["mma"]) if family == "mma" else taken


@pytest.mark.parametrize("name", TRANSFORMED)
def test_of_transformed_problems(name):
    case = TRANSFORMED[name]
    assert case.is_one_kernel("cuda", "bfloat16")
    operands = x, w, _, g = case.operands("bfloat16")
    of_filter, of_bias = jax.jit(functools.partial(case.gradients, "cuda"))(*operands)
    assert jnp.array_equal(of_bias, sums_of(g))
    alone = jax.jit(jax.grad(lambda w: jnp.vdot(case.conv(x, w, implementation="cuda"), g)))(w)
    assert jnp.array_equal(of_filter, alone)


def test_steps_that_are_left_out_are_summed_by_xla():
    """Rows that a far tap sees nothing from are still part of the sum."""
    case = WithBias((2, 32, 32, 64), (3, 3, 64, 64), {"rhs_dilation": 12})
    x, w, bias, _ = case.operands("bfloat16")
    asked = Constraint("cuda", "wgmma", "128x64x64, two at once", transform=())
    assert not case.is_one_kernel(asked, "bfloat16")
    of_bias = jax.jit(functools.partial(case.gradients, asked))(x, w, bias, jnp.ones_like(x))[1]
    assert jnp.array_equal(of_bias, jnp.full(64, 2048.0))


@one_of_each
def test_operands_anywhere_in_memory(monkeypatch, family, name, tile):
    """mma reads them one by one. Of others another kernel answers then, and one of its own adds up the cotangent."""
    monkeypatch.setattr(ConvPlan, "needs_aligned", False)
    (x, w, bias, g), of = one_kernel(family, name, tile)

    @jax.jit
    def of_slices(array):
        end = 1 + x.size
        return of(array[1:end].reshape(x.shape), w, bias, array[end:].reshape(g.shape))

    of_filter, of_bias = of_slices(jnp.concatenate([jnp.zeros(1, x.dtype), x.ravel(), g.ravel()]))
    assert jnp.array_equal(of_bias, sums_of(g))
    assert jnp.array_equal(of_filter, jax.jit(of)(x, w, bias, g)[0])


@one_of_each
def test_the_same_bits_each_time(family, name, tile):
    (x, w, bias, g), of = one_kernel(family, name, tile)
    g = jax.random.normal(jax.random.key(3), g.shape).astype("bfloat16")
    first, *others = (jax.jit(of)(x, w, bias, g)[1] for _ in range(5))
    assert all(jnp.array_equal(first, other) for other in others)
    assert jnp.allclose(first, sums_of(g), rtol=1e-5, atol=1e-3)


@one_of_each
def test_what_is_not_finite_stays_in_its_channel(family, name, tile):
    (x, w, bias, g), of = one_kernel(family, name, tile)
    at = (0,) * (g.ndim - 1)
    g = g.at[*at, 3].set(jnp.inf).at[*at, 5].set(jnp.nan)
    assert jnp.array_equal(jax.jit(of)(x, w, bias, g)[1], sums_of(g), equal_nan=True)
