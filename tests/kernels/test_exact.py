"""Every CUDA family and tile, in every pass, bit-equal to lax on the host for small integers."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cases.convolutions import OWN, WITH_OUTPUT_TILES, convolutions
from cases.exact import are_supported, cases_of, check, check_alone, each_pass, of_family
from cases.for_wgmma import WINDOWS
from cases.plans import PARTIAL
from cases.reference import assert_same, run_on_host
from cases.tiles import (
    EVERY_KERNEL,
    FAMILY_TYPES,
    FORWARD_ALONE,
    PARTIAL_TILES,
    PASSES,
    TILES,
    constraint,
    dtype_of,
    dtypes_of,
    dtypes_of_family,
    every_family,
    passes_of_family,
    passes_with_split_k,
    settings_of,
    splits_of,
)
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu
EVERY_SETTING = {
    f"{name}-{'-'.join(f'{k}_{v}' for k, v in settings.items())}-{dtype}": (family, tile, settings, dtype)
    for name, (family, tile) in TILES.items() for settings in settings_of(family, tile)
    for dtype in dtypes_of(family, tile)
}  # fmt: skip


@pytest.mark.parametrize("family, tile, settings, dtype", EVERY_SETTING.values(), ids=EVERY_SETTING)
def test_exact(family, tile, settings, dtype):
    check(constraint(family, tile, **settings), dtype)


@pytest.mark.parametrize("family, dtype", [
    (family, dtype) for family in (None, *FAMILIES["cuda"]) for dtype in dtypes_of_family(family)
])  # fmt: skip
def test_exact_as_planned(family, dtype):
    """All, or, of partial families, the passes that they take."""
    if family not in PARTIAL:
        return check(constraint(family), dtype, list(convolutions()))
    passes = ("fprop",) if dtype in FORWARD_ALONE else tuple(PASSES)
    cases = [(name, which, constraint(family)) for name in convolutions() for which in passes
             if are_supported(name, constraint(family), dtype, (which,))]  # fmt: skip
    assert len({name for name, *_ in cases} & set(OWN[family])) > len(OWN[family]) / 4
    check_alone(cases, dtype)


@pytest.mark.parametrize("family, dtype", FAMILY_TYPES)
def test_exact_where_a_product_is_large(family, dtype):
    """More than one chunk of the column matrix, and more blocks than a GPU holds."""
    large = of_family(family, (64, 112, 112, 32), (3, 3), 8)
    operands = large.operands()
    ours, theirs = (each_pass(conv) for conv in (large.ours(constraint(family)), large.lax()))
    actual = jax.jit(ours)(*(a.astype(dtype) for a in operands))
    assert_same(actual, [a.astype(dtype) for a in run_on_host(theirs, *operands)])


@pytest.mark.parametrize("family, tile, dtype, which", EVERY_KERNEL.values(), ids=EVERY_KERNEL)
def test_exact_where_supported(family, tile, dtype, which):
    """Every convolution that the tile takes, but for those that are wgmma's own."""
    own, names = OWN[family], [name for name in convolutions() if name not in WINDOWS]
    cases = cases_of(family, tile, names, (which,), dtype=dtype)
    if which in passes_with_split_k(family):
        cases += cases_of(family, tile, own, (which,), splits_of(family, tile, which), dtype=dtype)
    assert {name for name, *_ in cases} & set(own)
    check_alone(cases, dtype)


# By name: of direct a row, and several rows, of depthwise one or more strips. Whether or not they
# divide the image, or are larger.
OUTPUT_TILES = {
    "direct": [(1, 8), (3, 16), (2, 32), (5, 16)],
    "depthwise": [(1, 8), (3, 8), (3, 16), (2, 96), (50, 24)],
}
TILES_WITH_OUTPUT_TILES = {name: of for name, of in PARTIAL_TILES.items() if of[0] in WITH_OUTPUT_TILES}


@pytest.mark.parametrize("family, tile", TILES_WITH_OUTPUT_TILES.values(), ids=TILES_WITH_OUTPUT_TILES)
def test_exact_output_tiles(family, tile):
    has = {
        "direct": lambda rows, cols: not tile.packed or cols % 16 == 0,
        "depthwise": lambda rows, cols: not tile.by_tma or cols in ((8,) if tile.in_pairs else (8, 16, 32, 64)),
    }[family]
    output_tiles = [output_tile for output_tile in OUTPUT_TILES[family] if has(*output_tile)]
    cases = cases_of(family, tile, WITH_OUTPUT_TILES[family], output_tiles=output_tiles)
    assert {asked.output_tile for *_, asked in cases} == set(output_tiles)
    check_alone(cases, dtype_of(family, tile))


@every_family
def test_offsets_past_31_bits(family):
    """The first and the last image of more than 2^31 elements; the others are zeros."""
    images, positions, channels = 2**31 // 2**20 + 3, 2**10, 2**10
    convolution = of_family(family, (images, positions, channels), (1,), 8)
    ends = dataclasses.replace(convolution, lhs=(2, positions, channels))
    x, w, g = ends.operands("bfloat16")
    passes = passes_of_family(family)
    ours, theirs = (each_pass(c, passes) for c in (convolution.ours(constraint(family)), ends.lax()))

    @jax.jit
    def apart(ends):
        return jnp.zeros((images, *ends.shape[1:]), ends.dtype).at[jnp.array([0, -1])].set(ends)

    @jax.jit
    def check(x, w, g):
        y, dx, *dw = ours(x, w, g)
        return [a[jnp.array([0, -1])] for a in (y, dx)] + dw, [jnp.any(a[1:-1] != 0) for a in (y, dx)]

    actual, others = check(apart(x), w, apart(g))
    assert math.prod(convolution.lhs) > 2**31
    expected = run_on_host(theirs, *(a.astype(np.float32) for a in (x, w, g)))
    assert_same(actual, [a.astype(x.dtype) for a in expected])
    assert not any(others)
