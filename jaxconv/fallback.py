"""lax in place of a native kernel: the same convolution, and one warning for each reason."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxconv.problem import ConvProblem
from jaxconv.problem.factors import axis_of, fold, unfold


class FallbackWarning(UserWarning):
    """lax answers a convolution, because no kernel of jaxconv takes it."""


_warned: set[str] = set()


def warn(reason: str) -> None:
    """Warns that lax answers: once for each reason in a process, and always if a filter makes warnings errors."""
    action = next((f[0] for f in warnings.filters if issubclass(FallbackWarning, f[2])), "default")
    if action == "error" or reason not in _warned:
        warnings.warn(
            f'jaxconv: lax.conv_general_dilated answers: {reason}. implementation="xla" says so without this warning.',
            FallbackWarning,
            stacklevel=_level_of_the_caller(),
        )
        _warned.add(reason)


def warn_or_raise(reason: str, implementation, problem: ConvProblem) -> None:
    """Warns that lax answers, or raises NotImplementedError if an implementation was named."""
    if implementation is not None:
        raise NotImplementedError(f"implementation={implementation!r} cannot do this convolution: {reason}. {problem}")
    warn(reason)


def _level_of_the_caller() -> int:
    """The stacklevel of the innermost caller outside this package and outside JAX, which lowers for the caller."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("jaxconv", "jax", "jaxlib"):
        level, frame = level + 1, frame.f_back
    return level


def lax_conv(problem: ConvProblem) -> Callable[[Array, Array], Array]:
    """(lhs, rhs) -> out by lax."""
    p = problem
    if p.is_empty:
        return lambda lhs, rhs: jnp.zeros(p.out_shape, p.out_dtype)

    def conv(lhs: Array, rhs: Array) -> Array:
        out_spec = p.out_spec
        out = lax.conv_general_dilated(
            lhs,
            _forward_filter(p, rhs).astype(lhs.dtype),
            p.window_strides,
            p.padding,
            p.lhs_dilation,
            p.rhs_dilation,
            lax.ConvDimensionNumbers(p.lhs_spec.axes, p.rhs_spec.axes, out_spec.axes),
            feature_group_count=1 if p.lhs_batch_grouped else p.groups,
            batch_group_count=p.groups if p.lhs_batch_grouped else 1,
            precision=p.precision,
            preferred_element_type=p.out_dtype if p.lhs_dtype == p.rhs_dtype else None,
        ).astype(p.out_dtype)
        if p.out_batch_grouped:  # lax has the groups on the channels
            before, channels, after = out.shape[: out_spec.second], p.out_channels, out.shape[out_spec.second + 1 :]
            out = out.reshape(*before, p.groups, channels, *after)
            out = fold(out, out_spec.second, p, "out", "g")
        return out

    return conv


def lax_wgrad(problem: ConvProblem) -> Callable[[Array, Array], Array]:
    """(lhs, out) -> rhs by lax: the transpose, in the filter, of the forward convolution."""
    rhs = jax.ShapeDtypeStruct(problem.rhs_shape, problem.rhs_dtype)
    if problem.is_empty:
        return lambda lhs, out: jnp.zeros(rhs.shape, rhs.dtype)
    forward = lax_conv(problem)
    return lambda lhs, out: jax.linear_transpose(lambda w: forward(lhs, w), rhs)(out)[0]


LAX = {"conv": lax_conv, "wgrad": lax_wgrad}


def _forward_filter(problem: ConvProblem, rhs: Array) -> Array:
    """The filter as lax takes it: that of a data gradient is reversed, and its groups move to the out axis."""
    if not problem.reverse:
        return rhs
    rhs = jnp.flip(rhs, problem.rhs_spec.spatial)
    rhs, mapped = unfold(rhs, problem.groups, problem, "rhs", "g")
    out_axis = axis_of(problem, "rhs", "k")
    rhs = jnp.moveaxis(rhs, mapped, out_axis)
    merged = list(problem.rhs_shape)
    merged[problem.rhs_spec.second] //= problem.groups
    merged[out_axis] *= problem.groups
    return rhs.reshape(merged)
