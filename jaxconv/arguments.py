"""From arguments to a problem.

lax itself reads and checks the arguments: its function is traced on the operands' types, once for each signature, and
the problem is made from the equation that comes out. So defaults, exceptions, result types, precision and shardings
are those of lax by construction. Errors that lax finds only while lowering are checked here first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from jaxconv.problem import ConvProblem, algorithms

Arguments = tuple[tuple[str, Any], ...]  # by name, hashable


def normalised(lhs: Array, rhs: Array, arguments: dict[str, Any]) -> Arguments:
    """The arguments as tuples of integers, after the checks that lax makes only while lowering."""
    arguments = dict(arguments)
    rank = lhs.ndim - 2 if lhs.ndim == rhs.ndim >= 2 else None  # lax finds that there is none
    finds_missing = "strides" in arguments  # as conv_transpose does
    for name in ("window_strides", "strides", "lhs_dilation", "rhs_dilation"):
        if arguments.get(name) is not None:
            arguments[name] = of_dimensions(name, arguments[name], rank, TypeError if finds_missing else ValueError)
    _check_axes(lhs, rhs, arguments["dimension_numbers"])
    algorithms.check_pair(arguments.get("precision"))
    if not isinstance(arguments["padding"], str):
        arguments["padding"] = pairs(arguments["padding"])
    return _hashable(tuple((name, _as_tuples(value)) for name, value in arguments.items()))


def of_dimensions(
    name: str, values: Any, rank: int | None, if_missing: type[Exception] = ValueError
) -> tuple[int, ...]:
    """A stride or a dilation for each dimension. rank: how many there are, if that is known."""
    try:
        if isinstance(values, Set):
            raise TypeError("a set has no order")
        numbers = tuple(map(operator.index, values))
    except TypeError as e:
        raise TypeError(f"{name} must be a sequence of integers, got {values!r}") from e
    if rank is not None:
        check_length(name, numbers, rank, if_missing if len(numbers) < rank else ValueError)
    if name != "strides" and min(numbers, default=1) < 1:  # conv_transpose finds those
        error = TypeError if "dilation" in name else ValueError  # as lax
        raise error(f"{name} must be positive integers, got {numbers}")
    return numbers


def repeated(name: str, value: Any, rank: int) -> Any:
    """One integer for all dimensions as a sequence; a sequence as it is."""
    if isinstance(value, int):
        return (value,) * rank
    if np.ndim(value):
        return value
    try:
        return (operator.index(value),) * rank
    except TypeError as e:
        raise TypeError(f"{name} must be an integer or a sequence of integers, got {value!r}") from e


def check_length(name: str, values: Sequence[Any], rank: int, error: type[Exception] = ValueError) -> None:
    if len(values) != rank:
        raise error(f"{name} must have an entry for each of {rank} spatial dimensions, got {values}")


def pairs(padding: Any) -> tuple[tuple[int, int], ...]:
    try:
        return tuple((operator.index(low), operator.index(high)) for low, high in padding)
    except (TypeError, ValueError) as e:
        raise ValueError(f"padding must be a string or a sequence of (low, high) pairs, got {padding!r}") from e


def _check_axes(lhs: Array, rhs: Array, numbers: Any) -> None:
    """Of an order of axes as numbers. One of names is checked by lax, and a tuple of tuples is refused by it."""
    if isinstance(numbers, lax.ConvDimensionNumbers):
        for axes in map(tuple, numbers):
            if len({*axes}) < len(axes) or len(axes) != lhs.ndim or min(axes) < 0:
                raise ValueError(f"dimension_numbers must have each of {lhs.ndim} axes once, got {numbers}")
    elif isinstance(numbers, tuple | list) and not all(isinstance(axes, str) for axes in numbers):
        lax.conv_dimension_numbers(lhs.shape, rhs.shape, numbers)


def check_array(name: str, x: Any) -> None:
    """Raises TypeError or ValueError for an array of numpy's that JAX does not take, as one of big-endian numbers.
    `jax.jit` would read its bytes as those of an array for which there is a program already."""
    try:
        if isinstance(x, np.ndarray):
            jax.typeof(x)
    except (TypeError, ValueError) as e:
        raise type(e)(f"{name} must be an array that JAX takes: {e}") from e


def check_is_array(name: str, x: Any) -> None:
    """`check_array` of what must be one: AttributeError, as from lax, if it is none."""
    if not hasattr(x, "ndim"):
        raise AttributeError(f"{name} must be an array, got {type(x).__name__}")
    check_array(name, x)


def as_array(x: ArrayLike) -> Array:
    """`jnp.asarray`, which differentiates and maps a cast of a tracer, even one to its own dtype."""
    return x if isinstance(x, Array) else jnp.asarray(x)


def circular_dimensions(padding: Any, rank: int) -> tuple[int, ...]:
    """The spatial dimensions whose padding is "CIRCULAR"."""
    entries = (padding,) * rank if isinstance(padding, str) else padding
    is_circular = lambda entry: isinstance(entry, str) and entry.upper() == "CIRCULAR"
    return tuple(i for i, entry in enumerate(entries) if is_circular(entry)) if np.iterable(entries) else ()


@partial(jax.jit, static_argnames=("lax_function", "arguments"))
def _traced(lhs: Array, rhs: Array, lax_function: Callable[..., Array], arguments: Arguments) -> Array:
    return lax_function(lhs, rhs, **dict(arguments))


def read(
    lax_function: Callable[..., Array], lhs: Array, rhs: Array, arguments: Arguments
) -> tuple[ConvProblem, NamedSharding]:
    """The problem of lax's function for normalised arguments, and the sharding of its result."""
    jaxpr = _traced.trace(lhs, rhs, lax_function=lax_function, arguments=arguments).jaxpr
    (equation,) = (e for e in jaxpr.eqns if e.primitive is lax.conv_general_dilated_p)
    (lhs_aval, rhs_aval), out = (v.aval for v in equation.invars), jaxpr.out_avals[0]
    problem = ConvProblem.from_lax(lhs_aval, rhs_aval, out, equation.params)
    if 0 in problem.kernel:  # lax finds it while lowering
        raise ValueError(f"rhs must have a positive size in each spatial dimension, got {problem.kernel}")
    if problem.rhs_dtype in (np.float32, np.complex64) and (reason := algorithms.unsupported_reason(problem.precision)):
        name = "precision" if dict(arguments)["precision"] is not None else "jax.default_matmul_precision"
        raise ValueError(f"{name} must be one that convolutions have, and {reason}")
    return problem, out.sharding


def _hashable(arguments: Arguments) -> Arguments:
    try:
        hash(arguments)
    except TypeError:
        for name, value in arguments:
            try:
                hash(value)
            except TypeError as e:
                raise TypeError(f"{name} must be hashable, got {value!r}") from e
    return arguments


def _as_tuples(value: Any) -> Any:
    """Sequences as tuples: lax takes lists and arrays, jit's static arguments do not."""
    if isinstance(value, list) or type(value) is tuple or (isinstance(value, np.ndarray) and value.ndim):
        return tuple(map(_as_tuples, value))
    return value
