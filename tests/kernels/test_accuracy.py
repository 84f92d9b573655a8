"""Errors on Gaussian inputs, against float64, of every pass: of what is planned, and of CUDA families."""

import pytest

from cases.accuracy import LAYERS, MORE_DEPTHWISE, check
from cases.parts import diagonal
from cases.reference import FLOATS


@pytest.mark.parametrize("layer, dtype", diagonal(LAYERS, FLOATS))
def test_accuracy(layer, dtype, implementation, x64):
    check(layer, dtype, implementation)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("family", ["simt", "im2col"])
def test_accuracy_of_families(layer, dtype, family, x64):
    check(layer, dtype, family)


# Where a family has each pass: not all have the weights' gradient of a dilated input or of a large window.
BY_PARTIAL_FAMILIES = [
    *(("direct", layer, dtype) for layer in (LAYERS | MORE_DEPTHWISE) if layer not in ("transposed", "depthwise_31x31")
      for dtype in ("bfloat16", "float16")),
    *(("depthwise", layer, dtype) for layer in ("depthwise", *MORE_DEPTHWISE)
      for dtype in ("bfloat16", "float16", "float32") if (layer, dtype) != ("depthwise_31x31", "float32")),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("family, layer, dtype", BY_PARTIAL_FAMILIES)
def test_accuracy_of_partial_families(family, layer, dtype, x64):
    check(layer, dtype, family, "highest" if dtype == "float32" else "default")
