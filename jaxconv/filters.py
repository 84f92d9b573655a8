"""Filters that are converted once, before the convolutions that read them."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from jaxconv.arguments import as_array


@partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=[])
@dataclasses.dataclass(frozen=True)
class PreparedFilter:
    """A filter as `prepare_filter` returns it. It is a pytree of one array.

    array: (spatial..., out channels, in channels / groups).
    """

    array: Array


def prepare_filter(w: Array) -> PreparedFilter:
    """The filter with what a convolution sums over last in memory, for `conv1d`, `conv2d` and `conv3d`.

    Tensor cores read operands of 8 and 32 bits in that order alone. A filter that is not prepared is transposed in each
    call that needs it. Results are the same bits, and gradients with respect to a prepared filter are prepared filters.
    Prepare the filters of an inference once. Those that are trained are better left as they are: weight gradients are
    faster with the output channels last.

    Args:
      w: filter (spatial..., in channels / groups, out channels), with 1 to 3 spatial dimensions, of any dtype that the
        convolution takes.

    Returns:
      The prepared filter, whose array is (spatial..., out channels, in channels / groups).

    Raises:
      TypeError: w is prepared already, or has no 1 to 3 spatial dimensions.
    """
    if isinstance(w, PreparedFilter):
        raise TypeError("w must be an array, got a filter that is prepared already")
    w = as_array(w)
    if w.ndim not in (3, 4, 5):
        raise TypeError(f"w must have 1 to 3 spatial dimensions before its channels, got shape {w.shape}")
    return PreparedFilter(jnp.swapaxes(w, -1, -2))


def array_and_layout(w: Any, layout: str) -> tuple[Any, str]:
    """A filter's array, and the names of its axes. layout: those of a filter that is not prepared, as "HWIO"."""
    if not isinstance(w, PreparedFilter):
        return w, layout
    *spatial, ins, outs = layout
    return w.array, "".join((*spatial, outs, ins))
