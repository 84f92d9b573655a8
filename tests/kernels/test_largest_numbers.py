"""Numbers near float32's largest: tensor cores round them to tf32, but none to an infinity."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import jaxconv
from cases.problems import passes_of, problem_of
from cases.reference import channels_last, run_on_host
from cases.spread import OPERANDS, passes
from cases.tiles import dtypes_of, has_pass
from jaxconv.planner.choose import choose
from jaxconv.planner.families import FAMILIES
from jaxconv.planner.plan import Constraint

LARGEST = np.finfo(np.float32).max
TF32 = 2.0**-11  # what rounding changes of an operand at most
LAYERS = {
    "dense": ((2, 9, 9, 16), (3, 3, 16, 24), {}),
    "odd_channels": ((2, 9, 9, 7), (3, 3, 7, 5), {}),
    "grouped": ((2, 9, 9, 16), (3, 3, 4, 16), dict(feature_group_count=4)),
    "depthwise": ((2, 9, 9, 16), (3, 3, 1, 16), dict(feature_group_count=16)),
    "many_steps": ((1, 9, 9, 520), (3, 3, 520, 8), {}),
    "patches": ((2, 8, 8, 16), (2, 2, 16, 128), dict(window_strides=(2, 2), padding="VALID")),
}
# wgmma's weight gradients need positions in whole vectors.
WIDE = {
    "wide": ((2, 8, 8, 64), (3, 3, 64, 72), {}),
    "strided": ((2, 16, 16, 40), (3, 3, 40, 72), dict(window_strides=(2, 2))),
    "groups_as_columns": ((2, 8, 8, 128), (3, 3, 64, 256), dict(feature_group_count=2)),
}
# direct's pixels have 32 channels at most.
NARROW = {
    "narrow_groups": ((2, 9, 17, 64), (3, 3, 4, 64), dict(feature_group_count=16)),
    "wide_groups": ((2, 9, 17, 64), (3, 3, 16, 64), dict(feature_group_count=4)),
    "few_channels": ((2, 20, 33, 8), (5, 5, 8, 64), dict(window_strides=(2, 2))),
    "lines": ((2, 1, 300, 32), (1, 9, 32, 96), {}),
}
EVERY = LAYERS | WIDE | NARROW
F32_TILES = {f"mma {tile}".replace(" ", "_"): tile for tile in FAMILIES["cuda"]["mma"].tiles if tile.depth == 32}
pytestmark = pytest.mark.gpu


def conv_of(layer, function, **more):
    params = dict(window_strides=(1, 1), padding="SAME", dimension_numbers=channels_last(2))
    return functools.partial(function, **params | EVERY[layer][2], **more)


def spoilt_operands(layer, which, operand, value):
    """Small numbers, and a few large ones in one of the pass's operands."""
    lhs, rhs, _ = EVERY[layer]
    x, w = (jax.ShapeDtypeStruct(shape, np.float32) for shape in (lhs, rhs))
    out = jax.eval_shape(conv_of(layer, jax.lax.conv_general_dilated), x, w).shape
    rng = np.random.default_rng(0)
    arrays = {name: rng.uniform(-1, 1, shape).astype(np.float32) * 2.0**-12
              for name, shape in zip("xwg", (lhs, rhs, out), strict=True)}  # fmt: skip
    array = arrays[operand]
    array[0, 0, 0, 0] = array[tuple(n // 2 for n in array.shape)] = value
    array[-1, -1, -1, -1] = -value
    return [arrays[name] for name in OPERANDS[which]]


def check(layer, asked, which, operand, precision=None):
    """Near the exact result; and what lax sums an infinity into is not finite."""
    shapes = [np.ones(shape, np.float32) for shape in EVERY[layer][:2]]
    conv = conv_of(layer, jaxconv.conv_general_dilated, implementation=asked, precision=precision)
    ours = jax.jit(passes(conv, *shapes)[which])
    exact = passes(conv_of(layer, jax.lax.conv_general_dilated), *(a.astype(np.float64) for a in shapes))[which]
    operands = spoilt_operands(layer, which, operand, LARGEST)
    wide = [a.astype(np.float64) for a in operands]
    with jax.enable_x64(True):
        cases = wide, map(np.abs, wide), spoilt_counts(layer, which, operand)
        expected, magnitude, counts = (np.asarray(run_on_host(exact, *case)) for case in cases)
    actual = np.asarray(ours(*operands))
    assert np.all(np.isfinite(actual))
    assert np.all(np.abs(actual - expected) <= 3 * TF32 * magnitude)
    actual = np.asarray(ours(*spoilt_operands(layer, which, operand, np.inf)))
    assert not np.any(np.isfinite(actual) & (counts > 0))


def spoilt_counts(layer, which, operand):
    """Ones where the large numbers are, and in the other operand."""
    operands = spoilt_operands(layer, which, operand, LARGEST)
    return [np.where(np.abs(a) == LARGEST, 1.0, 0.0) if name == operand else np.ones_like(a, np.float64)
            for name, a in zip(OPERANDS[which], operands, strict=True)]  # fmt: skip


PASS_OPERANDS = [(which, operand) for which, names in OPERANDS.items() for operand in names]
every_operand = pytest.mark.parametrize("which, operand", PASS_OPERANDS)


@every_operand
@pytest.mark.parametrize("layer", LAYERS)
def test_as_planned(layer, which, operand):
    check(layer, "cuda", which, operand)


@every_operand
@pytest.mark.parametrize("layer", ["dense", "odd_channels", "many_steps", "patches"])
@pytest.mark.parametrize("tile", F32_TILES.values(), ids=F32_TILES)
def test_in_every_tile(tile, layer, which, operand):
    precision = "highest" if tile.passes == 3 else None
    for split in (1, 3):
        asked = Constraint("cuda", "mma", tile.name, split=split, transform=())
        check(layer, asked, which, operand, precision)


ENDED = {
    tile.name.replace(" ", "_"): tile
    for tile in FAMILIES["cuda"]["wgmma"].tiles
    if "float32" in dtypes_of("wgmma", tile) and has_pass(tile, "fprop", "float32") and not tile.bf16x6
}


@pytest.mark.parametrize("tile", ENDED.values(), ids=ENDED)
def test_epilogue_of_sums_that_are_computed_again(tile):
    asked = Constraint("cuda", "wgmma", tile.name, split=1)
    x, w = spoilt_operands("wide", "fprop", "x", LARGEST)
    rng = np.random.default_rng(1)
    of_channel = dict(scale=2.0 ** rng.integers(-2, 1, 72), bias=rng.integers(-4, 5, 72) * 2.0**100)
    of_channel = {name: numbers.astype(np.float32) for name, numbers in of_channel.items()}
    residual = rng.integers(-4, 5, (2, 8, 8, 72)).astype(np.float32) * np.float32(2.0**101)
    fused = conv_of("wide", jaxconv.fused_conv_general_dilated, implementation=asked)
    ours = jax.jit(functools.partial(fused, activation="relu"))(x, w, residual=residual, **of_channel)
    conv = passes(conv_of("wide", jax.lax.conv_general_dilated), *(np.ones_like(a, np.float64) for a in (x, w)))[
        "fprop"
    ]
    with jax.enable_x64(True):
        sums, magnitude = (
            np.asarray(run_on_host(conv, *map(of, (x, w)))) for of in (np.float64, lambda a: np.abs(np.float64(a)))
        )
    expected = np.maximum(of_channel["scale"] * sums + of_channel["bias"] + residual.astype(np.float64), 0)
    assert np.all(np.isfinite(ours))
    assert np.all(np.abs(ours - expected) <= 3 * TF32 * (magnitude + 2.0**104))


WGMMA_TILES = [tile for tile in FAMILIES["cuda"]["wgmma"].tiles if "float32" in dtypes_of("wgmma", tile)]
WGMMA_KERNELS = [(tile, *of) for tile in WGMMA_TILES for of in PASS_OPERANDS if has_pass(tile, of[0], "float32")]


@pytest.mark.parametrize("layer", WIDE)
@pytest.mark.parametrize("tile, which, operand", WGMMA_KERNELS, ids=lambda value: str(value).replace(" ", "_"))
def test_in_every_tile_of_wgmma(tile, which, operand, layer):
    """Sums that TMA's rounding made infinite are computed again."""
    x, w = WIDE[layer][:2]
    kind, problem = passes_of(problem_of(conv_of(layer, jax.lax.conv_general_dilated), x, w))[which]
    precision = "highest" if tile.bf16x6 else None
    problem = dataclasses.replace(problem, precision=precision and jax.lax.Precision.HIGHEST)
    supported = 0
    for split in (1, 2, 8):
        asked = Constraint("cuda", "wgmma", tile.name, split=split, or_lax=True)
        if choose("cuda", kind, problem, asked).plan is not None:
            supported += 1
            check(layer, asked, which, operand, precision)
    assert supported or (tile.halo and layer == "strided" and which != "fprop")


@pytest.mark.parametrize("which, operand", [of for of in PASS_OPERANDS if of[0] != "wgrad"])
@pytest.mark.parametrize("tile", [tile for tile in FAMILIES["cuda"]["direct"].tiles if tile.of_floats], ids=str)
def test_in_every_tile_of_direct(tile, which, operand):
    asked, supported = Constraint("cuda", "direct", tile.name, transform=()), 0
    for layer, (x, w, _) in NARROW.items():
        kind, problem = passes_of(problem_of(conv_of(layer, jax.lax.conv_general_dilated), x, w))[which]
        if choose("cuda", kind, problem, asked).plan is not None:
            supported += 1
            check(layer, asked, which, operand)
    assert supported
