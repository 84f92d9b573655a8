"""float32 by products of bfloat16: errors no larger than float32's, and the infinities and NaNs of float32."""

import functools

import jax
import numpy as np
import pytest
from jax import lax

import jaxconv
from cases.errors import DATA, LAYERS, errors
from cases.reference import channels_last, lax_channels_last, pullback, run, run_on_host
from cases.tiles import PASSES, constraint
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu
TILES = [tile for tile in FAMILIES["cuda"]["wgmma"].tiles if tile.bf16x6]


def at_highest(tile, **asked):
    """A tile's convolution."""
    implementation = constraint("wgmma", tile, **asked)
    return functools.partial(
        jaxconv.conv_general_dilated, window_strides=(1, 1), padding="SAME", implementation=implementation,
        dimension_numbers=channels_last(2), precision="highest",
    )  # fmt: skip


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("layer", LAYERS)
def test_errors_of_sums(layer, data):
    """In 2^-24 of the sum of the products' magnitudes; and beside CUDA cores, which round where others truncate."""
    of = lambda family: errors(functools.partial(jaxconv.conv2d, implementation=family), layer, data)
    # simt's split depends on the GPU, and so do its errors. In 1x1 layers the largest ones are near to each other.
    most, of_simt = 1.1 if layer.startswith("1x1") else 1.0, of("simt")
    for which, (largest, mean) in of("wgmma").items():
        assert largest < 8 and mean < 1
        assert largest <= most * of_simt[which][0] and mean <= of_simt[which][1], which


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name.replace(" ", "_"))
def test_a_number_times_one_is_exact(tile):
    """Though its third part makes up for what truncation takes of sums. Halo tiles are for several taps."""
    rng = np.random.default_rng(0)
    side = 3 if tile.halo else 1
    numbers = (rng.standard_normal((64, 72)) * 10 ** rng.uniform(-6, 6, (64, 72))).astype("float32")
    w = np.zeros((side, side, 64, 72), "float32")
    w[side // 2, side // 2] = numbers
    x, g = np.eye(64, dtype="float32").reshape(1, 8, 8, 64), np.eye(72, dtype="float32").reshape(1, 9, 8, 72)
    of_tile = at_highest(tile)
    np.testing.assert_array_equal(jax.jit(of_tile)(x, w).reshape(64, 72), numbers)
    dx = jax.jit(PASSES["dgrad"](of_tile))(np.zeros((1, 9, 8, 64), "float32"), w, g)
    np.testing.assert_array_equal(dx.reshape(72, 64), numbers.T)
    if tile.has_float32_wgrad:
        dw = jax.jit(PASSES["wgrad"](of_tile))(x, w, numbers.reshape(1, 8, 8, 72))
        np.testing.assert_array_equal(dw[side // 2, side // 2], numbers)


def kinds_of(values):
    """Of each number: finite, NaN, or which infinity."""
    values = np.asarray(values)
    return np.where(np.isnan(values), 2, np.where(np.isinf(values), np.sign(values), 0))


SPECIAL = {"infinity": np.inf, "minus_infinity": -np.inf, "nan": np.nan, "largest": np.finfo("float32").max}


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name.replace(" ", "_"))
def test_infinities_and_nans_are_those_of_float32(tile, special):
    """Of one number in each operand in turn. The largest number times a half is finite."""
    rng = np.random.default_rng(0)
    x_shape, w_shape = (2, 11, 13, 40), (3, 3, 40, 72)
    shapes = x_shape, w_shape, (*x_shape[:3], w_shape[3])
    operands = [rng.uniform(0.1, 0.5, shape).astype("float32") * rng.choice([-1, 1], shape) for shape in shapes]
    for which, (used_a, used_b) in {"fprop": (0, 1), "dgrad": (2, 1), "wgrad": (0, 2)}.items():
        if which == "wgrad" and not tile.has_float32_wgrad:
            continue
        for used in (used_a, used_b):
            poisoned = [a.astype("float32") for a in operands]
            poisoned[used][tuple(n // 2 for n in shapes[used])] = SPECIAL[special]
            actual = jax.jit(PASSES[which](at_highest(tile)))(*poisoned)
            expected = run_on_host(PASSES[which](lax_channels_last), *poisoned)
            np.testing.assert_array_equal(kinds_of(actual), kinds_of(expected))
            if special == "largest":
                np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e33)


@pytest.mark.parametrize("which", PASSES)
def test_operands_that_are_not_aligned(which, monkeypatch):
    """Another kernel takes them, which is as exact."""
    monkeypatch.setattr("jaxconv.planner.plan.ConvPlan.needs_aligned", False)
    rng = np.random.default_rng(0)
    x, w, g = (rng.integers(-4, 5, shape).astype("float32") for shape in ((2, 9, 9, 16), (3, 3, 16, 24), (2, 9, 9, 24)))
    conv = at_highest(TILES[0], split=3)
    apart = jax.jit(lambda flat, w, g: PASSES[which](conv)(flat[1:].reshape(x.shape), w, g))
    shifted = np.concatenate([np.zeros(1, x.dtype), x.ravel()])
    np.testing.assert_array_equal(apart(shifted, w, g), run_on_host(PASSES[which](lax_channels_last), x, w, g))


@pytest.mark.parametrize("taps", [1, 3])
def test_one_image_between_pixels(taps):
    """The output's parts are one behind the other, whatever stride its one image has."""
    rng = np.random.default_rng(0)
    x, g = (rng.integers(-4, 5, shape).astype("float32") for shape in ((1, 20, 20, 64), (20, 20, 1, 72)))
    w = np.zeros((taps, taps, 64, 72), np.float32)
    layouts = dict(window_strides=(1, 1), padding="SAME", dimension_numbers=("NHWC", "HWIO", "HWNC"))
    ours = functools.partial(jaxconv.conv_general_dilated, precision="highest", implementation="wgmma", **layouts)
    theirs = functools.partial(lax.conv_general_dilated, **layouts)
    of = lambda conv: lambda x, g: jax.linear_transpose(lambda w: conv(x, w), w)(g)[0]
    np.testing.assert_array_equal(jax.jit(of(ours))(x, g), run_on_host(of(theirs), x, g))


@pytest.mark.parametrize("channels", [136, 256, 448])
@pytest.mark.parametrize("tile", [tile for tile in TILES if tile.has_float32_wgrad], ids=str)
def test_weight_gradients_of_tiles_beyond_the_channels(tile, channels):
    """No copy of a step is without channels: beside one, words of others could not be loaded yet."""
    rng = np.random.default_rng(0)
    x, g = (rng.integers(-2, 3, shape).astype("float32") for shape in ((16, 28, 28, 64), (16, 28, 28, channels)))
    w = np.zeros((3, 3, 64, channels), np.float32)
    of = lambda conv: lambda x, g: jax.linear_transpose(lambda w: conv(x, w), w)(g)[0]
    ours, expected = jax.jit(of(at_highest(tile))), run_on_host(of(lax_channels_last), x, g)
    for _ in range(6):
        np.testing.assert_array_equal(ours(x, g), expected)


# Presets.

Preset = lax.DotAlgorithmPreset
# Of a product: two operands' rounding, and 2^-20 for sums.
BOUNDS = {
    Preset.BF16_BF16_F32: 2.0**-7, Preset.TF32_TF32_F32: 2.0**-10, Preset.BF16_BF16_F32_X3: 0,
    Preset.TF32_TF32_F32_X3: 0, Preset.BF16_BF16_F32_X6: 0, Preset.BF16_BF16_F32_X9: 0, Preset.F32_F32_F32: 0,
}  # fmt: skip


@pytest.mark.parametrize("preset", BOUNDS, ids=lambda preset: preset.name)
def test_errors_of_algorithms(preset, x64):
    """Forward and in gradients; and that operands are rounded at all where they are."""
    rng = np.random.default_rng(0)
    shapes = (4, 20, 20, 64), (3, 3, 64, 128), (4, 20, 20, 128)
    operands = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    conv = functools.partial(jaxconv.conv2d, precision=preset, implementation="cuda")
    actual = run(pullback(conv), *operands)
    exact = run(pullback(lax_channels_last), *(a.astype("float64") for a in operands))
    sizes = run(pullback(lax_channels_last), *(np.abs(a).astype("float64") for a in operands))
    for a, e, size in zip(actual, exact, sizes, strict=True):
        errors = np.abs(np.asarray(a, np.float64) - np.asarray(e)) / np.asarray(size)
        assert np.max(errors) < BOUNDS[preset] + 2.0**-20
        assert BOUNDS[preset] == 0 or np.max(errors) > BOUNDS[preset] / 200


def test_operands_as_bfloat16_are_those_of_bfloat16():
    """Bit for bit, in results of float32."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype("float32") for shape in ((4, 28, 28, 128), (3, 3, 128, 128)))
    actual = jaxconv.conv2d(x, w, precision=Preset.BF16_BF16_F32, implementation="cuda")
    halves = (a.astype("bfloat16") for a in (x, w))
    expected = jaxconv.conv2d(*halves, preferred_element_type="float32", implementation="cuda")
    np.testing.assert_array_equal(actual, expected)
