"""What an equation of lax's convolution primitive is for: a convolution, or a gradient that JAX wrote as one.

The transpose rules of lax give convolutions again. Here they are undone: each reading computes the same sums.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jax.core import ShapedArray

from jaxconv.problem.conv_problem import ConvProblem, Member, dilate


def read(lhs: ShapedArray, rhs: ShapedArray, out: ShapedArray, params: dict[str, Any]) -> tuple[str, ConvProblem]:
    """The kind and the problem of an equation: avals of operands and result, and the primitive's parameters.

    JAX's gradients have exchanged axes, and programs have them in few other cases. There the reading is right too, but
    the planner may choose a slower kernel.
    """
    problem = ConvProblem.from_lax(lhs, rhs, out, params)
    if (gradient := weight_gradient(problem)) is not None:
        return "wgrad", gradient
    return "conv", _dgrad(problem) if _looks_like_dgrad(problem) else problem


def weight_gradient(problem: ConvProblem) -> ConvProblem | None:
    """The convolution whose filter gradient the problem is, if it looks like one."""
    return exchanged(problem) if _looks_like_wgrad(problem) else None


def _looks_like_wgrad(p: ConvProblem) -> bool:
    """Whether the batch comes after the channels, and the window spans at least half of the image, or has as many taps
    as the result has positions. The latter holds for windows that are large, and images without padding."""
    is_of_one_dtype = p.out_dtype == p.lhs_dtype or are_summed_wide(p)
    if p.lhs_spec.first < p.lhs_spec.second or p.lhs_dtype != p.rhs_dtype or not is_of_one_dtype:
        return False
    if not all(isinstance(size, int) for size in (*p.kernel, *p.in_spatial, *p.out_spatial)):
        return False
    sizes = zip(p.kernel, p.rhs_dilation, p.in_spatial, p.lhs_dilation, strict=True)
    spans_half = all(2 * dilate(k, r) >= dilate(i, d) for k, r, i, d in sizes)
    return spans_half or all(k >= o for k, o in zip(p.kernel, p.out_spatial, strict=True))


def are_summed_wide(p: ConvProblem) -> bool:
    """Whether they are integers whose sums are the result. JAX has no gradients of such: programs write them down."""
    return (p.lhs_dtype, p.rhs_dtype, p.out_dtype) == (np.int8, np.int8, np.int32)


def exchanged(p: ConvProblem) -> ConvProblem:
    """The convolution whose filter gradient is `p`. The window of `p` is the cotangent of that convolution's output.

    Exchanged once more, it is `p` again. Batch and channels change places, and so do strides and rhs dilation. The
    groups of an exchanged batch are on the channels, and those of exchanged channels on the batch.
    """
    return replace(
        p,
        rhs_shape=p.out_shape,
        out_shape=p.rhs_shape,
        lhs_spec=p.lhs_spec.swapped(),
        rhs_spec=p.out_spec.swapped(),
        out_spec=p.rhs_spec.swapped(),
        window_strides=p.rhs_dilation,
        rhs_dilation=p.window_strides,
        member=Member(p.groups, p.out_shape[p.out_spec.first], p.member.out_channels),
        lhs_batch_grouped=p.groups > 1 and not p.lhs_batch_grouped,
        rhs_dtype=p.out_dtype,
        out_dtype=p.rhs_dtype,
    )


def _looks_like_dgrad(p: ConvProblem) -> bool:
    """Whether the channels of the filter are exchanged, if HWIO or OIHW are the usual order."""
    spec = p.rhs_spec
    if p.lhs_batch_grouped or not spec.spatial:
        return False
    is_spatial_first = min(spec.spatial) == 0
    return (spec.first < spec.second) == is_spatial_first


def _dgrad(p: ConvProblem) -> ConvProblem:
    """The same problem of the other filter (`factors.other_filter`). XLA removes what lax did to it with that."""
    shape, (out, into, _) = list(p.rhs_shape), p.rhs_spec
    shape[out] //= p.groups
    shape[into] *= p.groups
    return replace(p, rhs_shape=tuple(shape), reverse=True)
