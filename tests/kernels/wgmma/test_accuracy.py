"""Errors of wgmma on Gaussian inputs, and how it rounds to tf32."""

import numpy as np
import pytest

from cases.accuracy import LAYERS, check
from cases.reference import channels_last
from cases.tiles import PASSES, constraint, has_pass, transform_of
from jaxconv import conv_general_dilated
from jaxconv.planner.families import FAMILIES

pytestmark = pytest.mark.gpu


CASES = [
    (layer, dtype) for layer in LAYERS if layer not in ("depthwise", "grouped") for dtype in ("bfloat16", "float16")
]
# Whole vectors of positions, and one residue class: weight gradients of others are for mma.
CASES += [(layer, "float32") for layer in ("strided", "dilated_line", "volume", "many_positions")]


@pytest.mark.parametrize("layer, dtype", CASES)
def test_accuracy_of_wgmma(layer, dtype, x64):
    """Channels that are no whole vectors are padded. float32 is rounded to tf32, where lax may not."""
    check(layer, dtype, "wgmma", "default", operands_rounding=2.0**-11 if dtype == "float32" else 0.0)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer not in ("depthwise", "grouped")])
def test_accuracy_of_products_of_bfloat16(layer, x64):
    check(layer, "float32", "wgmma", "highest")


def numbers():
    """128 x 128, and a quarter of them half-way between two numbers of tf32."""
    rng = np.random.default_rng(0)
    bits = rng.standard_normal((128, 128)).astype("float32").view(np.uint32)
    return np.where(rng.random(bits.shape) < 0.25, bits & 0xFFFFE000 | 0x1000, bits).astype(np.uint32).view(np.float32)


TF32_KERNELS = {
    f"{tile}-{which}".replace(" ", "_"): (tile, which)
    for tile in FAMILIES["cuda"]["wgmma"].tiles if not tile.bf16x6
    for which in PASSES if has_pass(tile, which, "float32")
}  # fmt: skip


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("tile, which", TF32_KERNELS.values(), ids=TF32_KERNELS)
def test_float32_becomes_the_nearest_tf32_number(tile, which, operand):
    """Each operand in turn, where the other is the unit matrix: in the window's centre, or in channels by positions."""
    matrices = [np.eye(128, dtype=np.float32), numbers()] if operand else [numbers(), np.eye(128, dtype=np.float32)]
    image = lambda matrix: matrix.reshape(1, 8, 16, 128)
    x, w, g = np.zeros((1, 8, 16, 128), np.float32), np.zeros((3, 3, 128, 128), np.float32), None
    if which == "wgrad":
        x, g = map(image, matrices)
    else:
        x = g = image(matrices[0])
        w[1, 1] = matrices[1]
    asked = constraint("wgmma", tile, transform_of("wgmma", tile, "float32", which))
    conv = lambda x, w: conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=channels_last(2), implementation=asked
    )
    result = np.asarray(PASSES[which](conv)(x, w, g))
    rounded = result[1, 1] if which == "wgrad" else result.reshape(128, 128)
    transposed = (which == "wgrad" and operand == 0) or (which == "dgrad" and operand == 1)
    exact = numbers().T if transposed else numbers()
    assert not np.any(rounded.view(np.uint32) & 0x1FFF)  # 10 bits behind the point
    assert np.all(np.abs(rounded - exact) <= 2.0**-11 * 2.0 ** np.floor(np.log2(np.abs(exact))))
