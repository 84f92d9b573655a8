"""A training step of ResNet-50 in plain JAX, on any convolution."""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jax import Array, lax

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, and channels inside of a block
IMAGES, LABELS = jax.ShapeDtypeStruct((32, 224, 224, 3), jnp.float32), jax.ShapeDtypeStruct((32,), jnp.int32)
CLASSES = 1000

Convolution = Callable[[Array, Array, int], Array]  # of images, a filter and a stride
Parameters = dict[str, tuple[Array, ...]]


def blocks() -> Iterator[tuple[str, int, int, bool]]:
    """Each block's name, channels and stride, and whether its shortcut has a convolution."""
    for stage, (count, channels) in enumerate(STAGES):
        for block in range(count):
            yield f"{stage}.{block}", channels, 2 if stage and not block else 1, not block


def parameters() -> Parameters:
    """By layer: the filter, and the scale and the bias of its normalisation."""
    layer = lambda size, into, out: (jnp.zeros((size, size, into, out)), jnp.ones(out), jnp.zeros(out))
    layers, width = {"stem": layer(7, 3, 64)}, 64
    for name, channels, _, has_shortcut in blocks():
        layers[f"{name}.in"] = layer(1, width, channels)
        layers[f"{name}.window"] = layer(3, channels, channels)
        layers[f"{name}.out"] = layer(1, channels, 4 * channels)
        if has_shortcut:
            layers[f"{name}.shortcut"] = layer(1, width, 4 * channels)
        width = 4 * channels
    return layers | {"head": (jnp.zeros((width, CLASSES)), jnp.zeros(CLASSES))}


def logits(conv: Convolution, layers: Parameters, x: Array) -> Array:
    def normalised(name: str, x: Array, stride: int = 1) -> Array:
        w, scale, bias = layers[name]
        x = conv(x, w, stride)
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias

    x = jax.nn.relu(normalised("stem", x, 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for name, _, stride, has_shortcut in blocks():
        y = jax.nn.relu(normalised(f"{name}.in", x))
        y = jax.nn.relu(normalised(f"{name}.window", y, stride))
        y = normalised(f"{name}.out", y)
        x = jax.nn.relu(y + (normalised(f"{name}.shortcut", x, stride) if has_shortcut else x))
    w, bias = layers["head"]
    return x.mean((1, 2)) @ w + bias


def train_step(conv: Convolution, layers: Parameters, images: Array, labels: Array) -> tuple[Parameters, Array]:
    """The next parameters, by gradient descent, and the loss."""

    def loss(layers: Parameters) -> Array:
        log_odds = jax.nn.log_softmax(logits(conv, layers, images))
        return -jnp.take_along_axis(log_odds, labels[:, None], axis=1).mean()

    value, gradients = jax.value_and_grad(loss)(layers)
    return jax.tree.map(lambda p, g: p - 0.1 * g, layers, gradients), value
