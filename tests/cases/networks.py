"""Networks of the libraries that people use, small, as functions of their variables.

A library that is not installed skips the test that asks for its network.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from convbench.clients.networks import NETWORKS, SMALL_WIDTH

IMAGES = (2, 32, 32, 3)


class Network(NamedTuple):
    """apply: `(variables, x) -> y`. variables: their types, in a tree. shape: of x.

    Normalisations take given means and variances: those of two small images would amplify rounding.
    """

    apply: Callable[..., jax.Array]
    variables: Any
    shape: tuple[int, ...] = IMAGES

    def arrays(self) -> tuple[Any, np.ndarray]:
        """Random variables and x. Filters keep the scale of what passes; vectors are positive, as a variance is."""
        rng = np.random.default_rng(0)

        def array(of):
            fan_in = np.prod(of.shape[:-1], dtype=int)
            if fan_in == 1:
                return rng.uniform(0.5, 1.5, of.shape).astype(of.dtype)
            return (rng.standard_normal(of.shape) * np.sqrt(2 / fan_in)).astype(of.dtype)

        return jax.tree.map(array, self.variables), rng.standard_normal(self.shape).astype("float32")


def of_types(shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def linen(name: str) -> Network:
    """Of those that the benchmark measures."""
    network = NETWORKS[name]
    module = network.module(width=SMALL_WIDTH, dtype="float32")
    variables = jax.eval_shape(
        functools.partial(module.init, train=False), jax.random.key(0), of_types(network.small_inputs)
    )
    return Network(functools.partial(module.apply, train=False), variables, network.small_inputs)


class ConvNorm(nnx.Module):
    def __init__(self, channels, features, window, strides, rngs):
        self.conv = nnx.Conv(channels, features, (window, window), strides=strides, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(features, use_running_average=True, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.conv(x))


class Residual(nnx.Module):
    def __init__(self, channels, features, strides, rngs):
        self.first = ConvNorm(channels, features, 3, strides, rngs)
        self.second = ConvNorm(features, features, 3, 1, rngs)
        self.shortcut = ConvNorm(channels, features, 1, strides, rngs)

    def __call__(self, x):
        return nnx.relu(self.second(nnx.relu(self.first(x))) + self.shortcut(x))


class ResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = ConvNorm(3, 8, 7, 2, rngs)
        self.blocks = nnx.Sequential(*(Residual(8 * 2**i, 16 * 2**i, 1 + i % 2, rngs) for i in range(4)))
        self.head = nnx.Linear(128, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.stem(x)), (3, 3), (2, 2), "SAME")
        return self.head(self.blocks(x).mean((1, 2)))


class UNet(nnx.Module):
    def __init__(self, rngs):
        self.down = ConvNorm(3, 8, 3, 1, rngs)
        self.below = ConvNorm(8, 16, 3, 2, rngs)
        self.up = nnx.ConvTranspose(16, 8, (2, 2), (2, 2), rngs=rngs)
        self.last = ConvNorm(16, 4, 3, 1, rngs)

    def __call__(self, x):
        down = nnx.relu(self.down(x))
        up = self.up(nnx.relu(self.below(down)))
        return self.last(jnp.concatenate((down, up), axis=-1))


def of_nnx(module: type[nnx.Module], call: Callable = lambda module, x: module(x)) -> Network:
    graph, state = nnx.split(nnx.eval_shape(lambda: module(nnx.Rngs(0))))
    leaves, tree = jax.tree.flatten(state)
    apply = lambda variables, x: call(nnx.merge(graph, jax.tree.unflatten(tree, variables)), x)
    return Network(apply, [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves])


def equinox() -> Network:
    """An encoder and a decoder; channels are first, and `vmap` makes the batch."""
    equinox = pytest.importorskip("equinox")
    keys = iter(jax.random.split(jax.random.key(0), 4))
    module = equinox.nn.Sequential([
        equinox.nn.Conv2d(3, 8, 3, stride=2, padding="SAME", key=next(keys)),
        equinox.nn.GroupNorm(2, 8),
        equinox.nn.Lambda(jax.nn.relu),
        equinox.nn.Conv2d(8, 16, 3, padding=2, dilation=2, groups=2, key=next(keys)),
        equinox.nn.Lambda(jax.nn.relu),
        equinox.nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1, key=next(keys)),
        equinox.nn.Lambda(jax.nn.relu),
        equinox.nn.Conv2d(8, 3, 1, key=next(keys)),
    ])  # fmt: skip
    leaves, tree = jax.tree.flatten(equinox.filter(module, equinox.is_array))
    static = equinox.filter(module, equinox.is_array, inverse=True)
    apply = lambda variables, x: jax.vmap(equinox.combine(jax.tree.unflatten(tree, variables), static))(x)
    return Network(apply, [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves], (2, 3, 32, 32))


def haiku(name: str) -> Network:
    haiku = pytest.importorskip("haiku")
    network = haiku.transform_with_state(lambda x, training: getattr(haiku.nets, name)(num_classes=10)(x, training))
    begin = lambda key, x: network.init(key, x, True)
    variables = jax.eval_shape(begin, jax.random.key(0), of_types(IMAGES))
    # The state has counters, which have no gradient.
    constants = jax.tree.map(lambda of: np.ones(of.shape, of.dtype), variables[1])
    return Network(lambda params, x: network.apply(params, constants, None, x, False)[0], variables[0])


def keras(name: str) -> Network:
    """Made anew in each trace, because keras computes the initial variables when it makes a model."""
    keras = pytest.importorskip("keras")
    make = functools.partial(getattr(keras.applications, name), weights=None, input_shape=IMAGES[1:], classes=10)
    values = lambda variables: [variable.value for variable in variables]

    def initial():
        model = make()
        return values(model.trainable_variables), values(model.non_trainable_variables)

    trainable, others = jax.eval_shape(initial)
    constants = [np.ones(of.shape, of.dtype) for of in others]
    return Network(lambda variables, x: make().stateless_call(variables, constants, x)[0], trainable)


class QuantizedLinen(flax.linen.Module):
    """Only dense layers: qwix refuses the gradients of grouped ones."""

    @flax.linen.compact
    def __call__(self, x):
        x = flax.linen.relu(flax.linen.Conv(8, (3, 3))(x))
        x = flax.linen.relu(flax.linen.Conv(16, (3, 3), strides=2)(x))
        x = flax.linen.relu(flax.linen.ConvTranspose(8, (3, 3), strides=(2, 2))(x))
        return flax.linen.Conv(8, (3, 3), kernel_dilation=2)(x)


class QuantizedNnx(nnx.Module):
    """The same layers."""

    def __init__(self, rngs):
        self.first = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.down = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.up = nnx.ConvTranspose(16, 8, (3, 3), strides=(2, 2), rngs=rngs)
        self.last = nnx.Conv(8, 8, (3, 3), kernel_dilation=2, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.down(nnx.relu(self.first(x))))
        return self.last(nnx.relu(self.up(x)))


QUANTIZED_LAYERS = 4


def qwix(library: str, dtype: str, training: bool, backward: str | None = None) -> Network:
    """Quantised by qwix to a type, for training or after it; its variables are in float32.

    backward: in training, the type of the gradients that are multiplied, or None for float32.
    """
    qwix = pytest.importorskip("qwix")
    types = dict(module_path=".*", weight_qtype=dtype, act_qtype=dtype)
    if training:
        provider = qwix.QtProvider([qwix.QtRule(**types, bwd_qtype=backward)])
    else:
        provider = qwix.PtqProvider([qwix.QuantizationRule(**types)])
    if library == "nnx":
        return of_nnx(QuantizedNnx, lambda module, x: qwix.quantize_model(module, provider, x)(x))

    module = qwix.quantize_model(QuantizedLinen(), provider)
    init = lambda module: jax.eval_shape(module.init, jax.random.key(0), of_types(IMAGES))
    variables = init(QuantizedLinen())
    if training:
        return Network(module.apply, variables)
    like = init(module)["params"]
    quantized = lambda variables: {"params": qwix.quantize_params(variables["params"], like)}
    return Network(lambda variables, x: module.apply(quantized(variables), x), variables)
