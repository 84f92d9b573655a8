"""`install` under whole networks of the libraries that people use: results and gradients are lax's, to rounding."""

import functools

import pytest

from cases import networks
from cases.installed import calls_of_installed
from cases.reference import value_and_gradients

NETWORKS = {
    "linen U-Net": functools.partial(networks.linen, "unet"),
    "linen 3-D U-Net": functools.partial(networks.linen, "unet3d"),
    "linen decoder": functools.partial(networks.linen, "decoder"),
    "nnx ResNet": functools.partial(networks.of_nnx, networks.ResNet),
    "nnx U-Net": functools.partial(networks.of_nnx, networks.UNet),
    "equinox": networks.equinox,
    "haiku MobileNetV1": functools.partial(networks.haiku, "MobileNetV1"),
}
MORE = {
    "keras MobileNetV2": functools.partial(networks.keras, "MobileNetV2"),
    "linen ResNet-50": functools.partial(networks.linen, "resnet50"),
    "linen ResNet-50, channels first": functools.partial(networks.linen, "resnet50_nchw"),
    "linen MobileNetV2": functools.partial(networks.linen, "mobilenetv2"),
    "linen EfficientNet-B0": functools.partial(networks.linen, "efficientnet_b0"),
    "linen ConvNeXt-T": functools.partial(networks.linen, "convnext_t"),
    "linen WaveNet": functools.partial(networks.linen, "wavenet"),
    "haiku ResNet-50": functools.partial(networks.haiku, "ResNet50"),
    "keras ConvNeXtTiny": functools.partial(networks.keras, "ConvNeXtTiny"),
    "keras EfficientNetB0": functools.partial(networks.keras, "EfficientNetB0"),
}
# Library, type, whether it is trained so, and the type of the gradients that are multiplied.
QUANTIZED = {
    f"{library} {dtype}{' in training' * training}{f' with {backward} gradients' if backward else ''}": (
        library, dtype, training, backward
    )
    for library in ("linen", "nnx")
    for dtype in ("int8", "float8_e4m3fn")
    for training, backward in ((False, None), (True, None), (True, dtype))
}  # fmt: skip
QUICK = ("linen decoder", "nnx U-Net", "haiku MobileNetV1", "linen int8 in training with int8 gradients",
         "nnx float8_e4m3fn")  # fmt: skip


@pytest.fixture(autouse=True)
def keras_on_jax(monkeypatch, tmp_path):
    """It looks at these when it is imported, and writes into its home."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


pytestmark = pytest.mark.usefixtures("full_precision", "uninstalled")


def calls_of(network, implementation, step_of=value_and_gradients, rtol=1e-4):
    return calls_of_installed(step_of(network.apply), network.arrays(), implementation, rtol)


@pytest.mark.parametrize("network", [
    pytest.param(network, id=name, marks=() if name in QUICK else pytest.mark.full)
    for name, network in NETWORKS.items()
])  # fmt: skip
def test_network(network, implementation):
    assert calls_of(network(), implementation)["wgrad"] > 0


@pytest.mark.full
@pytest.mark.parametrize("network", MORE.values(), ids=MORE)
def test_more_networks(network, implementation):
    assert calls_of(network(), implementation)["wgrad"] > 0


@pytest.mark.parametrize("library, dtype, training, backward", [
    pytest.param(*case, id=name, marks=() if name in QUICK else pytest.mark.full) for name, case in QUANTIZED.items()
])  # fmt: skip
def test_quantized_by_qwix(library, dtype, training, backward, implementation):
    """Forward, and backward in training: after it, gradients would be rounded to the type without a scale.

    Where sums have another order, the next layer may round to another number of float8, an eighth away.
    """
    network = networks.qwix(library, dtype, training, backward)
    step_of = value_and_gradients if training else lambda apply: apply
    calls = calls_of(network, implementation, step_of, 1e-4 if dtype == "int8" else 0.1)
    assert sum(calls.values()) == (3 if training else 1) * networks.QUANTIZED_LAYERS
