"""`python -m jaxconv explain module:function`: what `jaxconv.explain` prints, as a table."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Callable, Sequence

import jax

from jaxconv.explain import Answer, answers

HEADER = ("pass", "problem", "answered by", "time", "why not others")
WIDTHS = (14, 44, 26, 20, 70)


class NoSuchFunction(LookupError):
    """The name on the command line is of no module, or of no function in it."""


def function_of(name: str) -> Callable:
    """The function of "module:function". What the module raises while it is imported is not caught."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name or module_name.startswith("."):
        raise NoSuchFunction(f"the function must be named as module:function, got {name!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):  # the module is there, and imports one that is not
            raise
        raise NoSuchFunction(f"no such module: {module_name}") from None
    if not hasattr(module, function_name):
        raise NoSuchFunction(f"module {module_name} has no {function_name}")
    function = getattr(module, function_name)
    if not callable(function):
        raise NoSuchFunction(f"{name} is not a function, but of type {type(function).__name__}")
    return function


def array_of(text: str) -> jax.ShapeDtypeStruct:
    """The type of an array, from a text such as "float32[8,32,32,3]"."""
    match = re.fullmatch(r"(\w+)\[((?:\d+(?:,\d+)*)?)\]", text.replace(" ", ""))
    try:
        if match is None:
            raise TypeError
        shape = tuple(int(size) for size in match[2].split(",") if size)
        return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(match[1]))
    except TypeError:
        raise argparse.ArgumentTypeError(f"an argument must be written as float32[8,32,32,3], got {text!r}") from None


def table(function: Callable, arguments: Sequence[jax.ShapeDtypeStruct]) -> str:
    """A row for each convolution of the function, which is traced on arrays of these types."""
    try:
        from tabulate import tabulate
    except ImportError as error:
        raise ImportError("python -m jaxconv explain needs tabulate: pip install 'jaxconv[explain]'") from error
    rows = [_row(answer) for answer in answers(function, *arguments)]
    if not rows:
        return "The function's results need no convolution."
    return tabulate(rows, HEADER, tablefmt="grid", maxcolwidths=list(WIDTHS))


def _row(answer: Answer) -> tuple[str, ...]:
    others = [f"{what}: {why}" for what, why in answer.others]
    reasons = [answer.reason, *others] if answer.reason else others
    return answer.name, str(answer.problem), answer.by, answer.time or "", "\n".join(reasons)
