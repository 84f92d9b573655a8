"""Layers for flax's nnx. Their parameters are those of flax's layers, in path, shape and dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flax import nnx
from jax import Array

from jaxconv.activations import Activation
from jaxconv.nn import forward


class Conv(nnx.Conv):
    """`flax.nnx.Conv` that ends with `activation(conv(x) + bias + residual)` in the convolution's own kernel.

    The epilogue is computed in float32 (float64 in a layer of float64) and rounded once. docs/usage.md says where a
    kernel has it. Derivatives are those of `jaxconv.conv2d`: no forward mode at the top level, unless there is no
    epilogue.

    Args:
      in_features, out_features, kernel_size, ... rngs: as in flax, but no conv_general_dilated; with one to three
        spatial dimensions. "CIRCULAR" and "REFLECT" padding copy the input.
      activation: None, or as in `jaxconv.conv2d`: "relu", "gelu", `jaxconv.activations.Clip(0, 4)`, ...
      implementation: as in `jaxconv.conv2d`.

    Layer parameters:
      kernel: (spatial..., in_features / feature_group_count, out_features).
      bias: (out_features,), with use_bias. All are of `param_dtype`.

    Raises:
      TypeError, ValueError: an argument that the message names.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: None | int | Sequence[int] = 1,
        *,
        activation: str | Activation | None = None,
        implementation: str | None = None,
        **options: Any,
    ) -> None:
        if "conv_general_dilated" in options:
            raise TypeError("conv_general_dilated is not for this layer: jaxconv computes it. Use flax's own Conv")
        groups = options.get("feature_group_count", 1)
        if in_features % groups:
            raise ValueError(f"feature_group_count must divide in_features {in_features}, got {groups}")
        super().__init__(in_features, out_features, forward.window_of(kernel_size), strides, **options)
        self.activation = activation
        self.implementation = implementation

    def __call__(self, inputs: Array, out_sharding: Any = None, *, residual: Array | None = None) -> Array:
        """The layer's output.

        Args:
          inputs: (batch..., spatial..., in_features), with any number of batch dimensions, or none.
          out_sharding: as in flax: of the convolution's output, with one batch dimension.
          residual: of the output's shape, and of a floating dtype. With that of the output a kernel reads it.

        Returns:
          (batch..., spatial..., out_features), of preferred_element_type, or else of the dtype that inputs and
          parameters are promoted to.

        Raises:
          ValueError, TypeError: an argument that the message names.
          NotImplementedError: as `jaxconv.conv2d`.
        """
        return forward.conv(self, *_promoted(self, inputs), residual, out_sharding)


class ConvTranspose(nnx.ConvTranspose):
    """`flax.nnx.ConvTranspose` that ends with `activation(conv_transpose(x) + bias + residual)`, as `Conv` does.

    Args:
      in_features, out_features, kernel_size, ... rngs: as in flax, with one to three spatial dimensions. "CIRCULAR"
        padding copies the input.
      activation, implementation: as in `Conv`.

    Layer parameters:
      kernel: (spatial..., in_features, out_features), or (spatial..., out_features, in_features) with transpose_kernel.
      bias: (out_features,), with use_bias. All are of `param_dtype`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: None | int | Sequence[int] = None,
        *,
        activation: str | Activation | None = None,
        implementation: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, forward.window_of(kernel_size), strides, **options)
        self.activation = activation
        self.implementation = implementation

    def __call__(self, inputs: Array, *, residual: Array | None = None) -> Array:
        """The layer's output: as `Conv`, without out_sharding."""
        return forward.conv_transpose(self, *_promoted(self, inputs), residual)


class SeparableConv(nnx.Module):
    """A depthwise convolution, then a pointwise one that ends with `activation(... + bias + residual)`.

    As keras's layer of this name: nothing is between the two. The parameters are those of two of flax's `Conv`, the
    attributes `depthwise` (without bias) and `pointwise`.

    Args:
      in_features, out_features: of the whole layer.
      kernel_size, strides, padding, input_dilation, kernel_dilation: of the depthwise convolution, as in `Conv`.
      channel_multiplier: depthwise outputs for each input feature.
      use_bias: of the pointwise convolution.
      activation: of the pointwise convolution, as in `Conv`.
      options: of both, as in `Conv`: dtype, param_dtype, precision, kernel_init, bias_init, promote_dtype, rngs,
        implementation.

    Layer parameters:
      depthwise.kernel: (spatial..., 1, in_features * channel_multiplier). Outputs of one input are neighbours.
      pointwise.kernel: (ones..., in_features * channel_multiplier, out_features).
      pointwise.bias: (out_features,), with use_bias.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: None | int | Sequence[int] = 1,
        *,
        padding: Any = "SAME",
        input_dilation: None | int | Sequence[int] = 1,
        kernel_dilation: None | int | Sequence[int] = 1,
        channel_multiplier: int = 1,
        use_bias: bool = True,
        activation: str | Activation | None = None,
        **options: Any,
    ) -> None:
        window, between = forward.window_of(kernel_size), in_features * channel_multiplier
        self.depthwise = Conv(
            in_features,
            between,
            window,
            strides,
            padding=padding,
            input_dilation=input_dilation,
            kernel_dilation=kernel_dilation,
            feature_group_count=in_features,
            use_bias=False,
            **options,
        )
        ones = (1,) * len(window)
        self.pointwise = Conv(between, out_features, ones, use_bias=use_bias, activation=activation, **options)

    def __call__(self, inputs: Array, *, residual: Array | None = None) -> Array:
        """The layer's output: as `Conv`, without out_sharding."""
        return self.pointwise(self.depthwise(inputs), residual=residual)


def _promoted(layer: Any, inputs: Array) -> forward.Promoted:
    """Inputs, kernel and bias, of the dtype that flax has."""
    kernel, bias = forward.masked(layer, layer.kernel[...]), None if layer.bias is None else layer.bias[...]
    return layer.promote_dtype((inputs, kernel, bias), dtype=layer.dtype)
