"""Makes lax a reference on the host: before jaxlib 0.12, XLA's CPU backend reads outside of the image where padding is
negative, as it is in many gradients too (of strides that leave a rest, of padding beyond the filter).

Here such a convolution is lowered as one of a cropped image, without negative padding.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import mlir


def repair():
    """Replaces lax's lowering for the host, where it needs that."""
    if jax.__version_info__ >= (0, 12):
        return
    from jax._src.lax.convolution import _conv_general_dilated_lower

    plain = functools.partial(_conv_general_dilated_lower, expand_complex_convolutions=True)
    cropped = mlir.lower_fun(_without_negative_padding, multiple_results=False)

    def lower(context, lhs, rhs, *, padding, **params):
        if all(isinstance(p, int | np.integer) and p >= 0 for pair in padding for p in pair):
            return plain(context, lhs, rhs, padding=padding, **params)
        return cropped(context, lhs, rhs, padding=padding, **params)

    mlir.register_lowering(lax.conv_general_dilated_p, lower, platform="cpu")


def _without_negative_padding(lhs, rhs, *, padding, lhs_dilation, dimension_numbers, **params):
    convolution = functools.partial(
        lax.conv_general_dilated_p.bind, lhs_dilation=lhs_dilation, dimension_numbers=dimension_numbers, **params
    )
    start, stop, rest = [0] * lhs.ndim, list(lhs.shape), []
    for axis, pair, dilation in zip(dimension_numbers.lhs_spec[2:], padding, lhs_dilation, strict=True):
        dropped = [-(min(p, 0) // dilation) for p in pair]  # pixels; a crop may end in the holes between them
        rest.append(tuple(p + d * dilation for p, d in zip(pair, dropped, strict=True)))
        start[axis], stop[axis] = dropped[0], lhs.shape[axis] - dropped[1]
        if start[axis] >= stop[axis]:  # nothing but holes
            y = jax.eval_shape(functools.partial(convolution, padding=padding), lhs, rhs)
            return jnp.zeros(y.shape, y.dtype)
    return convolution(lax.slice(lhs, start, stop), rhs, padding=tuple(rest))
