"""Errors of wgmma on Gaussian inputs."""

import pytest

from cases.accuracy import LAYERS, check

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer not in ("depthwise", "grouped")])
def test_accuracy_of_wgmma(layer, dtype, x64):
    """Channels that are no whole pieces are padded."""
    check(layer, dtype, "wgmma", "default")
