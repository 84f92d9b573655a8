"""`install` under whole networks of the libraries that people use: results and gradients are lax's, to rounding."""

import functools

import jax
import pytest

import jaxconv
from cases import networks
from cases.reference import assert_same, compiled, custom_calls, opcodes, run_on_host, value_and_gradients

NETWORKS = {
    "linen U-Net": functools.partial(networks.linen, "unet"),
    "linen 3-D U-Net": functools.partial(networks.linen, "unet3d"),
    "linen decoder": functools.partial(networks.linen, "decoder"),
    "nnx ResNet": functools.partial(networks.of_nnx, networks.ResNet),
    "nnx U-Net": functools.partial(networks.of_nnx, networks.UNet),
    "equinox": networks.equinox,
    "haiku MobileNetV1": functools.partial(networks.haiku, "MobileNetV1"),
    "qwix": functools.partial(networks.qwix, None),
    "qwix backward": functools.partial(networks.qwix, "int8"),
}
MORE = {
    "keras MobileNetV2": functools.partial(networks.keras, "MobileNetV2"),
    "linen ResNet-50": functools.partial(networks.linen, "resnet50"),
    "linen MobileNetV2": functools.partial(networks.linen, "mobilenetv2"),
    "linen EfficientNet-B0": functools.partial(networks.linen, "efficientnet_b0"),
    "linen ConvNeXt-T": functools.partial(networks.linen, "convnext_t"),
    "linen WaveNet": functools.partial(networks.linen, "wavenet"),
    "haiku ResNet-50": functools.partial(networks.haiku, "ResNet50"),
    "keras ConvNeXtTiny": functools.partial(networks.keras, "ConvNeXtTiny"),
    "keras EfficientNetB0": functools.partial(networks.keras, "EfficientNetB0"),
}


@pytest.fixture(autouse=True)
def keras_on_jax(monkeypatch, tmp_path):
    """It looks at these when it is imported, and writes into its home."""
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def uninstalled():
    yield
    jaxconv.uninstall()


def assert_ours(network, implementation):
    """Every convolution of the compiled text is ours."""
    step = value_and_gradients(network.apply)
    variables, x = network.arrays()
    with jax.default_matmul_precision("highest"):
        expected = run_on_host(step, variables, x)
        jaxconv.install(implementation)
        program = compiled(step, variables, x)
    hlo = program.as_text()
    assert custom_calls(hlo)["wgrad"] > 0
    assert "convolution" not in opcodes(hlo) and "__cudnn" not in hlo
    assert_same(program(variables, x), expected, 1e-4)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_network(network, implementation):
    assert_ours(network(), implementation)


@pytest.mark.full
@pytest.mark.parametrize("network", MORE.values(), ids=MORE)
def test_more_networks(network, implementation):
    assert_ours(network(), implementation)
