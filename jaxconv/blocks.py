"""NCHW32: images of int8 with their channels in blocks of 32, [N, C/32, H, W, 32].

A block's plane is as one of a volume, [N, D, H, W, C]. So a 2-D convolution reads it as a 3-D one, whose window has all
planes: C/32 x height x width, of 32 channels. Its result has one plane of all output channels. A kernel stores it in
blocks; elsewhere XLA converts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from jaxconv.arguments import as_array, check_is_array, check_length, circular_dimensions, pairs
from jaxconv.problem.conv_problem import BLOCK_CHANNELS

NAME = "NCHW32"


def to_nchw32(x: Array) -> Array:
    """Images (batch, height, width, channels) with their channels in blocks: (batch, channels / 32, height, width, 32).

    For the beginning of a network whose layers are `conv2d(..., layout="NCHW32")`.

    Args:
      x: images of any dtype, whose channels are a multiple of 32.

    Returns:
      The same numbers, [N, C/32, H, W, 32].

    Raises:
      TypeError: x has not 4 dimensions.
      ValueError: the channels of x are no multiple of 32.
    """
    check_is_array("x", x)
    x = as_array(x)
    if x.ndim != 4:
        raise TypeError(f"x must have 4 dimensions, NHWC, got shape {x.shape}")
    *images, channels = x.shape
    if channels % BLOCK_CHANNELS:
        raise ValueError(f"x must have channels that are a multiple of {BLOCK_CHANNELS}, got {channels}")
    return jnp.moveaxis(x.reshape(*images, channels // BLOCK_CHANNELS, BLOCK_CHANNELS), 3, 1)


def from_nchw32(x: Array) -> Array:
    """The inverse of `to_nchw32`, for the end of a network.

    Args:
      x: images (batch, channels / 32, height, width, 32), of any dtype.

    Returns:
      The same numbers, [N, H, W, C].

    Raises:
      TypeError: x is not [N, C/32, H, W, 32].
    """
    check_is_array("x", x)
    x = as_array(x)
    if x.ndim != 5 or x.shape[-1] != BLOCK_CHANNELS:
        raise TypeError(f"x must have 5 dimensions, [N, C/32, H, W, 32], got shape {x.shape}")
    images, blocks, height, width, _ = x.shape
    return jnp.moveaxis(x, 1, 3).reshape(images, height, width, blocks * BLOCK_CHANNELS)


def to_blocks(y: Array) -> Array:
    """A result of one plane, [N, 1, H, W, C], in blocks."""
    return to_nchw32(y[:, 0])


def from_blocks(y: Array) -> Array:
    """The inverse of `to_blocks`."""
    return jnp.expand_dims(from_nchw32(y), 1)


# A 2-D convolution of them as one of volumes.


class OfVolumes(NamedTuple):
    """The arguments of the 3-D convolution that change."""

    dimension_numbers: lax.ConvDimensionNumbers
    window_strides: tuple[int, ...]
    padding: Sequence[Any]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]


def filter_of_volumes(w: Array, axes: str) -> tuple[Array, str]:
    """A view of a filter, with its input channels as planes of blocks, and the names of its axes."""
    if w.ndim != 4:
        raise TypeError(f"w must have 4 dimensions, {axes}, got shape {w.shape}")
    axis = axes.index("I")
    before, ins, after = w.shape[:axis], w.shape[axis], w.shape[axis + 1 :]
    if ins % BLOCK_CHANNELS:
        raise ValueError(
            f'w must have input channels that are a multiple of {BLOCK_CHANNELS} with layout "{NAME}", got {ins}'
        )
    return w.reshape(*before, ins // BLOCK_CHANNELS, BLOCK_CHANNELS, *after), axes.replace("I", "DI")


def check_filter(w: Array, axes: str) -> None:
    """Raises if the layout does not take a filter for its dtype or its output channels."""
    _check_is_int8("w", w)
    outs = w.shape[axes.index("O")]
    if outs % BLOCK_CHANNELS:
        raise ValueError(
            f'w must have output channels that are a multiple of {BLOCK_CHANNELS} with layout "{NAME}", got {outs}'
        )


def _check_is_int8(name: str, array: Array) -> None:
    if array.dtype != jnp.int8:
        raise TypeError(f'{name} must be int8 with layout "{NAME}", got {array.dtype.name}')


def of_volumes(
    x: Array,
    w: Array,
    axes: str,
    window_strides: Sequence[int],
    padding: str | Sequence[Any],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    groups: int,
) -> OfVolumes:
    """conv2d's arguments with one entry for each of two dimensions. w: of `axes`, as `filter_of_volumes`."""
    sizes = dict(zip(axes, w.shape, strict=True))
    _check(x, w, axes, sizes, lhs_dilation, groups)
    if isinstance(padding, str):
        padding = _pairs(padding, x.shape[2:4], (sizes["H"], sizes["W"]), window_strides, rhs_dilation)
    elif not circular_dimensions(padding, 2):
        padding = pairs(padding)
    check_length("padding", padding, 2)
    images = tuple(map("NDHWC".index, "NCDHW"))
    numbers = lax.ConvDimensionNumbers(images, tuple(map(axes.index, "OIDHW")), images)
    return OfVolumes(numbers, (1, *window_strides), ((0, 0), *padding), (1, 1, 1), (1, *rhs_dilation))


def _pairs(
    padding: str, image: Sequence[int], window: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Sequence[Any]:
    """The padding of each dimension: of the planes there is none, so that a name must not be for all three."""
    if circular_dimensions(padding, 2):
        return (padding,) * 2
    extents = [(size - 1) * d + 1 for size, d in zip(window, dilation, strict=True)]
    return lax.padtype_to_pads(image, extents, strides, padding)


def _check(x: Array, w: Array, axes: str, sizes: dict[str, int], lhs_dilation: Sequence[int], groups: int) -> None:
    _check_is_int8("x", x)
    check_filter(w, axes)
    if x.ndim != 5:
        raise TypeError(f'x must have 5 dimensions, [N, C/32, H, W, 32], with layout "{NAME}", got shape {x.shape}')
    if x.shape[-1] != BLOCK_CHANNELS:
        raise ValueError(
            f'x must have its channels in blocks of {BLOCK_CHANNELS}, [N, C/32, H, W, 32], with layout "{NAME}", '
            f"got shape {x.shape}"
        )
    if groups != 1:
        raise ValueError(f'feature_group_count must be 1 with layout "{NAME}", got {groups}')
    if sizes["D"] != x.shape[1]:
        ins, expected = (blocks * BLOCK_CHANNELS for blocks in (sizes["D"], x.shape[1]))
        raise ValueError(f"w must have the input channels of x, {expected}, got {ins}")
    if any(dilation != 1 for dilation in lhs_dilation):
        raise ValueError(f'lhs_dilation must be 1 with layout "{NAME}", got {lhs_dilation}')
