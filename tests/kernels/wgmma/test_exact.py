"""wgmma of transforms, with tiles for several rounds, bit-equal to mma or lax on the host; and that it is what runs."""

import functools

import jax
import jax.numpy as jnp
import pytest

import jaxconv
from cases.convolutions import problem
from cases.exact import TRANSFORMS, cases_of, cases_of_transform, check_alone, exact_in, kernels_run_by, those_supported
from cases.for_wgmma import WINDOWS
from cases.plans import stored_slices
from cases.problems import CONV_PASSES, passes_of
from cases.tiles import dtype_of, dtypes_of, every_tile_of, has_pass, splits_of
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint
from jaxconv.transforms import KMajorFilter, PositionsLast, SwappedOperands

pytestmark = pytest.mark.gpu
ROWS = [tile for tile in FAMILIES["cuda"]["wgmma"].tiles if tile.has_conv and not tile.cluster_split]
every_tile_of_rows = pytest.mark.parametrize("tile", ROWS, ids=str)


EVERY_ROWS = [(tile, dtype) for tile in ROWS for dtype in ("bfloat16", "float16", "float32")
              if dtype in dtypes_of("wgmma", tile)]  # fmt: skip


def conv1d(tile, x, w, of, padding="SAME", **more):
    """At the precision that the tile is for."""
    precision = "highest" if tile.bf16x6 else None
    return jaxconv.conv1d(x, w, padding=padding, implementation=of, precision=precision, **more)


def integers(seed, dtype, *shape):
    return jax.random.randint(jax.random.key(seed), shape, -3, 4).astype(dtype)


K_MAJOR = {"float32": [(KMajorFilter(),), (KMajorFilter(of_dgrad=True),), (PositionsLast("out"),)]}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_exact_when_transformed_for_wgmma(dtype):
    """What it takes then."""
    transforms = [(*transform, *last) for transform in TRANSFORMS for last in K_MAJOR.get(dtype, [()])]
    every = [case for transform in transforms for case in cases_of_transform("wgmma", transform, dtype)]
    cases = those_supported(every, dtype)
    assert len({asked.transform for *_, asked in cases}) > len(TRANSFORMS) / 2
    check_alone(cases, dtype)


SWAPPED = {
    "float32": (KMajorFilter(), PositionsLast("lhs"), SwappedOperands()),
    "bfloat16": (KMajorFilter(), SwappedOperands()),
    "float16": (KMajorFilter(), SwappedOperands()),
}


@pytest.mark.parametrize("dtype, swapped", SWAPPED.items(), ids=SWAPPED)
def test_exact_when_swapped(dtype, swapped):
    """Weight gradients, of dilated sources also: those have no residue classes then."""
    cases = [case for case in cases_of_transform("wgmma", swapped, dtype) if case[1] == "wgrad"]
    supported = those_supported(cases, dtype)
    assert sum(max(problem(name).lhs_dilation) > 1 for name, *_ in supported) > 5
    check_alone(supported, dtype)


def launches(tile, kind, problem):
    """One of all groups, if the columns of each cluster, and each block of K, are of one group."""
    ends_with_group = problem.out_channels % (tile.cols * tile.col_blocks) == 0
    has_whole_blocks = kind == "wgrad" or problem.in_channels % 16 == 0
    return 1 if ends_with_group and has_whole_blocks and not problem.lhs_batch_grouped else problem.groups


def check_kernels(tile, passes, splits, kernel):
    """Each launch of a call runs `kernel`, and each call one more that adds slices if some are stored.

    mma would be as exact. It takes the place of wgmma where TMA has no maps of the operands, as of those without
    images.
    """
    names = [name for name, convolution in WINDOWS.items() if 0 not in convolution.lhs]
    cases = cases_of("wgmma", tile, names, passes, splits)
    dtype = dtype_of("wgmma", tile)
    operands, _ = exact_in(dtype, {name for name, *_ in cases})
    kernels = kernels_run_by(cases, dtype, operands)
    of_pass = lambda name, which, asked: passes_of(problem(name, dtype, asked))[which]
    stores_slices = [stored_slices(*of_pass(*case), case[-1]) > 0 for case in cases]
    assert any(stores_slices) == (tile.cluster_split == 0) and not all(stores_slices)
    assert sum(kernel in name for name in kernels) == sum(launches(tile, *of_pass(*case)) for case in cases)
    assert sum("AddSlices" in name for name in kernels) == sum(stores_slices)
    assert not any("MmaKernel" in name for name in kernels)


@every_tile_of("wgmma", "fprop")
def test_convs_of_wgmma_itself_run(tile):
    kernel = "WgmmaClusterSplitKernel" if tile.cluster_split else "WgmmaKernel"
    splits = splits_of("wgmma", tile, "fprop")[:2]
    check_kernels(tile, CONV_PASSES, splits, kernel)


@every_tile_of("wgmma", "wgrad")
def test_weight_gradients_of_wgmma_itself_run(tile):
    """A cluster adds four slices, and none of an odd number."""
    check_kernels(tile, ("wgrad",), (4, 17), "WgradKernel")


