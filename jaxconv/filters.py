"""Filters that are converted once, before the convolutions that read them."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax import Array

from jaxconv import blocks
from jaxconv.arguments import as_array, check_is_array

OF_VOLUMES = "DHWOI"  # the axes of a filter that is prepared for NCHW32


@partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["layout"])
@dataclasses.dataclass(frozen=True, eq=False)  # arrays are not simply equal or not
class PreparedFilter:
    """A filter as `prepare_filter` returns it. It is a pytree of one array.

    Args:
      array: (spatial..., out channels, in channels / groups).
      layout: "NCHW32" of a filter for that layout of images: then array is (in channels / 32, height, width, out
        channels, 32).
    """

    array: Array
    layout: str | None = None


jax.export.register_pytree_node_serialization(
    PreparedFilter,
    serialized_name="jaxconv.PreparedFilter",
    serialize_auxdata=lambda layouts: json.dumps(layouts).encode(),
    deserialize_auxdata=lambda layouts: tuple(json.loads(layouts)),
)


def prepare_filter(w: Array, layout: str | None = None) -> PreparedFilter:
    """The filter with what a convolution sums over last in memory, for `conv1d`, `conv2d` and `conv3d`.

    Tensor cores read operands of 8 and 32 bits in that order alone. A filter that is not prepared is transposed in each
    call that needs it. Results are as exact, and gradients with respect to a prepared filter are prepared filters. The
    kernel may be another one, which adds in another order: sums of integers are the same bits.
    Prepare the filters of an inference once. Those that are trained are better left as they are: weight gradients are
    faster with the output channels last.

    Args:
      w: filter (spatial..., in channels / groups, out channels), with 1 to 3 spatial dimensions, of any dtype that the
        convolution takes.
      layout: "NCHW32" for `conv2d(..., layout="NCHW32")`. It takes other prepared filters too, but Hopper's `wgmma`
        kernels read only those of 1x1 windows.

    Returns:
      The prepared filter.

    Raises:
      AttributeError: w is no array.
      TypeError: w is prepared already, or has no 1 to 3 spatial dimensions; or for NCHW32 not 2, or it is not int8.
      ValueError: layout is another one; or it is "NCHW32", and input or output channels are no multiple of 32.
    """
    if isinstance(w, PreparedFilter):
        raise TypeError("w must be an array, got a filter that is prepared already")
    if layout not in (None, blocks.NAME):
        raise ValueError(f'layout must be None or "{blocks.NAME}", got {layout!r}')
    check_arrays(w=w)
    w = as_array(w)
    if layout is not None:
        volume, axes = blocks.filter_of_volumes(w, "HWIO")
        blocks.check_filter(volume, axes)
        return PreparedFilter(jnp.transpose(volume, tuple(map(axes.index, OF_VOLUMES))), layout)
    if w.ndim not in (3, 4, 5):
        raise TypeError(f"w must have 1 to 3 spatial dimensions before its channels, got shape {w.shape}")
    return PreparedFilter(jnp.swapaxes(w, -1, -2))


def check_arrays(**arrays: Any) -> None:
    """Raises, by the argument's name, TypeError for a prepared filter, and for what is no array what lax does."""
    for name, array in arrays.items():
        if isinstance(array, PreparedFilter):
            raise TypeError(
                f"{name} must be an array, got a PreparedFilter, which is the w of conv1d, conv2d and conv3d"
            )
        check_is_array(name, array)


def array_and_axes(w: Array | PreparedFilter, axes: str) -> tuple[Array, str]:
    """A filter's array, and the names of its axes. axes: those of a filter that is not prepared, as "HWIO"."""
    if not isinstance(w, PreparedFilter):
        return w, axes
    if w.layout is not None:
        raise ValueError(f'w is prepared for layout "{w.layout}" alone')
    *spatial, ins, outs = axes
    return w.array, "".join((*spatial, outs, ins))


def array_and_axes_of_volumes(w: Array | PreparedFilter) -> tuple[Array, str]:
    """The same as the 3-D convolution sees a filter of NCHW32."""
    if isinstance(w, PreparedFilter) and w.layout == blocks.NAME:
        if w.array.ndim != len(OF_VOLUMES):
            raise TypeError(f"w must have 5 dimensions, {OF_VOLUMES}, as prepare_filter makes it, got {w.array.shape}")
        return w.array, OF_VOLUMES
    return blocks.filter_of_volumes(*array_and_axes(w, "HWIO"))
