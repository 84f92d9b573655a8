"""Networks of flax's layers, as their papers have them; parameters in float32, arithmetic in `dtype`.

A network has a `width`, from which its numbers of channels follow: a small one is the same program on fewer channels.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax


def layers(dtype: str, train: bool) -> tuple[Callable[..., nn.Conv], Callable[..., nn.BatchNorm]]:
    """A convolution without bias, and the normalisation that comes after it."""
    return partial(nn.Conv, use_bias=False, dtype=dtype), partial(
        nn.BatchNorm, use_running_average=not train, dtype=dtype
    )


class ChannelsFirstConv(nn.Module):
    """flax's Conv without bias on images [batch, channel, height, width], which flax does not have."""

    features: int
    kernel_size: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dtype: str = "float32"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        of_filter = nn.initializers.lecun_normal(in_axis=1, out_axis=0)
        kernel = self.param("kernel", of_filter, (self.features, x.shape[1], *self.kernel_size))
        return lax.conv_general_dilated(x, kernel.astype(self.dtype), self.strides, "SAME")


class ResNet(nn.Module):
    """ResNet-50; its strides are in the 3x3 convolutions.

    conv_general_dilated: in place of lax's. channels_first: images are [batch, channel, height, width].
    """

    width: int
    dtype: str
    conv_general_dilated: Callable[..., Array] | None = None
    channels_first: bool = False

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        conv, norm = layers(self.dtype, train)
        conv, pixels = partial(conv, conv_general_dilated=self.conv_general_dilated), (1, 2)
        if self.channels_first:
            conv, norm, pixels = partial(ChannelsFirstConv, dtype=self.dtype), partial(norm, axis=1), (2, 3)
        x = nn.relu(norm()(conv(self.width, (7, 7), (2, 2))(x)))
        x = halved(x, pixels)
        for stage, depth in enumerate((3, 4, 6, 3)):
            channels = self.width * 2**stage
            for block in range(depth):
                strides = (2, 2) if stage and not block else (1, 1)
                y = nn.relu(norm()(conv(channels, (1, 1))(x)))
                y = nn.relu(norm()(conv(channels, (3, 3), strides)(y)))
                y = norm()(conv(4 * channels, (1, 1))(y))
                if x.shape != y.shape:
                    x = norm()(conv(4 * channels, (1, 1), strides)(x))
                x = nn.relu(x + y)
        return nn.Dense(1000, dtype=self.dtype)(x.mean(pixels))


def halved(x: Array, pixels: tuple[int, int]) -> Array:
    """The largest of 3x3 pixels, with strides of 2 along their axes."""
    window, strides = ([size if axis in pixels else 1 for axis in range(x.ndim)] for size in (3, 2))
    return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, "SAME")


class Stage(NamedTuple):
    """Blocks of a mobile network: channels inside over those before, channels after, how many, the first's stride."""

    expansion: int
    channels: int
    depth: int
    stride: int
    window: int = 3


MOBILENET_STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 32, 3, 2),
    Stage(6, 64, 4, 2),
    Stage(6, 96, 3, 1),
    Stage(6, 160, 3, 2),
    Stage(6, 320, 1, 1),
)
EFFICIENTNET_STAGES = (
    Stage(1, 16, 1, 1),
    Stage(6, 24, 2, 2),
    Stage(6, 40, 2, 2, window=5),
    Stage(6, 80, 3, 2),
    Stage(6, 112, 3, 1, window=5),
    Stage(6, 192, 4, 2, window=5),
    Stage(6, 320, 1, 1),
)


