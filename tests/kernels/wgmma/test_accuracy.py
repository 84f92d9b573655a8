"""Errors of wgmma on Gaussian inputs."""

import pytest

from cases.accuracy import LAYERS, check

pytestmark = pytest.mark.gpu


CASES = [
    (layer, dtype) for layer in LAYERS if layer not in ("depthwise", "grouped") for dtype in ("bfloat16", "float16")
]
# Whole vectors of positions, and one residue class: weight gradients of others are for mma.
CASES += [(layer, "float32") for layer in ("strided", "dilated_line", "volume", "many_positions")]


@pytest.mark.parametrize("layer, dtype", CASES)
def test_accuracy_of_wgmma(layer, dtype, x64):
    """Channels that are no whole pieces are padded. float32 is rounded to tf32, where lax may not."""
    check(layer, dtype, "wgmma", "default", operands_rounding=2.0**-10 if dtype == "float32" else 0.0)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer not in ("depthwise", "grouped")])
def test_accuracy_of_products_of_bfloat16(layer, x64):
    check(layer, "float32", "wgmma", "highest")
