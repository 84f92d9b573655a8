"""Groups by wgmma, in one launch or in several: with an epilogue, beside an infinity, not aligned, and mapped."""

import functools
import itertools

import jax
import numpy as np
import pytest

import jaxconv
from cases import epilogue
from cases.convolution import channels_last_convolution
from cases.convolutions import convolutions
from cases.exact import check_alone
from cases.for_wgmma import WINDOWS
from cases.reference import assert_same, pullback, run, run_on_host
from cases.tiles import PASSES, constraint, has_pass, transform_of
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint, ConvPlan

pytestmark = pytest.mark.gpu
GROUPS = [name for name in WINDOWS if "groups" in name]
TILES = FAMILIES["cuda"]["wgmma"].tiles
OF_CONVS = pytest.mark.parametrize("tile", [tile for tile in TILES if tile.has_conv and not tile.bf16x6], ids=str)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("split", [1, 3, 8])
def test_exact(dtype, split):
    """By each tile, as far as it takes them. Slices of split-K lie among those of other groups."""
    cases = []
    for tile in TILES:
        divides = tile.cluster_split % split == 0 if tile.cluster_split else True
        for name in GROUPS if divides else ():
            for which in PASSES:
                asked = constraint("wgmma", tile, transform_of("wgmma", tile, dtype, which), split=split)
                if has_pass(tile, which) and epilogue.plan_of("cuda", name, which, asked, dtype)[1] is not None:
                    cases.append((name, which, asked))
    assert {which for _, which, _ in cases} == set(PASSES)
    check_alone(cases, dtype)


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@OF_CONVS
def test_each_group_has_its_own_operands_of_an_epilogue(tile, dtype, split):
    asked = Constraint("cuda", "wgmma", tile.name, split=split)
    cases = [(name, which, asked) for name in GROUPS for which in ("fprop", "dgrad")]
    cases = [case for case in cases if epilogue.plan_of("cuda", *case, dtype)[1] is not None]
    assert cases
    epilogue.check("cuda", cases, dtype, epilogue.EVERY, "relu")
    epilogue.check("cuda", cases, dtype, ("scale", "bias"), "relu", one=("scale",))


@pytest.mark.parametrize("channels", [32, 64], ids=["as_launches", "as_columns"])
@pytest.mark.parametrize("dtype", ["int8_to_int8", "int8_to_bfloat16", "float8_e4m3fn_to_bfloat16"])
def test_groups_of_bytes(dtype, channels):
    """K-major filters, as data gradients have them, are those of convolutions here."""
    x, w = (2, 9, 8, 2 * channels), (3, 3, channels, 2 * channels)
    operand, result = dtype.split("_to_")
    conv = functools.partial(jaxconv.conv2d, padding="SAME", feature_group_count=2, out_dtype=result, activation="relu")
    rng = np.random.default_rng(0)
    draw = lambda *shape: jax.numpy.asarray(rng.integers(-2, 3, shape), operand)
    scale, bias = 2.0 ** -rng.integers(1, 5, 2 * channels), rng.integers(-8, 9, 2 * channels)
    scale, bias = scale.astype("float32"), bias.astype("float32")
    arrays = draw(*x), draw(*w)
    of = lambda implementation: functools.partial(conv, scale=scale, bias=bias, implementation=implementation)
    actual = run(of("wgmma"), *arrays)
    expected = run_on_host(of("cpu"), *arrays)
    assert_same(actual.astype("float32"), np.asarray(expected).astype("float32"), 0.0 if "int8" in dtype else 8e-3)


# float32 where positions are whole vectors, as its weight gradients ask for.
BESIDE_AN_INFINITY = [
    *((name, "bfloat16") for name in ("windows_of_groups", "points_of_groups", "groups_as_columns")),
    ("points_of_groups_as_columns", "bfloat16"),
    *itertools.product(
        ("halo_tiles_of_groups_of_a_line", "halo_tiles_of_groups_as_columns", "odd_groups_as_columns_by_two"),
        ("bfloat16", "float32"),
    ),
]


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name, dtype", BESIDE_AN_INFINITY)
def test_an_infinity_stays_in_its_group(name, which, dtype):
    asked = Constraint("cuda", "wgmma", transform=() if dtype == "bfloat16" else None)
    case = convolutions()[name]
    x, w, g = (np.asarray(a, "float32") for a in case.operands())
    groups = case.params["feature_group_count"]
    for array in (x, g):
        array[..., array.shape[-1] // groups :] = np.inf  # of all groups but the first
    w[..., w.shape[-1] // groups :] = np.inf
    results = run(pullback(case.ours(asked)), *(a.astype(dtype) for a in (x, w, g)))
    of_which = results[list(PASSES).index(which)]
    first = np.asarray(of_which, "float32")[..., : of_which.shape[-1] // groups]
    assert np.all(np.isfinite(first)) and not np.all(np.isfinite(np.asarray(of_which, "float32")))


@pytest.mark.parametrize("name", ["windows_of_groups", "points_of_groups", "groups_as_columns"])
def test_not_aligned(monkeypatch, name):
    """Another kernel takes all groups."""
    monkeypatch.setattr(ConvPlan, "needs_aligned", False)
    case = convolutions()[name]
    x, w, _ = (np.asarray(a).astype("bfloat16") for a in case.operands())

    @jax.jit
    def of_slices(array):
        end = 1 + x.size
        return case.ours(constraint("wgmma"))(array[1:end].reshape(x.shape), array[end:].reshape(w.shape))

    flat = np.concatenate([np.zeros(1, x.dtype), x.ravel(), w.ravel()])
    expected = run_on_host(case.lax(), *(a.astype("float32") for a in (x, w)))
    assert_same(of_slices(flat), np.asarray(expected).astype("bfloat16"))


def test_members_of_a_vmap():
    """Each has its own images and its own filter, so each is a group of images."""
    case = channels_last_convolution((2, 9, 8, 16), (3, 3, 16, 24))
    x, w, g = (np.stack([np.asarray(a), 2 * np.asarray(a), -np.asarray(a)]) for a in case.operands())
    ours, theirs = (jax.vmap(pullback(conv)) for conv in (case.ours(constraint("wgmma")), case.lax()))
    arrays = [a.astype("bfloat16") for a in (x, w, g)]
    expected = run_on_host(theirs, *(a.astype("float32") for a in arrays))
    assert_same(run(ours, *arrays), tuple(np.asarray(e).astype("bfloat16") for e in expected))
