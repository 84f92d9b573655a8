"""Errors of `jaxconv.nn`: while tracing, with the argument's name; and its import without flax."""

import subprocess
import sys

import flax.linen
import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jaxconv.nn
from cases.layers import APIS, ours

X = jax.ShapeDtypeStruct((2, 6, 5, 4), jnp.float32)

ERRORS = {
    "strides": ("Conv", dict(strides=(2,)), {}, ValueError, "strides must be an integer or have an entry"),
    "kernel_dilation": ("Conv", dict(kernel_dilation=(1, 1, 1)), {}, ValueError, "kernel_dilation must be an integer"),
    "input_dilation": ("Conv", dict(input_dilation=2), {}, ValueError, "input_dilation must be 1 where padding is"),
    "padding": ("Conv", dict(padding=(1, 2, 3)), {}, ValueError, "padding"),
    "padding_name": ("Conv", dict(padding="MIRROR"), {}, RuntimeError, "padding type: .* got MIRROR"),
    "causal": ("Conv", dict(padding="CAUSAL"), {}, ValueError, 'padding "CAUSAL" is for one spatial dimension'),
    "kernel_size": ("Conv", dict(kernel_size=(3,) * 4), {}, ValueError, "kernel_size must be an integer or have one"),
    "groups": ("Conv", dict(feature_group_count=3), {}, ValueError, "feature_group_count must divide"),
    "mask": ("Conv", dict(mask=jnp.ones((3, 3))), {}, ValueError, "mask must have the kernel's shape"),
    "activation": ("Conv", dict(activation="tanh"), {}, ValueError, "activation must be None"),
    "implementation": ("Conv", dict(implementation="tpu"), {}, ValueError, "implementation must be"),
    "residual": ("Conv", {}, dict(residual=jnp.ones((2, 6, 5, 8))), TypeError, "residual must have the output's shape"),
    "residual_batch": (
        "Conv",
        {},
        dict(residual=jnp.ones((6, 5, 8))),
        TypeError,
        "residual must have the output's",
    ),
    "residual_dtype": (
        "Conv",
        {},
        dict(residual=jnp.ones((2, 6, 5, 3), int)),
        TypeError,
        "residual must be of a",
    ),
    "transposed_strides": ("ConvTranspose", dict(strides=(2,)), {}, ValueError, "strides must be an integer"),
    "transposed_padding": ("ConvTranspose", dict(padding="CAUSAL"), {}, RuntimeError, "padding type: .* got CAUSAL"),
    "transposed_mask": ("ConvTranspose", dict(mask=jnp.ones((3, 3))), {}, ValueError, "mask must have the kernel's"),
    "separable_activation": ("SeparableConv", dict(activation="tanh"), {}, ValueError, "activation must be None"),
}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name, options, of_call, error, message", ERRORS.values(), ids=ERRORS)
def test_error(name, options, of_call, error, message, api):
    def trace():
        layer = ours(api, name, 4, 3, **{"kernel_size": (3, 3)} | options)
        jax.eval_shape(lambda x: layer.apply(layer.parameters, x, **of_call), X)

    with pytest.raises(error, match=message):
        trace()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_too_few_dimensions(name, api):
    layer = ours(api, name, 4, 3, kernel_size=(3, 3))
    with pytest.raises(ValueError, match=r"inputs must have dimensions NHWC, or HWC without batch, got \(5, 4\)"):
        jax.eval_shape(layer.apply, layer.parameters, jax.ShapeDtypeStruct((5, 4), jnp.float32))


def test_another_convolution():
    """The layers' own is what they are for."""
    layer = jaxconv.nn.linen.Conv(4, (3, 3), conv_general_dilated_cls=lambda: jax.lax.conv_general_dilated)
    with pytest.raises(ValueError, match="conv_general_dilated_cls is not for this layer"):
        jax.eval_shape(layer.init, jax.random.key(0), X)
    with pytest.raises(TypeError, match="conv_general_dilated is not for this layer"):
        jaxconv.nn.nnx.Conv(4, 4, (3, 3), conv_general_dilated=jax.lax.conv_general_dilated, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_arguments_of_flax(name):
    """Each field of flax's layer is one of ours, with the same default."""
    fields = lambda layers: {f: getattr(getattr(layers, name), f, None) for f in getattr(layers, name).__annotations__}
    assert (
        fields(flax.linen).items()
        <= {f: getattr(getattr(jaxconv.nn.linen, name), f, None) for f in fields(flax.linen)}.items()
    )


def in_a_process(code):
    return subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)


def test_jaxconv_does_not_import_flax():
    process = in_a_process("import sys, jaxconv; sys.exit('flax' in sys.modules)")
    assert process.returncode == 0, process.stderr


def test_without_flax():
    process = in_a_process("import sys; sys.modules['flax'] = None; import jaxconv.nn")
    assert process.stderr.rstrip().endswith("ImportError: jaxconv.nn needs flax: pip install 'jaxconv[nn]'")
