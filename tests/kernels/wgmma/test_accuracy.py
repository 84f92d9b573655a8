"""Errors of wgmma on Gaussian inputs, and how it rounds to tf32."""

import pytest

from cases.accuracy import LAYERS, check
from cases.matrices import check_rounding_to_tf32
from cases.tiles import PASSES, constraint, has_pass, transform_of
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


TF32_KERNELS = {
    f"{tile}-{which}".replace(" ", "_"): (tile, which)
    for tile in FAMILIES["cuda"]["wgmma"].tiles if not tile.bf16x6
    for which in PASSES if has_pass(tile, which, "float32")
}  # fmt: skip


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("tile, which", TF32_KERNELS.values(), ids=TF32_KERNELS)
def test_float32_becomes_the_nearest_tf32_number(tile, which, operand):
    asked = constraint("wgmma", tile, transform_of("wgmma", tile, "float32", which))
    check_rounding_to_tf32(asked, which, operand)
