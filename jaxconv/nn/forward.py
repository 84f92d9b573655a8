"""What the layers of both APIs compute, once flax has made their parameters and promoted the dtypes.

A `layer` has the attributes that flax's layers have in both APIs, and `activation` and `implementation`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax.linen.linear import canonicalize_padding
from jax import Array, lax

from jaxconv.api import LAYOUTS, conv_general_dilated, fused_conv_general_dilated
from jaxconv.arguments import normalised, read
from jaxconv.problem.conv_problem import dilate
from jaxconv.problem.wider import FLOAT32, wider_dtype

Pairs = Sequence[tuple[int, int]]
Promoted = tuple[Array, Array, Array | None]  # inputs, kernel, bias


def window_of(kernel_size: int | Sequence[int]) -> tuple[int, ...]:
    """The kernel's spatial shape."""
    window = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(window) not in LAYOUTS:
        raise ValueError(f"kernel_size must be an integer or have one to three entries, got {kernel_size}")
    return window


def masked(layer: Any, kernel: Array) -> Array:
    """The kernel, times the layer's mask."""
    if layer.mask is None:
        return kernel
    if layer.mask.shape != kernel.shape:
        raise ValueError(f"mask must have the kernel's shape {kernel.shape}, got {layer.mask.shape}")
    return kernel * layer.mask


def conv(
    layer: Any, inputs: Array, kernel: Array, bias: Array | None, residual: Array | None, out_sharding: Any = None
) -> Array:
    """The convolution of a `Conv`, with its epilogue. Arrays are as in the layers' documentation."""
    rank = kernel.ndim - 2
    strides, input_dilation, kernel_dilation = (
        _per_dimension(layer, name, rank) for name in ("strides", "input_dilation", "kernel_dilation")
    )
    batch, inputs, residual = _in_one_batch(rank, inputs, residual)
    padding = canonicalize_padding(layer.padding, rank)
    if isinstance(padding, str) and any(by != 1 for by in input_dilation):  # lax has no such padding
        raise ValueError(f"input_dilation must be 1 where padding is {padding!r}, got {layer.input_dilation}")
    inputs, padding = _padded(padding, inputs, kernel.shape[:-2], kernel_dilation)
    y = _with_epilogue(
        layer,
        (inputs, kernel, bias, residual),
        window_strides=strides,
        padding=padding,
        lhs_dilation=input_dilation,
        rhs_dilation=kernel_dilation,
        dimension_numbers=LAYOUTS[rank],
        feature_group_count=layer.feature_group_count,
        out_sharding=out_sharding,
    )
    return _in_batches(batch, y)


def conv_transpose(layer: Any, inputs: Array, kernel: Array, bias: Array | None, residual: Array | None) -> Array:
    """The convolution of a `ConvTranspose`, with its epilogue: one of a dilated input, as lax has it, too."""
    rank = kernel.ndim - 2
    strides, dilation = (_per_dimension(layer, name, rank) for name in ("strides", "kernel_dilation"))
    batch, inputs, residual = _in_one_batch(rank, inputs, residual)
    if layer.padding == "CIRCULAR":
        inputs, padding = _periodic(inputs, kernel.shape[:-2], strides, dilation, layer.transpose_kernel)
    else:
        padding = _padding_of_lax(layer, inputs, kernel, strides, dilation)
    layout, kernel_layout, _ = LAYOUTS[rank]
    if layer.transpose_kernel:
        kernel, kernel_layout = jnp.flip(kernel, range(rank)), kernel_layout.replace("IO", "OI")
    y = _with_epilogue(
        layer,
        (inputs, kernel, bias, residual),
        window_strides=(1,) * rank,
        padding=padding,
        lhs_dilation=strides,
        rhs_dilation=dilation,
        dimension_numbers=(layout, kernel_layout, layout),
    )
    return _in_batches(batch, y)


def _with_epilogue(layer: Any, arrays: tuple[Array, Array, Array | None, Array | None], **arguments: Any) -> Array:
    inputs, kernel, bias, residual = arrays
    arguments |= dict(
        precision=layer.precision,
        preferred_element_type=getattr(layer, "preferred_element_type", None),  # linen's Conv has none
        implementation=layer.implementation,
    )
    if bias is None and residual is None and layer.activation is None:
        return conv_general_dilated(inputs, kernel, **arguments)
    if bias is not None:  # epilogues compute in float32 or wider
        bias = bias.astype(wider_dtype(bias.dtype, FLOAT32))
    return fused_conv_general_dilated(
        inputs, kernel, bias=bias, residual=residual, activation=layer.activation, **arguments
    )


