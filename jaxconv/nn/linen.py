"""Layers for flax's linen. Their parameters are those of flax's layers, in name, shape and dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from flax import linen
from flax.linen.dtypes import promote_dtype
from flax.linen.linear import default_kernel_init
from jax import Array

from jaxconv.activations import Activation
from jaxconv.nn import forward


class Conv(linen.Conv):
    """`flax.linen.Conv` that ends with `activation(conv(x) + bias + residual)` in the convolution's own kernel.

    The epilogue is computed in float32 (float64 in a layer of float64) and rounded once. docs/usage.md says where a
    kernel has it. Derivatives are those of `jaxconv.conv2d`: no forward mode at the top level, unless there is no
    epilogue.

    Args:
      features, kernel_size, ... promote_dtype: as in flax, with one to three spatial dimensions. "CIRCULAR" and
        "REFLECT" padding copy the input.
      activation: None, or as in `jaxconv.conv2d`: "relu", "gelu", `jaxconv.activations.Clip(0, 4)`, ...
      implementation: as in `jaxconv.conv2d`.

    Layer parameters:
      kernel: (spatial..., in features / feature_group_count, features).
      bias: (features,), with use_bias. All are of `param_dtype`.
    """

    activation: str | Activation | None = None
    implementation: str | None = None

    @linen.compact
    def __call__(self, inputs: Array, *, residual: Array | None = None) -> Array:
        """The layer's output.

        Args:
          inputs: (batch..., spatial..., in features), with any number of batch dimensions, or none.
          residual: of the output's shape, and of a floating dtype. With that of the output a kernel reads it.

        Returns:
          (batch..., spatial..., features), of the dtype that inputs and parameters are promoted to.

        Raises:
          ValueError, TypeError: an argument that the message names.
          NotImplementedError: as `jaxconv.conv2d`.
        """
        if self.conv_general_dilated is not None or self.conv_general_dilated_cls is not None:
            raise ValueError("conv_general_dilated_cls is not for this layer: jaxconv computes it. Use flax's own Conv")
        channels, groups = inputs.shape[-1], self.feature_group_count
        if channels % groups:
            raise ValueError(f"feature_group_count must divide the inputs' {channels} features, got {groups}")
        shape = (*forward.window_of(self.kernel_size), channels // groups, self.features)
        return forward.conv(self, *_promoted(self, inputs, shape), residual)


class ConvTranspose(linen.ConvTranspose):
    """`flax.linen.ConvTranspose` that ends with `activation(conv_transpose(x) + bias + residual)`, as `Conv` does.

    Args:
      features, kernel_size, ... preferred_element_type: as in flax, with one to three spatial dimensions. "CIRCULAR"
        padding copies the input.
      activation, implementation: as in `Conv`.

    Layer parameters:
      kernel: (spatial..., in features, features), or (spatial..., features, in features) with transpose_kernel.
      bias: (features,), with use_bias. All are of `param_dtype`.
    """

    activation: str | Activation | None = None
    implementation: str | None = None

    @linen.compact
    def __call__(self, inputs: Array, *, residual: Array | None = None) -> Array:
        """The layer's output: as `Conv`, of preferred_element_type if that is given."""
        channels = (inputs.shape[-1], self.features)
        shape = (*forward.window_of(self.kernel_size), *(channels[::-1] if self.transpose_kernel else channels))
        return forward.conv_transpose(self, *_promoted(self, inputs, shape), residual)


class SeparableConv(linen.Module):
    """A depthwise convolution, then a pointwise one that ends with `activation(... + bias + residual)`.

    As keras's layer of this name: nothing is between the two. The parameters are those of two of flax's `Conv`, named
    `depthwise` (without bias) and `pointwise`.

    Args:
      features: those of the output.
      kernel_size, strides, padding, input_dilation, kernel_dilation: of the depthwise convolution, as in `Conv`.
      channel_multiplier: depthwise outputs for each input feature.
      use_bias, bias_init: of the pointwise convolution.
      dtype, param_dtype, precision, kernel_init, promote_dtype, implementation: of both, as in `Conv`.
      activation: of the pointwise convolution, as in `Conv`.

    Layer parameters:
      depthwise/kernel: (spatial..., 1, in features * channel_multiplier). Outputs of one input are neighbours.
      pointwise/kernel: (ones..., in features * channel_multiplier, features).
      pointwise/bias: (features,), with use_bias. All are of `param_dtype`.
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: None | int | Sequence[int] = 1
    padding: Any = "SAME"
    input_dilation: None | int | Sequence[int] = 1
    kernel_dilation: None | int | Sequence[int] = 1
    channel_multiplier: int = 1
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: Callable = default_kernel_init
    bias_init: Callable = linen.initializers.zeros_init()
    promote_dtype: Callable = promote_dtype
    activation: str | Activation | None = None
    implementation: str | None = None

    @linen.compact
    def __call__(self, inputs: Array, *, residual: Array | None = None) -> Array:
        """The layer's output: as `Conv`."""
        window, channels = forward.window_of(self.kernel_size), inputs.shape[-1]
        names = ("dtype", "param_dtype", "precision", "kernel_init", "promote_dtype", "implementation")
        common = {name: getattr(self, name) for name in names}
        depthwise = Conv(
            channels * self.channel_multiplier,
            window,
            strides=self.strides,
            padding=self.padding,
            input_dilation=self.input_dilation,
            kernel_dilation=self.kernel_dilation,
            feature_group_count=channels,
            use_bias=False,
            name="depthwise",
            **common,
        )
        pointwise = Conv(
            self.features,
            (1,) * len(window),
            use_bias=self.use_bias,
            bias_init=self.bias_init,
            activation=self.activation,
            name="pointwise",
            **common,
        )
        return pointwise(depthwise(inputs), residual=residual)


def _promoted(layer: Any, inputs: Array, kernel_shape: tuple[int, ...]) -> forward.Promoted:
    """Inputs, kernel and bias, in flax's order of making parameters, and of the dtype that flax has."""
    kernel = layer.param("kernel", layer.kernel_init, kernel_shape, layer.param_dtype)
    bias = layer.param("bias", layer.bias_init, (layer.features,), layer.param_dtype) if layer.use_bias else None
    return layer.promote_dtype(inputs, forward.masked(layer, kernel), bias, dtype=layer.dtype)
