"""The layers of ResNet-50."""

from collections.abc import Iterator

import jax.numpy as jnp
from jax import Array

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, and channels inside of a block
CLASSES = 1000

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