def _per_dimension(layer: Any, name: str, rank: int) -> tuple[int, ...]:
    value = getattr(layer, name)
    if value is None or np.ndim(value) == 0:
        return (1 if value is None else value,) * rank
    if len(value) != rank:
        raise ValueError(f"{name} must be an integer or have an entry for each of {rank} dimensions, got {value}")
    return tuple(value)


# Batch dimensions: flax takes none or any number of them, a convolution takes one.


def _in_one_batch(rank: int, inputs: Array, residual: Array | None) -> tuple[tuple[int, ...], Array, Array | None]:
    """The shape of the batch, and both arrays with one batch dimension."""
    dims = inputs.ndim - (rank + 1)
    if dims < 0:
        layout = LAYOUTS[rank][0]
        raise ValueError(f"inputs must have dimensions {layout}, or {layout[1:]} without batch, got {inputs.shape}")
    batch = inputs.shape[:dims]
    if residual is not None and (residual.ndim != inputs.ndim or residual.shape[:dims] != batch):
        raise TypeError(
            f"residual must have the output's dimensions, {inputs.ndim} that begin with {batch}, got {residual.shape}"
        )
    if dims == 1:
        return batch, inputs, residual
    flat = lambda x: jnp.reshape(x, (math.prod(batch), *x.shape[dims:]))
    return batch, flat(inputs), None if residual is None else flat(residual)


def _in_batches(batch: tuple[int, ...], y: Array) -> Array:
    return y if len(batch) == 1 else jnp.reshape(y, (*batch, *y.shape[1:]))


# Padding.


def _padded(
    padding: str | Pairs, inputs: Array, window: tuple[int, ...], kernel_dilation: tuple[int, ...]
) -> tuple[Array, str | Pairs]:
    """The inputs, copied with a padding that a convolution has not, and the padding that is left."""
    extents = [dilate(size, dilation) for size, dilation in zip(window, kernel_dilation)]
    if padding in ("CIRCULAR", "REFLECT"):
        pairs = [((extent - 1) // 2, extent // 2) for extent in extents]
        return _with_pairs(inputs, pairs, "wrap" if padding == "CIRCULAR" else "reflect"), "VALID"
    if padding == "CAUSAL":
        if len(window) != 1:
            raise ValueError(f'padding "CAUSAL" is for one spatial dimension, got kernel_size {window}')
        return inputs, [(extents[0] - 1, 0)]
    return inputs, padding


def _with_pairs(inputs: Array, pairs: Pairs, mode: str) -> Array:
    return jnp.pad(inputs, [(0, 0), *pairs, (0, 0)], mode=mode)


def _padding_of_lax(
    layer: Any, inputs: Array, kernel: Array, strides: tuple[int, ...], dilation: tuple[int, ...]
) -> Pairs:
    """That of the dilated inputs in lax's transposed convolution."""
    arguments = dict(
        strides=strides,
        padding=canonicalize_padding(layer.padding, len(strides)),
        rhs_dilation=dilation,
        dimension_numbers=LAYOUTS[len(strides)],
        transpose_kernel=layer.transpose_kernel,
    )
    p, _ = read(lax.conv_transpose, inputs, kernel, normalised(inputs, kernel, arguments))
    sizes = zip(p.out_spatial, p.kernel, p.rhs_dilation, p.in_spatial, p.lhs_dilation)
    total = [out - 1 + dilate(k, by) - dilate(size, stride) for out, k, by, size, stride in sizes]
    return [(low, both - low) for low, both in zip(p.pad_low, total)]


def _periodic(
    inputs: Array, window: tuple[int, ...], strides: tuple[int, ...], dilation: tuple[int, ...], transpose_kernel: bool
) -> tuple[Array, Pairs]:
    """Periodic inputs, as long as the outputs of one period need them, and the padding of them, dilated.

    flax wraps what a transposed convolution with "VALID" padding has beyond a period. Half of that, rounded up with
    `transpose_kernel` and else down, is before the first output: this is what the window reads less of at the low end.
    """
    copied, padding = [], []
    for size, by, stride in zip(window, dilation, strides):
        extent = dilate(size, by)
        beyond = max(extent - stride, 0)
        low = extent - 1 - (beyond + transpose_kernel) // 2
        before, after = -(-low // stride), (extent - 2 - low) // stride + 1
        copied.append((before, after))
        padding.append((low - before * stride, extent - 2 - low + (1 - after) * stride))
    return _with_pairs(inputs, copied, "wrap"), padding
