"""lax in place of a native kernel: the same convolution, and one warning for each reason."""

from __future__ import annotations

import dataclasses
import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata

from jaxconv.planner.plan import Constraint, Implementation
from jaxconv.problem import ConvProblem
from jaxconv.problem.algorithms import precision_of_lax
from jaxconv.problem.factors import fold, other_filter, unfold
from jaxconv.problem.of_lax import exchanged
from jaxconv.problem.wider import converted, has_float8, in_float32


class FallbackWarning(UserWarning):
    """lax answers a convolution, or all of a platform, because jaxconv has no kernel for it here."""


BEGINNING = "jaxconv: lax.conv_general_dilated answers:"

_warned: set[str] = set()


def warn(reason: str, in_silence: str = 'implementation="xla" says so without this warning') -> None:
    """Warns that lax answers: once for each reason in a process, and always if a filter makes warnings errors.

    in_silence: what has the same without the warning.
    """
    message = f"{BEGINNING} {reason}. {in_silence}."
    if warnings_are_errors(message) or reason not in _warned:
        warnings.warn(message, FallbackWarning, stacklevel=_level_of_the_caller())
        _warned.add(reason)


def warnings_are_errors(message: str = BEGINNING) -> bool:
    """Whether a filter makes them so. message: how they begin, as far as it is known."""
    applies = lambda f: issubclass(FallbackWarning, f[2]) and (f[1] is None or f[1].match(message))
    return next((f[0] for f in warnings.filters if applies(f)), "default") == "error"


def allows_lax(implementation: Implementation) -> bool:
    return implementation is None or (isinstance(implementation, Constraint) and implementation.or_lax)


def warn_or_raise(reason: str, implementation: Implementation, problem: ConvProblem) -> None:
    """Warns that lax answers, or raises NotImplementedError if the implementation does not allow it."""
    if not allows_lax(implementation):
        raise NotImplementedError(f"implementation={implementation!r} cannot do this convolution: {reason}. {problem}")
    warn(reason)


def _level_of_the_caller() -> int:
    """The stacklevel of the innermost caller outside this package and outside JAX, which lowers for the caller."""
    level, frame = 1, sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("jaxconv", "jax", "jaxlib"):
        level, frame = level + 1, frame.f_back
    return level


BY_LAX = {"jaxconv": "lax"}  # XLA metadata of the convolutions that `install` leaves to lax


def by_lax(function: Callable[..., Array]) -> Callable[..., Array]:
    """The function, with its convolutions and their gradients left to lax: JAX gives gradients the same metadata."""

    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Array:
        with set_xla_metadata(**BY_LAX):
            return function(*args, **kwargs)

    return marked


def is_by_lax(context: Any) -> bool:
    """Whether an equation with this context is of such a function."""
    return BY_LAX.items() <= (context.xla_metadata or {}).items()


def lax_conv(problem: ConvProblem) -> Callable[[Array, Array], Array]:
    """(lhs, rhs) -> out by lax."""
    p = problem
    if p.is_empty:
        return lambda lhs, rhs: jnp.zeros(p.out_shape, p.out_dtype)
    if _mixes_float8(p):
        return converted("conv", p, in_float32(p), lax_conv)

    @by_lax
    def conv(lhs: Array, rhs: Array) -> Array:
        out_spec = p.out_spec
        out = lax.conv_general_dilated(
            lhs,
            (other_filter(p, rhs) if p.reverse else rhs).astype(lhs.dtype),
            p.window_strides,
            p.padding,
            p.lhs_dilation,
            p.rhs_dilation,
            lax.ConvDimensionNumbers(p.lhs_spec.axes, p.rhs_spec.axes, out_spec.axes),
            feature_group_count=1 if p.lhs_batch_grouped else p.groups,
            batch_group_count=p.groups if p.lhs_batch_grouped else 1,
            precision=precision_of_lax(p.precision),
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
    if _mixes_float8(problem):
        return converted("wgrad", problem, in_float32(problem), lax_wgrad)
    if jnp.issubdtype(rhs.dtype, jnp.integer):  # lax does not transpose these
        return _lax_wgrad_as_conv(problem)
    forward = lax_conv(problem)
    return lambda lhs, out: jax.linear_transpose(lambda w: forward(lhs, w), rhs)(out)[0]


def _mixes_float8(p: ConvProblem) -> bool:
    """Whether there is float8 and another type: lax has no such convolutions."""
    return has_float8(p) and not p.lhs_dtype == p.rhs_dtype == p.out_dtype


def _lax_wgrad_as_conv(problem: ConvProblem) -> Callable[[Array, Array], Array]:
    """The same as the convolution that it is, whose filter has its groups on the output channels."""
    regrouped, by_channels = lambda out: out, problem
    if problem.out_batch_grouped:
        shape, (images, channels, _) = list(problem.out_shape), problem.out_spec
        shape[images] //= problem.groups
        shape[channels] *= problem.groups
        by_channels = dataclasses.replace(problem, out_batch_grouped=False, out_shape=tuple(shape))
        regrouped = lambda out: fold(*unfold(out, problem.groups, problem, "out", "g"), by_channels, "out", "g")
    conv = lax_conv(exchanged(by_channels))
    return lambda lhs, out: conv(lhs, regrouped(out))


LAX = {"conv": lax_conv, "wgrad": lax_wgrad}
