"""From arguments to a problem.

lax itself reads and checks the arguments: its function is traced on the operands' types, once for each signature, and
the problem is made from the equation that comes out. So defaults, exceptions, result types, precision and shardings
are those of lax by construction. Errors that lax finds only while lowering are checked here first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding

from jaxconv.problem import ConvProblem, algorithms

Arguments = tuple[tuple[str, Any], ...]  # by name, hashable


def normalised(lhs, rhs, arguments: dict[str, Any]) -> Arguments:
    """The arguments as tuples of integers, after the checks that lax makes only while lowering."""
    arguments = dict(arguments)
    for name in ("window_strides", "strides", "lhs_dilation", "rhs_dilation"):
        values = arguments.get(name)
        if values is None:
            continue
        try:
            values = arguments[name] = tuple(operator.index(v) for v in values)
        except TypeError as e:
            raise TypeError(f"{name} must be a sequence of integers, got {values!r}") from e
        if len(values) != lhs.ndim - 2 and lhs.ndim == rhs.ndim:
            raise ValueError(f"{name} must have an entry for each of {lhs.ndim - 2} spatial dimensions, got {values}")
        if name == "window_strides" and any(v < 1 for v in values):
            raise ValueError(f"{name} must be positive integers, got {values}")
    padding = arguments["padding"]
    if not isinstance(padding, str):
        try:
            arguments["padding"] = tuple((operator.index(low), operator.index(high)) for low, high in padding)
        except (TypeError, ValueError) as e:
            raise ValueError(f"padding must be a string or a sequence of (low, high) pairs, got {padding!r}") from e
    return tuple((name, _hashable(value)) for name, value in arguments.items())


def as_array(x) -> Array:
    """`jnp.asarray`, which differentiates and maps a cast of a tracer, even one to its own dtype."""
    return x if isinstance(x, Array) else jnp.asarray(x)


def circular_dimensions(padding: Any, rank: int) -> tuple[int, ...]:
    """The spatial dimensions whose padding is "CIRCULAR"."""
    entries = (padding,) * rank if isinstance(padding, str) else padding
    is_circular = lambda entry: isinstance(entry, str) and entry.upper() == "CIRCULAR"
    return tuple(i for i, entry in enumerate(entries) if is_circular(entry)) if np.iterable(entries) else ()


@partial(jax.jit, static_argnames=("lax_function", "arguments"))
def _traced(lhs, rhs, lax_function, arguments):
    return lax_function(lhs, rhs, **dict(arguments))


def read(lax_function: Callable, lhs, rhs, arguments: Arguments) -> tuple[ConvProblem, NamedSharding]:
    """The problem of lax's function for normalised arguments, and the sharding of its result."""
    jaxpr = _traced.trace(lhs, rhs, lax_function=lax_function, arguments=arguments).jaxpr
    (equation,) = (e for e in jaxpr.eqns if e.primitive is lax.conv_general_dilated_p)
    (lhs_aval, rhs_aval), out = (v.aval for v in equation.invars), jaxpr.out_avals[0]
    problem = ConvProblem.from_lax(lhs_aval, rhs_aval, out, equation.params)
    if 0 in problem.kernel:  # lax finds it while lowering
        raise ValueError(f"rhs must have a positive size in each spatial dimension, got {problem.kernel}")
    if problem.rhs_dtype in (np.float32, np.complex64) and (reason := algorithms.unsupported_reason(problem.precision)):
        raise ValueError(f"precision must be one that lax.conv_general_dilated has, and {reason}")
    return problem, out.sharding


def _hashable(value):
    """Sequences as tuples: lax takes lists and arrays, jit's static arguments do not."""
    if isinstance(value, list | np.ndarray) or type(value) is tuple:
        return tuple(_hashable(v) for v in value)
    return value