class Mobile(nn.Module):
    """MobileNetV2, EfficientNet-B0: inverted residuals around depthwise convolutions."""

    width: int
    dtype: str
    stages: tuple[Stage, ...]
    activation: Callable[[Array], Array]
    squeezes: bool

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        conv, norm = layers(self.dtype, train)
        x = self.activation(norm()(conv(self.width, (3, 3), (2, 2))(x)))
        for stage in self.stages:
            for block in range(stage.depth):
                y = self.block(x, stage, 1 if block else stage.stride, train)
                x = x + y if x.shape == y.shape else y
        x = self.activation(norm()(conv(40 * self.width, (1, 1))(x)))
        return nn.Dense(1000, dtype=self.dtype)(x.mean((1, 2)))

    def block(self, x: Array, stage: Stage, stride: int, train: bool) -> Array:
        conv, norm = layers(self.dtype, train)
        inside = stage.expansion * x.shape[-1]
        y = x if stage.expansion == 1 else self.activation(norm()(conv(inside, (1, 1))(x)))
        window = (stage.window, stage.window)
        y = self.activation(norm()(conv(inside, window, (stride, stride), feature_group_count=inside)(y)))
        if self.squeezes:
            mean = y.mean((1, 2), keepdims=True)
            squeezed = self.activation(nn.Conv(max(1, x.shape[-1] // 4), (1, 1), dtype=self.dtype)(mean))
            y = y * nn.sigmoid(nn.Conv(inside, (1, 1), dtype=self.dtype)(squeezed))
        return norm()(conv(stage.channels * self.width // 32, (1, 1))(y))


class ConvNeXt(nn.Module):
    """ConvNeXt-T without stochastic depth."""

    width: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        norm = partial(nn.LayerNorm, dtype=self.dtype)
        for stage, depth in enumerate((3, 3, 9, 3)):
            channels = self.width * 2**stage
            patch = 2 if stage else 4
            x = norm()(x) if stage else x
            x = nn.Conv(channels, (patch, patch), (patch, patch), dtype=self.dtype)(x)
            x = x if stage else norm()(x)
            for block in range(depth):
                y = nn.Conv(channels, (7, 7), feature_group_count=channels, dtype=self.dtype)(x)
                y = nn.gelu(nn.Dense(4 * channels, dtype=self.dtype)(norm()(y)))
                scale = self.param(f"scale_{stage}_{block}", nn.initializers.ones, (channels,))
                x = x + scale.astype(self.dtype) * nn.Dense(channels, dtype=self.dtype)(y)
        return nn.Dense(1000, dtype=self.dtype)(norm()(x.mean((1, 2))))


class UNet(nn.Module):
    """Images or volumes, as x is: a class for each pixel."""

    width: int
    dtype: str
    levels: int
    classes: int

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        rank, skipped = x.ndim - 2, []
        for level in range(self.levels):
            if level:
                x = nn.max_pool(x, (2,) * rank, (2,) * rank)
            x = self.twice(x, level, train)
            skipped.append(x)
        for level in reversed(range(self.levels - 1)):
            x = nn.ConvTranspose(self.width * 2**level, (2,) * rank, (2,) * rank, dtype=self.dtype)(x)
            x = self.twice(jnp.concatenate((skipped[level], x), axis=-1), level, train)
        return nn.Conv(self.classes, (1,) * rank, dtype=self.dtype)(x)

    def twice(self, x: Array, level: int, train: bool) -> Array:
        conv, norm = layers(self.dtype, train)
        for _ in range(2):
            x = nn.relu(norm()(conv(self.width * 2**level, (3,) * (x.ndim - 2))(x)))
        return x


class Decoder(nn.Module):
    """The generator of a DCGAN: latents to images by transposed convolutions only."""

    width: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        _, norm = layers(self.dtype, train)
        up = partial(nn.ConvTranspose, kernel_size=(4, 4), strides=(2, 2), dtype=self.dtype)
        for factor in (8, 4, 2, 1):
            x = nn.relu(norm()(up(factor * self.width, use_bias=False)(x)))
        return jnp.tanh(up(3)(x))


class WaveNet(nn.Module):
    """Samples to the next sample's distribution: gated causal convolutions, dilated up to 512."""

    width: int
    dtype: str

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        conv = partial(nn.Conv, dtype=self.dtype)
        x = conv(self.width, (2,), padding="CAUSAL")(x)
        skipped = jnp.zeros((), self.dtype)
        for layer in range(30):
            dilated = conv(2 * self.width, (2,), kernel_dilation=2 ** (layer % 10), padding="CAUSAL")(x)
            signal, gate = jnp.split(dilated, 2, axis=-1)
            y = jnp.tanh(signal) * nn.sigmoid(gate)
            skipped = skipped + conv(4 * self.width, (1,))(y)
            x = x + conv(self.width, (1,))(y)
        return conv(256, (1,))(nn.relu(conv(4 * self.width, (1,))(nn.relu(skipped))))


class Network(NamedTuple):
    """A network at its real size, and at one for a test on a host.

    images: its results are images, and not the logits of classes.
    """

    module: Callable[..., nn.Module]
    width: int
    inputs: tuple[int, ...]
    small_inputs: tuple[int, ...]
    images: bool = False


MobileNetV2 = partial(Mobile, stages=MOBILENET_STAGES, activation=jax.nn.relu6, squeezes=False)
EfficientNetB0 = partial(Mobile, stages=EFFICIENTNET_STAGES, activation=jax.nn.silu, squeezes=True)
IMAGENET = (128, 224, 224, 3), (2, 32, 32, 3)
NETWORKS = {
    "resnet50": Network(ResNet, 64, *IMAGENET),
    "resnet50_nchw": Network(partial(ResNet, channels_first=True), 64, (128, 3, 224, 224), (2, 3, 32, 32)),
    "mobilenetv2": Network(MobileNetV2, 32, *IMAGENET),
    "mobilenetv2_b256": Network(MobileNetV2, 32, (256, *IMAGENET[0][1:]), IMAGENET[1]),
    "efficientnet_b0": Network(EfficientNetB0, 32, *IMAGENET),
    "convnext_t": Network(ConvNeXt, 96, *IMAGENET),
    "unet": Network(partial(UNet, levels=5, classes=21), 64, (8, 512, 512, 3), (1, 32, 32, 3)),
    "decoder": Network(Decoder, 64, (64, 8, 8, 1024), (2, 2, 2, 16), images=True),
    "wavenet": Network(WaveNet, 64, (8, 16384, 1), (1, 64, 1)),
    "unet3d": Network(partial(UNet, levels=4, classes=4), 32, (2, 128, 128, 128, 1), (1, 8, 8, 8, 1)),
}
SMALL_WIDTH = 8