# Of one product, of residue classes, some of whose tiles are not there, and of groups in launches of their own.
MANY = {"one": {}, "classes": {"lhs_dilation": 2, "padding": ((7, 8),)}, "launches": {"feature_group_count": 2}}


# Positions of halo tiles are neighbours, so of one class.
OF_MANY = [(tile, many) for tile in FAMILIES["cuda"]["wgmma"].tiles if has_pass(tile, "wgrad")
           for many in MANY if many != "classes" or not tile.halo]  # fmt: skip


@pytest.mark.parametrize("split", [1, 2, 3, 8, 24])
@pytest.mark.parametrize("tile, many", OF_MANY, ids=str)
def test_exact_where_clusters_have_many_weight_gradients(tile, split, many):
    """Each cluster has tiles for several rounds, of other taps, channels and columns each time.

    It takes the later ones by a counter, which each launch leaves at zero: other gradients come next.
    """
    dtype, more = dtype_of("wgmma", tile), MANY[many]
    groups, apart = more.get("feature_group_count", 1), more.get("lhs_dilation", 1)
    x = integers(0, dtype, 2, 304 // apart, 520 * groups)
    w = jnp.zeros((15, 520, 1032 * groups), dtype)
    conv = lambda of, w: conv1d(tile, x, w, of, **more)
    g = integers(1, dtype, *jax.eval_shape(functools.partial(conv, Constraint("cuda", "mma")), w).shape)
    of = jax.jit(lambda of, g: jax.vjp(functools.partial(conv, of), w)[1](g)[0], static_argnums=0)
    expected, asked = of(Constraint("cuda", "mma"), g), Constraint("cuda", "wgmma", tile.name, split)
    for factor in (1, -1, 2):
        assert jnp.array_equal(of(asked, factor * g), factor * expected)


@every_tile_of_rows
def test_exact_where_tiles_are_scheduled(tile):
    """Blocks take the next tile by a counter of the call's own, which each launch leaves at zero: several launches of
    one call, in turn with those of others, by one program and another."""
    dtype = dtype_of("wgmma", tile)
    x = integers(0, dtype, 1, 1_300_007, 64)
    w = integers(1, dtype, 3 if tile.halo else 1, 64, 72)
    conv = lambda of, x: conv1d(tile, x, w, of)
    asked, factors = Constraint("cuda", "wgmma", tile.name), jnp.array([1, -1, 2], x.dtype)
    expected = jax.jit(functools.partial(conv, Constraint("cuda", "mma")))(x)
    one = jax.jit(functools.partial(conv, asked))
    two = jax.jit(lambda x: (conv(asked, x), conv(asked, -2 * x)))
    loop = jax.jit(lambda x: jax.lax.map(lambda factor: conv(asked, factor * x), factors))
    for _ in range(3):
        assert jnp.array_equal(one(x), expected)
        assert all(map(jnp.array_equal, two(x), (expected, -2 * expected)))
        assert all(map(jnp.array_equal, loop(x), [factor * expected for factor in factors]))


@pytest.mark.parametrize("outs", [96, 224, 480])
@every_tile_of_rows
def test_exact_where_float32_ends_within_64_columns(tile, outs):
    """Two warps then have columns to store, and two have none, in the same buffers."""
    x, w = integers(0, "float32", 2, 9001, 64), integers(1, "float32", 3, 64, outs)
    conv = jax.jit(lambda of: conv1d(tile, x, w, of), static_argnums=0)
    assert jnp.array_equal(conv(Constraint("cuda", "wgmma", tile.name)), conv(Constraint("cuda", "mma")))


@pytest.mark.parametrize("which", ["fprop", "dgrad"])
@pytest.mark.parametrize("tile, dtype", EVERY_ROWS, ids=str)
def test_exact_where_columns_change(tile, dtype, which):
    """Thread blocks have tiles for several rounds, of other columns each time: what is left of one is stored among the
    steps of the next, of which there are fewer than those parts of a tile, as many, or more."""

    def conv(of, taps, channels, result=None):
        few = integers(0, dtype, 2, 9001, channels)
        bound = functools.partial(conv1d, tile, of=of, preferred_element_type=result)
        if which == "fprop":
            return bound(few, integers(1, dtype, taps, channels, 1032))
        many = jnp.zeros((2, 9001, 1032), dtype)
        (gradient,) = jax.vjp(lambda x: bound(x, integers(1, dtype, taps, 1032, channels)), many)[1](few)
        return gradient

    steps = [(2, 64), (3, 64), (3, 72), (4, 64), (5, 64)] + ([] if tile.halo else [(1, 24), (1, 40)])
    all_of = jax.jit(lambda of: [conv(of, *step) for step in steps], static_argnums=0)
    results = all_of(Constraint("cuda", "wgmma", tile.name)), all_of(Constraint("cuda", "mma"))
    for step, ours, expected in zip(steps, *results, strict=True):
        assert jnp.array_equal(ours, expected), step
    if which == "fprop":  # from registers, and slices
        for split, result in [(1, "float32"), (2, None)]:
            ours = conv(Constraint("cuda", "wgmma", tile.name, split), 3, 72, result)
            assert jnp.array_equal(ours, conv(Constraint("cuda", "mma"), 3, 72, result)), (split, result)
