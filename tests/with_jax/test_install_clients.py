"""`install` under the libraries that people use: each convolution of a layer and of its gradients is ours."""

import functools

import flax.linen as linen
import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.scipy import signal

from cases.installed import ALL_PASSES, calls_of_installed
from cases.reference import integers, value_and_gradients

pytestmark = pytest.mark.usefixtures("uninstalled")


IMAGES = (2, 6, 5, 4)
LAYERS = {
    "dense": ("Conv", IMAGES, dict(kernel_size=(3, 3))),
    "strided": ("Conv", IMAGES, dict(kernel_size=(3, 2), strides=2, padding="VALID")),
    "dilated": ("Conv", IMAGES, dict(kernel_size=(3, 3), kernel_dilation=2)),
    "depthwise": ("Conv", IMAGES, dict(kernel_size=(3, 3), feature_group_count=4)),
    "causal": ("Conv", (2, 9, 4), dict(kernel_size=(3,), padding="CAUSAL")),
    "circular": ("Conv", IMAGES, dict(kernel_size=(3, 3), padding="CIRCULAR")),
    "patches": ("Conv", (2, 8, 8, 4), dict(kernel_size=(4, 4), strides=(4, 4), padding="VALID")),
    "transposed": ("ConvTranspose", IMAGES, dict(kernel_size=(3, 3), strides=(2, 2))),
    "transposed_kernel": ("ConvTranspose", IMAGES, dict(kernel_size=(4, 3), strides=(2, 3), transpose_kernel=True)),
    "transposed_valid": ("ConvTranspose", (2, 7, 4), dict(kernel_size=(3,), strides=(2,), padding="VALID")),
}


@pytest.mark.parametrize("layer, shape, params", LAYERS.values(), ids=LAYERS)
def test_linen(layer, shape, params, implementation):
    x = integers(shape)
    module = getattr(linen, layer)(features=4, **params)
    parameters = jax.tree.map(lambda p: integers(p.shape), jax.eval_shape(module.init, jax.random.key(0), x))
    assert calls_of_installed(value_and_gradients(module.apply), (parameters, x), implementation) == ALL_PASSES


@pytest.mark.parametrize("layer, shape, params", LAYERS.values(), ids=LAYERS)
def test_nnx(layer, shape, params, implementation):
    """Layers that were made before."""
    module = nnx.eval_shape(lambda: getattr(nnx, layer)(4, 4, **params, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(module)
    leaves, tree = jax.tree.flatten(state)
    apply = lambda leaves, x: nnx.merge(graph, jax.tree.unflatten(tree, leaves))(x)
    operands = [integers(leaf.shape) for leaf in leaves], integers(shape)
    assert calls_of_installed(value_and_gradients(apply), operands, implementation) == ALL_PASSES


# One image, of one channel: here both readings of a gradient are as good.
ARRAYS = {
    "jnp.convolve": (jnp.convolve, (9,), (4,)),
    "jnp.correlate": (functools.partial(jnp.correlate, mode="full"), (9,), (4,)),
    "convolve": (functools.partial(signal.convolve, mode="same", method="direct"), (5, 7), (3, 2)),
    "convolve2d": (signal.convolve2d, (6, 5), (3, 3)),
}


@pytest.mark.parametrize("function, x, w", ARRAYS.values(), ids=ARRAYS)
def test_arrays(function, x, w, implementation):
    x, w = integers(x), integers(w)
    assert sum(calls_of_installed(value_and_gradients(function), (x, w), implementation).values()) == 3


EQUINOX_LAYERS = {
    "strided": ("Conv2d", dict(kernel_size=3, stride=2, padding=1)),
    "grouped": ("Conv2d", dict(kernel_size=(3, 2), groups=2, padding="SAME")),
    "dilated": ("Conv1d", dict(kernel_size=3, dilation=2)),
    "volume": ("Conv3d", dict(kernel_size=2, padding_mode="CIRCULAR", padding=1)),
    "transposed": ("ConvTranspose2d", dict(kernel_size=3, stride=2)),
    "transposed_volume": ("ConvTranspose3d", dict(kernel_size=3, stride=2, padding=1, output_padding=1)),
}


@pytest.mark.parametrize("layer, arguments", EQUINOX_LAYERS.values(), ids=EQUINOX_LAYERS)
def test_equinox(layer, arguments, implementation):
    equinox = pytest.importorskip("equinox")
    module = getattr(equinox.nn, layer)(4, 4, **arguments, key=jax.random.key(0))
    leaves, tree = jax.tree.flatten(equinox.filter(module, equinox.is_array))
    static = equinox.filter(module, equinox.is_array, inverse=True)
    apply = lambda leaves, x: jax.vmap(equinox.combine(jax.tree.unflatten(tree, leaves), static))(x)
    x = integers((2, 4, 9, 6, 5)[: 2 + module.num_spatial_dims])
    operands = [integers(leaf.shape) for leaf in leaves], x
    assert calls_of_installed(value_and_gradients(apply), operands, implementation) == ALL_PASSES


HAIKU_LAYERS = {
    "strided": ("Conv2D", IMAGES, dict(output_channels=4, kernel_shape=3, stride=2)),
    "channels_first": ("Conv2D", IMAGES, dict(output_channels=5, kernel_shape=3, data_format="NCHW")),
    "dilated": ("Conv1D", (2, 9, 4), dict(output_channels=4, kernel_shape=3, rate=2)),
    "depthwise": ("DepthwiseConv2D", IMAGES, dict(channel_multiplier=2, kernel_shape=3)),
    "transposed": ("Conv2DTranspose", IMAGES, dict(output_channels=4, kernel_shape=3, stride=2)),
    "transposed_volume": ("Conv3DTranspose", (2, 3, 4, 3, 2), dict(output_channels=3, kernel_shape=3, stride=2)),
}


@pytest.mark.parametrize("layer, shape, arguments", HAIKU_LAYERS.values(), ids=HAIKU_LAYERS)
def test_haiku(layer, shape, arguments, implementation):
    haiku = pytest.importorskip("haiku")
    network = haiku.without_apply_rng(haiku.transform(lambda x: getattr(haiku, layer)(**arguments)(x)))
    x = integers(shape)
    parameters = jax.tree.map(lambda p: integers(p.shape), jax.eval_shape(network.init, jax.random.key(0), x))
    assert calls_of_installed(value_and_gradients(network.apply), (parameters, x), implementation) == ALL_PASSES
